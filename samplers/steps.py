"""Which steps of a trajectory are stochastic, and therefore trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepSelection:
    """Stochastic steps by rule; all other steps are the ODE's.

    ``all``: every step but the last. ``window``: ``length`` steps from ``start`` (MixGRPO, arXiv
    2507.21802: noise early, ODE elsewhere). ``last=True`` lets the final step be stochastic too,
    which leaves noise in the picture.
    """

    kind: Literal["all", "window"] = "all"
    start: int = 0
    length: int = 4
    last: bool = False

    def mask(self, n: int) -> Tensor:
        """The selection for a grid of ``n`` steps, ``(n,)`` bool.

        Raises:
            ValueError: if the window leaves the grid or nothing is selected.
        """
        stop = n if self.last else n - 1
        start, end = (0, stop) if self.kind == "all" else (self.start, self.start + self.length)
        if not 0 <= start < end <= stop:
            raise ValueError(
                f"the stochastic steps {start}..{end - 1} do not fit the {n} steps of the sampler "
                f"(0..{stop - 1} may be stochastic): change steps.start, steps.length or the "
                "number of inference steps"
            )
        index = torch.arange(n)
        return (index >= start) & (index < end)
