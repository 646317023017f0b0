"""The SD3 adapter against the pipeline it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler
from torch import Tensor, nn

from flowalign.errors import ConfigError, FlowalignError
from flowalign.models.base import LoraOptions
from flowalign.models.sd3 import SD3Policy

PROMPTS = ["a red circle", "two blue squares"]
MODELS = ["tiny", "sd3", "sd35", "embedded"]
STATIC: dict[str, Any] = {"shift": 1.7}
DYNAMIC: dict[str, Any] = {
    "use_dynamic_shifting": True,
    "base_shift": 0.4,
    "max_shift": 1.3,
    "base_image_seq_len": 16,
    "max_image_seq_len": 100,
}

Make = Callable[..., SD3Policy]
Sample = Callable[..., tuple[Tensor, Tensor]]


class Recorder(nn.Module):
    """Stands for accelerate's wrapper and remembers what it was fed."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.calls = module, []

    def forward(self, **inputs: Any) -> Any:
        self.calls.append(inputs)
        return self.module(**inputs)


def close(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for mine, own in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, own, atol=1e-4, rtol=0)


def inputs(policy: SD3Policy) -> tuple[Tensor, Any]:
    return policy.noise(torch.Generator().manual_seed(0), len(PROMPTS)), policy.encode(PROMPTS)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("name", MODELS)
def test_ode_sampling_equals_the_pipeline(
    name: str, guidance: float, make: Make, sample: Sample, reference_sample: Sample
) -> None:
    policy = make(name)
    ours = sample(policy, guidance)
    close(ours, reference_sample(policy.pipeline, policy.max_sequence_length, guidance))
    # and the comparison can fail: prompt and guidance both move the latent
    assert (ours[0][0] - ours[0][1]).abs().max() > 0.1
    assert (ours[0] - sample(policy, 5.0 - guidance)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
@pytest.mark.parametrize(
    "scheduler", [{"shift": 1.0}, STATIC, DYNAMIC], ids=["none", "static", "dynamic"]
)
def test_grids_and_sizes_equal_the_pipeline(
    scheduler: dict[str, Any],
    size: tuple[int, int],
    make: Make,
    sample: Sample,
    reference_sample: Sample,
) -> None:
    policy = make("sd3", scheduler=scheduler)
    close(sample(policy, 3.0, size), reference_sample(policy.pipeline, 8, 3.0, size))
    assert policy.latent_shape(*size) == (16, size[0] // 2, size[1] // 2)


def test_generators_and_negative_prompt_equal_the_pipeline(
    make: Make, sample: Sample, reference_sample: Sample
) -> None:
    def streams() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in (5, 6)]

    policy = make("sd35", negative_prompt="green")
    ours = sample(policy, 4.0, generator=streams())
    options = {"generator": streams, "negative_prompt": lambda: ["green"] * 2}
    close(ours, reference_sample(policy.pipeline, 8, 4.0, **options))
    assert (ours[0] - sample(make("sd35"), 4.0, generator=streams())[0]).abs().max() > 1e-3


def test_times_run_from_one_to_zero_by_the_chosen_shift(make: Make) -> None:
    shape = (3, 32, 32)
    for options in ({}, {"shift": 1.5}):
        times = make("tiny", **options).times(10, shape)
        shift = options.get("shift", 3.0)
        scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        scheduler.set_timesteps(10)
        assert torch.equal(times, scheduler.sigmas)
        assert times.dtype == torch.float32 and times[0] == 1 and times[-1] == 0
    fixed = make("sd3", scheduler=DYNAMIC)
    assert not torch.equal(fixed.times(4, (16, 16, 16)), fixed.times(4, (16, 24, 24)))
    overridden = SD3Policy(fixed.pipeline, max_sequence_length=8, shift=2.0)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=2.0)
    scheduler.set_timesteps(4)
    assert torch.equal(overridden.times(4, (16, 24, 24)), scheduler.sigmas)
    assert fixed.pipeline.scheduler.config.use_dynamic_shifting  # the pipeline's own stays


