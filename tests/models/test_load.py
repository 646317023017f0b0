"""Loading a model: what is there is used, what is missing is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flowalign.errors import CheckpointError, ConfigError
from flowalign.models.load import load_policy
from flowalign.models.sd3 import SD3Policy

Copy = Callable[[str], Path]


def test_defaults_come_from_the_folder_and_options_override_them(copy_of: Copy) -> None:
    folder = copy_of("tiny")
    (folder / "flowalign.json").write_text(json.dumps({"height": 16, "max_sequence_length": 0}))
    policy = load_policy(folder, device="cpu")
    assert isinstance(policy, SD3Policy)
    assert policy.latent_shape()[1:] == (16, 32)
    other = load_policy(folder, device="cpu", height=24)
    assert other.latent_shape()[1:] == (24, 32)


def test_dtype_is_that_of_all_weights(checkpoints: dict[str, Path]) -> None:
    policy = load_policy(checkpoints["tiny"], device="cpu", dtype="bf16")
    assert policy.dtype == torch.bfloat16
    assert next(policy.pipeline.text_encoder.parameters()).dtype == torch.bfloat16


def test_t5_can_be_left_out(checkpoints: dict[str, Path]) -> None:
    policy = load_policy(checkpoints["sd3"], device="cpu", text_encoder_3=False)
    assert policy.pipeline.text_encoder_3 is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/nowhere/model", "does not exist: give `embedded`"),
        ("./model", "does not exist"),
        ("modle", "does not exist"),
    ],
)
def test_names_that_are_no_model(name: str, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        load_policy(name)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model_index\.json"):
        load_policy(tmp_path)


def test_a_broken_index(copy_of: Copy) -> None:
    folder = copy_of("tiny")
    (folder / "model_index.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not readable JSON"):
        load_policy(folder)


def test_another_family_is_named(copy_of: Copy) -> None:
    folder = copy_of("tiny")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(
        json.dumps(index | {"_class_name": "StableDiffusionXLPipeline"})
    )
    with pytest.raises(ConfigError, match="is a StableDiffusionXLPipeline pipeline, which is not"):
        load_policy(folder)


@pytest.mark.parametrize("part", ["transformer", "text_encoder", "tokenizer", "vae"])
def test_a_missing_part_is_named(part: str, copy_of: Copy) -> None:
    folder = copy_of("tiny")
    (folder / part).rename(folder / f"{part}-away")
    with pytest.raises(CheckpointError, match=f"no folder {part}"):
        load_policy(folder, device="cpu")


def test_a_truncated_weight_file(copy_of: Copy) -> None:
    folder = copy_of("tiny")
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        load_policy(folder, device="cpu")


@pytest.mark.parametrize(
    ("part", "file"),
    [
        ("transformer", "diffusion_pytorch_model.safetensors"),
        ("text_encoder", "model.safetensors"),
    ],
)
def test_a_missing_weight_is_never_random(part: str, file: str, copy_of: Copy) -> None:
    from safetensors.torch import load_file, save_file

    path = copy_of("tiny") / part / file
    tensors = load_file(path)
    gone = max(tensors)
    del tensors[gone]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="lacks the weight"):
        load_policy(path.parent.parent, device="cpu")


def test_unknown_options_and_dtypes_get_the_nearest(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'bf16'"):
        load_policy(checkpoints["tiny"], dtype="bf61")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'shift'"):
        load_policy(checkpoints["tiny"], device="cpu", shfit=3.0)
