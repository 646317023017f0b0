"""What all policies on a diffusers pipeline share: trainable weights, snapshots, export."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from diffusers import DiffusionPipeline
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from flowalign.errors import CheckpointError, ConfigError, FlowalignError
from flowalign.snapshots import Snapshots

LORA_FILE = "pytorch_lora_weights.safetensors"
_ADAPTER = "default"


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """A low-rank adapter; its update is ``alpha / rank * B A``."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | None = None  # module suffixes; None: the family's default
    path: str | None = None  # folder of an adapter to go on training


class PipelinePolicy:
    """Base of the model families.

    ``denoiser`` is what every forward goes through; the trainer replaces it by accelerate's wrapped
    module. All modules stay in eval mode: rollout and replay must see the same network.
    """

    lora_targets: ClassVar[tuple[str, ...]] = ()

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        """Freeze everything."""
        self.pipeline = pipeline
        self.module: nn.Module = pipeline.transformer  # never wrapped; owns the parameters
        self.denoiser: Any = self.module
        for part in pipeline.components.values():
            if isinstance(part, nn.Module):
                part.eval().requires_grad_(False)
        self.snapshots = Snapshots({})
        self.mode: Literal["lora", "full", "none"] = "none"

    @property
    def device(self) -> torch.device:
        """Where the denoiser lives."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the frozen weights."""
        return next(p.dtype for name, p in self.module.named_parameters() if "lora" not in name)

    def named_trainable(self) -> dict[str, nn.Parameter]:
        """The parameters an optimizer moves, by a name that no wrapper changes."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def set_trainable(
        self,
        mode: Literal["lora", "full", "none"],
        lora: LoraOptions | None = None,
        seed: int = 0,
    ) -> None:
        """Choose what trains and take the ``reference`` snapshot.

        Args:
            mode: ``lora`` adds (or loads) an adapter in fp32, ``full`` trains the denoiser itself.
            lora: the adapter's options.
            seed: of its initialisation; the global random state is left alone.

        Raises:
            ConfigError: if nothing would train.
            CheckpointError: if an existing adapter does not fit the model.
        """
        self.module.requires_grad_(mode == "full")
        if mode == "lora":
            self._add_lora(lora or LoraOptions(), seed)
        self.mode = mode
        trainable = self.named_trainable()
        if not trainable and mode != "none":
            raise ConfigError(f"model.train={mode} leaves no trainable parameter; check lora.targets")
        self.snapshots = Snapshots(trainable)
        self.snapshots.take("reference")

    def _add_lora(self, options: LoraOptions, seed: int) -> None:
        config = LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,  # type: ignore[arg-type]  # peft means a number
            init_lora_weights="gaussian",
            target_modules=list(options.targets or self.lora_targets),
        )
        saved = None
        if options.path is not None:
            saved = _read_adapter(Path(options.path))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self.module.add_adapter(config, adapter_name=_ADAPTER)
            except ValueError as error:
                raise ConfigError(f"lora.targets fit no module of the model: {error}") from error
        if saved is not None:
            self._load_adapter(saved, str(options.path))
        for name, parameter in self.module.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.float()
                parameter.requires_grad_(True)

    def _load_adapter(self, saved: dict[str, torch.Tensor], path: str) -> None:
        """Bind every tensor of a saved adapter, or refuse."""
        expected = get_peft_model_state_dict(self.module, adapter_name=_ADAPTER)
        stray = sorted(saved.keys() ^ expected.keys())
        bad = [key for key in saved.keys() & expected.keys() if saved[key].shape != expected[key].shape]
        if stray or bad:
            raise CheckpointError(
                f"the adapter {path} does not fit this model and lora options (first mismatch: "
                f"{(stray + bad)[0]}): give the rank and targets it was trained with"
            )
        set_peft_model_state_dict(self.module, saved, adapter_name=_ADAPTER)

    def load_lora(self, folder: Path) -> None:
        """Load an exported adapter for inference, as stock diffusers does.

        Raises:
            CheckpointError: if the folder holds no readable adapter.
        """
        _read_adapter(folder)
        self.pipeline.load_lora_weights(folder)

    def merge_lora(self) -> None:
        """Fold the adapter into the weights; does nothing without one."""
        if self.mode == "lora":
            self.module.fuse_lora()  # type: ignore[operator]
            self.module.unload_lora()  # type: ignore[operator]
            self.mode = "none"

    def reference(self) -> AbstractContextManager[None]:
        """Within it the policy is the frozen start."""
        return self.snapshots.use("reference")

    def old(self) -> AbstractContextManager[None]:
        """Within it the policy has the ``old`` snapshot's weights."""
        return self.snapshots.use("old")

    def ema(self) -> AbstractContextManager[None]:
        """Within it the policy has the averaged weights."""
        return self.snapshots.use("ema")

    def enable_gradient_checkpointing(self) -> None:
        """Trade a second forward for activation memory."""
        self.module.enable_gradient_checkpointing()  # type: ignore[operator]

    def free_text_encoders(self) -> None:
        """Let the text encoders leave memory; ``encode`` is an error afterwards."""
        for name in list(self.pipeline.components):
            if name.startswith("text_encoder"):
                setattr(self.pipeline, name, None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def export_lora(self, folder: Path) -> None:
        """Write the adapter so that stock ``pipeline.load_lora_weights(folder)`` loads it, alpha too."""
        if self.mode != "lora":
            raise FlowalignError("this policy trains no LoRA; export the full model instead")
        config = self.module.peft_config[_ADAPTER].to_dict()  # type: ignore[union-attr,operator]
        folder.mkdir(parents=True, exist_ok=True)
        type(self.pipeline).save_lora_weights(
            save_directory=folder,
            transformer_lora_layers=get_peft_model_state_dict(self.module, adapter_name=_ADAPTER),
            transformer_lora_adapter_metadata=config,
        )

    def export_full(self, folder: Path) -> None:
        """Write the whole pipeline."""
        self.pipeline.save_pretrained(folder)


def _read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = load_file(folder / LORA_FILE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} holds no readable {LORA_FILE}: give the folder of an exported LoRA"
        ) from error
    return {key.removeprefix("transformer."): value for key, value in tensors.items()}
