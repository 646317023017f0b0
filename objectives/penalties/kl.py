"""KL divergence of the sampler's transitions to the frozen reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from flowalign.gaussian import reduce
from flowalign.replay import Minibatch


@dataclass(frozen=True, kw_only=True)
class KL:
    """``weight * KL(p_theta(x_s|x_t) || p_ref(x_s|x_t))``, mean over the latent (Flow-GRPO).

    ``exact``: the Gaussians' own divergence, ``(mean_theta - mean_ref)^2 / (2 std^2)`` with
    ``std^2 = sigma_t^2 h``. ``published``: what Flow-GRPO's released code optimises, which divides
    by ``2 sigma_t^2`` without ``h = t - s``, i.e. ``h`` times the exact one; its weights (0.04 on
    GenEval and OCR, 0.01 on PickScore) mean this form.

    Args:
        weight: the factor beta >= 0.
        form: ``exact`` or ``published``.
    """

    weight: float = 0.04
    form: Literal["exact", "published"] = "exact"
    needs: ClassVar[frozenset[str]] = frozenset({"trajectory", "reference"})

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"weight must be >= 0, got {self.weight}")
        if self.form not in ("exact", "published"):
            raise ValueError(f"form must be exact or published, got {self.form!r}")

    def __call__(self, batch: Minibatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The penalty ``()``; logs the exact divergence as ``kl``."""
        exact = reduce(batch.transition.kernel.kl(batch.reference.kernel))  # (N,)
        value = exact if self.form == "exact" else exact * (batch.t - batch.s)
        return self.weight * value.mean(), {"kl": exact.detach().mean()}
