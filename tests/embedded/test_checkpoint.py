"""The model that ships with the package: small, safe, stock, and able to draw what it is told."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors import safe_open

import flowalign
from flowalign.embedded.detector import detect
from flowalign.embedded.grammar import TASKS, VOCABULARY, sample_spec
from flowalign.models.load import embedded_folder
from flowalign.models.quiet import quiet
from flowalign.models.sd3 import SD3Policy
from flowalign.samplers import ODE, simulate

SEEDS = range(8)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from two, and loses much where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder() -> Path:
    return embedded_folder()


@pytest.fixture(scope="module")
def stock(folder: Path) -> Any:
    """The pipeline as a user without flowalign loads it."""
    with quiet():
        pipeline = StableDiffusion3Pipeline.from_pretrained(
            folder, text_encoder_3=None, tokenizer_3=None, torch_dtype=torch.float32
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def policy() -> SD3Policy:
    return flowalign.load_policy("embedded", device="cpu")


def noises() -> torch.Tensor:
    """One start a seed, as ``generator=[...]`` of the pipeline draws them."""
    draws = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    return torch.cat([torch.randn(1, 3, 32, 32, generator=draw) for draw in draws])


def drawn(pipeline: Any, prompt: str) -> torch.Tensor:
    """Eight pictures by the stock pipeline, ``(8, 3, 32, 32)`` in [0, 1]."""
    return pipeline(
        [prompt] * len(SEEDS),
        num_inference_steps=10,
        guidance_scale=3.0,
        height=32,
        width=32,
        max_sequence_length=0,
        latents=noises(),
        output_type="pt",
    ).images


@pytest.fixture(scope="module")
def circles(stock: Any) -> torch.Tensor:
    return drawn(stock, "a red circle")


def names(pictures: torch.Tensor) -> list[set[tuple[str, str]]]:
    return [{(d.label, d.color) for d in seen} for seen in detect(pictures)]


def weights(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_the_folder_is_small_and_holds_no_pickle(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 16 * 2**20
    assert {path.suffix for path in files} <= {".json", ".txt", ".safetensors"}
    parts = {path.parent.name for path in weights(folder)}
    assert parts == {"transformer", "text_encoder", "text_encoder_2", "vae"}


def test_the_weights_are_finite_and_the_transformer_is_in_half_precision(folder):
    for path in weights(folder):
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert all(torch.isfinite(t).all() for t in tensors.values())
        kinds = {t.dtype for t in tensors.values() if t.is_floating_point()}
        half = {torch.float16, torch.bfloat16}
        assert kinds <= (half if path.parent.name == "transformer" else half | {torch.float32})


def test_the_transformer_was_trained(folder):
    (path,) = (folder / "transformer").glob("*.safetensors")
    with safe_open(path, "pt") as file:
        out = file.get_tensor("proj_out.weight")  # starts as zero
    assert out.float().std() > 0.01


def test_the_policy_is_of_the_stated_size_and_has_the_stated_defaults(folder, policy):
    stated = json.loads((folder / "flowalign.json").read_text())
    assert (stated["height"], stated["width"], stated["max_sequence_length"]) == (32, 32, 0)
    assert isinstance(policy, SD3Policy)
    assert policy.latent_shape() == (3, 32, 32) and policy.max_sequence_length == 0
    n = sum(p.numel() for p in policy.pipeline.transformer.parameters())
    assert 3.3e6 < n < 3.7e6


def test_the_tokenizer_knows_each_word_whole_and_spells_the_signs(stock):
    tokenizer = stock.tokenizer
    for word in VOCABULARY:
        assert len(tokenizer.tokenize(word)) == 1, word
    assert tokenizer.tokenize("a red circle") == ["a</w>", "red</w>", "circle</w>"]
    assert tokenizer.tokenize("fox") == ["f", "o", "x</w>"]
    assert tokenizer.model_max_length == 16
    rng = np.random.default_rng(0)
    specs = [sample_spec(rng, task, "all") for task in TASKS for _ in range(100)]
    ids = tokenizer([spec["prompt"] for spec in specs], truncation=False).input_ids
    assert max(map(len, ids)) <= 16  # nothing is cut off


def test_the_autoencoder_passes_pixels_through(policy):
    media = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    latents = media * 2 - 1
    torch.testing.assert_close(policy.encode_images(media), latents, atol=1e-3, rtol=0)
    torch.testing.assert_close(policy.decode(latents), media, atol=1e-3, rtol=0)


@torch.no_grad()
def test_the_policy_and_the_stock_pipeline_draw_the_same_pictures(policy, circles):
    grid = policy.times(10, policy.latent_shape())
    condition = policy.encode(["a red circle"] * len(SEEDS))
    path = simulate(policy, ODE(), grid, noises(), condition, guidance=3.0)
    torch.testing.assert_close(policy.decode(path.final), circles, atol=1e-3, rtol=0)


def test_it_draws_a_red_circle(circles):
    assert sum(("circle", "red") in seen for seen in names(circles)) >= 5  # 57 of 64 seeds do


def test_the_prompt_decides_what_is_drawn(stock):
    squares = names(drawn(stock, "a photo of a blue square"))
    assert sum(("square", "blue") in seen for seen in squares) >= 6
    assert not any(("circle", "red") in seen for seen in squares)


def test_the_public_name_loads_it():
    assert "load_policy" in flowalign.__all__
    assert "name_or_path" in inspect.signature(flowalign.load_policy).parameters
