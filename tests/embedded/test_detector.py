"""The detector against pictures whose content is known, because this file drew them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from flowalign.embedded.detector import UNCLEAR, detect, unmix
from flowalign.embedded.grammar import GENEVAL_TASKS, sample_spec
from flowalign.embedded.renderer import draw_shape, render
from flowalign.embedded.shapes import COLORS, SHAPES, coverage, palette, pixel_grid
from flowalign.rewards.geneval_rules import official, partial, strict

GROUND = np.array([0.9, 0.93, 0.88], np.float32)


def canvas(size: int = 32):
    return np.broadcast_to(GROUND, (size, size, 3)).copy()


def batch(*images) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def look(image):
    return detect(batch(image))[0]


def paint(image, distance, color: str = "red"):
    """Fill ``image`` where the distance is negative, with soft edges."""
    alpha = coverage(distance)[..., None]
    image[:] = image * (1 - alpha) + alpha * palette()[list(COLORS).index(color)]
    return image


def named(detections) -> Counter:
    return Counter((d.label, d.color) for d in detections)


@pytest.mark.parametrize("size", [32, 48, 64])
def test_renders_are_read_without_error(size):
    """On prompts of all six tasks: the shapes, then with their colours and relations too."""
    rng = np.random.default_rng(size)
    n = 50 if size == 32 else 15
    specs = [sample_spec(rng, task, "all") for task in GENEVAL_TASKS for _ in range(n)]
    found = detect(batch(*(render(spec, rng, size) for spec in specs)))
    shapes = [Counter({item["class"]: item["count"] for item in spec["include"]}) for spec in specs]
    right = [
        Counter(d.label for d in seen) == asked for seen, asked in zip(found, shapes, strict=True)
    ]
    assert np.mean(right) >= 0.99
    verdicts = [strict(seen, spec) for seen, spec in zip(found, specs, strict=True)]
    assert np.mean(verdicts) >= 0.99
    assert all(official(s, spec) for s, spec, v in zip(found, specs, verdicts, strict=True) if v)


def scene(rng, n: int, size: int):
    """``n`` shapes on a 2 x 2 grid, and what they are."""
    image = canvas(size)
    truth = []
    for cell in rng.permutation(4)[:n]:
        shape, color = str(rng.choice(list(SHAPES))), str(rng.choice(list(COLORS)))
        r = rng.uniform(0.145, 0.19) * size
        x, y = (np.array([cell % 2, cell // 2]) * 0.5 + 0.25) * size + rng.uniform(
            -0.02, 0.02, 2
        ) * size
        draw_shape(image, shape, color, (x, y, r))
        truth.append((shape, color, (x, y, r)))
    return image, truth


def extent(shape: str, x: float, y: float, r: float):
    """The bounding box of a drawn shape, from its corners."""
    low, high = {
        "circle": ((-1, -1), (1, 1)),
        "ring": ((-1, -1), (1, 1)),
        "cross": ((-1, -1), (1, 1)),
        "square": ((-0.88, -0.88), (0.88, 0.88)),
        "triangle": ((-1, -1), (1, 0.85)),
        "star": (
            (-1.08 * np.sin(0.4 * np.pi), -1.02),
            (1.08 * np.sin(0.4 * np.pi), 1.08 * np.cos(0.2 * np.pi) + 0.06),
        ),
    }[shape]
    return np.array([x + r * low[0], y + r * low[1], x + r * high[0], y + r * high[1]])


def test_shapes_and_colours_of_three_hundred_scenes_are_exactly_right():
    rng = np.random.default_rng(0)
    scenes = [scene(rng, int(rng.integers(1, 5)), 32) for _ in range(300)]
    found = detect(batch(*(image for image, _ in scenes)))
    right = [
        named(seen) == Counter((s, c) for s, c, _ in truth)
        for seen, (_, truth) in zip(found, scenes, strict=True)
    ]
    assert np.mean(right) >= 0.99


@pytest.mark.parametrize("size", [32, 64])
def test_boxes_lie_within_a_pixel_of_what_was_drawn(size):
    rng = np.random.default_rng(size)
    for _ in range(40):
        image, truth = scene(rng, 4, size)
        seen = look(image)
        assert len(seen) == 4
        for shape, color, disc in truth:
            box = extent(shape, *disc)
            nearest = min(seen, key=lambda d: np.abs(np.array(d.box) - box).max())
            tip = 0.12 * disc[2] if shape in ("star", "triangle") else 0  # less than half covered
            np.testing.assert_allclose(nearest.box, box, atol=1 + tip)
            assert (nearest.label, nearest.color) == (shape, color)


def test_area_and_score_of_a_known_disc():
    (seen,) = look(paint(canvas(), np.hypot(*(g - 16 for g in pixel_grid(32))) - 7, "blue"))
    assert (seen.label, seen.color) == ("circle", "blue")
    assert seen.area == pytest.approx(np.pi * 49, rel=0.03)
    assert 0.95 < seen.score <= 1
    np.testing.assert_allclose(seen.box, (9, 9, 23, 23), atol=0.5)


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_in_every_colour_is_known(shape, color):
    for r in (5.0, 9.0):
        image = canvas()
        draw_shape(image, shape, color, (15.6, 16.3, r))
        assert named(look(image)) == {(shape, color): 1}


def test_an_empty_picture_shows_nothing():
    noise = np.random.default_rng(0).normal(0, 0.02, (32, 32, 3)).astype(np.float32)
    slope = canvas() + np.linspace(-0.04, 0.04, 32, dtype=np.float32)[:, None, None]
    black = np.zeros_like(canvas())
    for image in (canvas(), canvas() + noise, slope, black, np.ones_like(black)):
        assert look(image.clip(0, 1)) == []
    assert detect(torch.zeros(0, 3, 32, 32)) == []


def test_a_speck_is_no_object():
    image = canvas()
    image[10:12, 10:12] = palette()[0]
    assert look(image) == []


def blobs():
    x, y = pixel_grid(32)
    x, y = x - 16, y - 16
    turned = (x + y) / 2**0.5, (x - y) / 2**0.5
    return {
        "a bar": np.maximum(np.abs(x) - 11, np.abs(y) - 2),
        "a tall bar": np.maximum(np.abs(x) - 2, np.abs(y) - 11),
        "an L": np.minimum(
            np.maximum(np.abs(x + 6) - 2.5, np.abs(y) - 9),
            np.maximum(np.abs(x) - 8.5, np.abs(y - 6.5) - 2.5),
        ),
        "a crescent": np.maximum(np.hypot(x, y) - 10, 8 - np.hypot(x - 5, y)),
        "two discs in one": np.minimum(np.hypot(x - 6, y) - 6.2, np.hypot(x + 6, y) - 6.2),
        "a half disc": np.maximum(np.hypot(x, y) - 11, y),
        "an X": np.maximum(
            np.minimum(np.abs(turned[0]), np.abs(turned[1])) - 2.5,
            np.maximum(np.abs(turned[0]), np.abs(turned[1])) - 10,
        ),
        "a triangle upside down": np.maximum(np.abs(x) - (10 - (y + 9)) * 0.55 - 3, np.abs(y) - 9),
        "an ellipse": (np.hypot(x / 11, y / 5) - 1) * 5,
    }


@pytest.mark.parametrize("name", list(blobs()))
def test_a_blob_that_is_none_of_the_shapes_is_an_unclear_object(name):
    seen = look(paint(canvas(), blobs()[name], "green"))
    assert named(seen) == {(UNCLEAR, "green"): 1}


def test_an_unclear_object_spoils_the_exact_verdict_but_not_the_official_one():
    image = canvas(64)
    x, y = pixel_grid(64)
    paint(image, np.hypot(x - 16, y - 16) - 9, "red")
    paint(image, np.maximum(np.hypot(x - 44, y - 44) - 14, 11 - np.hypot(x - 51, y - 44)), "blue")
    seen = look(image)
    record = {"tag": "colors", "include": [{"class": "circle", "count": 1, "color": "red"}]}
    assert named(seen) == {("circle", "red"): 1, (UNCLEAR, "blue"): 1}
    assert official(seen, record) and not strict(seen, record)
    assert partial(seen, record) == pytest.approx(2 / 3)


def test_two_colours_that_touch_are_two_objects():
    x, y = pixel_grid(32)
    image = paint(canvas(), np.maximum(np.abs(x - 9) - 6, np.abs(y - 16) - 6), "red")
    paint(image, np.maximum(np.abs(x - 22) - 7, np.abs(y - 16) - 7), "blue")
    assert named(look(image)) == {("square", "red"): 1, ("square", "blue"): 1}


def test_noise_does_not_hide_or_add_objects():
    rng = np.random.default_rng(1)
    right = []
    for _ in range(60):
        image, truth = scene(rng, 2, 32)
        image = (image + rng.normal(0, 0.03, image.shape)).clip(0, 1).astype(np.float32)
        right.append(named(look(image)) == Counter((s, c) for s, c, _ in truth))
    assert np.mean(right) >= 0.95


def test_detections_come_best_first_and_pictures_do_not_mix():
    rng = np.random.default_rng(2)
    images = [scene(rng, 3, 32)[0] for _ in range(8)]
    found = detect(batch(*images))
    assert found == [look(image) for image in images]
    for seen in found:
        scores = [d.score for d in seen]
        assert scores == sorted(scores, reverse=True) and all(0 <= s <= 1 for s in scores)


def test_tensors_with_gradients_and_in_half_precision_are_read_alike():
    image, truth = scene(np.random.default_rng(3), 3, 32)
    known = Counter((s, c) for s, c, _ in truth)
    for media in (batch(image).requires_grad_(), batch(image).half(), batch(image).bfloat16()):
        assert named(detect(media)[0]) == known


@pytest.mark.parametrize("color", range(len(COLORS)))
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_unmixing_undoes_a_known_mixture(color, alpha):
    image = canvas()
    image[8:24, 8:24] = (1 - alpha) * GROUND + alpha * palette()[color]
    index, cover = unmix(image)
    np.testing.assert_allclose(cover[8:24, 8:24], alpha, atol=1e-5)
    np.testing.assert_allclose(cover[:8], 0, atol=1e-5)
    if alpha:
        assert (index[8:24, 8:24] == color).all()


def test_unmixing_gives_the_least_squares_answer():
    rng = np.random.default_rng(4)
    image = canvas(12)
    image[1:-1, 1:-1] = rng.uniform(0, 1, (10, 10, 3))
    index, cover = unmix(image)
    grid = np.linspace(0, 1, 1001)[:, None, None]
    for row, column in np.ndindex(12, 12):
        # the search over all colours and a fine grid of coverages that the closed form replaces
        mixtures = (1 - grid) * GROUND + grid * palette()  # (1001, C, 3)
        error = ((mixtures - image[row, column]) ** 2).sum(-1)
        own = (1 - cover[row, column]) * GROUND + cover[row, column] * palette()[index[row, column]]
        assert ((own - image[row, column]) ** 2).sum() <= error.min() + 1e-6


def test_the_ground_is_the_median_of_the_border():
    image = canvas()
    image[0, :12] = palette()[2]  # an object that is cut off by the edge
    _, cover = unmix(image)
    np.testing.assert_allclose(cover[5:], 0, atol=1e-5)
    np.testing.assert_allclose(cover[0, :12], 1, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 4, 32, 32), (1, 3, 32, 48), (1, 2, 3, 32, 32)])
def test_another_shape_of_input_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected square images \(B, 3, H, H\)"):
        detect(torch.zeros(shape))
