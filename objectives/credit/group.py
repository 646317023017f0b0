"""The group-relative advantage of GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flowalign.types import Advantage, Rollout

TIE = 1e-6  # a group whose rewards differ by less carries no signal


@dataclass(frozen=True, kw_only=True)
class GroupCredit:
    """``A_i = (r_i - mean_group) / (std + eps)`` per prompt and per reward.

    GRPO (arXiv 2402.03300) as in Flow-GRPO's tracker: population std (ddof 0), ``eps = 1e-4``.
    Rewards that failed (``valid`` false) enter no statistic and get 0; so does a group whose
    rewards tie or that has fewer than two valid rewards.

    Args:
        std: ``group``, ``global`` (one std per reward over the whole batch, Flow-GRPO's default for
            SD3), or ``none`` (only centred, Dr. GRPO arXiv 2503.20783).
        eps: added to the std.
    """

    std: Literal["group", "global", "none"] = "group"
    eps: float = 1e-4

    def __post_init__(self) -> None:
        if self.std not in ("group", "global", "none"):
            raise ValueError(f"std must be group, global or none, got {self.std!r}")
        if self.eps < 0:
            raise ValueError(f"eps must be >= 0, got {self.eps}")

    def __call__(self, rollout: Rollout) -> Advantage:
        """The advantage ``(B, 1, K)``, the same for every step."""
        rewards = rollout.rewards
        centred, std, signal = group_statistics(rewards.values, rewards.valid, rollout.group)
        if self.std == "global":
            valid = rewards.valid
            std = masked_std(rewards.values, valid).expand_as(std)
        scale = torch.ones_like(std) if self.std == "none" else std + self.eps
        return torch.where(signal, centred / scale, 0.0).unsqueeze(1)


def masked_std(values: Tensor, valid: Tensor) -> Tensor:
    """Population std over the valid entries of each column: ``(B, K) -> (1, K)``."""
    count = valid.sum(0, keepdim=True).clamp(min=1)
    filled = torch.where(valid, values, 0.0)
    mean = filled.sum(0, keepdim=True) / count
    square = torch.where(valid, (filled - mean).square(), 0.0).sum(0, keepdim=True)
    return (square / count).sqrt()


def group_statistics(values: Tensor, valid: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centred rewards, their group's std, and whether the entry carries a signal; each ``(B, K)``.

    Args:
        values: rewards ``(B, K)``; invalid entries may be NaN.
        valid: ``(B, K)`` bool.
        group: group of each row, ``(B,)`` long, any labels.
    """
    _, index = torch.unique(group, return_inverse=True)
    index = index.unsqueeze(-1).expand_as(values)
    filled = torch.where(valid, values, 0.0)
    zeros = torch.zeros_like(filled)
    count = zeros.scatter_add(0, index, valid.to(filled.dtype)).gather(0, index)
    mean = zeros.scatter_add(0, index, filled).gather(0, index) / count.clamp(min=1)
    centred = torch.where(valid, filled - mean, 0.0)
    square = zeros.scatter_add(0, index, centred.square()).gather(0, index)
    std = (square / count.clamp(min=1)).sqrt()
    return centred, std, valid & (count > 1) & (std > TIE)
