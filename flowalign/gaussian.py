"""The isotropic Gaussian that every stochastic sampler is: drawing, density, divergence, once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """``N(mean, std^2 I)``; ``std == 0`` is a point mass that can be drawn but has no density.

    All maths is fp32, or float64 where ``mean`` is.
    """

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
        mean = _full(self.mean)
        if noise is None:
            device = mean.device if generator is None else generator.device
            noise = torch.randn(mean.shape, generator=generator, device=device, dtype=mean.dtype)
        drawn = mean + self.std * noise.to(mean)
        return drawn.to(dtype or mean.dtype).to(self.mean.dtype)

    def log_prob(self, x: Tensor) -> Tensor:
        """Elementwise ``log N(x; mean, std^2)``, ``(B, *S)``; ``x`` is a constant for autograd.

        Raises:
            ValueError: for a point mass (looked for only on the CPU, where it costs no sync).
        """
        self._require_density()
        z = (_full(x.detach()) - _full(self.mean)) / self.std
        return -0.5 * z.square() - self.std.log() - _HALF_LOG_2PI

    def kl(self, other: Gaussian) -> Tensor:
        """Elementwise ``KL(self || other)``, ``(B, *S)``; with equal stds ``(dmean)^2 / 2 std^2``.

        Raises:
            ValueError: if either is a point mass, as in ``log_prob``.
        """
        self._require_density()
        other._require_density()
        ratio = self.std / other.std
        shift = (_full(self.mean) - _full(other.mean)) / other.std
        # Apart, so that a small shift does not vanish beside the 1 of equal stds.
        return 0.5 * shift.square() + (0.5 * (ratio.square() - 1) - ratio.log())

    def _require_density(self) -> None:
        if self.std.device.type == "cpu" and bool((self.std == 0).any()):
            raise ValueError(
                "a deterministic transition (std = 0) has no log-prob: do not train on its step"
            )


def reduce(value: Tensor, how: str = "mean") -> Tensor:
    """Reduce an elementwise quantity over the latent: ``(B, *S) -> (B,)``.

    ``mean`` is the habit of the field's code and the default; ``sum`` is the likelihood itself.
    Clip ranges go with the choice: a log-ratio is ``prod(S)`` times larger with ``sum``.
    """
    if how not in ("mean", "sum"):
        raise ValueError(f"how must be mean or sum, got {how!r}")
    flat = value.unsqueeze(-1).flatten(1)  # scalars per row are latents too
    return flat.mean(1) if how == "mean" else flat.sum(1)


def _full(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