@pytest.mark.parametrize("name", ["tiny", "sd35"])
def test_cfg_is_one_batched_forward_equal_to_two(name: str, make: Make) -> None:
    policy = make(name)
    x, condition = inputs(policy)
    t = torch.tensor([0.9, 0.4])
    recorder = policy.denoiser = Recorder(policy.module)
    with torch.no_grad():
        guided = policy.velocity(x, t, condition, guidance=2.5)
        assert len(recorder.calls) == 1
        positive = policy.velocity(x, t, condition)
        negative = policy.velocity(x, t, condition.negative)
    assert [len(call["hidden_states"]) for call in recorder.calls] == [4, 2, 2]
    torch.testing.assert_close(guided, negative + 2.5 * (positive - negative), atol=1e-5, rtol=1e-5)
    assert (positive - negative).abs().max() > 1e-3
    assert torch.equal(recorder.calls[0]["timestep"], 1000 * torch.tensor([0.9, 0.4, 0.9, 0.4]))


def test_velocity_takes_one_time_or_one_a_row(make: Make) -> None:
    policy = make("sd3")
    x, condition = inputs(policy)
    with torch.no_grad():
        mixed = policy.velocity(x, torch.tensor([0.8, 0.3]), condition)
        for row, t in enumerate((0.8, 0.3)):
            alone = policy.velocity(x, torch.tensor(t), condition)[row]
            torch.testing.assert_close(mixed[row], alone, atol=1e-5, rtol=1e-5)
    assert mixed.dtype == torch.float32


def test_velocity_without_what_it_needs_is_refused(make: Make) -> None:
    policy = make("tiny")
    x, condition = inputs(policy)
    with pytest.raises(ValueError, match="needs a condition"):
        policy.velocity(x, torch.tensor(0.5), None)
    with pytest.raises(ValueError, match="needs a condition with a negative"):
        policy.velocity(x, torch.tensor(0.5), condition.negative, guidance=2.0)


def test_half_precision_computes_in_bf16_and_returns_fp32(make: Make) -> None:
    exact, half = make("tiny"), make("tiny", dtype="bf16")
    x, condition = inputs(exact)
    recorder = half.denoiser = Recorder(half.module)
    with torch.no_grad():
        v = half.velocity(x, torch.tensor(0.5), half.encode(PROMPTS))
        expected = exact.velocity(x, torch.tensor(0.5), condition)
    assert v.dtype == torch.float32
    assert recorder.calls[0]["hidden_states"].dtype == torch.bfloat16
    assert 0 < (v - expected).abs().max() < 0.05 * expected.abs().max()
    assert half.decode(x).dtype == torch.float32


