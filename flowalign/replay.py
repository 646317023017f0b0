"""Replay of stored transitions: the one forward that all trajectory objectives share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flowalign.gaussian import Gaussian, reduce
from flowalign.types import Advantage, Condition, Rollout, Sampler, Trainable


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A stored step seen by some weights."""

    kernel: Gaussian  # (N, *S)
    log_prob: Tensor  # (N,) of the stored next latent


class Minibatch:
    """``N`` stored transitions, steps freely mixed, with lazily computed forwards.

    ``transition`` (current weights, with grad) and ``reference`` (frozen, without) are computed
    when first asked for and then shared by the objective, the penalties and the metrics.
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
        return Transition(
            kernel=kernel, log_prob=reduce(kernel.log_prob(self.x_next), self.reduction)
        )

    @cached_property
    def transition(self) -> Transition:
        """Under the current weights, with grad where the context allows it."""
        return self._replay()

    @cached_property
    def reference(self) -> Transition:
        """Under the frozen reference, without grad."""
        with torch.no_grad(), self.policy.reference():
            return self._replay()


def advantage_rows(advantage: Advantage, rows: Tensor, steps: Tensor) -> Tensor:
    """The advantages of transitions ``(rows, steps)``: ``(B, T or 1, K) -> (N, K)``."""
    return advantage[rows, steps if advantage.shape[1] > 1 else torch.zeros_like(steps)]
