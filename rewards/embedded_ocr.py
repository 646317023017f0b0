"""Signs of the embedded world: does the glyph reader read what the prompt quotes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from flowalign.embedded.reader import read
from flowalign.rewards import text_rules
from flowalign.rewards.base import RewardBase
from flowalign.types import Metadata

Rule = Literal["exact", "edit", "mixed"]


class EmbeddedOCR(RewardBase):
    """Score of signs against the metadata's ``text``, in [0, 1].

    Args:
        rule: ``exact`` = 1 for the right word, else 0; ``edit`` = 1 - edit distance / length;
            ``mixed`` = their mean, the usual training reward. See ``text_rules``.

    Raises:
        ValueError: for another rule.
    """

    name: ClassVar[str] = "embedded_ocr"
    needs: ClassVar[frozenset[str]] = frozenset({"text"})

    def __init__(self, rule: Rule = "mixed") -> None:
        if rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
        self.rule = rule

    def score(self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Tensor:
        """Scores ``(B,)`` of pictures ``(B, 3, H, H)`` in [0, 1]."""
        texts = [(seen, str(m["text"])) for seen, m in zip(read(media), metadata, strict=True)]
        exact = torch.tensor([text_rules.exact(*pair) for pair in texts], device=media.device)
        edit = torch.tensor([text_rules.edit(*pair) for pair in texts], device=media.device)
        return {"exact": exact, "edit": edit, "mixed": (exact + edit) / 2}[self.rule]
