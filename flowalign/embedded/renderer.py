"""Draw a spec: coloured shapes on a light ground, or white letters on a coloured sign."""

from __future__ import annotations

import numpy as np

from flowalign.embedded.grammar import Spec
from flowalign.embedded.shapes import (
    COLORS,
    SHAPES,
    SIGN_COLORS,
    Array,
    coverage,
    letter,
    palette,
    pixel_grid,
)

Disc = tuple[float, float, float]  # centre x, centre y, radius, in pixels

# Radius range as a share of the image side, by the number of objects.
_RADII = {1: (0.17, 0.30), 2: (0.155, 0.225), 3: (0.15, 0.185), 4: (0.14, 0.165)}
# Letter geometry in 32nds of the image side: cap height, width, gap, stroke, sign padding.
CAP, WIDTH, GAP, STROKE, PAD = 12.0, 6.0, 2.9, 2.0, 2.6


def render(spec: Spec, rng: np.random.Generator, size: int = 32) -> Array:
    """One drawing of ``spec``, ``(size, size, 3)`` in [0, 1]; what it leaves open is random."""
    image = _ground(rng, size)
    if spec["tag"] == "ocr":
        _draw_sign(image, spec["text"], spec.get("color") or str(rng.choice(SIGN_COLORS)), rng)
        return image
    items = [item for item in spec["include"] for _ in range(item["count"])]
    shared = str(rng.choice(list(COLORS)))  # a counted set looks alike
    for item, disc in zip(items, _place(spec, len(items), rng, size), strict=True):
        free = shared if spec["tag"] == "counting" else str(rng.choice(list(COLORS)))
        draw_shape(image, item["class"], item.get("color", free), disc)
    return image


def draw_shape(image: Array, shape: str, color: str, disc: Disc) -> None:
    """Paint one shape into ``image``."""
    x, y = pixel_grid(len(image))
    _paint(image, coverage(SHAPES[shape](x - disc[0], y - disc[1], disc[2])), color)


def _paint(image: Array, alpha: Array, color: str) -> None:
    value = palette()[list(COLORS).index(color)] if color in COLORS else np.float32(1)
    image[:] = image * (1 - alpha[..., None]) + alpha[..., None] * value


def _ground(rng: np.random.Generator, size: int) -> Array:
    tone = rng.uniform(0.86, 0.98) + rng.uniform(-0.02, 0.02, 3)
    ground: Array = np.broadcast_to(tone.astype(np.float32), (size, size, 3)).copy()
    return ground


def _place(spec: Spec, n: int, rng: np.random.Generator, size: int) -> list[Disc]:
    """``n`` discs that do not touch, in the relation that the spec asks for."""
    relation = spec["include"][1]["position"][0] if spec["tag"] == "position" else None
    while True:
        discs = _scatter(n, rng, size)
        if discs and (relation is None or related(discs[1], discs[0], relation, margin=1.5)):
            return discs


def _scatter(n: int, rng: np.random.Generator, size: int) -> list[Disc] | None:
    discs: list[Disc] = []
    for _ in range(n):
        r = rng.uniform(*_RADII[n]) * size
        low = r * 1.05 + 0.02 * size
        for _ in range(30):
            x, y = rng.uniform(low, size - low, 2)
            apart = (max(abs(x - a), abs(y - b)) - (r + c) * 1.03 for a, b, c in discs)
            if all(gap > 0.045 * size for gap in apart):
                discs.append((float(x), float(y), float(r)))
                break
        else:
            return None
    return discs


def related(a: Disc, b: Disc, relation: str, margin: float = 1.0) -> bool:
    """Whether ``a`` stands in ``relation`` to ``b``, the other axis smaller by ``margin``."""
    dx, dy = a[0] - b[0], a[1] - b[1]
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    signed = -along if relation in ("left of", "above") else along
    return signed > 0 and signed > margin * abs(across)


def _draw_sign(image: Array, text: str, color: str, rng: np.random.Generator) -> None:
    size = len(image)
    unit = size / 32
    x, y = pixel_grid(size)
    width = (len(text) * WIDTH + (len(text) - 1) * GAP) * unit
    half_w, half_h = width / 2 + PAD * unit, (CAP / 2 + PAD) * unit
    cx, cy = size / 2 + rng.uniform(-1, 1, 2) * unit * np.array([0.5, 3.0])
    panel = np.maximum(np.abs(x - cx) - half_w, np.abs(y - cy) - half_h)
    _paint(image, coverage(panel), color)
    for i, name in enumerate(text):
        left = cx - width / 2 + i * (WIDTH + GAP) * unit
        top = cy - CAP / 2 * unit
        ink = letter(name, x - left, y - top, WIDTH * unit, CAP * unit, STROKE * unit)
        _paint(image, coverage(ink), "white")
