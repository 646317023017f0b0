"""HTML as a type: the type checker refuses text that was not escaped; and number formats."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import NewType

Html = NewType("Html", str)
"""Markup that is safe to place into the page: the result of `text` or `element`, nothing else."""

EMPTY = Html("")
_VOID = frozenset({"img", "br", "hr"})
MINUS = "\N{MINUS SIGN}"
NOT_KNOWN = "\N{EN DASH}"


def text(value: object) -> Html:
    """``value`` as escaped text, quotes included."""
    return Html(html.escape(str(value), quote=True))


def join(parts: Iterable[Html], between: str = "") -> Html:
    """Markup in a row; ``between`` is a constant of ours, never data."""
    return Html(between.join(parts))


def element(name: str, *children: Html, **attributes: object) -> Html:
    """``<name ...>children</name>``.

    Attribute values are escaped; ``None`` and ``False`` leave the attribute out, ``True`` writes it
    bare. ``class_`` becomes ``class`` and ``data_tip`` becomes ``data-tip``.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def number(value: float, digits: int = 3) -> str:
    """``value`` to ``digits`` significant digits: ``0.0142``, ``2e-5``, ``1,234``."""
    if not math.isfinite(value):
        return NOT_KNOWN
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}".replace("-", MINUS)
    places = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
    written = f"{value:,.{max(places, 0)}f}"
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return written.replace("-", MINUS)


def score(value: float) -> str:
    """A benchmark score with a fixed number of decimals, so that scores line up: ``0.310``."""
    if not math.isfinite(value):
        return NOT_KNOWN
    return f"{value:.{3 if abs(value) < 10 else 2}f}".replace("-", MINUS)


def signed(value: float, scale: float | None = None) -> str:
    """A difference with its sign: ``+0.142``, ``-0.008``; decimals as for scores near ``scale``."""
    if not math.isfinite(value):
        return NOT_KNOWN
    places = 3 if abs(value if scale is None else scale) < 10 else 2
    return f"{value:+.{places}f}".replace("-", MINUS)


def percent(share: float) -> str:
    """``0.123`` as ``12.3 %``; no decimals from ten percent on."""
    if not math.isfinite(share):
        return NOT_KNOWN
    return f"{100 * share:.{0 if share >= 0.0995 or share == 0 else 1}f}\N{NO-BREAK SPACE}%"


def duration(seconds: float) -> str:
    """``512.3`` as ``8 min 32 s``."""
    if not math.isfinite(seconds):
        return NOT_KNOWN
    if seconds < 60:
        return f"{number(seconds)}\N{NO-BREAK SPACE}s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    parts = [(hours, "h"), (minutes, "min")] if hours else [(minutes, "min"), (rest, "s")]
    return " ".join(f"{value}\N{NO-BREAK SPACE}{unit}" for value, unit in parts)


def plural(count: int, noun: str) -> str:
    """``1 picture``, ``1,200 pictures``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
