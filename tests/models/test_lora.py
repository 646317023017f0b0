"""A trained adapter is the same in our policy, in a reloaded one and in stock diffusers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flowalign.errors import CheckpointError, ConfigError, FlowalignError
from flowalign.models.base import LORA_FILE, LoraOptions
from flowalign.models.sd3 import SD3Policy

Make = Callable[..., SD3Policy]
Sample = Callable[..., tuple[Tensor, Tensor]]
LORA = LoraOptions(rank=4, alpha=12.0)  # a scale of 3: forgetting alpha would show


def train(policy: SD3Policy, lora: LoraOptions = LORA, size: float = 0.05) -> SD3Policy:
    """Stands for a training: every weight of the adapter moves."""
    policy.set_trainable("lora", lora, seed=1)
    generator = torch.Generator().manual_seed(4)
    for parameter in policy.named_trainable().values():
        parameter.data += size * torch.randn(parameter.shape, generator=generator)
    return policy


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("name", ["tiny", "sd3", "sd35", "embedded"])
def test_stock_diffusers_draws_the_same_picture_with_the_exported_adapter(
    name: str,
    guidance: float,
    make: Make,
    sample: Sample,
    stock: Callable[[Path], Any],
    reference_sample: Sample,
    checkpoints: dict[str, Path],
    tmp_path: Path,
) -> None:
    policy = train(make(name))
    _, ours = sample(policy, guidance)
    policy.export_lora(tmp_path)
    pipeline = stock(checkpoints[name])
    _, base = reference_sample(pipeline, policy.max_sequence_length, guidance)
    pipeline.load_lora_weights(tmp_path)
    _, theirs = reference_sample(pipeline, policy.max_sequence_length, guidance)
    assert (ours - theirs).abs().max() < 1 / 255
    assert (ours - base).abs().max() > 4 / 255


def test_a_new_adapter_changes_nothing_and_freezes_the_rest(make: Make, sample: Sample) -> None:
    before = sample(make("tiny"))
    policy = make("tiny")
    policy.set_trainable("lora", LORA)
    assert torch.equal(sample(policy)[0], before[0])
    trainable = policy.named_trainable()
    assert trainable and all("lora_" in name for name in trainable)
    assert all(parameter.dtype == torch.float32 for parameter in trainable.values())


def test_its_start_depends_on_the_seed_alone(make: Make) -> None:
    def start(seed: int) -> Tensor:
        policy = make("tiny")
        torch.rand(3)  # the global stream is elsewhere each time
        state = torch.get_rng_state()
        policy.set_trainable("lora", LORA, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return torch.cat([p.flatten() for p in policy.named_trainable().values()])

    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))


def test_training_goes_on_from_an_exported_adapter(
    make: Make, sample: Sample, tmp_path: Path
) -> None:
    first = train(make("tiny"))
    first.export_lora(tmp_path)
    second = make("tiny")
    second.set_trainable("lora", LoraOptions(rank=4, alpha=12.0, path=str(tmp_path)))
    assert torch.equal(sample(second)[0], sample(first)[0])
    assert second.named_trainable().keys() == first.named_trainable().keys()


def test_inference_loads_and_merges_it(make: Make, sample: Sample, tmp_path: Path) -> None:
    trained = train(make("tiny"))
    expected = sample(trained)[0]
    trained.export_lora(tmp_path / "lora")
    policy = make("tiny")
    policy.load_lora(tmp_path / "lora")
    torch.testing.assert_close(sample(policy)[0], expected, atol=1e-5, rtol=0)
    assert not policy.named_trainable()
    policy.merge_lora()
    assert not policy.has_adapter
    torch.testing.assert_close(sample(policy)[0], expected, atol=1e-4, rtol=0)


def test_the_merged_pipeline_is_a_plain_one(
    make: Make, sample: Sample, stock: Callable[[Path], Any], reference_sample: Sample,
    tmp_path: Path,
) -> None:  # fmt: skip
    policy = train(make("sd3"))
    _, ours = sample(policy, 3.0)
    policy.free_text_encoders()  # as a training does
    policy.merge_lora()
    policy.export_full(tmp_path / "model")
    pipeline = stock(tmp_path / "model")
    assert pipeline.text_encoder_3 is not None
    _, theirs = reference_sample(pipeline, policy.max_sequence_length, 3.0)
    assert (ours - theirs).abs().max() < 1 / 255


def test_an_adapter_of_other_options_is_not_silently_rescaled(make: Make, tmp_path: Path) -> None:
    train(make("tiny")).export_lora(tmp_path)
    for options, text in (
        ({"rank": 8, "alpha": 12.0}, "set model.lora.rank=4"),
        ({"rank": 4, "alpha": 4.0}, "set model.lora.alpha=12"),
        ({"rank": 4, "alpha": 12.0, "targets": ("attn.to_q",)}, "does not fit this model"),
    ):
        with pytest.raises(CheckpointError, match=text):
            make("tiny").set_trainable("lora", LoraOptions(path=str(tmp_path), **options))


def test_an_adapter_of_another_model_is_refused(make: Make, tmp_path: Path) -> None:
    train(make("embedded")).export_lora(tmp_path)
    for use in (
        lambda policy: policy.load_lora(tmp_path),
        lambda policy: policy.set_trainable(
            "lora", LoraOptions(rank=4, alpha=12.0, path=str(tmp_path))
        ),
    ):
        with pytest.raises(CheckpointError, match="does not fit this model"):
            use(make("sd3"))


def test_damaged_and_missing_adapters_are_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no readable"):
        make("tiny").load_lora(tmp_path)
    (tmp_path / LORA_FILE).write_bytes(b"no safetensors")
    with pytest.raises(CheckpointError, match="holds no readable"):
        make("tiny").load_lora(tmp_path)


def test_an_adapter_with_a_tensor_too_many_or_too_few_is_refused(
    make: Make, tmp_path: Path
) -> None:
    train(make("tiny")).export_lora(tmp_path)
    path = tmp_path / LORA_FILE
    tensors = load_file(path)
    some = min(tensors)
    save_file({key: value for key, value in tensors.items() if key != some}, path)
    with pytest.raises(CheckpointError, match="does not fit"):
        make("tiny").load_lora(tmp_path)
    save_file(tensors | {"text_encoder.q.lora_A.weight": torch.zeros(4, 4)}, path)
    with pytest.raises(CheckpointError, match="not one of the denoiser alone"):
        make("tiny").load_lora(tmp_path)


def test_misuse_is_named(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no module of the model is named 'attn.to_x'"):
        make("tiny").set_trainable("lora", LoraOptions(targets=("attn.to_x",)))
    with pytest.raises(ConfigError, match="rank is >= 1"):
        LoraOptions(rank=0)
    policy = train(make("tiny"))
    with pytest.raises(FlowalignError, match="has an adapter already"):
        policy.set_trainable("lora")
    with pytest.raises(FlowalignError, match="merge_lora"):
        policy.export_full(tmp_path)
    with pytest.raises(FlowalignError, match="trains no LoRA"):
        make("tiny").export_lora(tmp_path)
