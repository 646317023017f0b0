"""The isotropic Gaussian that every stochastic sampler is: drawing, density, divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """``N(mean, std^2 I)``; ``std == 0`` is a point mass that can be drawn but has no density."""

    mean: Tensor  # (B, *S)
    std: Tensor  # () or (B, 1, ...)

    def sample(
        self,
        generator: torch.Generator | None = None,
        *,
        noise: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """``mean + std noise``, ``(B, *S)`` in the dtype of ``mean``.

        Args:
            generator: source of the noise if ``noise`` is not given.
            noise: standard normal, ``(B, *S)``.
            dtype: storage dtype through which the draw is rounded, so that its log-prob is that of
                the latent a replay will read back.
        """
        if noise is None:
            device = self.mean.device if generator is None else generator.device
            noise = torch.randn(
                self.mean.shape, generator=generator, device=device, dtype=self.mean.dtype
            )
        drawn = self.mean + self.std * noise.to(self.mean)
        return drawn if dtype is None else drawn.to(dtype).to(self.mean.dtype)

    def log_prob(self, x: Tensor) -> Tensor:
        """Elementwise ``log N(x; mean, std^2)``, ``(B, *S)``; ``x`` is a constant for autograd.

        Raises:
            ValueError: for a point mass (known without a device sync only if ``std`` is on the
                CPU).
        """
        if self.std.device.type == "cpu" and bool((self.std == 0).any()):
            raise ValueError("a deterministic transition (std = 0) has no log-prob")
        z = (x.detach() - self.mean) / self.std
        return -0.5 * z.square() - self.std.log() - _HALF_LOG_2PI

    def kl(self, other: Gaussian) -> Tensor:
        """Elementwise ``KL(self || other)``, ``(B, *S)``; at equal stds ``(dmean)^2 / 2 std^2``."""
        ratio = self.std / other.std
        shift = (self.mean - other.mean) / other.std
        return 0.5 * (ratio.square() + shift.square() - 1) - ratio.log()


def reduce(value: Tensor, how: str = "mean") -> Tensor:
    """Reduce an elementwise quantity over the latent: ``(B, *S) -> (B,)``.

    ``mean`` is the habit of the field's code and the default; ``sum`` is the likelihood itself.
    """
    flat = value.flatten(1)
    if how not in ("mean", "sum"):
        raise ValueError(f"how must be mean or sum, got {how!r}")
    return flat.mean(1) if how == "mean" else flat.sum(1)
