"""Low-rank adapters: added, read from disk, and bound key by key, so that no tensor gets lost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flowalign.errors import CheckpointError, ConfigError

LORA_FILE = "pytorch_lora_weights.safetensors"  # the name that diffusers looks for
ADAPTER = "default"
_PREFIX = "transformer."  # what diffusers puts before the keys of the denoiser
_METADATA = "lora_adapter_metadata"
_REFUSED = ("alpha_pattern", "use_rslora", "use_dora")  # scales other than alpha / rank


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """A low-rank adapter, ``W + alpha / rank * B A`` (LoRA, arXiv 2106.09685, section 4.1).

    Args:
        rank: rows of ``A``, >= 1.
        alpha: > 0.
        targets: suffixes of the adapted modules' names; None: the family's default.
        init: of ``A``: normal with ``std = 1 / rank``, or Kaiming-uniform; ``B`` starts at 0.
        path: folder of an exported adapter to go on training; it has these options, or is refused.

    Raises:
        ConfigError: for a value outside its range.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | None = None
    init: Literal["gaussian", "kaiming"] = "gaussian"
    path: str | None = None

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ConfigError(
                f"lora.rank is >= 1 and lora.alpha > 0, not {self.rank} and {self.alpha}"
            )
        if self.init not in ("gaussian", "kaiming"):
            raise ConfigError(f"lora.init is gaussian or kaiming, not {self.init!r}")


@dataclass(frozen=True, kw_only=True)
class SavedAdapter:
    """An adapter as it lies on disk."""

    folder: Path
    tensors: Mapping[str, Tensor]  # by the denoiser's own names, e.g. blocks.0.to_q.lora_A.weight
    config: Mapping[str, Any]  # peft's options, where the file states them

    @property
    def rank(self) -> int:
        """The rank, 0 if it differs between modules."""
        ranks = {len(value) for key, value in self.tensors.items() if "lora_A" in key}
        return ranks.pop() if len(ranks) == 1 else 0

    @property
    def alpha(self) -> float:
        """The stated alpha; without one diffusers takes the rank."""
        return float(self.config.get("lora_alpha", self.rank))


def read_adapter(folder: Path) -> SavedAdapter:
    """Read ``pytorch_lora_weights.safetensors`` and its metadata.

    Raises:
        CheckpointError: if there is none, it is damaged, or it adapts anything but the denoiser.
    """
    try:
        with safe_open(folder / LORA_FILE, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}
            stated = json.loads((file.metadata() or {}).get(_METADATA, "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{folder} holds no readable {LORA_FILE}: give the folder of an exported LoRA"
        ) from error
    foreign = sorted(key for key in tensors if not key.startswith(_PREFIX))
    if foreign or not tensors:
        what = f"{foreign[0]} is no part of it" if foreign else "it is empty"
        raise CheckpointError(
            f"the adapter {folder} is not one of the denoiser alone ({what}): give a LoRA that was "
            "saved by diffusers or flowalign"
        )
    return SavedAdapter(
        folder=folder,
        tensors={key.removeprefix(_PREFIX): value for key, value in tensors.items()},
        config={key.removeprefix(_PREFIX): value for key, value in stated.items()},
    )


def add_adapter(module: Any, options: LoraOptions, targets: Sequence[str], seed: int) -> None:
    """Put a trainable fp32 adapter, new or saved, on a diffusers model.

    Args:
        module: the denoiser, with every parameter frozen.
        options: what to add.
        targets: the family's modules, used if the options name none.
        seed: of ``A``; the global random state is left alone.

    Raises:
        ConfigError: if a target names no module.
        CheckpointError: if the saved adapter is damaged or does not fit.
    """
    saved = None if options.path is None else read_adapter(Path(options.path))
    if saved is not None:
        _check_options(saved, options)
    names = [name for name, _ in module.named_modules()]
    for target in options.targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise ConfigError(f"lora.targets: no module of the model is named {target!r}")
    config = LoraConfig(
        r=options.rank,
        lora_alpha=_plain(options.alpha),
        init_lora_weights="gaussian" if options.init == "gaussian" else True,
        target_modules=list(options.targets or targets),
    )
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the accelerators; peft draws on the CPU.
        torch.default_generator.manual_seed(seed)
        try:
            module.add_adapter(config, adapter_name=ADAPTER)
        except ValueError as error:
            raise ConfigError(f"lora.targets do not fit the model: {error}") from error
    module.eval()
    for name, parameter in module.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    if saved is not None:
        check_bound(module, saved, where=" and these lora.targets")
        set_peft_model_state_dict(module, dict(saved.tensors), adapter_name=ADAPTER)


def adapter_state(module: Any) -> dict[str, Tensor]:
    """The adapter's tensors by the names they are saved under, without the pipeline's prefix."""
    state: dict[str, Tensor] = get_peft_model_state_dict(module, adapter_name=ADAPTER)
    return state


def adapter_metadata(module: Any) -> dict[str, Any]:
    """What stock loading needs beyond the tensors, alpha above all.

    Only the keys that every peft version knows: it passes them all to ``LoraConfig``.
    """
    config = module.peft_config[ADAPTER]
    return {
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "target_modules": sorted(config.target_modules),
    }


def check_bound(module: Any, saved: SavedAdapter, where: str = "") -> None:
    """Refuse an adapter of which any tensor has no place in the model, or the other way round.

    Raises:
        CheckpointError: naming the first such tensor.
    """
    expected = adapter_state(module)
    problem = ""
    if stray := sorted(saved.tensors.keys() - expected.keys()):
        problem = f"{stray[0]} has no place in it"
    elif missing := sorted(expected.keys() - saved.tensors.keys()):
        problem = f"it lacks {missing[0]}"
    elif bad := [key for key, value in saved.tensors.items() if value.shape != expected[key].shape]:
        shapes = tuple(saved.tensors[bad[0]].shape), tuple(expected[bad[0]].shape)
        problem = f"{bad[0]} is {shapes[0]}, not {shapes[1]}"
    if problem:
        stated = saved.config.get("target_modules")
        hint = f"; it states the targets {', '.join(sorted(stated))}" if stated else ""
        raise CheckpointError(
            f"the adapter {saved.folder} does not fit this model{where}: {problem}{hint}"
        )


def _check_options(saved: SavedAdapter, options: LoraOptions) -> None:
    """A saved adapter goes on with the strength it had, or not at all."""
    for name in _REFUSED:
        if saved.config.get(name):
            raise CheckpointError(
                f"the adapter {saved.folder} uses {name}, which cannot be trained on"
            )
    for name, have, want in (
        ("rank", saved.rank, options.rank),
        ("alpha", saved.alpha, options.alpha),
    ):
        if have == 0:
            raise CheckpointError(f"the adapter {saved.folder} has no single rank")
        if have != want:
            raise CheckpointError(
                f"the adapter {saved.folder} has {name} {have:g}, the options say {want:g}: set "
                f"model.lora.{name}={have:g}"
            )


def _plain(alpha: float) -> Any:
    """An integer where it is one: peft declares ``lora_alpha`` so, and accepts any number."""
    return int(alpha) if float(alpha).is_integer() else alpha
