"""What all policies on a diffusers pipeline share: trainable weights, snapshots, export."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flowalign.errors import CheckpointError, ConfigError, FlowalignError
from flowalign.models.lora import (
    ADAPTER,
    LORA_FILE,
    LoraOptions,
    adapter_metadata,
    adapter_state,
    add_adapter,
    check_bound,
    read_adapter,
)
from flowalign.models.quiet import quiet
from flowalign.snapshots import Snapshots
from flowalign.types import Condition

__all__ = ["LORA_FILE", "POLICY_FILE", "LoraOptions", "PipelinePolicy"]

POLICY_FILE = "flowalign.json"  # defaults of the policy, beside model_index.json


class PipelinePolicy(ABC):
    """Base of the model families.

    ``denoiser`` is what every forward goes through; the trainer replaces it by accelerate's wrapped
    module, while ``module`` stays the bare one that owns the parameters. Everything stays in eval
    mode: rollout and replay must see the same network.

    Args:
        pipeline: a loaded diffusers pipeline with a ``transformer``; all of it is frozen.
    """

    lora_targets: ClassVar[tuple[str, ...]] = ()
    defaults: dict[str, Any]  # options worth keeping in an exported folder

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.module: Any = pipeline.transformer
        self.denoiser: Any = self.module
        for part in pipeline.components.values():
            if isinstance(part, nn.Module):
                part.eval().requires_grad_(False)
        self.snapshots = Snapshots({})
        self.mode: Literal["lora", "full", "none"] = "none"
        self.defaults = {}
        self._freed: dict[str, list[str]] = {}  # text encoders that left: (library, class)

    @abstractmethod
    def encode(self, prompts: Sequence[str]) -> Condition:
        """Prompts to a condition, negative included."""

    @abstractmethod
    def velocity(
        self, x: Tensor, t: Tensor, condition: Condition | None, guidance: float = 1.0
    ) -> Tensor:
        """``v(x_t, t)`` in fp32, ``t`` in [0, 1]."""

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Clean latents to media in [0, 1]."""

    @abstractmethod
    def times(self, n: int, shape: Sequence[int]) -> Tensor:
        """The model's own grid of ``n`` steps, ``(n + 1,)``."""

    @abstractmethod
    def latent_shape(self, height: int | None = None, width: int | None = None) -> tuple[int, ...]:
        """Shape of one latent for a picture size in pixels."""

    @property
    def device(self) -> torch.device:
        """Where the denoiser lives."""
        device: torch.device = next(self.module.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the denoiser's own weights (an adapter's are always fp32)."""
        own = (p.dtype for name, p in self.module.named_parameters() if "lora_" not in name)
        dtype: torch.dtype = next(own)
        return dtype

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA, trained or loaded, is on the denoiser."""
        return bool(getattr(self.module, "peft_config", None))

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
            mode: ``lora`` adds (or loads) an adapter in fp32; ``full`` trains the denoiser itself,
                cast to fp32, since half precision would round small updates away; ``none`` freezes.
            lora: the adapter's options.
            seed: of its initialisation; the global random state is left alone.

        Raises:
            ConfigError: if nothing would train.
            CheckpointError: if an existing adapter does not fit the model.
            FlowalignError: if an adapter is on the model already.
        """
        if mode not in ("lora", "full", "none"):
            raise ConfigError(f"model.train is lora, full or none, not {mode!r}")
        if mode != "none":
            self._refuse_adapter("name its folder as lora.path to go on training it")
        self.module.requires_grad_(mode == "full")
        if mode == "lora":
            add_adapter(self.module, lora or LoraOptions(), self.lora_targets, seed)
        elif mode == "full":
            self.module.float()
        self.mode = mode
        trainable = self.named_trainable()
        if not trainable and mode != "none":
            raise ConfigError(f"model.train={mode} leaves no trainable parameter")
        self.snapshots = Snapshots(trainable)
        self.snapshots.take("reference")

    def load_lora(self, folder: Path) -> None:
        """Load an exported adapter for inference, as stock diffusers does, alpha included.

        Raises:
            CheckpointError: if the folder holds no adapter of which every tensor fits.
            FlowalignError: if an adapter is on the model already.
        """
        self._refuse_adapter("fold it into the weights with merge_lora()")
        saved = read_adapter(Path(folder))
        try:
            with quiet():
                self.pipeline.load_lora_weights(
                    str(folder), weight_name=LORA_FILE, adapter_name=ADAPTER
                )
            check_bound(self.module, saved)
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"the adapter {folder} does not fit this model: {reason}"
            ) from error
        self.module.eval().requires_grad_(False)

    def merge_lora(self) -> None:
        """Fold the adapter into the weights and freeze them; does nothing without one."""
        if not self.has_adapter:
            return
        self.module.fuse_lora()
        self.module.unload_lora()
        self.set_trainable("none")

    def _refuse_adapter(self, way_out: str) -> None:
        if self.has_adapter:
            raise FlowalignError(f"the model has an adapter already: {way_out}")

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
        """Trade a second forward for activation memory; the gradient stays the same."""
        self.module.enable_gradient_checkpointing()

    def free_text_encoders(self) -> None:
        """Let the text encoders leave memory; ``encode`` is an error afterwards."""
        for name, part in list(self.pipeline.components.items()):
            if name.startswith("text_encoder") and part is not None:
                self._freed[name] = list(self.pipeline.config[name])
                setattr(self.pipeline, name, None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _refuse_freed(self) -> None:
        """For ``encode``, which every family defines."""
        if self._freed:
            raise FlowalignError(
                "the text encoders were freed; encode all prompts before free_text_encoders()"
            )

    def export_lora(self, folder: Path) -> None:
        """Write the adapter for stock ``pipeline.load_lora_weights(folder)``, alpha included.

        Raises:
            FlowalignError: if no adapter is trained.
        """
        if self.mode != "lora":
            raise FlowalignError("this policy trains no LoRA; export the full model instead")
        folder.mkdir(parents=True, exist_ok=True)
        type(self.pipeline).save_lora_weights(
            save_directory=folder,
            transformer_lora_layers=adapter_state(self.module),
            transformer_lora_adapter_metadata=adapter_metadata(self.module),
        )

    def export_full(self, folder: Path) -> None:
        """Write the whole pipeline, freed text encoders included, for stock ``from_pretrained``.

        Raises:
            FlowalignError: if an adapter is not merged yet, or there is no folder to copy a freed
                text encoder from.
        """
        self._refuse_adapter("merge_lora() before the export of the full model")
        source = Path(str(self.pipeline.config.get("_name_or_path", "")))
        for name in self._freed:
            if not (source / name).is_dir():
                raise FlowalignError(
                    f"{name} was freed and this pipeline comes from no folder to copy it from"
                )
        self.pipeline.save_pretrained(folder)
        index_file = Path(folder) / "model_index.json"
        index = json.loads(index_file.read_text(encoding="utf-8"))
        for name, library_and_class in self._freed.items():
            shutil.copytree(source / name, Path(folder) / name, dirs_exist_ok=True)
            index[name] = library_and_class
        index_file.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        own = json.dumps(self.defaults, indent=2) + "\n"
        (Path(folder) / POLICY_FILE).write_text(own, encoding="utf-8")
