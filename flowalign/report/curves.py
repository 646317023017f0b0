"""The curves of a run: rewards, held-out score, and the health of the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowalign.report.charts import Band, Format, Line, Plot, legend, line_chart
from flowalign.report.markup import EMPTY, Html, element, number, percent, plural, score, text
from flowalign.report.records import Run, Series
from flowalign.report.scale import bin_size, smooth, smoothing_width, thin
from flowalign.report.words import benchmark_name


@dataclass(frozen=True, kw_only=True)
class _Metric:
    """How a metric of the trainer is told to a person."""

    title: str
    words: str = ""
    form: Format = number


# The order is that of the page; metrics that are not named here follow in a folded list.
_HEALTH = {
    "zero_variance_groups": _Metric(
        title="Groups without signal",
        words="Share of groups whose pictures all scored the same: they teach nothing.",
        form=percent,
    ),
    "group_std": _Metric(
        title="Spread within groups",
        words="Standard deviation of the reward over the pictures of one prompt.",
    ),
    "approx_kl": _Metric(
        title="Approximate KL", words="Half the mean squared log ratio: how far updates move."
    ),
    "kl": _Metric(title="KL to the reference", words="Divergence from the untrained model."),
    "clip_fraction": _Metric(
        title="Clip fraction",
        words="Share of transitions whose probability ratio left the clip range.",
        form=percent,
    ),
    "ratio/mean": _Metric(
        title="Probability ratio, mean", words="1 where the policy has not moved."
    ),
    "ratio/max_abs_log": _Metric(
        title="Probability ratio, extreme", words="Largest |log ratio| of the iteration."
    ),
    "grad_norm": _Metric(title="Gradient norm", words="Before clipping."),
    "loss": _Metric(title="Loss", words="Of a policy gradient: its level says little."),
    "velocity_norm_ratio": _Metric(
        title="Velocity norm", words="Relative to the reference; far from 1 hints at hacking."
    ),
}
_OTHER = {
    "clip_fraction/low": _Metric(title="Clip fraction, below", form=percent),
    "clip_fraction/high": _Metric(title="Clip fraction, above", form=percent),
    "trained_transitions": _Metric(title="Transitions with signal", form=percent),
    "skipped_updates": _Metric(title="Skipped updates", form=percent),
}


def reward_section(run: Run) -> Html:
    """The trained rewards, raw and smoothed; empty if no iteration is on record."""
    if not run.rewards:
        return EMPTY
    charts = [_reward(run, name) for name in run.rewards]
    return element(
        "section",
        element("h2", text("Reward in training"), id="reward"),
        *charts,
        aria_labelledby="reward",
    )


def _reward(run: Run, name: str) -> Html:
    series = run.metrics[f"reward/{name}/mean"]
    band = _group_band(run, series)
    plot = _curve(run, series, title=name, band=band, height=220)
    size = max(1, len(series.finite) // 10)
    words = "No finite value is on record."
    if len(series.finite):
        first, last = series.finite[:size].mean(), series.finite[-size:].mean()
        over = f" (mean of the first {size:,} iterations)" if size > 1 else ""
        words = f"From {number(first)}{over} to {number(last)}{' (of the last)' if over else ''}."
    entries = [("raw", "mean of an iteration"), ("smooth", "smoothed")]
    entries += [("band", "± spread within a group")] if band else []
    notes = [
        element("h3", text(name)),
        element("p", text(words)),
        element("p", text("On training prompts, with the exploring sampler: the evaluation on "
                          "held-out prompts is the one to judge by."), class_="fine"),
        _legend(series, entries),
    ]  # fmt: skip
    return element(
        "div", element("figure", line_chart(plot)), element("div", *notes), class_="told"
    )


def _group_band(run: Run, series: Series) -> Band | None:
    """The spread within groups, known for a single reward only (it is a mean over rewards)."""
    spread = run.metrics.get("group_std")
    if len(run.rewards) != 1 or spread is None or not np.array_equal(spread.steps, series.steps):
        return None
    width, size = smoothing_width(len(series.values)), bin_size(len(series.values))
    middle, half = smooth(series.values, width), smooth(spread.values, width)
    if not np.isfinite(middle + half).any():
        return None
    return Band(
        xs=thin(series.steps, size),
        low=thin(middle - half, size),
        high=thin(middle + half, size),
    )


def _curve(
    run: Run,
    series: Series,
    *,
    title: str,
    band: Band | None = None,
    height: float = 150,
    form: Format = number,
) -> Plot:
    """A raw and a smoothed line."""
    count = len(series.values)
    size = bin_size(count)
    xs = thin(series.steps, size)
    smoothed = smooth(series.values, smoothing_width(count))
    return Plot(
        title=title,
        lines=[
            Line(label="recorded", xs=xs, ys=thin(series.values, size), style="raw"),
            Line(label="smoothed", xs=xs, ys=thin(smoothed, size), style="smooth"),
        ],
        band=band,
        floor=0.0,
        height=height,
        last_step=float(run.planned_steps or 0) if run.status == "running" else 0.0,
        form=form,
    )


def _legend(series: Series, entries: Sequence[tuple[str, str]]) -> Html:
    gaps = [] if len(series.finite) == len(series.values) else [("gap", "not a finite number")]
    return legend(*entries, *gaps)


def evaluation_section(run: Run) -> Html:
    """The held-out score over iterations, if it was measured more often than before and after."""
    if len(run.evaluations) < 3:
        return EMPTY
    name = benchmark_name(run.evaluations[0])
    line = Line(
        label=f"{name} score",
        xs=np.array([float(e.step) for e in run.evaluations]),
        ys=np.array([e.score for e in run.evaluations]),
        style="points",
        error=np.array([e.stderr for e in run.evaluations]),
    )
    best = max(run.evaluations, key=lambda e: e.score if math.isfinite(e.score) else -math.inf)
    plot = Plot(title=f"{name} score", lines=[line], floor=0.0, height=220)
    notes = element(
        "div",
        element("h3", text(f"{name} score")),
        element("p", text(f"Measured {len(run.evaluations)} times on the same held-out prompts. "
                          f"Highest: {score(best.score)} at iteration {best.step:,}.")),
        legend(("points", "score ± one standard error")),
    )  # fmt: skip
    return element(
        "section",
        element("h2", text("Held-out score over iterations"), id="heldout"),
        element("div", element("figure", line_chart(plot)), notes, class_="told"),
        aria_labelledby="heldout",
    )


def health_section(run: Run) -> Html:
    """All other metrics: the telling ones as charts, the rest folded, constants in words."""
    shown = {f"reward/{name}/mean" for name in run.rewards} | {"images"}
    left = {key: series for key, series in run.metrics.items() if key not in shown}
    moving = {key: series for key, series in left.items() if not _constant(series)}
    first = [_small(run, moving[key], metric) for key, metric in _HEALTH.items() if key in moving]
    rest = [
        _small(run, moving[key], _OTHER.get(key, _Metric(title=key)))
        for key in sorted(moving.keys() - _HEALTH.keys())
    ]
    still = [f"{key} {number(left[key].last)}" for key in sorted(left.keys() - moving.keys())]
    if not first and not rest:
        return EMPTY
    parts = [element("div", *first, class_="charts")]
    if rest:
        title = element("summary", text(f"{plural(len(rest), 'more metric')}"))
        parts.append(element("details", title, element("div", *rest, class_="charts")))
    if still:
        parts.append(element("p", text(f"Constant: {', '.join(still)}."), class_="fine"))
    return element(
        "section",
        element("h2", text("Health of the training"), id="health"),
        element(
            "p",
            text("Over iterations; hovering or the arrow keys tell the values."),
            class_="lead fine",
        ),
        *parts,
        aria_labelledby="health",
    )


def _constant(series: Series) -> bool:
    finite = series.finite
    return len(finite) == len(series.values) and bool((finite == finite[0]).all())


def _small(run: Run, series: Series, metric: _Metric) -> Html:
    plot = _curve(run, series, title=metric.title, form=metric.form)
    caption = [element("b", text(metric.title))]
    if metric.title != series.name:
        caption.append(element("code", text(series.name)))
    if metric.words:
        caption.append(element("span", text(metric.words)))
    gaps = len(series.values) - len(series.finite)
    if gaps:
        caption.append(element("span", text(f"{plural(gaps, 'value')} not finite, marked below.")))
    return element("figure", element("figcaption", *caption), line_chart(plot))
