"""Policies in closed form: the oracle that samplers, objectives and guidance are tested on.

For Gaussian data every sampler is affine in ``x`` and can be checked without Monte-Carlo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from flowalign.gaussian import reduce
from flowalign.path import Time, expand
from flowalign.types import Condition


class ToyPolicy:
    """What the closed-form policies share: no prompts, no decoder and a uniform grid.

    They know no condition, so that guidance leaves their velocity as it is. Latents are ``(B, *S)``
    of any float dtype and device; an ``S`` of ``()`` makes them ``(B,)``.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def encode(self, prompts: Sequence[str]) -> Condition:
        """An empty condition with one row a prompt."""
        embeds = torch.zeros(len(prompts), 1, 1)
        return Condition(embeds=embeds, negative=Condition(embeds=embeds))

    def decode(self, latents: Tensor) -> Tensor:
        """The latents themselves, not confined to [0, 1]."""
        return latents

    def times(self, n: int, shape: Sequence[int] = ()) -> Tensor:
        """The uniform grid from 1 to 0 for any latent ``shape``, ``(n + 1,)`` float64."""
        return torch.linspace(1, 0, n + 1, dtype=torch.float64)

    def latent_shape(self, height: int | None = None, width: int | None = None) -> tuple[int, ...]:
        """``S``, whatever the picture size."""
        return self.shape


class GaussianPolicy(ToyPolicy):
    """Data ``N(m, s0^2 I)``, for which everything is affine in ``x``.

    With ``mu_t = (1 - t) m`` and ``V_t = (1 - t)^2 s0^2 + t^2``, ``x_t ~ N(mu_t, V_t I)`` and::

        v(x, t)           = -m + (t - (1 - t) s0^2) / V_t (x - mu_t)
        grad log p_t(x)   = -(x - mu_t) / V_t
        flow_map(x, t, s) = mu_s + sqrt(V_s / V_t) (x - mu_t)

    Args:
        mean: ``m``, a float or a tensor ``(*S)``.
        std: ``s0`` >= 0; with 0 everything is singular at ``t = 0``.
        shape: ``S``; default that of ``mean``.
    """

    def __init__(self, mean: float | Tensor, std: float, shape: Sequence[int] = ()) -> None:
        if std < 0:
            raise ValueError(f"std must be >= 0, got {std}")
        self.mean = torch.as_tensor(mean, dtype=torch.float64)
        self.mean = self.mean.expand(tuple(shape) or self.mean.shape)
        self.std = float(std)
        super().__init__(self.mean.shape)

    def _at(self, x: Tensor, t: Time) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        t, m = expand(t, x), self.mean.to(x)
        return t, m, (1 - t) * m, ((1 - t) * self.std) ** 2 + t**2

    def marginal(self, t: Time) -> tuple[Tensor, Tensor]:
        """``mu_t`` ``(*S)`` and ``V_t`` ``()`` in float64, batched like ``t``."""
        _, _, mean, variance = self._at(self.mean.unsqueeze(0), t)
        return mean, variance

    def velocity(
        self, x: Tensor, t: Time, condition: Condition | None = None, guidance: float = 1.0
    ) -> Tensor:
        """``E[noise - data | x_t = x]``, ``(B, *S)``."""
        t, m, mean, variance = self._at(x, t)
        return (t - (1 - t) * self.std**2) / variance * (x - mean) - m

    def score(self, x: Tensor, t: Time) -> Tensor:
        """``grad log p_t(x)``, ``(B, *S)``."""
        _, _, mean, variance = self._at(x, t)
        return (mean - x) / variance

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """``log p_t(x)``, ``(B,)``, differentiable in ``x``."""
        _, _, mean, variance = self._at(x, t)
        return reduce(-0.5 * ((x - mean) ** 2 / variance + (2 * math.pi * variance).log()), "sum")

    def flow_map(self, x: Tensor, t: Time, s: Time, condition: Condition | None = None) -> Tensor:
        """Where the ODE that passes through ``x`` at ``t`` is at ``s``, exactly, ``(B, *S)``."""
        _, _, mean_t, variance_t = self._at(x, t)
        _, _, mean_s, variance_s = self._at(x, s)
        return mean_s + (variance_s / variance_t).sqrt() * (x - mean_t)


class MixturePolicy(ToyPolicy):
    """Data ``sum_k w_k N(m_k, s_k^2 I)``: several modes, a velocity that is not affine.

    Velocity and score are the components' own, averaged with the posterior of a component
    ``r_k(x, t) = w_k N(x; mu_k, V_k) / sum_j w_j N(x; mu_j, V_j)`` as weights. No conversion from
    one to the other is needed, so that neither end of the path is singular.

    Args:
        means: one float or tensor ``(*S)`` a component, ``(K, *S)``.
        stds: one ``s_k`` >= 0 a component, ``(K,)``.
        weights: one ``w_k`` > 0 a component, ``(K,)`` of any sum; default equal.
        shape: ``S``; default that of the means.
    """

    def __init__(
        self,
        means: Sequence[float | Tensor] | Tensor,
        stds: Sequence[float] | Tensor,
        weights: Sequence[float] | Tensor | None = None,
        shape: Sequence[int] = (),
    ) -> None:
        w = torch.ones(len(means)) if weights is None else torch.as_tensor(weights)
        if not len(means) == len(stds) == len(w) or not bool((w > 0).all()) or not len(w):
            raise ValueError("means, stds and weights need one value a component, weights > 0")
        pairs = zip(means, stds, strict=True)
        self.components = [GaussianPolicy(mean, float(std), shape) for mean, std in pairs]
        self.weights = w.double() / w.double().sum()  # (K,)
        super().__init__(self.components[0].shape)

    def marginal(self, t: Time) -> tuple[Tensor, Tensor]:
        """Mean and elementwise variance of ``x_t``, both ``(*S)`` float64, batched like ``t``."""
        moments = [component.marginal(t) for component in self.components]
        weighted = list(zip(self.weights, moments, strict=True))
        mean = torch.stack([w * m for w, (m, _) in weighted]).sum(0)
        second = torch.stack([w * (v + m**2) for w, (m, v) in weighted]).sum(0)
        return mean, second - mean**2

    def velocity(
        self, x: Tensor, t: Time, condition: Condition | None = None, guidance: float = 1.0
    ) -> Tensor:
        """``E[noise - data | x_t = x]``, ``(B, *S)``."""
        return self._average(x, t, [c.velocity(x, t) for c in self.components])

    def score(self, x: Tensor, t: Time) -> Tensor:
        """``grad log p_t(x)``, ``(B, *S)``."""
        return self._average(x, t, [c.score(x, t) for c in self.components])

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """``log p_t(x)``, ``(B,)``, differentiable in ``x``."""
        return self._joint(x, t).logsumexp(0)

    def _joint(self, x: Tensor, t: Time) -> Tensor:
        """``log w_k p_k(x)``, ``(K, B)``."""
        densities = [component.log_density(x, t) for component in self.components]
        return self.weights.log().to(x)[:, None] + torch.stack(densities)

    def _average(self, x: Tensor, t: Time, values: Sequence[Tensor]) -> Tensor:
        posterior = self._joint(x, t).softmax(0)  # (K, B)
        return torch.einsum("kb,kb...->b...", posterior, torch.stack(list(values)))
