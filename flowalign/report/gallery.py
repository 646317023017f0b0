"""The same prompts and the same noise, before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flowalign.report.compare import Comparison, Pair
from flowalign.report.markup import EMPTY, Html, element, join, number, plural, text
from flowalign.report.pictures import Album, Picture
from flowalign.report.records import Run, Sample

_SIGNS = {
    1: ("better", "▲", "improved"),
    -1: ("worse", "▼", "worse"),
    0: ("same", "=", "unchanged"),
}
_PIXEL_ART = 96  # pictures up to this size are enlarged without smoothing


@dataclass(frozen=True, kw_only=True)
class _Card:
    """What the grid shows of one prompt and seed."""

    prompt: str
    tag: str
    change: float  # NaN if there is nothing to compare
    shots: Sequence[tuple[str, Sample, Picture]]

    @property
    def sign(self) -> int | None:
        if not math.isfinite(self.change):
            return None
        return (self.change > 0) - (self.change < 0)


def gallery(run: Run, comparison: Comparison | None, album: Album) -> Html:
    """The section; empty if the run kept no pictures."""
    if comparison is not None and comparison.pairs:
        cards = [_pair(album, pair) for pair in comparison.pairs]
        title, lead = "The same prompts, before and after", _lead(comparison)
    elif run.before is not None:
        shown = run.after or run.before
        cards = [_single(album, sample) for sample in shown.samples]
        title, lead = "Pictures of the evaluation", ""
    else:
        return EMPTY
    kept = [card for card in cards if card is not None]
    if not kept:
        return EMPTY
    return element(
        "section",
        element("h2", text(title), id="pictures"),
        element("p", text(f"{lead}{_selection(len(kept), len(cards))}"), class_="lead"),
        _controls(kept),
        element("ul", *(_card(card, place) for place, card in enumerate(kept)), class_="gallery"),
        element("p", text("No picture matches."), class_="none", hidden=True),
        aria_labelledby="pictures",
    )


def _pair(album: Album, pair: Pair) -> _Card | None:
    before, after = album(pair.before.image), album(pair.after.image)
    if before is None or after is None:
        return None
    return _Card(
        prompt=pair.after.prompt,
        tag=pair.after.tag,
        change=pair.change,
        shots=[("before", pair.before, before), ("after", pair.after, after)],
    )


def _single(album: Album, sample: Sample) -> _Card | None:
    picture = album(sample.image)
    if picture is None:
        return None
    return _Card(
        prompt=sample.prompt, tag=sample.tag, change=math.nan, shots=[("", sample, picture)]
    )


def _lead(comparison: Comparison) -> str:
    same = "" if comparison.differences else "Each pair starts from the same noise. "
    return (
        f"{same}Of {plural(len(comparison.pairs), 'picture')}, "
        f"{comparison.count(1):,} improved, {comparison.count(-1):,} got worse and "
        f"{comparison.count(0):,} kept their score. "
    )


def _selection(kept: int, total: int) -> str:
    if kept == total:
        return "All of them are shown."
    return (
        f"Shown are {kept:,} of {total:,}: those that the run kept, spread evenly over the prompts."
    )


def _controls(cards: Sequence[_Card]) -> Html:
    """Filters and order; without a script they stay hidden and everything is shown."""
    signs = Counter(card.sign for card in cards)
    tags = Counter(card.tag for card in cards)
    groups = []
    if set(signs) != {None}:
        choices = [("all", f"all {len(cards)}")]
        choices += [(style, f"{mark} {words} {signs[sign]}") for sign, (style, mark, words)
                    in _SIGNS.items()]  # fmt: skip
        groups.append(_buttons("sign", "Change of the score", choices))
    if len(tags) > 1:
        choices = [("all", "every task")] + [(tag, f"{_plain(tag)} {n}") for tag, n in tags.items()]
        groups.append(_buttons("task", "Task", choices))
    if set(signs) != {None}:
        orders = [("order", "as evaluated"), ("gain", "best first"), ("loss", "worst first")]
        groups.append(_buttons("sort", "Order", orders))
    return element("div", *groups, class_="controls", hidden=True)


def _buttons(name: str, label: str, choices: Sequence[tuple[str, str]]) -> Html:
    buttons = (
        element(
            "button",
            text(words),
            type="button",
            data_control=name,
            data_value=value,
            aria_pressed="true" if place == 0 else "false",
        )
        for place, (value, words) in enumerate(choices)
    )
    return element("div", *buttons, class_="buttons", role="group", aria_label=label)


def _card(card: _Card, place: int) -> Html:
    style, mark, words = ("", "", "") if card.sign is None else _SIGNS[card.sign]
    badge = EMPTY
    if card.sign is not None:
        change = _change(card.change) if card.change else words
        badge = element("span", text(f"{mark} {change}"), class_=f"badge {style}")
    return element(
        "li",
        element("div", *(_shot(*shot) for shot in card.shots), class_="shots"),
        element("p", text(card.prompt), class_="prompt"),
        element("p", element("span", text(_plain(card.tag)), class_="tag"), badge, class_="facts"),
        class_="card",
        data_sign=style,
        data_task=card.tag,
        data_place=place,
        data_change=f"{card.change:.6g}" if card.sign is not None else None,
    )


def _shot(label: str, sample: Sample, picture: Picture) -> Html:
    small = max(picture.width, picture.height) <= _PIXEL_ART
    image = element(
        "img",
        src=picture.uri,
        alt=f"{label.capitalize()}: {sample.prompt}" if label else sample.prompt,
        title=f"seed {sample.seed}",
        class_="pixels" if small else None,
        width=picture.width,
        height=picture.height,
    )
    caption = join([text(label), element("b", text(number(sample.score)))], " ")
    return element("figure", image, element("figcaption", caption))


def _change(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def _plain(tag: str) -> str:
    return tag.replace("_", " ")
