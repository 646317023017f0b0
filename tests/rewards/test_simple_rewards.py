"""Rewards without weights, on pictures whose score is known."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from flowalign.embedded.renderer import render
from flowalign.errors import ConfigError
from flowalign.rewards import build, text_rules


def score(name: str, media: torch.Tensor, metadata=None, **options) -> torch.Tensor:
    values, valid = build(name, **options)(media, [""] * len(media), metadata or [{}] * len(media))
    assert bool(valid.all()) and values.shape == (len(media),) and values.dtype == torch.float32
    return values


def solid(*rgb: float, size: int = 8) -> torch.Tensor:
    return torch.tensor(rgb)[:, None, None].expand(3, size, size).clone()


# -- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "wanted", "credit"),
    [
        ("CAT", "CAT", 1.0),
        ("cat", "CAT", 1.0),
        ("C A T", "cat", 1.0),
        ("CAR", "CAT", 2 / 3),
        ("CA", "CAT", 2 / 3),
        ("CATS", "CAT", 2 / 3),
        ("?A?", "CAT", 1 / 3),
        ("", "CAT", 0.0),
        ("HELLO WORLD", "CAT", 0.0),  # the distance is capped at the length
        ("SITTING", "KITTEN", 1 - 3 / 6),
    ],
)
def test_edit_credit(read, wanted, credit):
    assert text_rules.edit(read, wanted) == pytest.approx(credit)
    assert text_rules.exact(read, wanted) == float(credit == 1)


def test_wanting_nothing_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        text_rules.edit("A", " ")


def sign(text: str, seed: int = 0) -> torch.Tensor:
    picture = render({"tag": "ocr", "text": text, "color": "blue"}, np.random.default_rng(seed))
    return torch.from_numpy(picture).permute(2, 0, 1)


def test_signs_are_scored_by_what_they_say():
    media = torch.stack([sign("FOX"), sign("FOG"), sign("UP"), torch.full((3, 32, 32), 0.9)])
    metadata = [{"text": "FOX"}] * 4
    exact = torch.tensor([1.0, 0.0, 0.0, 0.0])
    edit = torch.tensor([1.0, 2 / 3, 0.0, 0.0])
    torch.testing.assert_close(score("embedded_ocr", media, metadata, rule="exact"), exact)
    torch.testing.assert_close(score("embedded_ocr", media, metadata, rule="edit"), edit)
    torch.testing.assert_close(score("embedded_ocr", media, metadata), (exact + edit) / 2)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="rule must be one of exact, edit, mixed"):
        build("embedded_ocr", rule="fuzzy")


# -- compressibility ---------------------------------------------------------------------------


def test_compressibility_is_minus_the_file_size():
    media = torch.rand(2, 3, 40, 24, generator=torch.Generator().manual_seed(0))
    sizes = []
    for picture in media:
        file = io.BytesIO()
        pixels = (picture * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(file, format="JPEG", quality=95)
        sizes.append(len(file.getvalue()) / 1000)
    torch.testing.assert_close(score("compressibility", media), -torch.tensor(sizes))
    torch.testing.assert_close(score("compressibility", media, sign=1), torch.tensor(sizes))


def test_noise_is_larger_than_a_flat_picture_and_low_quality_smaller():
    noise = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    flat = solid(0.5, 0.5, 0.5, size=32)[None]
    assert score("compressibility", flat) > score("compressibility", noise)
    assert score("compressibility", noise, quality=20) > score("compressibility", noise)


@pytest.mark.parametrize("options", [{"quality": 0}, {"quality": 100}, {"sign": 2}])
def test_compressibility_refuses_what_jpeg_has_not(options):
    with pytest.raises(ConfigError, match="quality must be"):
        build("compressibility", **options)


# -- colour ------------------------------------------------------------------------------------


def test_color_fraction_in_closed_form():
    half = solid(1, 0, 0)
    half[:, :4] = torch.tensor([0.0, 0.0, 1.0])[:, None, None]
    media = torch.stack([solid(1, 0, 0), half, solid(0.8, 0, 0), solid(0, 0, 1)])
    far = np.exp(-2 / (2 * 0.2**2))  # blue is sqrt 2 away from red
    expected = torch.tensor([1.0, (1 + far) / 2, np.exp(-0.5), far], dtype=torch.float32)
    torch.testing.assert_close(score("color_fraction", media), expected)
    torch.testing.assert_close(score("color_fraction", media, color="#ff0000"), expected)


def test_color_fraction_of_a_video_is_the_mean_of_its_frames():
    video = torch.stack([solid(1, 0, 0), solid(0, 0, 1)])[None]
    frames = score("color_fraction", video[0])
    torch.testing.assert_close(score("color_fraction", video), frames.mean()[None])


@pytest.mark.parametrize("options", [{"color": "reddish"}, {"width": 0.0}])
def test_color_fraction_refuses_nonsense(options):
    with pytest.raises(ConfigError, match="reward color_fraction"):
        build("color_fraction", **options)


# -- sharpness ---------------------------------------------------------------------------------


def checkerboard(size: int = 8) -> torch.Tensor:
    i = torch.arange(size)
    return ((i[:, None] + i) % 2).float().expand(3, size, size)


def test_sharpness_in_closed_form():
    ramp = torch.linspace(0, 1, 8).expand(3, 8, 8)
    single = torch.zeros(3, 5, 5)
    single[:, 2, 2] = 1  # the inner 3 x 3 Laplacian is -4 once, 1 four times, 0 four times
    media = torch.stack([checkerboard(), solid(0.3, 0.6, 0.9), ramp])
    torch.testing.assert_close(
        score("sharpness", media), torch.tensor([16.0, 0.0, 0.0]), atol=1e-6, rtol=1e-6
    )
    torch.testing.assert_close(score("sharpness", single[None]), torch.tensor([20 / 9]))


def test_sharpness_of_a_video_is_the_mean_of_its_frames():
    video = torch.stack([checkerboard(), solid(0.5, 0.5, 0.5)])[None]
    torch.testing.assert_close(score("sharpness", video), torch.tensor([8.0]))


def test_sharpness_needs_three_pixels():
    with pytest.raises(ValueError, match="3 x 3"):
        build("sharpness").score(torch.zeros(1, 3, 2, 9), [""], [{}])


@pytest.mark.parametrize("name", ["color_fraction", "sharpness"])
def test_gradients_reach_the_media(name):
    reward = build(name)
    assert reward.differentiable
    media = torch.rand(
        2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: reward.score(x, ["", ""], [{}, {}]), media)
