"""Checks that refuse to train on a wrong gradient: replay, movement, agreement of processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from flowalign.config import Config
from flowalign.distributed import gather_rows
from flowalign.errors import PreflightError
from flowalign.replay import Minibatch
from flowalign.types import Rollout, Sampler, Trainable

# Largest |log ratio| (mean over the latent) that rounding explains, by precision.
BOUNDS = {"no": 1e-5, "fp32": 1e-5, "bf16": 2e-3, "fp16": 1e-3}


def preflight_bound(config: Config, shape: Sequence[int]) -> float:
    """The recipe's bound on ``|log ratio|``, or the one that fits its precision.

    Args:
        config: the recipe.
        shape: of one latent; log-probs that are summed over it may differ by as much more.
    """
    training, rollout = config.training, config.rollout
    if training.preflight_bound is not None:
        return training.preflight_bound
    names = {training.mixed_precision, config.model.dtype, rollout.storage_dtype}
    bound = max(BOUNDS[name] for name in names)
    return bound * math.prod(shape) if rollout.log_prob_reduction == "sum" else bound


def replayed_log_ratio(
    policy: Trainable, sampler: Sampler, rollout: Rollout, batch_size: int, reduction: str = "mean"
) -> Tensor:
    """``log p_now - log p_rollout`` of all stored transitions, ``(B, W)``, W replayable steps."""
    steps = rollout.trajectory.replayable
    columns = []
    for step in steps:
        chunks = []
        for rows in torch.arange(len(rollout)).split(batch_size):
            advantage = torch.zeros(len(rows), 1)
            where = torch.full_like(rows, step)
            batch = Minibatch(policy, sampler, rollout, rows, where, advantage, reduction)
            with torch.no_grad():
                chunks.append(batch.transition.log_prob - batch.old_log_prob)
        columns.append(torch.cat(chunks))
    return torch.stack(columns, 1)


def check_ratio(log_ratio: Tensor, steps: tuple[int, ...], bound: float) -> float:
    """Refuse to train unless replay reproduces the rollout: ``|log ratio| <= bound`` everywhere.

    Args:
        log_ratio: ``(B, W)`` of ``replayed_log_ratio``.
        steps: the grid steps of its columns.
        bound: largest allowed absolute difference of the reduced log-probs.

    Returns:
        The largest absolute difference.

    Raises:
        PreflightError: naming the step and the largest difference.
    """
    worst = log_ratio.abs().amax(0)  # (W,)
    column = int(worst.nan_to_num(nan=torch.inf).argmax())
    largest = float(worst[column])
    if not largest <= bound:
        raise PreflightError(
            f"replaying step {steps[column]} gives another log-prob than the rollout (largest "
            f"difference {largest:.3g}, allowed {bound:.3g}): the gradient would be wrong from the "
            "first update; use one precision and attention backend for rollout and replay, or "
            "raise training.preflight_bound if this is the rounding you accept"
        )
    return largest


def fingerprint(parameters: Iterable[nn.Parameter]) -> Tensor:
    """One float64 number a tensor that any update changes: a position-weighted sum."""
    values = [
        (p.detach().double().flatten() * torch.arange(1, p.numel() + 1, device=p.device)).sum()
        for p in parameters
    ]
    return torch.stack(values).cpu()


def check_moved(before: Tensor, after: Tensor) -> None:
    """Refuse to go on if the first optimizer step changed no parameter.

    Raises:
        PreflightError: if no trainable tensor moved.
    """
    if bool((before == after).all()):
        raise PreflightError(
            "the first update moved no trainable parameter: the adapter or the optimizer is not "
            "bound to the model; check model.train, model.lora.targets and optimizer.learning_rate"
        )


def check_in_sync(accelerator: Accelerator, parameters: Iterable[nn.Parameter]) -> None:
    """Refuse to go on if the processes hold different weights.

    Raises:
        PreflightError: naming the processes that differ from the first.
    """
    prints = gather_rows(accelerator, fingerprint(parameters).unsqueeze(0))
    differ = [rank for rank, row in enumerate(prints) if not torch.equal(row, prints[0])]
    if differ:
        raise PreflightError(
            f"the weights of process(es) {', '.join(map(str, differ))} differ from process 0: "
            "gradients are not reduced over all processes; start all of them by `accelerate launch`"
        )
