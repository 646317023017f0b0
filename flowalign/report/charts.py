"""Inline SVG line charts. Colours come from the style sheet: dark mode needs no second chart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flowalign.report.markup import EMPTY, Html, element, join, number, text
from flowalign.report.records import Array
from flowalign.report.scale import Frame, spread, ticks, whole_ticks

Format = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. ``style`` is a class of the style sheet: ``raw``, ``smooth`` or ``points``."""

    label: str
    xs: Array
    ys: Array
    style: str
    error: Array | None = None  # half-width of an error bar at each point


@dataclass(frozen=True, kw_only=True)
class Band:
    """A shaded region around a curve."""

    xs: Array
    low: Array
    high: Array


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A chart over iterations: what is drawn, and how it is said."""

    title: str
    lines: Sequence[Line]
    band: Band | None = None
    floor: float | None = None  # natural lower bound of the values
    height: float = 200.0
    last_step: float = 0.0  # right end of the axis, where longer than the data
    form: Format = number


def line_chart(plot: Plot) -> Html:
    """The chart as one ``<svg>``; hovering or the arrow keys show the values (``report.js``)."""
    frame = _frame(plot)
    layers = [_grid(frame, plot.form)]
    if plot.band:
        area = frame.area(plot.band.xs, plot.band.low, plot.band.high)
        layers.append(element("path", class_="band", d=area))
    layers += [_line(frame, line) for line in plot.lines]
    layers.append(_gaps(frame, plot.lines))
    guide = element("line", class_="guide", y1=frame.top, y2=frame.height - frame.bottom)
    xs = plot.lines[0].xs
    rows = [{"label": line.label, "values": _spoken(line, xs, plot.form)} for line in plot.lines]
    return element(
        "svg",
        *layers,
        guide,
        class_="chart",
        viewBox=f"0 0 {frame.width:g} {frame.height:g}",
        role="img",
        tabindex=0,
        aria_label=summary(plot),
        data_steps=json.dumps([int(x) for x in xs]),
        data_places=json.dumps([frame.px(x) for x in xs]),
        data_rows=json.dumps(rows, ensure_ascii=False),
    )


def summary(plot: Plot) -> str:
    """The chart in a sentence, for those who cannot see it."""
    said = []
    for line in plot.lines:
        good = line.ys[np.isfinite(line.ys)]
        if not len(good):
            said.append(f"{line.label}: no finite value")
            continue
        first, last, low, high = good[0], good[-1], good.min(), good.max()
        said.append(
            f"{line.label}: from {plot.form(first)} to {plot.form(last)}, "
            f"lowest {plot.form(low)}, highest {plot.form(high)}"
        )
    return f"{plot.title} over iterations. {'. '.join(said)}."


def _frame(plot: Plot) -> Frame:
    drawn = [line.ys for line in plot.lines]
    drawn += [line.ys + side * line.error for line in plot.lines if line.error is not None
              for side in (-1, 1)]  # fmt: skip
    drawn += [plot.band.low, plot.band.high] if plot.band else []
    xs = np.concatenate([line.xs for line in plot.lines])
    return Frame(
        width=420,
        height=plot.height,
        left=44,
        right=12,
        top=10,
        bottom=24,
        x=(float(xs.min()), max(float(xs.max()), plot.last_step)),
        y=spread(*drawn, floor=plot.floor),
    )


def _grid(frame: Frame, form: Format) -> Html:
    marks: list[Html] = []
    values = ticks(*frame.y, count=4)
    for value, words in zip(values, _tick_labels(values, form), strict=True):
        y = frame.py(value)
        marks.append(
            element("path", class_="grid", d=f"M{frame.left:g},{y}H{frame.width - frame.right:g}")
        )
        marks.append(
            element("text", text(words), class_="tick", x=frame.left - 7, y=y + 3.5,
                    text_anchor="end")
        )  # fmt: skip
    bottom = frame.height - frame.bottom
    steps = whole_ticks(*frame.x, count=5)
    marks.append(
        element(
            "path", class_="axis", d=f"M{frame.left:g},{bottom:g}H{frame.width - frame.right:g}"
        )
    )
    for value in steps or [frame.x[0]]:
        marks.append(
            element("text", text(f"{value:,.0f}"), class_="tick", x=frame.px(value), y=bottom + 16,
                    text_anchor="middle")
        )  # fmt: skip
    return element("g", *marks, aria_hidden="true")


def _tick_labels(values: Sequence[float], form: Format) -> list[str]:
    """Labels with as many digits as it takes to tell the ticks apart."""
    labels = [form(value) for value in values]
    digits = 4
    while form is number and len(set(labels)) < len(labels) and digits < 9:
        labels = [number(value, digits) for value in values]
        digits += 1
    return labels


def _line(frame: Frame, line: Line) -> Html:
    path = frame.path(line.xs, line.ys)
    if not path:
        return EMPTY
    drawn = element("path", class_=f"line {line.style}", d=path)
    if line.error is None:
        return drawn
    bars = [
        element("path", class_="whisker", d=f"M{frame.px(x)},{frame.py(y - e)}V{frame.py(y + e)}")
        for x, y, e in zip(line.xs, line.ys, line.error, strict=True)
        if math.isfinite(y) and math.isfinite(e)
    ]
    dots = [
        element("circle", class_="dot", cx=frame.px(x), cy=frame.py(y), r=4)
        for x, y in zip(line.xs, line.ys, strict=True)
        if math.isfinite(y)
    ]
    return element("g", drawn, *bars, *dots)


def _gaps(frame: Frame, lines: Sequence[Line]) -> Html:
    """A mark on the axis wherever the run recorded a value that is not finite."""
    bottom = frame.height - frame.bottom
    first = lines[0]
    marks = [
        f"M{frame.px(x)},{bottom - 7:g}v7"
        for x, y in zip(first.xs, first.ys, strict=True)
        if not math.isfinite(y)
    ]
    return element("path", class_="gap", d="".join(marks)) if marks else EMPTY


def _spoken(line: Line, xs: Array, form: Format) -> list[str]:
    """What the tooltip says at each of ``xs``."""
    values = dict(zip(line.xs.tolist(), range(len(line.xs)), strict=True))
    said = []
    for x in xs.tolist():
        place = values.get(x)
        if place is None:
            said.append("")
            continue
        y = float(line.ys[place])
        words = form(y) if math.isfinite(y) else "not finite"
        error = math.nan if line.error is None else float(line.error[place])
        said.append(f"{words} ± {form(error)}" if math.isfinite(error) else words)
    return said


def legend(*entries: tuple[str, str]) -> Html:
    """``(style, words)`` pairs under a chart."""
    keys = (
        element("span", element("i", class_=f"key {style}"), text(words))
        for style, words in entries
    )
    return element("p", join(keys), class_="legend")
