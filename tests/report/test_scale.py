"""Ticks, paths, smoothing and thinning."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowalign.report.charts import Line, Plot, line_chart, summary
from flowalign.report.scale import (
    MOST_POINTS,
    Frame,
    bin_size,
    smooth,
    spread,
    thin,
    ticks,
    whole_ticks,
)

FRAME = Frame(width=110, height=60, left=10, right=0, top=0, bottom=10, x=(0, 10), y=(0, 1))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1]),
        (0.12, 0.47, [0.2, 0.3, 0.4]),
        (-3, 9, [0, 5]),
        (0, 2.1e-6, [0, 1e-6, 2e-6]),
        (5, 5, []),
        (0, math.inf, []),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 4) == pytest.approx(expected)


def test_ticks_of_a_count_are_whole() -> None:
    assert whole_ticks(0, 3, 5) == [0, 1, 2, 3]
    assert whole_ticks(1, 150, 5) == [50, 100, 150]


def test_close_ticks_are_told_apart() -> None:
    xs = np.arange(5.0)
    line = Line(label="r", xs=xs, ys=1 + 1e-4 * xs, style="raw")
    chart = line_chart(Plot(title="ratio", lines=[line]))
    assert ">1.0002<" in chart and ">1.0004<" in chart


def test_path_leaves_gaps_and_draws_lone_points() -> None:
    assert FRAME.path([0, 5, 10], [0, 1, 0.5]) == "M10.0,50.0h0L60.0,0.0L110.0,25.0"
    assert FRAME.path([0, 5, 10], [0, math.nan, 2]) == "M10.0,50.0h0M110.0,0.0h0"
    assert FRAME.path([0], [math.nan]) == ""


def test_spread_is_never_empty() -> None:
    assert spread() == (0, 1)
    low, high = spread(np.array([3.0, math.nan, 3.0]))
    assert low < 3 < high
    assert spread(np.array([0.0, 1.0]), floor=0.0)[0] == 0
    assert spread(np.array([-1.0, 1.0]), floor=0.0)[0] < -1


def test_smoothing_keeps_constants_and_gaps() -> None:
    values = np.array([2.0] * 5 + [math.nan] + [2.0] * 5)
    smoothed = smooth(values, 2.0)
    assert math.isnan(smoothed[5])
    assert np.delete(smoothed, 5) == pytest.approx(2.0)


def test_thinning_averages_neighbours() -> None:
    values = np.array([1.0, 3.0, math.nan, 5.0, math.nan, math.nan, 7.0])
    assert thin(values, 2).tolist()[:2] == [2.0, 5.0]
    assert math.isnan(thin(values, 2)[2])
    assert len(thin(np.zeros(10_001), bin_size(10_001))) <= MOST_POINTS


def test_a_chart_says_what_it_shows() -> None:
    xs = np.arange(3.0)
    line = Line(label="raw", xs=xs, ys=np.array([1.0, math.nan, 2.0]), style="raw")
    plot = Plot(title="Loss", lines=[line])
    assert summary(plot) == "Loss over iterations. raw: from 1 to 2, lowest 1, highest 2."
    assert 'class="gap"' in line_chart(plot)
