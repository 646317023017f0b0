"""Turn a run's last checkpoint into what stock diffusers loads."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from flowalign.checkpoint import latest_checkpoint
from flowalign.errors import CheckpointError
from flowalign.models.base import LoraOptions
from flowalign.models.load import load_policy
from flowalign.recipe import load_config


def export_run(run: Path, out: Path | None = None, *, full: bool = False, ema: bool = True) -> Path:
    """Write the LoRA (or the whole pipeline) of the last checkpoint.

    Args:
        run: a run folder.
        out: target; default ``run/lora`` or ``run/model``.
        full: write the pipeline with the adapter merged into its weights.
        ema: take the averaged weights, where the run kept them.

    Raises:
        CheckpointError: if the folder is no run or has no checkpoint.
    """
    if not (run / "config.yaml").is_file():
        raise CheckpointError(
            f"{run} is no run folder (it has no config.yaml); give one of `train`"
        )
    checkpoint = latest_checkpoint(run)
    if checkpoint is None:
        raise CheckpointError(f"{run} has no checkpoint yet; train it for longer first")
    config = load_config(run / "config.yaml")
    model = config.model
    policy = load_policy(model.name, dtype=model.dtype, device="cpu", **model.options)
    lora = LoraOptions(
        rank=model.lora.rank,
        alpha=model.lora.alpha,
        targets=tuple(model.lora.targets) if model.lora.targets else None,
    )
    policy.set_trainable(model.train, lora)
    weights = load_file(checkpoint / "parameters.safetensors")
    if ema and config.training.ema_decay is not None:
        averaged = load_file(checkpoint / "snapshots.safetensors")
        weights = {name: averaged[f"ema/{name}"] for name in weights}
    for name, parameter in policy.named_trainable().items():
        parameter.data.copy_(weights[name])
    whole = full or model.train == "full"
    out = out or run / ("model" if whole else "lora")
    if whole:
        policy.merge_lora()
        policy.export_full(out)
    else:
        policy.export_lora(out)
    return out
