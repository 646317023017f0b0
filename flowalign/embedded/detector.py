"""Judge a picture of the embedded world: which coloured shapes a careful viewer would see in it.

A picture is unmixed against its ground into one colour and one coverage per pixel, cut into
connected pieces, and every piece is compared with all six shapes, each fitted to it by position
and size. A piece that no shape fits is still an object: it is returned with the label ``UNCLEAR``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from flowalign.embedded.shapes import COLORS, SHAPES, Array, palette, to_arrays

UNCLEAR = "unclear"
"""The label of a visible object that is no clear shape."""

# Calibrated on generated pictures looked at by eye; areas are shares of the picture.
PRESENT = 0.5  # coverage above which a pixel belongs to an object
SPECK_AREA = 0.008  # pieces of less soft area than this (8 pixels of 32 x 32) are noise
CLEAR_STRAIN = 0.1  # strain (see `_strain`) of the best shape above which an object is unclear
CLEAR_MARGIN = 0.03  # ... as it is when the second-best shape is strained hardly more
SPLIT_SHARE = 0.2  # a colour with this share of a piece is an object of its own
ASPECT = 0.8  # height / width (or its inverse) below which an object is stretched ...
STRETCH = 0.5  # ... and its strain grows by this for each unit of missing aspect

_SCALES = (0.92, 1.0, 1.08)
_RESOLUTION, _REACH = 192, 1.5  # of the table of distances: cells a side, half-width in radii


@dataclass(frozen=True)
class Detection:
    """One object seen in a picture."""

    label: str  # one of SHAPES, or UNCLEAR
    color: str  # one of COLORS
    score: float  # [0, 1]: soft IoU with the best shape
    box: tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels
    area: float  # covered pixels


def detect(images: Tensor) -> list[list[Detection]]:
    """The objects of each picture, best first.

    Args:
        images: ``(B, 3, H, H)`` float in [0, 1].

    Raises:
        ValueError: if the shape is another.
    """
    return [_detect(image) for image in to_arrays(images)]


def _detect(image: Array) -> list[Detection]:
    color, cover = unmix(image)
    pieces, n = ndimage.label(cover > PRESENT, structure=np.ones((3, 3)))
    found = []
    for i, window in enumerate(ndimage.find_objects(pieces), 1):
        grown = _grow(window, len(image))
        piece = pieces[grown] == i
        found += _objects(piece, color[grown], cover[grown], grown, len(image))
    return sorted(found, key=lambda d: -d.score)


def unmix(image: Array) -> tuple[NDArray[np.int64], Array]:
    """Explain each pixel as ``(1 - a) ground + a color``.

    The ground is the median of the border. Returns the index into ``COLORS`` that leaves the
    smallest residual and its coverage ``a`` in [0, 1], both ``(H, W)``.
    """
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    ground = np.median(border, 0)
    away = palette() - ground  # (C, 3)
    pixel = (image - ground).reshape(-1, 3)
    norm = (away * away).sum(1)
    along = pixel @ away.T  # (P, C)
    cover = np.clip(along / norm, 0, 1)
    residual = cover * (cover * norm - 2 * along)  # + |pixel|^2, the same for all colours
    color = residual.argmin(1)
    best = np.take_along_axis(cover, color[:, None], 1)
    return color.reshape(image.shape[:2]), best.reshape(image.shape[:2])


def _grow(window: tuple[slice, ...], size: int, by: int = 2) -> tuple[slice, slice]:
    rows, cols = (slice(max(0, s.start - by), min(size, s.stop + by)) for s in window)
    return rows, cols


def _objects(
    piece: NDArray[np.bool_],
    color: NDArray[np.int64],
    cover: Array,
    window: tuple[slice, slice],
    size: int,
) -> list[Detection]:
    """The objects in one connected piece: one for each colour that has a fair share of it."""
    share = np.bincount(color[piece], minlength=len(COLORS))
    main = int(share.argmax())
    parts = [int(c) for c in np.flatnonzero(share > SPLIT_SHARE * share.sum())] or [main]
    found = []
    for c in parts:
        mask = piece if len(parts) == 1 else _largest(piece & (color == c))
        soft = np.where(ndimage.binary_dilation(mask), cover, 0)
        if len(parts) > 1:  # the soft edge towards a neighbour of another colour is the neighbour's
            soft = np.where(mask | ~piece, soft, 0)
        if soft.sum() >= SPECK_AREA * size * size:
            found.append(_judge(soft, mask, c, window, size))
    return found


def _largest(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    labels, _ = ndimage.label(mask)
    counts = np.bincount(labels.ravel())
    counts[0] = 0
    return np.asarray(labels == counts.argmax())


def _judge(
    soft: Array, mask: NDArray[np.bool_], color: int, window: tuple[slice, slice], size: int
) -> Detection:
    """Name one object by the shape that fits its soft coverage best."""
    solid = np.sort(soft[mask])
    soft = np.clip(soft / solid[int(0.6 * len(solid))], 0, 1)
    x0, x1 = _extent(soft.max(0))
    y0, y1 = _extent(soft.max(1))
    fit = _fit(soft, (x0, y0, x1, y1))
    aspect = min((x1 - x0) / (y1 - y0), (y1 - y0) / (x1 - x0))
    strain = _strain(fit) + STRETCH * max(0.0, ASPECT - aspect)
    best, second = np.argsort(strain)[:2]
    clear = strain[best] <= CLEAR_STRAIN and strain[second] - strain[best] >= CLEAR_MARGIN
    left, top = window[1].start, window[0].start
    return Detection(
        label=list(SHAPES)[best] if clear else UNCLEAR,
        color=list(COLORS)[color],
        score=float(fit[best]),
        box=(x0 + left, y0 + top, x1 + left, y1 + top),
        area=float(soft.sum()),
    )


def _strain(iou: Array) -> Array:
    """How far the outline of an object strays from each of the six shapes, ``(6,)``.

    The mean distance between the outlines as a share of the object's radius: the area in which
    object and shape differ, over the shape's perimeter, over the radius of a disc as large.
    """
    t = _templates()
    differing = 2 * (1 - iou) / (1 + iou)  # share of the object's area
    return np.asarray(differing * np.sqrt(np.pi * t.area) / t.perimeter)


def _extent(profile: Array) -> tuple[float, float]:
    """First and last covered coordinate of a profile, to a fraction of a pixel."""
    inside = np.flatnonzero(profile > 0.5)
    first, last = int(inside[0]), int(inside[-1])
    before = profile[first - 1] if first > 0 else 0.0
    after = profile[last + 1] if last + 1 < len(profile) else 0.0
    low = first + 1 - profile[first] - before
    return float(low), float(last + profile[last] + after)


@dataclass(frozen=True)
class _Templates:
    """Signed distances of the unit shapes on a fine grid, and their geometry, one row per shape."""

    distance: Array  # (6, R, R), rows are y
    box: Array  # (6, 4)
    mean: Array  # (6, 2) centre of mass x, y
    spread: Array  # (6, 2) standard deviation along x, y
    area: Array  # (6,)
    perimeter: Array  # (6,)


@cache
def _templates() -> _Templates:
    axis = ((np.arange(_RESOLUTION) + 0.5) / _RESOLUTION * 2 - 1).astype(np.float32) * _REACH
    x, y = np.meshgrid(axis, axis)
    distance = np.stack([sdf(x, y, 1.0) for sdf in SHAPES.values()]).astype(np.float32)
    box, mean, spread = [], [], []
    for d in distance:
        px, py = x[d < 0], y[d < 0]
        box.append((px.min(), py.min(), px.max(), py.max()))
        mean.append((px.mean(), py.mean()))
        spread.append((px.std(), py.std()))
    cell = (2 * _REACH / _RESOLUTION) ** 2
    rim = 0.05
    return _Templates(
        distance,
        np.array(box, np.float32),
        np.array(mean, np.float32),
        np.array(spread, np.float32),
        (distance < 0).sum((1, 2)) * cell,
        (np.abs(distance) < rim).sum((1, 2)) * cell / (2 * rim),
    )


def _fit(soft: Array, box: tuple[float, float, float, float]) -> Array:
    """Soft IoU of the six shapes with ``soft``, ``(6,)``.

    Each shape is laid over the object by its bounding box and by its centre of mass and standard
    deviations, each also a little smaller and larger; the best fit counts.
    """
    t = _templates()
    height, width = soft.shape
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    total = soft.sum()
    px, py = soft.sum(0) / total, soft.sum(1) / total
    mean = np.array([px @ x, py @ y])
    spread = np.sqrt(np.array([px @ (x - mean[0]) ** 2, py @ (y - mean[1]) ** 2]))
    low, high = np.array(box[:2]), np.array(box[2:])
    middle = (t.box[:, :2] + t.box[:, 2:]) / 2
    by_box = (high - low) / (t.box[:, 2:] - t.box[:, :2])
    by_mass = spread / t.spread
    scale = np.concatenate([f * by for by in (by_box, by_mass) for f in _SCALES])  # (36, 2)
    centre = np.concatenate(
        [(low + high) / 2 - f * by_box * middle for f in _SCALES]
        + [mean - f * by_mass * t.mean for f in _SCALES]
    )
    to_cell = _RESOLUTION / (2 * _REACH)
    ix = _cells((x - centre[:, :1]) / scale[:, :1], to_cell)
    iy = _cells((y - centre[:, 1:]) / scale[:, 1:], to_cell)
    shape = np.tile(np.arange(6), 2 * len(_SCALES))[:, None, None]
    radius = np.sqrt(scale.prod(1))[:, None, None]
    drawn = np.clip(0.5 - t.distance[shape, iy[:, :, None], ix[:, None, :]] * radius, 0, 1)
    both = np.minimum(drawn, soft).sum((1, 2))
    iou = both / (drawn.sum((1, 2)) + total - both)
    return np.asarray(iou.reshape(-1, 6).max(0))


def _cells(coordinate: NDArray[np.floating], to_cell: float) -> NDArray[np.int64]:
    cell = ((coordinate + _REACH) * to_cell).astype(np.int64)
    return np.clip(cell, 0, _RESOLUTION - 1)
