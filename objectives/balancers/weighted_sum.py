"""The plain weighted sum of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowalign.types import Advantage


@dataclass(frozen=True, kw_only=True)
class WeightedSum:
    """``A = sum_k w_k A_k``: the weights act on normalised advantages, not on raw rewards.

    Mixing happens before the loss, so that a clipped surrogate clips the total. A reward without
    variance in a group contributes exactly 0 to it.

    Args:
        weights: one per reward, ``(K,)``.
    """

    weights: Sequence[float]

    def mix(self, advantage: Advantage) -> Advantage:
        """``(B, T, K) -> (B, T, 1)``."""
        weights = torch.tensor(self.weights, dtype=advantage.dtype, device=advantage.device)
        return (advantage * weights).sum(2, keepdim=True)

    def total(self, losses: Tensor) -> Tensor:
        """The one loss."""
        return losses.sum()
