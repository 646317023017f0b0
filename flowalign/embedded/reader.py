"""Read a sign of the embedded world: which letters a careful viewer would see on it.

The panel is found by its colour and its width says how many letters there are. Each letter's place
is then compared with the whole alphabet, drawn at sub-pixel offsets; a place that no letter fits
clearly is returned as ``UNCLEAR``, so a smeared letter never counts as the right one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import ndimage
from torch import Tensor

from flowalign.embedded.renderer import CAP, GAP, PAD, STROKE, WIDTH
from flowalign.embedded.shapes import (
    COLORS,
    LETTERS,
    SIGN_COLORS,
    Array,
    coverage,
    letter,
    palette,
    to_arrays,
)

UNCLEAR = "?"
"""What is read where no letter is clear."""

# Calibrated on generated pictures looked at by eye.
PANEL_AREA = 0.06  # share of the picture that the bare panel must fill
CLEAR_FIT = 0.55  # soft IoU with the best letter below which a place is unclear
CLEAR_MARGIN = 0.2  # lead over the second-best letter (1: the ink is the best letter itself)
_REACH = 1.25  # how far a letter may stand from its place, in 32nds of the image side
_STEP = 0.25  # the search over places, in 32nds


def read(images: Tensor) -> list[str]:
    """The text of each picture, upper case; empty where there is no sign.

    Args:
        images: ``(B, 3, H, H)`` float in [0, 1].

    Raises:
        ValueError: if the shape is another.
    """
    return ["".join(_read(image)) for image in to_arrays(images)]


def _read(image: Array) -> list[str]:
    unit = len(image) / 32
    sign = _find_panel(image)
    if sign is None:
        return []
    color, (x0, y0, x1, y1) = sign
    n = round(((x1 - x0) / unit - 2 * PAD + GAP) / (WIDTH + GAP))
    away = 1 - color  # from the panel to white ink
    ink = np.clip((image - color) @ away / (away @ away), 0, 1)
    inside = np.zeros_like(ink)
    inside[max(0, round(y0)) : round(y1), max(0, round(x0)) : round(x1)] = 1
    ink = ink * inside
    left = (x0 + x1) / 2 - (n * WIDTH + (n - 1) * GAP) / 2 * unit
    top = (y0 + y1) / 2 - CAP / 2 * unit
    return [_letter(ink, left + i * (WIDTH + GAP) * unit, top) for i in range(n)]


def _find_panel(image: Array) -> tuple[Array, tuple[float, float, float, float]] | None:
    """The panel's colour and its box ``x0, y0, x1, y1`` in pixels; None without a panel."""
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    ground = np.median(border, 0)
    colors = palette()[[list(COLORS).index(name) for name in SIGN_COLORS]]
    distance = np.linalg.norm(image[..., None, :] - colors, axis=-1)  # (H, H, C)
    near = distance < 0.5 * np.linalg.norm(ground - colors, axis=-1)
    nearest = near & (distance == distance.min(-1, keepdims=True))
    best = int(nearest.sum((0, 1)).argmax())
    pieces, _ = ndimage.label(nearest[..., best], structure=np.ones((3, 3)))
    size = np.bincount(pieces.ravel())
    size[0] = 0
    if size.max() < PANEL_AREA * image.shape[0] * image.shape[1]:
        return None
    mask = pieces == size.argmax()
    rows, cols = np.flatnonzero(mask.sum(1) > 2), np.flatnonzero(mask.sum(0) > 2)
    if not len(rows) or not len(cols):
        return None
    color = np.median(image[mask], 0)
    return color, (float(cols[0]), float(rows[0]), float(cols[-1] + 1), float(rows[-1] + 1))


def _letter(ink: Array, left: float, top: float) -> str:
    """The letter whose strokes start near ``(left, top)`` pixels, or ``UNCLEAR``."""
    size = len(ink)
    unit = size / 32
    table, margin = _alphabet(size)
    height, width = table.shape[-2:]
    x, y = round(left) - margin, round(top) - margin
    window = np.pad(ink, width + height)[y + width + height :, x + width + height :]
    window = window[:height, :width].copy()
    # Between two letters the ink belongs to the nearer one.
    centre = np.arange(x, x + width) + 0.5 - left
    window[:, np.abs(centre - WIDTH / 2 * unit) > (WIDTH + GAP + _REACH) / 2 * unit] = 0
    flat, seen = table.reshape(*table.shape[:2], -1), window.ravel()
    misfit = (flat * flat).sum(-1) - 2 * flat @ seen  # (offsets, letters), + a constant
    where = misfit.argmin(0)
    drawn, misfit = flat[where, np.arange(len(LETTERS))], misfit.min(0)
    best = int(misfit.argmin())
    both = np.minimum(drawn[best], seen).sum()
    fit = both / (drawn[best].sum() + seen.sum() - both)
    # How far the ink sides with the best letter, against each other, where the two differ.
    apart = ((drawn - drawn[best]) ** 2).sum(-1)
    lead = np.delete(misfit - misfit[best], best) / np.delete(apart, best)
    if fit < CLEAR_FIT or lead.min() < CLEAR_MARGIN:
        return UNCLEAR
    return LETTERS[best]


@cache
def _alphabet(size: int) -> tuple[Array, int]:
    """Every letter at every offset, ``(offsets, letters, rows, cols)``, and the window's margin."""
    unit = size / 32
    margin = int(np.ceil((_REACH + STROKE / 2 + 0.5) * unit))
    cols = int(np.ceil(WIDTH * unit)) + 2 * margin
    rows = int(np.ceil(CAP * unit)) + 2 * margin
    x, y = np.meshgrid(
        np.arange(cols, dtype=np.float32) + 0.5 - margin,
        np.arange(rows, dtype=np.float32) + 0.5 - margin,
    )
    offsets = np.arange(-_REACH, _REACH + _STEP / 2, _STEP) * unit
    shape = (WIDTH * unit, CAP * unit, STROKE * unit)
    table = [
        [coverage(letter(name, x - dx, y - dy, *shape)) for name in LETTERS]
        for dy in offsets
        for dx in offsets
    ]
    return np.asarray(table, np.float32), margin
