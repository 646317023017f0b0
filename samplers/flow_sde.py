"""Flow-GRPO's stochastic sampler: the reverse SDE with the ODE's marginals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flowalign.gaussian import Gaussian
from flowalign.path import expand
from flowalign.types import Condition, Policy


@dataclass(frozen=True, kw_only=True)
class FlowSDE:
    """Euler-Maruyama on the reverse SDE of the linear path (Flow-GRPO, arXiv 2505.05470, eq. 9).

    With ``h = t - s`` and ``sigma_t = noise * sqrt(t / (1 - t))``::

        mean = x (1 - sigma_t^2 h / 2t) - h (1 + sigma_t^2 (1 - t) / 2t) v
        std  = sigma_t sqrt(h)

    At ``t = 1`` the pole of ``sigma_t`` is avoided by ``1 - s`` in place of ``1 - t`` (the released
    code's choice), or by ``1 - sigma_max`` if that is given. Preserves the marginals as the grid is
    refined, up to that first step. The last step (``s = 0``) would leave noise in the picture, so
    ``simulate`` takes it deterministically unless told otherwise. ``noise = 0`` is the ODE.

    Args:
        noise: the level ``a`` >= 0; 0.7 in the paper.
        sigma_max: time in (0, 1) that replaces ``t = 1`` in ``sigma_t``; None: the second grid
            point.
    """

    noise: float = 0.7
    sigma_max: float | None = None

    def __post_init__(self) -> None:
        if self.noise < 0:
            raise ValueError(f"noise must be >= 0, got {self.noise}")
        if self.sigma_max is not None and not 0 < self.sigma_max < 1:
            raise ValueError(f"sigma_max must lie in (0, 1), got {self.sigma_max}")

    @property
    def deterministic(self) -> bool:
        """Whether every step is the ODE's."""
        return self.noise == 0

    def kernel(
        self,
        policy: Policy,
        x: Tensor,
        t: Tensor,
        s: Tensor,
        condition: Condition | None,
        *,
        guidance: float = 1.0,
    ) -> Gaussian:
        """The transition of ``x`` ``(B, *S)`` from ``t`` to ``s < t``, each ``()`` or ``(B,)``.

        Raises:
            ValueError: if the step is so coarse that ``x`` would be multiplied by a negative
                number.
        """
        velocity = policy.velocity(x, t, condition, guidance)
        t, s = expand(t, x), expand(s, x)
        capped = s if self.sigma_max is None else torch.full_like(t, self.sigma_max)
        variance = self.noise**2 * t / (1 - torch.where(t >= 1, capped, t))  # sigma_t^2
        h = t - s
        shrink = 1 - variance * h / (2 * t)
        if shrink.numel() == 1 and shrink.device.type == "cpu" and float(shrink) < 0:
            raise ValueError(
                f"the step from t={float(t):.4f} to s={float(s):.4f} is too coarse for noise="
                f"{self.noise}: use more steps, less noise or leave this step to the ODE"
            )
        mean = x * shrink - h * (1 + variance * (1 - t) / (2 * t)) * velocity
        return Gaussian(mean=mean, std=(variance * h).sqrt())
