"""Numbers to pixels: the plot area of a chart, its ticks, smoothing and thinning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowalign.report.records import Array

MOST_POINTS = 240  # drawn along one curve; more are averaged in bins


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A plot area inside an SVG of ``width`` x ``height`` units, and the data range it shows."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, value: float) -> float:
        """Horizontal position."""
        low, high = self.x
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def py(self, value: float) -> float:
        """Vertical position, kept inside the plot area."""
        low, high = self.y
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def path(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array) -> str:
        """SVG path data; a value that is not finite leaves a gap, a lone point becomes a dot."""
        parts: list[str] = []
        pen = "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                parts.append(f"{pen}{self.px(x)},{self.py(y)}" + ("h0" if pen == "M" else ""))
                pen = "L"
            else:
                pen = "M"
        return "".join(parts)

    def area(self, xs: Array, low: Array, high: Array) -> str:
        """SVG path data of the region between two curves."""
        good = np.isfinite(low) & np.isfinite(high)
        if not good.any():
            return ""
        there = [f"{self.px(x)},{self.py(y)}" for x, y in zip(xs[good], high[good], strict=True)]
        back = [f"{self.px(x)},{self.py(y)}" for x, y in zip(xs[good], low[good], strict=True)]
        return f"M{'L'.join(there)}L{'L'.join(reversed(back))}Z"


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers inside ``[low, high]``."""
    rough = (high - low) / max(count, 1)
    if not math.isfinite(rough) or rough <= 0:
        return []
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next((unit * k for k in (1, 2, 5) if unit * k >= rough * 0.999), unit * 10)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]


def whole_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Ticks for a count, such as the iteration: whole numbers only."""
    return [value for value in ticks(low, high, count) if value == round(value)]


def spread(*values: Array, floor: float | None = None) -> tuple[float, float]:
    """A range that holds all finite values with some air, never empty.

    ``floor`` is a natural lower bound, such as 0: no air is added beyond it.
    """
    joined = np.concatenate([v[np.isfinite(v)] for v in values]) if values else np.array([])
    if not len(joined):
        return 0.0, 1.0
    low, high = float(joined.min()), float(joined.max())
    air = 0.08 * (high - low) or 0.25 * abs(high) or 1.0
    lower = low - air
    if floor is not None and low >= floor:
        lower = max(lower, floor)
    return lower, high + air


def smooth(values: Array, sigma: float) -> Array:
    """Gaussian smoothing over the index; gaps are skipped and stay gaps."""
    reach = max(1, math.ceil(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    good = np.isfinite(values)
    total = np.convolve(np.where(good, values, 0.0), kernel)[reach:-reach]
    weight = np.convolve(good.astype(np.float64), kernel)[reach:-reach]
    return np.where(good, total / np.where(weight > 0, weight, 1.0), np.nan)


def smoothing_width(count: int) -> float:
    """The sigma, in recorded iterations, that suits a curve of ``count`` of them."""
    return max(1.0, count / 30)


def thin(values: Array, size: int) -> Array:
    """Means of ``size`` neighbours, gaps skipped; ``size`` 1 changes nothing."""
    if size <= 1:
        return values
    padded = np.concatenate([values, np.full(-len(values) % size, np.nan)]).reshape(-1, size)
    good = np.isfinite(padded)
    total = np.where(good, padded, 0.0).sum(1)
    return np.where(good.any(1), total / np.maximum(good.sum(1), 1), np.nan)


def bin_size(count: int) -> int:
    """How many neighbours to average so that a curve of ``count`` points stays drawable."""
    return max(1, -(-count // MOST_POINTS))
