"""Shapes and letters as signed distances, and the colours they are drawn in.

Everything the embedded world draws is a signed distance in pixels (negative inside), so that it is
anti-aliased by ``clip(0.5 - distance, 0, 1)`` and looks the same on every machine: no font file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]  # float32 throughout; numpy's stubs lose the precision

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (220, 35, 35),
    "green": (30, 150, 50),
    "blue": (35, 70, 220),
    "yellow": (240, 205, 20),
    "purple": (140, 40, 170),
    "orange": (245, 130, 20),
    "cyan": (20, 190, 205),
    "black": (20, 20, 20),
}
SIGN_COLORS = ("red", "green", "blue", "purple", "black")  # white letters stand out on these


@cache
def palette() -> Array:
    """The colours in the order of ``COLORS``, ``(8, 3)`` in [0, 1]."""
    return np.asarray(list(COLORS.values()), np.float32) / 255


def _circle(x: Array, y: Array, r: float) -> Array:
    return np.hypot(x, y) - r


def _ring(x: Array, y: Array, r: float) -> Array:
    return np.abs(np.hypot(x, y) - 0.72 * r) - 0.28 * r


def _square(x: Array, y: Array, r: float) -> Array:
    return np.maximum(np.abs(x), np.abs(y)) - 0.88 * r


def _cross(x: Array, y: Array, r: float) -> Array:
    short, long = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return np.maximum(short - 0.30 * r, long - r)


def _polygon(x: Array, y: Array, corners: Array) -> Array:
    """Signed distance to a closed polygon ``(N, 2)``: nearest edge, sign by crossings."""
    distance = np.full(x.shape, np.inf, np.float32)
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0), strict=True):
        distance = np.minimum(distance, segment(x, y, ax, ay, bx, by))
        crosses = (ay > y) != (by > y)
        inside ^= crosses & (x < (bx - ax) * (y - ay) / (by - ay + 1e-12) + ax)
    return np.where(inside, -distance, distance)


def _triangle(x: Array, y: Array, r: float) -> Array:
    corners = np.array([(0, -r), (r, 0.85 * r), (-r, 0.85 * r)], np.float32)
    return _polygon(x, y, corners)


def _star(x: Array, y: Array, r: float) -> Array:
    angle = np.arange(10) * np.pi / 5
    radius = np.where(np.arange(10) % 2 == 0, 1.08, 0.46) * r
    corners = np.stack([radius * np.sin(angle), -radius * np.cos(angle) + 0.06 * r], -1)
    return _polygon(x, y, corners.astype(np.float32))


def segment(x: Array, y: Array, ax: float, ay: float, bx: float, by: float) -> Array:
    """Unsigned distance to the segment from ``(ax, ay)`` to ``(bx, by)``."""
    dx, dy = bx - ax, by - ay
    along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy + 1e-12), 0, 1)
    return np.hypot(x - ax - along * dx, y - ay - along * dy)


SHAPES: dict[str, Callable[[Array, Array, float], Array]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
}

# Strokes on a grid 4 wide and 6 high, y down; "|" starts a new stroke.
_STROKES = {
    "A": "0,6 2,0 4,6|0.8,4 3.2,4",
    "B": "0,3 3,3 4,3.9 4,5.1 3,6 0,6 0,0 2.8,0 3.7,0.8 3.7,2.2 2.8,3",
    "C": "4,1 3,0 1,0 0,1 0,5 1,6 3,6 4,5",
    "D": "0,0 2.6,0 4,1.4 4,4.6 2.6,6 0,6 0,0",
    "E": "4,0 0,0 0,6 4,6|0,3 3.2,3",
    "F": "4,0 0,0 0,6|0,3 3.2,3",
    "G": "4,1 3,0 1,0 0,1 0,5 1,6 3,6 4,5 4,3.3 2.4,3.3",
    "H": "0,0 0,6|4,0 4,6|0,3 4,3",
    "I": "0.6,0 3.4,0|2,0 2,6|0.6,6 3.4,6",
    "J": "4,0 4,5 3,6 1,6 0,5",
    "K": "0,0 0,6|4,0 0,3.6|1.3,2.6 4,6",
    "L": "0,0 0,6 4,6",
    "M": "0,6 0,0 2,3 4,0 4,6",
    "N": "0,6 0,0 4,6 4,0",
    "O": "1,0 3,0 4,1 4,5 3,6 1,6 0,5 0,1 1,0",
    "P": "0,6 0,0 3,0 4,0.9 4,2.4 3,3.3 0,3.3",
    "Q": "1,0 3,0 4,1 4,5 3,6 1,6 0,5 0,1 1,0|2.4,4.2 4,6",
    "R": "0,6 0,0 3,0 4,0.9 4,2.4 3,3.3 0,3.3|1.8,3.3 4,6",
    "S": "4,1 3,0 1,0 0,0.9 0,2.1 1,3 3,3 4,3.9 4,5.1 3,6 1,6 0,5",
    "T": "0,0 4,0|2,0 2,6",
    "U": "0,0 0,5 1,6 3,6 4,5 4,0",
    "V": "0,0 2,6 4,0",
    "W": "0,0 1,6 2,2.4 3,6 4,0",
    "X": "0,0 4,6|4,0 0,6",
    "Y": "0,0 2,3 4,0|2,3 2,6",
    "Z": "0,0 4,0 0,6 4,6",
}
LETTERS = "".join(_STROKES)


def letter(name: str, x: Array, y: Array, width: float, height: float, stroke: float) -> Array:
    """Signed distance to a letter whose strokes span ``width`` x ``height`` pixels from (0, 0)."""
    distance = np.full(x.shape, np.inf, np.float32)
    for line in _STROKES[name].split("|"):
        points = [tuple(map(float, p.split(","))) for p in line.split()]
        for (ax, ay), (bx, by) in zip(points, points[1:], strict=False):
            ends = (ax * width / 4, ay * height / 6, bx * width / 4, by * height / 6)
            distance = np.minimum(distance, segment(x, y, *ends))
    return distance - stroke / 2


def coverage(distance: Array) -> Array:
    """Anti-aliased coverage in [0, 1] of pixels at this signed distance."""
    return np.clip(0.5 - distance, 0, 1).astype(np.float32)


@cache
def pixel_grid(size: int) -> tuple[Array, Array]:
    """Pixel centres ``x, y``, each ``(size, size)``."""
    centre = np.arange(size, dtype=np.float32) + 0.5
    x, y = np.meshgrid(centre, centre)
    return x, y


def to_arrays(images: Tensor) -> Array:
    """Pictures ``(B, 3, H, H)`` in [0, 1] as ``(B, H, H, 3)`` for the judges.

    Raises:
        ValueError: if the shape is another.
    """
    if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        raise ValueError(f"expected square images (B, 3, H, H), got {tuple(images.shape)}")
    return np.asarray(images.detach().float().cpu().permute(0, 2, 3, 1).numpy())
