"""Euler steps of the probability-flow ODE."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flowalign.gaussian import Gaussian
from flowalign.path import expand
from flowalign.types import Condition, Policy


@dataclass(frozen=True, kw_only=True)
class ODE:
    """``x_s = x_t - (t - s) v(x_t, t)``: deterministic, equal to DDIM with eta = 0.

    Order 1; preserves the marginals as the grid is refined.
    """

    @property
    def deterministic(self) -> bool:
        """Always: the kernel has ``std == 0``."""
        return True

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
        """The point mass at the Euler step, for ``x`` ``(B, *S)`` and ``0 <= s < t <= 1``."""
        velocity = policy.velocity(x, t, condition, guidance)
        step = expand(t - s, x)
        return Gaussian(mean=x - step * velocity, std=step * 0)
