"""Policies in closed form: the oracle against which every sampler is tested.

For data ``N(m, s0^2 I)`` the marginals of the linear path are Gaussian::

    mu_t = (1 - t) m        V_t = (1 - t)^2 s0^2 + t^2
    v(x, t) = -m + (t - (1 - t) s0^2) / V_t (x - mu_t)      score = -(x - mu_t) / V_t
    flow map t -> s: mu_s + sqrt(V_s / V_t) (x - mu_t)

so that every sampler is affine in ``x`` and can be checked without Monte-Carlo.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flowalign.path import Time, expand, score_to_velocity
from flowalign.types import Condition


class _Toy:
    """What a policy without prompts or pictures answers."""

    def encode(self, prompts: Sequence[str]) -> Condition:
        """An empty condition of the right length."""
        return Condition(embeds=torch.zeros(len(prompts), 1, 1))

    def decode(self, latents: Tensor) -> Tensor:
        """The latents themselves: the toy world has no pictures."""
        return latents

    def times(self, n: int, shape: Sequence[int] = ()) -> Tensor:
        """The uniform grid from 1 to 0, ``(n + 1,)``."""
        return torch.linspace(1, 0, n + 1)


class GaussianPolicy(_Toy):
    """Data ``N(mean, std^2 I)``.

    Args:
        mean: a number, or a tensor that broadcasts against a latent.
        std: > 0.
    """

    def __init__(self, mean: float | Tensor, std: float) -> None:
        if std <= 0:
            raise ValueError(f"std must be > 0, got {std}")
        self.mean, self.std = mean, std

    def marginal(self, t: Time) -> tuple[Tensor, Tensor]:
        """Mean and variance at time ``t``."""
        t = torch.as_tensor(t)
        return (1 - t) * self.mean, (1 - t) ** 2 * self.std**2 + t**2

    def velocity(
        self,
        x: Tensor,
        t: Time,
        condition: Condition | None = None,
        guidance: float = 1.0,
    ) -> Tensor:
        """``E[noise - data | x_t = x]``; condition and guidance have no effect."""
        t = expand(t, x)
        mean, variance = self.marginal(t)
        return -self.mean + (t - (1 - t) * self.std**2) / variance * (x - mean)

    def score(self, x: Tensor, t: Time) -> Tensor:
        """``grad log p_t(x)``."""
        mean, variance = self.marginal(expand(t, x))
        return -(x - mean) / variance

    def flow_map(self, x: Tensor, t: Time, s: Time, condition: Condition | None = None) -> Tensor:
        """Where the ODE carries ``x`` from ``t`` to ``s``, exactly."""
        mean_t, var_t = self.marginal(expand(t, x))
        mean_s, var_s = self.marginal(expand(s, x))
        return mean_s + (var_s / var_t).sqrt() * (x - mean_t)


class MixturePolicy(_Toy):
    """Data from a mixture of isotropic Gaussians.

    Args:
        means: of the components, each of the latent's shape, ``(M, *S)``.
        stds: ``(M,)``.
        weights: ``(M,)`` > 0; normalised here.
    """

    def __init__(self, means: Tensor, stds: Tensor, weights: Tensor) -> None:
        if not len(means) == len(stds) == len(weights):
            raise ValueError("means, stds and weights must have one entry a component")
        self.means, self.stds = means, stds
        self.log_weights = (weights / weights.sum()).log()

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """``log p_t(x)``, ``(B,)``."""
        return torch.logsumexp(self._joint(x, expand(t, x))[0], 1)

    def _joint(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log joint ``(B, M)``, offsets from the means ``(B, M, *S)``, variances ``(B, M)``."""
        flat = t.reshape(-1, 1).expand(len(x), 1)  # (B, 1)
        variance = (1 - flat) ** 2 * self.stds**2 + flat**2  # (B, M)
        scale = (1 - flat).reshape(-1, 1, *[1] * (x.ndim - 1))
        offset = x.unsqueeze(1) - scale * self.means  # (B, M, *S)
        square = offset.flatten(2).square().sum(2)
        size = x[0].numel()
        log_norm = -0.5 * size * (2 * torch.pi * variance).log()
        return self.log_weights + log_norm - square / (2 * variance), offset, variance

    def score(self, x: Tensor, t: Time) -> Tensor:
        """``grad log p_t(x)``: the responsibilities' mean of the components' scores."""
        joint, offset, variance = self._joint(x, expand(t, x))
        share = joint.softmax(1) / variance  # (B, M)
        return -(share.reshape(*share.shape, *[1] * (x.ndim - 1)) * offset).sum(1)

    def velocity(
        self,
        x: Tensor,
        t: Time,
        condition: Condition | None = None,
        guidance: float = 1.0,
    ) -> Tensor:
        """``E[noise - data | x_t = x]``; at ``t = 1`` it is ``x`` minus the data's mean."""
        t = expand(t, x)
        last = (t >= 1).expand(x.shape)
        safe = torch.where(t >= 1, 0.5, t)
        weights = self.log_weights.exp().reshape(-1, *[1] * (x.ndim - 1))
        at_noise = x - (weights * self.means).sum(0)
        return torch.where(last, at_noise, score_to_velocity(self.score(x, safe), x, safe))
