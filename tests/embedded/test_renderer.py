"""What is drawn is what the spec says: measured on the pixels and on the placed discs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flowalign.embedded import renderer
from flowalign.embedded.grammar import GENEVAL_TASKS, RELATIONS, TASKS, sample_spec
from flowalign.embedded.renderer import draw_shape, related, render
from flowalign.embedded.shapes import (
    COLORS,
    LETTERS,
    SHAPES,
    SIGN_COLORS,
    coverage,
    letter,
    palette,
    pixel_grid,
)

SIZES = (32, 48, 64)
# Points in units of the radius that are deep inside and clearly outside of each shape.
INSIDE = {
    "circle": [(0, 0), (0.6, 0.6), (-0.8, 0)],
    "square": [(0, 0), (0.7, 0.7), (-0.7, 0.7)],
    "triangle": [(0, 0), (0, -0.6), (0.7, 0.7), (-0.7, 0.7)],
    "star": [(0, 0), (0, -0.7), (0.7, -0.15), (-0.7, -0.15)],
    "cross": [(0, 0), (0.8, 0), (0, 0.8), (-0.8, 0), (0, -0.8)],
    "ring": [(0.72, 0), (0, -0.72), (0.5, 0.5)],
}
OUTSIDE = {
    "circle": [(0.85, 0.85), (1.3, 0)],
    "square": [(1.1, 0), (0, -1.1)],
    "triangle": [(0.8, -0.7), (-0.8, -0.7), (0, 1.1)],
    "star": [(0.8, -0.8), (0, 1), (0.9, 0.5)],
    "cross": [(0.6, 0.6), (-0.6, 0.6), (0.6, -0.6)],
    "ring": [(0, 0), (0.2, 0.2), (0.9, 0.9)],
}


def specs(task: str, n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [sample_spec(rng, task, "all") for _ in range(n)]


def drawn(spec, seed: int, size: int, monkeypatch):
    """The picture and what was painted into it: ``[(shape, colour, disc), ...]``."""
    calls = []

    def note(image, shape, color, disc):
        calls.append((shape, color, disc))
        draw_shape(image, shape, color, disc)

    monkeypatch.setattr(renderer, "draw_shape", note)
    return render(spec, np.random.default_rng(seed), size), calls


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", TASKS)
def test_a_drawing_depends_on_its_random_stream_alone(task, size):
    (spec,) = specs(task, 1)
    image = render(spec, np.random.default_rng(5), size)
    assert image.shape == (size, size, 3) and image.dtype == np.float32
    assert 0 <= image.min() and image.max() <= 1
    assert np.array_equal(image, render(spec, np.random.default_rng(5), size))
    assert not np.array_equal(image, render(spec, np.random.default_rng(6), size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", GENEVAL_TASKS)
def test_what_is_painted_is_what_the_spec_asks_for(task, size, monkeypatch):
    for seed, spec in enumerate(specs(task, 20)):
        _, calls = drawn(spec, seed, size, monkeypatch)
        asked = [item for item in spec["include"] for _ in range(item["count"])]
        assert [shape for shape, _, _ in calls] == [item["class"] for item in asked]
        for item, (_, color, _) in zip(asked, calls, strict=True):
            assert color == item.get("color", color) and color in COLORS
        if task == "counting":
            assert len({color for _, color, _ in calls}) == 1  # a counted set looks alike


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", GENEVAL_TASKS)
def test_discs_stay_inside_the_picture_and_apart_from_each_other(task, size, monkeypatch):
    for seed, spec in enumerate(specs(task, 40)):
        _, calls = drawn(spec, seed, size, monkeypatch)
        discs = [disc for _, _, disc in calls]
        for x, y, r in discs:
            assert min(x, y) - r > 0 and max(x, y) + r < size
            assert r >= 0.14 * size  # large enough to be told apart
        for (ax, ay, ar), (bx, by, br) in itertools.combinations(discs, 2):
            assert np.hypot(ax - bx, ay - by) > ar + br
            # nor do their bounding squares, so that even the corners of squares keep a gap
            assert max(abs(ax - bx), abs(ay - by)) - (ar + br) > 0.04 * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("relation", RELATIONS)
def test_objects_stand_in_the_relation_that_was_asked_for(relation, size, monkeypatch):
    opposite = dict(zip(RELATIONS, ("right of", "left of", "below", "above"), strict=True))
    spec = {
        "tag": "position",
        "include": [
            {"class": "circle", "count": 1},
            {"class": "star", "count": 1, "position": [relation, 0]},
        ],
    }
    for seed in range(40):
        _, calls = drawn(spec, seed, size, monkeypatch)
        (_, _, there), (_, _, here) = calls
        assert related(here, there, relation) and related(there, here, opposite[relation])
        assert not related(there, here, relation)
        x, y = here[0] - there[0], here[1] - there[1]
        assert {"left of": -x, "right of": x, "above": -y, "below": y}[relation] > 0
        assert abs(y if "of" in relation else x) * 1.5 < abs(x if "of" in relation else y)


def test_related_on_known_discs():
    here, there = (10.0, 16.0, 3.0), (20.0, 16.0, 3.0)
    assert [related(here, there, r) for r in RELATIONS] == [True, False, False, False]
    assert [related(there, here, r) for r in RELATIONS] == [False, True, False, False]
    high, low = (16.0, 5.0, 3.0), (20.0, 25.0, 3.0)
    assert [related(high, low, r) for r in RELATIONS] == [False, False, True, False]
    assert [related(low, high, r) for r in RELATIONS] == [False, False, False, True]
    assert related(high, low, "above", margin=4.9) and not related(high, low, "above", margin=5.0)
    assert not any(related(here, here, r) for r in RELATIONS)
    assert not any(related((0, 0, 1), (9, 9, 1), r) for r in RELATIONS)  # a true diagonal


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_its_colour_inside_and_the_ground_outside(shape, size):
    r = 0.3 * size
    for i, color in enumerate(COLORS):
        image = np.full((size, size, 3), 0.9, np.float32)
        draw_shape(image, shape, color, (size / 2, size / 2, r))

        def pixel(x, y, image=image):
            return image[int(size / 2 + y * r), int(size / 2 + x * r)]

        for point in INSIDE[shape]:
            np.testing.assert_allclose(pixel(*point), palette()[i], atol=1e-6)
        for point in OUTSIDE[shape]:
            np.testing.assert_allclose(pixel(*point), 0.9, atol=1e-6)


def test_a_rendered_shape_shows_the_colour_of_the_palette(monkeypatch):
    for task in ("colors", "color_attr"):
        for seed, spec in enumerate(specs(task, 40)):
            image, calls = drawn(spec, seed, 32, monkeypatch)
            for (shape, color, (x, y, r)), item in zip(calls, spec["include"], strict=True):
                dx, dy = INSIDE[shape][0]
                found = image[int(y + dy * r), int(x + dx * r)] * 255
                # the band of a ring is only 0.56 r wide: its middle may be half a pixel off
                np.testing.assert_allclose(found, COLORS[item["color"]], atol=0.01)
                assert color == item["color"]


def test_no_two_colours_are_close():
    for a, b in itertools.combinations(COLORS, 2):
        assert np.linalg.norm(np.subtract(COLORS[a], COLORS[b])) > 70, (a, b)


# Areas in units of r^2, from the corners by hand.
AREAS = {
    "circle": np.pi,
    "ring": np.pi * (1 - 0.44**2),
    "square": (2 * 0.88) ** 2,
    "cross": 4 * 2 * 0.3 - 4 * 0.3**2,
    "triangle": 0.5 * 2 * 1.85,
    "star": 10 * 0.5 * 1.08 * 0.46 * np.sin(np.pi / 5),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_soft_coverage_adds_up_to_the_area_of_the_shape(shape):
    x, y = pixel_grid(64)
    covered = coverage(SHAPES[shape](x - 31.7, y - 32.2, 20.0)).sum()
    assert covered == pytest.approx(AREAS[shape] * 400, rel=0.01)


def test_coverage_is_one_inside_zero_outside_and_half_on_the_edge():
    distance = np.array([-2.0, -0.5, -0.25, 0.0, 0.25, 0.5, 2.0])
    assert coverage(distance).tolist() == [1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_the_ground_is_light_and_even():
    for seed in range(20):
        image = render(
            {"tag": "x", "include": []} | specs("colors", 1)[0], np.random.default_rng(seed)
        )
        corners = image[[0, 0, -1, -1], [0, -1, 0, -1]]
        assert (corners == corners[0]).all()
        assert corners[0].min() >= 0.84 and corners[0].max() <= 1.0
        assert np.ptp(corners[0]) <= 0.04  # grey, with hardly a tint


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("color", SIGN_COLORS)
def test_a_sign_has_white_letters_on_its_colour(color, size):
    spec = {"tag": "ocr", "text": "HI", "color": color}
    tone = np.asarray(COLORS[color], np.float32) / 255
    for seed in range(5):
        image = render(spec, np.random.default_rng(seed), size)
        panel = np.abs(image - tone).max(2) < 1e-3
        rows, cols = panel.any(1).nonzero()[0], panel.any(0).nonzero()[0]
        inner = image[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
        white = (inner > 0.999).all(2)
        # panel: width 2 * 6 + 2.9 + 2 * 2.6 = 20.1 and height 12 + 5.2 = 17.2 in 32nds
        assert len(cols) == pytest.approx(20.1 * size / 32, abs=2.1)
        assert len(rows) == pytest.approx(17.2 * size / 32, abs=2.1)
        assert 0.1 < white.mean() < 0.4
        assert not white[0].any() and not white[:, 0].any()  # letters do not touch the rim


@pytest.mark.parametrize("size", SIZES)
def test_signs_of_every_length_fit_into_the_picture(size):
    for text in ("WM", "WWW", "QQQ"):
        for seed in range(10):
            image = render({"tag": "ocr", "text": text}, np.random.default_rng(seed), size)
            border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
            assert (border == border[0]).all()  # nothing but ground


def test_a_sign_without_a_colour_takes_one_that_white_stands_out_on():
    found = set()
    for seed in range(60):
        image = render({"tag": "ocr", "text": "IN"}, np.random.default_rng(seed))
        distance = np.abs(image[:, :, None] - palette()).max(-1).min((0, 1))
        found |= {name for name, d in zip(COLORS, distance, strict=True) if d < 1e-3}
    assert found == set(SIGN_COLORS)


def test_every_letter_looks_different_from_every_other():
    x, y = pixel_grid(32)
    inks = {name: coverage(letter(name, x - 10, y - 6, 12, 20, 3)) for name in LETTERS}
    assert LETTERS == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for a, b in itertools.combinations(LETTERS, 2):
        both = np.minimum(inks[a], inks[b]).sum() / np.maximum(inks[a], inks[b]).sum()
        assert both < 0.93, (a, b, both)
    for name, ink in inks.items():  # each fills its cell, and no more
        rows, cols = (ink > 0.5).any(1).nonzero()[0], (ink > 0.5).any(0).nonzero()[0]
        assert rows[0] >= 4 and rows[-1] <= 27 and cols[0] >= 8 and cols[-1] <= 23
        assert len(rows) >= 20 and len(cols) >= 8, name
