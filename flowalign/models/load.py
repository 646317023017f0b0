"""Load a policy: the embedded model, a diffusers folder, or a hub id."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
import transformers
from diffusers import DiffusionPipeline
from safetensors import SafetensorError

from flowalign.errors import CheckpointError, ConfigError, unknown
from flowalign.models.base import PipelinePolicy
from flowalign.registry import MODELS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DEFAULTS = ("height", "width", "max_sequence_length")  # keys of flowalign.json


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
    folder = _resolve(str(name_or_path))
    index = _read_json(folder / "model_index.json")
    defaults = folder / "flowalign.json"
    if defaults.is_file():
        stated = _read_json(defaults)
        options = {key: stated[key] for key in _DEFAULTS if key in stated} | options
    family = index.get("_class_name", "")
    policy = MODELS.get(family)
    absent = [name for name, value in index.items() if isinstance(value, list) and value == [None, None]]
    parts: dict[str, None] = dict.fromkeys(absent)
    if not text_encoder_3:
        parts |= {"text_encoder_3": None, "tokenizer_3": None}
    try:
        with quiet():
            loader = getattr(diffusers, family)
            pipeline: DiffusionPipeline = loader.from_pretrained(
                folder, torch_dtype=DTYPES[dtype], **parts
            )
    except (OSError, SafetensorError, ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the model {name_or_path} cannot be loaded ({reason[:300]}): the folder is incomplete or "
            "damaged, save or download it again"
        ) from error
    pipeline.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    built: PipelinePolicy = MODELS.build(family, pipeline=pipeline, **options) if policy else None
    return built


def _resolve(name: str) -> Path:
    if name == "embedded":
        return embedded_folder()
    path = Path(name)
    if path.is_dir():
        if not (path / "model_index.json").is_file():
            raise CheckpointError(
                f"{name} has no model_index.json: give the folder of a saved diffusers pipeline"
            )
        return path
    if path.is_absolute() or name.startswith(".") or name.count("/") != 1:
        raise CheckpointError(
            f"the model {name} does not exist: give `embedded`, a diffusers folder or a hub id "
            "such as stabilityai/stable-diffusion-3.5-medium"
        )
    try:
        return Path(DiffusionPipeline.download(name))
    except Exception as error:  # the hub raises many kinds; all mean the same to the user
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{name} is neither a local folder nor a hub model that can be fetched ({reason})"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); save the model again") from error
    return dict(data)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence loading bars and the warnings that are harmless here (no T5, a tiny VAE class)."""
    levels = (diffusers.logging.get_verbosity(), transformers.logging.get_verbosity())
    root = logging.getLogger("diffusers").level
    diffusers.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    diffusers.logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        diffusers.logging.set_verbosity(levels[0])
        transformers.logging.set_verbosity(levels[1])
        diffusers.logging.enable_progress_bar()
        transformers.logging.enable_progress_bar()
        logging.getLogger("diffusers").setLevel(root)
