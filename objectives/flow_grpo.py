"""Flow-GRPO: PPO's clipped surrogate on the transitions of a flow sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flowalign.replay import Minibatch
from flowalign.types import LossOutput

MAX_LOG_RATIO = 20.0  # beyond it exp overflows long before the clip can act


@dataclass(frozen=True, kw_only=True)
class FlowGRPO:
    """Clipped policy gradient over denoising steps (Flow-GRPO, arXiv 2505.05470, eq. 4-5).

    With ``rho = exp(log p_theta(x_s|x_t) - log p_old(x_s|x_t))`` per transition::

        L = mean max(-A rho, -A clip(rho, 1 - low, 1 + high))

    The log-probs are reduced as in the rollout (``mean`` over the latent by default). A useful
    ``clip_range`` depends on it: 1e-5 ... 1e-3 for ``mean``; for ``sum`` log-ratios are larger by
    the number of latent elements.

    Args:
        clip_range: ``low`` = ``high`` > 0.
        clip_range_high: another upper side (clip-higher); None: the same.
        advantage_clip: advantages are clamped to +- this.
    """

    clip_range: float = 1e-4
    clip_range_high: float | None = None
    advantage_clip: float = 5.0
    needs: ClassVar[frozenset[str]] = frozenset({"trajectory"})

    def __post_init__(self) -> None:
        if self.clip_range <= 0 or (self.clip_range_high is not None and self.clip_range_high <= 0):
            raise ValueError("clip_range and clip_range_high must be > 0")
        if self.advantage_clip <= 0:
            raise ValueError("advantage_clip must be > 0")

    def loss(self, batch: Minibatch) -> LossOutput:
        """The surrogate of each reward, ``(K,)``, averaged over the minibatch's transitions."""
        log_ratio = batch.transition.log_prob - batch.old_log_prob  # (N,)
        losses = clipped_surrogate(
            log_ratio,
            batch.advantage.clamp(-self.advantage_clip, self.advantage_clip),
            self.clip_range,
            self.clip_range if self.clip_range_high is None else self.clip_range_high,
        )
        return LossOutput(
            losses=losses.mean(0),
            penalty=losses.new_zeros(()),
            metrics=self._metrics(log_ratio.detach()),
        )

    def _metrics(self, log_ratio: Tensor) -> dict[str, Tensor]:
        high = self.clip_range if self.clip_range_high is None else self.clip_range_high
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        below, above = (ratio < 1 - self.clip_range).float(), (ratio > 1 + high).float()
        return {
            "ratio/mean": ratio.mean(),
            "ratio/max_abs_log": log_ratio.abs().max(),
            "clip_fraction": (below + above).mean(),
            "clip_fraction/low": below.mean(),
            "clip_fraction/high": above.mean(),
            "approx_kl": 0.5 * log_ratio.square().mean(),
        }


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """``max(-A rho, -A clip(rho, 1 - low, 1 + high))``, unreduced.

    Shapes: ``log_ratio`` ``(N,)``, ``advantage`` ``(N, K)``; returns ``(N, K)``.
    """
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().unsqueeze(-1)
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
