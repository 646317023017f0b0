"""Scores by task: paired bars with their standard errors, as a table that can be read aloud."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowalign.report.compare import Change, Comparison, Verdict
from flowalign.report.markup import EMPTY, Html, element, join, number, plural, score, signed, text
from flowalign.report.records import Evaluation, TaskScore
from flowalign.report.scale import ticks
from flowalign.report.words import benchmark_name

_MARKS = {
    Verdict.BETTER: ("better", "▲", "beyond noise"),
    Verdict.WORSE: ("worse", "▼", "beyond noise"),
    Verdict.NOISE: ("same", "", "within noise"),
    Verdict.UNKNOWN: ("same", "", ""),
    Verdict.INCOMPARABLE: ("same", "", "not comparable"),
}


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """The range of the bars, in scores."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Percent from the left."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)


def tasks(
    before: Evaluation | None, after: Evaluation | None, comparison: Comparison | None
) -> Html:
    """The section; empty if no evaluation has tasks."""
    sides = [(label, side) for label, side in (("before", before), ("after", after)) if side]
    names = sorted({name for _, side in sides for name in side.tasks})
    if not names:
        return EMPTY
    axis = _axis(
        [side.tasks[name] for _, side in sides for name in side.tasks if name in side.tasks]
    )
    changes: Mapping[str, Change] = comparison.tasks if comparison else {}
    fair = comparison is None or not comparison.differences
    rows = [
        _row(name, [(label, side.tasks.get(name)) for label, side in sides], axis,
             changes.get(name), fair)
        for name in names
    ]  # fmt: skip
    keys = [element("span", element("i", class_=f"key bar {label}"), text(label))
            for label, _ in sides]  # fmt: skip
    keys.append(element("span", text("whiskers: one standard error")))
    return element(
        "section",
        element("h2", text(f"{benchmark_name(sides[-1][1])} by task"), id="tasks"),
        element("p", *keys, class_="legend"),
        element("table", _head(axis, len(sides) == 2), element("tbody", *rows), class_="tasks"),
        _scorings(sides),
        aria_labelledby="tasks",
    )


def _axis(scores: Sequence[TaskScore]) -> _Axis:
    tips = [0.0]
    for task in scores:
        error = task.stderr if math.isfinite(task.stderr) else 0.0
        tips += [end for end in (task.score - error, task.score + error) if math.isfinite(end)]
    low, high = min(tips), max(tips)
    if 0.5 < high <= 1:
        high = 1.0
    return _Axis(low=low if low < 0 and min(t.score for t in scores) < 0 else 0.0, high=high or 1.0)


def _head(axis: _Axis, two: bool) -> Html:
    marks = (
        element("span", text(number(value)), style=f"left:{axis.place(value)}%")
        for value in ticks(axis.low, axis.high, 4)
    )
    scale = element("div", *marks, class_="scale", aria_hidden="true")
    said = element("span", text("Score"), class_="unseen")
    cells = [element("th", text("Task"), scope="col"), element("th", said, scale, scope="col")]
    if two:
        cells.append(element("th", text("Change"), scope="col", class_="change"))
    return element("thead", element("tr", *cells))


def _row(
    name: str,
    sides: Sequence[tuple[str, TaskScore | None]],
    axis: _Axis,
    change: Change | None,
    fair: bool,
) -> Html:
    counts = {side.n for _, side in sides if side}
    title = element(
        "th",
        text(name.replace("_", " ")),
        element("small", text(plural(max(counts), "picture"))),
        scope="row",
    )
    bars = element("td", *(_bar(label, side, axis) for label, side in sides))
    if len(sides) == 1:
        return element("tr", title, bars)
    return element("tr", title, bars, _change(change, fair))


def _bar(label: str, task: TaskScore | None, axis: _Axis) -> Html:
    if task is None or not math.isfinite(task.score):
        return element("div", element("span", text(f"{label}: no score")), class_="track")
    zero, tip = sorted((axis.place(0), axis.place(task.score)))
    parts = [element("i", class_=f"bar {label}", style=f"left:{zero}%;width:{tip - zero:.2f}%")]
    known = math.isfinite(task.stderr)
    end = axis.place(task.score)
    if known and task.stderr > 0:
        low, end = axis.place(task.score - task.stderr), axis.place(task.score + task.stderr)
        parts.append(element("i", class_="error", style=f"left:{low}%;width:{end - low:.2f}%"))
    words = score(task.score) + (f" ± {score(task.stderr)}" if known else "")
    unseen = element("span", text(f"{label} "), class_="unseen")
    parts.append(
        element("span", unseen, text(words), class_="value", style=f"left:{max(zero, tip, end)}%")
    )
    return element("div", element("div", *parts, class_="plot"), class_="track")


def _change(change: Change | None, fair: bool) -> Html:
    if change is None:
        return element("td", class_="change")
    style, mark, words = _MARKS[change.verdict if fair else Verdict.INCOMPARABLE]
    lines = [
        element("span", text(f"{mark} {signed(change.value)}".strip()), class_=f"delta {style}"),
        element("small", text(f"± {score(change.stderr)}")) if change.stderr >= 0 else EMPTY,
        element("small", text(words)) if words else EMPTY,
    ]
    return element("td", join(lines), class_="change")


def _scorings(sides: Sequence[tuple[str, Evaluation]]) -> Html:
    """The judge's other rules, where it has more than one."""
    names = list(dict.fromkeys(name for _, side in sides for name in side.metrics))
    if len(names) < 2:
        return EMPTY
    said = []
    for name in names:
        values = (score(side.metrics.get(name, math.nan)) for _, side in sides)
        said.append(f"{name} {' → '.join(values)}")
    return element("p", text(f"By scoring rule: {'; '.join(said)}."), class_="fine")
