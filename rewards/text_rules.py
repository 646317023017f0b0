"""Rules for rendered text: what was read against what was asked for. They know strings only."""

from __future__ import annotations

from rapidfuzz.distance import Levenshtein


def exact(read: str, wanted: str) -> float:
    """1 if the texts are the same apart from case and spaces, else 0."""
    return float(_plain(read) == _plain(wanted))


def edit(read: str, wanted: str) -> float:
    """``1 - min(d, n) / n`` in [0, 1]: ``d`` = Levenshtein distance, ``n`` = length of the wanted.

    Case and spaces do not count. This is Flow-GRPO's OCR reward (arXiv 2505.05470, section 4.1)
    without its shortcut that any text around the wanted one is free.

    Raises:
        ValueError: if nothing is wanted.
    """
    target = _plain(wanted)
    if not target:
        raise ValueError("the wanted text is empty")
    distance = Levenshtein.distance(_plain(read), target)
    return 1 - min(distance, len(target)) / len(target)


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
