"""What the loop expects of an objective, a penalty, a credit function and a balancer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from flowalign.replay import Minibatch
from flowalign.types import Advantage, LossOutput, Rollout


class Objective(Protocol):
    """A loss over a minibatch of replayed transitions."""

    needs: frozenset[str]
    """What the loop must provide: ``trajectory``, ``dense``, ``saliency``, ``reference``..."""

    def loss(self, batch: Minibatch) -> LossOutput:
        """One mean loss per reward ``(K,)``; the metrics are detached scalars."""
        ...


class Penalty(Protocol):
    """A regulariser added to any objective, outside the balancer."""

    needs: frozenset[str]

    def __call__(self, batch: Minibatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The weighted penalty ``()`` with grad, and detached scalars to log."""
        ...


class Credit(Protocol):
    """Who deserves the reward: a pure function of a scored rollout."""

    def __call__(self, rollout: Rollout) -> Advantage:
        """Detached fp32 advantage ``(B, T or 1, K)``."""
        ...


class Balancer(Protocol):
    """Turns ``K`` rewards into one gradient."""

    def mix(self, advantage: Advantage) -> Advantage:
        """The advantage the loss sees: ``(B, T, K)`` to ``(B, T, K')``."""
        ...

    def total(self, losses: Tensor) -> Tensor:
        """``(K',)`` losses to the one ``()`` that is differentiated."""
        ...
