"""Load a policy: the embedded model, a diffusers folder, or a hub id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from diffusers import DiffusionPipeline
from safetensors import SafetensorError
from torch import nn

from flowalign.errors import CheckpointError, ConfigError, unknown
from flowalign.models.base import POLICY_FILE, PipelinePolicy
from flowalign.models.quiet import quiet
from flowalign.registry import MODELS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DEFAULTS = ("height", "width", "max_sequence_length")  # keys of flowalign.json
_T5 = ("text_encoder_3", "tokenizer_3")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")


def embedded_folder() -> Path:
    """The diffusers folder of the model that ships with the package."""
    return Path(str(resources.files("flowalign.embedded"))) / "checkpoint"


def load_policy(
    name_or_path: str | Path,
    *,
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
    device: torch.device | str | None = None,
    text_encoder_3: bool = True,
    **options: Any,
) -> PipelinePolicy:
    """Load a model as a policy; its family is read from ``model_index.json``.

    ``height``, ``width`` and ``max_sequence_length`` of a ``flowalign.json`` beside it are the
    defaults of these options. Weights are read from safetensors only, never from pickles.

    Args:
        name_or_path: ``embedded``, a local diffusers folder, or a hub id.
        dtype: of all weights.
        device: where to put them; default CUDA if there is one.
        text_encoder_3: load T5 where the model has one.
        **options: of the family's policy, e.g. ``shift=3.0``, ``height=512``.

    Raises:
        CheckpointError: if the folder is missing, is no pipeline, or is damaged.
        ConfigError: for an unsupported family or an unknown option or dtype.
    """
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", str(dtype), list(DTYPES)))
    skip = () if text_encoder_3 else _T5
    folder = _resolve(str(name_or_path), skip)
    index = _read_json(folder / "model_index.json")
    family = _family(str(name_or_path), index)
    if (folder / POLICY_FILE).is_file():
        stated = _read_json(folder / POLICY_FILE)
        options = {key: stated[key] for key in _DEFAULTS if key in stated} | options
    try:
        with quiet():
            pipeline = _load(folder, index, DTYPES[dtype], skip)
            pipeline.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (OSError, SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the model {name_or_path} cannot be loaded ({reason[:300]}): the folder is incomplete "
            "or damaged, save or download it again"
        ) from error
    policy: PipelinePolicy = MODELS.build(family, pipeline=pipeline, **options)
    return policy


def _load(folder: Path, index: Mapping[str, Any], dtype: torch.dtype, skip: tuple[str, ...]) -> Any:
    """The pipeline, with every part that the index names and ``skip`` does not, complete."""
    parts: dict[str, Any] = {}
    for name, spec in index.items():
        if not isinstance(spec, list):
            continue
        if name in skip or spec == [None, None]:
            parts[name] = None
            continue
        if not (folder / name).is_dir():
            raise OSError(f"it has no folder {name}")
        if name.startswith("tokenizer") and not any(
            (folder / name / file).is_file() for file in _VOCABULARIES
        ):
            raise OSError(f"{name} has no vocabulary")  # transformers would make an empty one
        if name.startswith("text_encoder") and spec[0] == "transformers":
            parts[name] = _text_encoder(folder, name, str(spec[1]), dtype)
    pipeline: Any = DiffusionPipeline.from_pretrained(
        folder, torch_dtype=dtype, use_safetensors=True, **parts
    )
    for name, part in pipeline.components.items():
        if isinstance(part, nn.Module):
            for weight, parameter in part.named_parameters():
                if parameter.is_meta:
                    raise OSError(f"{name} lacks the weight {weight}")
    return pipeline


def _text_encoder(folder: Path, name: str, kind: str, dtype: torch.dtype) -> Any:
    """A text encoder; transformers by itself fills missing weights with random numbers."""
    model, report = getattr(transformers, kind).from_pretrained(
        folder, subfolder=name, torch_dtype=dtype, use_safetensors=True, output_loading_info=True
    )
    if report["missing_keys"]:
        raise OSError(f"{name} lacks the weight {min(report['missing_keys'])}")
    return model


def _family(name: str, index: Mapping[str, Any]) -> str:
    """The pipeline class, if there is a policy for it.

    It comes from a file that anyone may have written, so it is compared with what is registered and
    never imported as ``module:attr``.
    """
    built_in = {alias for entry in MODELS.entries() for alias in entry.aliases}
    supported = sorted(built_in | {name for name in MODELS.names() if name.endswith("Pipeline")})
    family = index.get("_class_name")
    if family not in supported:
        raise ConfigError(
            f"{name} is a {family} pipeline, which is not supported (supported: "
            f"{', '.join(supported)})"
        )
    return str(family)


def _resolve(name: str, skip: tuple[str, ...]) -> Path:
    """The local folder of a name; a hub model is downloaded, but for its parts in ``skip``."""
    if name == "embedded":
        return embedded_folder()
    path = Path(name).expanduser()
    if path.exists():
        if not (path / "model_index.json").is_file():
            raise CheckpointError(
                f"{name} has no model_index.json: give the folder of a saved diffusers pipeline"
            )
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise CheckpointError(
            f"the model {name} does not exist: give `embedded`, a diffusers folder or a hub id "
            "such as stabilityai/stable-diffusion-3.5-medium"
        )
    try:
        return Path(
            DiffusionPipeline.download(name, use_safetensors=True, **dict.fromkeys(skip, None))
        )
    except Exception as error:  # the hub raises many kinds; all mean the same to the user
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{name} is neither a local folder nor a hub model that can be fetched ({reason})"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not readable JSON ({error}); save the model again"
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} is no JSON object; save the model again")
    return data
