"""Replay of stored transitions: the one forward that all trajectory objectives share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flowalign.errors import PreflightError
from flowalign.gaussian import Gaussian, reduce
from flowalign.types import Advantage, Condition, Policy, Rollout, Sampler, Trainable


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A stored step seen by some weights."""

    kernel: Gaussian  # (N, *S)
    log_prob: Tensor  # (N,) of the stored next latent


class Minibatch:
    """``N`` stored transitions, steps freely mixed, with lazily computed forwards.

    ``transition`` (current weights, with grad) and ``reference`` (frozen, without) are computed when
    first asked for and then shared by the objective, the penalties and the metrics.
    """

    def __init__(
        self,
        policy: Trainable,
        sampler: Sampler,
        rollout: Rollout,
        rows: Tensor,
        steps: Tensor,
        advantage: Tensor,
        reduction: str = "mean",
    ) -> None:
        """Gather the transitions ``(rows[i], steps[i])``.

        Args:
            policy: gives the velocity.
            sampler: gives the kernel; the one the rollout was drawn with.
            rollout: what was stored.
            rows: rollout of each transition, ``(N,)`` long.
            steps: grid step of each transition, ``(N,)`` long, from ``trajectory.replayable``.
            advantage: its advantages, ``(N, K)`` (or ``(N, K, *S)``).
            reduction: how log-probs are reduced, as in the rollout.
        """
        trajectory = rollout.trajectory
        where = {point: j for j, point in enumerate(trajectory.points)}
        device = trajectory.latents.device
        here = torch.tensor([where[i] for i in steps.tolist()], device=device)
        rows = rows.to(device)
        self.policy, self.sampler, self.reduction = policy, sampler, reduction
        self.advantage = advantage.to(device)
        self.x = trajectory.latents[rows, here].float()  # (N, *S)
        self.x_next = trajectory.latents[rows, here + 1].float()  # (N, *S): point i + 1 is stored
        self.t = trajectory.times[steps].to(device)  # (N,)
        self.s = trajectory.times[steps + 1].to(device)  # (N,)
        self.old_log_prob = trajectory.log_prob[rows, steps.to(device)]  # (N,)
        self.condition: Condition = rollout.condition.select(rows)
        self.guidance = rollout.guidance

    def __len__(self) -> int:
        return len(self.x)

    def _replay(self) -> Transition:
        kernel = self.sampler.kernel(
            self.policy, self.x, self.t, self.s, self.condition, guidance=self.guidance
        )
        return Transition(kernel=kernel, log_prob=reduce(kernel.log_prob(self.x_next), self.reduction))

    @cached_property
    def transition(self) -> Transition:
        """Under the current weights, with grad where the context allows it."""
        return self._replay()

    @cached_property
    def reference(self) -> Transition:
        """Under the frozen reference, without grad."""
        with torch.no_grad(), self.policy.reference():
            return self._replay()


def replayed_log_ratio(
    policy: Policy, sampler: Sampler, rollout: Rollout, batch_size: int, reduction: str = "mean"
) -> Tensor:
    """``log p_now - log p_rollout`` of every stored transition, ``(B, W)`` for the W replayable steps."""
    steps = rollout.trajectory.replayable
    columns = []
    for step in steps:
        chunks = []
        for rows in torch.arange(len(rollout)).split(batch_size):
            advantage = torch.zeros(len(rows), 1)
            where = torch.full_like(rows, step)
            batch = Minibatch(policy, sampler, rollout, rows, where, advantage, reduction)  # type: ignore[arg-type]
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
            "first update; use one precision and attention backend for rollout and replay, or raise "
            "training.preflight_bound if this is the rounding you accept"
        )
    return largest


def advantage_rows(advantage: Advantage, rows: Tensor, steps: Tensor) -> Tensor:
    """The advantages of transitions ``(rows, steps)``: ``(B, T or 1, K) -> (N, K)``."""
    return advantage[rows, steps if advantage.shape[1] > 1 else torch.zeros_like(steps)]