@pytest.mark.parametrize("name", ["tiny", "sd3"])
def test_encode_in_chunks_equals_the_pipeline(name: str, make: Make) -> None:
    policy = make(name)
    prompts = [f"{word} circle" for word in ("a red", "two blue", "a") * 12]  # 36: two chunks
    condition = policy.encode(prompts)
    with torch.no_grad():
        embeds, negative, pooled, negative_pooled = policy.pipeline.encode_prompt(
            prompts, None, None, max_sequence_length=policy.max_sequence_length
        )
    for ours, theirs in (
        (condition.embeds, embeds),
        (condition.pooled, pooled),
        (condition.negative.embeds, negative),
        (condition.negative.pooled, negative_pooled),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert not ours.requires_grad
    assert condition.negative.embeds.stride(0) == 0  # one row in memory


def test_t5_is_optional_and_its_length_an_option(make: Make) -> None:
    clip = 16
    assert make("sd3").encode(PROMPTS).embeds.shape == (2, clip + 8, 40)
    assert make("sd3", max_sequence_length=5).encode(PROMPTS).embeds.shape == (2, clip + 5, 40)
    without = make("sd3", text_encoder_3=False)
    assert without.pipeline.text_encoder_3 is None and without.pipeline.tokenizer_3 is None
    assert (without.encode(PROMPTS).embeds[:, clip:] == 0).all()  # as the pipeline feeds it
    assert make("tiny").encode(PROMPTS).embeds.shape == (2, clip, 128)


def test_freed_text_encoders(make: Make) -> None:
    policy = make("sd3")
    x, condition = inputs(policy)
    before = policy.velocity(x, torch.tensor(0.5), condition, 2.0)
    policy.free_text_encoders()
    policy.free_text_encoders()  # twice is once
    assert all(getattr(policy.pipeline, f"text_encoder{i}") is None for i in ("", "_2", "_3"))
    with pytest.raises(FlowalignError, match="encode all prompts before free_text_encoders"):
        policy.encode(PROMPTS)
    assert torch.equal(policy.velocity(x, torch.tensor(0.5), condition, 2.0), before)
    with pytest.raises(ValueError, match="at least one prompt"):
        make("tiny").encode([])


@pytest.mark.parametrize("name", ["tiny", "sd3"])
def test_decode_carries_the_gradient_to_the_latent(name: str, make: Make) -> None:
    policy = make(name)
    x = 0.3 * policy.noise(torch.Generator().manual_seed(0), 2)
    x.requires_grad_(True)
    media = policy.decode(x)
    assert media.shape == (2, 3, 32, 32) and media.min() >= 0 and media.max() <= 1
    (grad,) = torch.autograd.grad(media[:, :, 10, 20].sum(), x)
    step = 1e-3 * grad / grad.norm()
    with torch.no_grad():
        change = (policy.decode(x + step) - policy.decode(x - step))[:, :, 10, 20].sum()
    torch.testing.assert_close(change / 2e-3, grad.norm(), rtol=2e-2, atol=0)


def test_encode_images_undoes_decode(make: Make) -> None:
    policy = make("embedded")
    media = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    latents = policy.encode_images(media)
    torch.testing.assert_close(latents, 2 * media - 1, atol=1e-3, rtol=0)  # latents are pixels
    torch.testing.assert_close(policy.decode(latents), media, atol=1e-3, rtol=0)


def test_encode_images_scales_as_sd3_does(make: Make) -> None:
    policy = make("sd3")
    media = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean = policy.pipeline.vae.encode(2 * media - 1).latent_dist.mean
    latents = policy.encode_images(media)
    torch.testing.assert_close(latents, (mean - 0.0609) * 1.5305)
    assert latents.shape == (2, *policy.latent_shape())


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_gradient_checkpointing_keeps_the_gradient(mode: Any, make: Make) -> None:
    grads = []
    for checkpointing in (False, True):
        policy = make("sd35")
        policy.set_trainable(mode, LoraOptions(rank=2), seed=1)
        if checkpointing:
            policy.enable_gradient_checkpointing()
        block, count = policy.module.transformer_blocks[0], []
        # before, not after: torch stops the second forward once it has all that backward needs
        block.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        x, condition = inputs(policy)
        velocity = policy.velocity(x, torch.tensor(0.5), condition, 3.0)
        assert len(count) == 1
        velocity.square().mean().backward()
        assert len(count) == 1 + checkpointing  # the second forward happens
        grads.append({name: p.grad for name, p in policy.named_trainable().items()})
    assert any(g is not None and g.abs().max() > 0 for g in grads[0].values())
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-7, rtol=1e-5)


def test_impossible_sizes_name_the_nearest(make: Make) -> None:
    policy = make("sd3")  # multiples of 4 up to 48
    with pytest.raises(ConfigError, match="multiples of 4 up to 48; the nearest to 30 is 32"):
        policy.latent_shape(30, 32)
    with pytest.raises(ConfigError, match="the nearest to 64 is 48"):
        policy.latent_shape(32, 64)
    with pytest.raises(ConfigError, match="nearest to 2 is 4"):
        make("sd3", height=2)
    assert make("sd3", height=16, width=24).latent_shape() == (16, 8, 12)
    assert policy.latent_shape() == (16, 16, 16)


def test_schedulers_with_another_grid_are_refused(make: Make) -> None:
    pipeline = make("tiny").pipeline
    with pytest.raises(ConfigError, match="shift is > 0"):
        SD3Policy(pipeline, shift=0.0)
    pipeline.scheduler = FlowMatchHeunDiscreteScheduler()
    with pytest.raises(ConfigError, match="FlowMatchHeunDiscreteScheduler is not supported"):
        SD3Policy(pipeline)


@pytest.mark.parametrize("name", ["tiny", "sd3"])
def test_everything_is_frozen_and_in_eval_mode(name: str, make: Make) -> None:
    policy = make(name)
    for mode in ("none", "full"):
        policy.set_trainable(mode)
        modules = [p for p in policy.pipeline.components.values() if isinstance(p, nn.Module)]
        assert not any(module.training for part in modules for module in part.modules())
        moving = [part for part in modules if any(p.requires_grad for p in part.parameters())]
        assert moving == ([policy.module] if mode == "full" else [])
