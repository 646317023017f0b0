"""Turn a run's last checkpoint into what stock diffusers loads."""

from __future__ import annotations

from pathlib import Path

from flowalign.checkpoint import latest_checkpoint, read_tensors
from flowalign.errors import CheckpointError
from flowalign.models.base import LoraOptions
from flowalign.models.load import load_policy
from flowalign.recipe import load_config


def export_run(
    run: Path, out: Path | None = None, *, full: bool = False, ema: bool | None = None
) -> Path:
    """Write the LoRA (or the whole pipeline) of the last checkpoint.

    Args:
        run: a run folder.
        out: target; default ``run/lora`` or ``run/model``.
        full: write the pipeline with the adapter merged into its weights.
        ema: take the averaged weights, where the run kept them; None: as the run measured.

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
    policy = load_policy(
        model.name,
        dtype=model.dtype,
        device="cpu",
        text_encoder_3=model.text_encoder_3,
        **model.options,
    )
    lora = LoraOptions(
        rank=model.lora.rank,
        alpha=model.lora.alpha,
        targets=tuple(model.lora.targets) if model.lora.targets else None,
    )
    policy.set_trainable(model.train, lora)
    weights = read_tensors(checkpoint, "parameters")
    averaging = config.training.ema_decay is not None
    if (config.evaluation.ema if ema is None else ema) and averaging:
        averaged = read_tensors(checkpoint, "snapshots")
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
