"""The records that pass between the parts, one per stage of an iteration.

``prompts -> Condition -> Trajectory -> media -> Rewards -> Rollout -> Advantage -> LossOutput``

Letters in shape comments: ``B`` rollouts, ``G`` rollouts per prompt, ``T`` steps, ``P`` stored grid
points, ``K`` rewards, ``L`` text tokens, ``S`` the latent shape of one sample. All records are
frozen and keyword-only; tensors in them are never modified in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from flowalign.gaussian import Gaussian

Metadata = Mapping[str, Any]
"""What a prompt file says about a prompt besides its text (GenEval's ``tag``, ``include``)."""


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Encoded prompts, ready for the denoiser; computed once per prompt."""

    embeds: Tensor  # (B, L, E)
    pooled: Tensor | None = None  # (B, P)
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # each (B, ...)
    negative: Condition | None = None  # same shapes; what true CFG contrasts with

    def _map(self, f: Any) -> Condition:
        return Condition(
            embeds=f(self.embeds),
            pooled=None if self.pooled is None else f(self.pooled),
            extra={name: f(value) for name, value in self.extra.items()},
            negative=None if self.negative is None else self.negative._map(f),
        )

    def select(self, index: Tensor | slice) -> Condition:
        """The rows ``index`` (any torch index along ``B``)."""
        return self._map(lambda value: value[index])

    def repeat(self, n: int) -> Condition:
        """Each row ``n`` times in place: ``(a, b) -> (a, a, b, b)`` for ``n = 2``."""
        return self._map(lambda value: value.repeat_interleave(n, 0))

    def to(self, *args: Any, **kwargs: Any) -> Condition:
        """Every tensor moved by ``Tensor.to``."""
        return self._map(lambda value: value.to(*args, **kwargs))

    @staticmethod
    def cat(parts: Sequence[Condition]) -> Condition:
        """The rows of all ``parts`` one after another; all have the same fields."""
        first = parts[0]
        return Condition(
            embeds=torch.cat([part.embeds for part in parts]),
            pooled=_cat([part.pooled for part in parts]),
            extra={name: torch.cat([part.extra[name] for part in parts]) for name in first.extra},
            negative=None
            if first.negative is None
            else Condition.cat([part.negative for part in parts if part.negative is not None]),
        )

    def __len__(self) -> int:
        return len(self.embeds)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One sampled path per rollout, holding only the grid points that training replays.

    ``latents[:, j]`` is ``x`` at ``times[points[j]]``; the last point is always the clean latent.
    """

    times: Tensor  # (T + 1,) float, 1 = noise ... 0 = data; never rebuilt from integers
    latents: Tensor  # (B, P, *S) storage dtype; P = T + 1 unless `points` says otherwise
    stochastic: Tensor  # (T,) bool: which steps drew noise
    log_prob: Tensor  # (B, T) fp32, of the drawn and rounded latents; 0 where deterministic
    points: tuple[int, ...]  # (P,) increasing grid indices of the stored latents, ends with T
    saliency: Tensor | None = None  # (B, P, *S'): per-region weights, where recorded

    def at(self, point: int) -> Tensor:
        """``x`` at ``times[point]``, ``(B, *S)``. Raises ``KeyError`` if it was not stored."""
        if point not in self.points:
            raise KeyError(
                f"the latent at grid point {point} was not stored (stored: {self.points})"
            )
        return self.latents[:, self.points.index(point)]

    @property
    def final(self) -> Tensor:
        """The clean latent, ``(B, *S)``."""
        return self.latents[:, -1]

    @property
    def replayable(self) -> tuple[int, ...]:
        """The stochastic steps whose two ends are stored: what a trajectory objective trains on."""
        drawn = self.stochastic.tolist()
        return tuple(i for i in self.points if i + 1 in self.points and i < len(drawn) and drawn[i])

    def select(self, index: Tensor | slice) -> Trajectory:
        """The rollouts ``index``."""
        return replace(
            self,
            latents=self.latents[index],
            log_prob=self.log_prob[index],
            saliency=None if self.saliency is None else self.saliency[index],
        )

    @staticmethod
    def cat(parts: Sequence[Trajectory]) -> Trajectory:
        """The rollouts of all ``parts``, which share grid, steps and stored points."""
        return replace(
            parts[0],
            latents=torch.cat([part.latents for part in parts]),
            log_prob=torch.cat([part.log_prob for part in parts]),
            saliency=_cat([part.saliency for part in parts]),
        )


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """Scores of a batch. A failed score has ``valid = False`` and is never read as 0."""

    names: tuple[str, ...]  # (K,)
    values: Tensor  # (B, K) fp32; NaN where invalid
    valid: Tensor  # (B, K) bool
    dense: Tensor | None = None  # (B, T + 1, K): reward of the completion from each step

    def select(self, index: Tensor | slice) -> Rewards:
        """The rollouts ``index``."""
        return replace(
            self,
            values=self.values[index],
            valid=self.valid[index],
            dense=None if self.dense is None else self.dense[index],
        )


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Everything an objective may ask of a scored batch of generations."""

    prompts: Sequence[str]  # (B,)
    metadata: Sequence[Metadata]  # (B,)
    group: Tensor  # (B,) long: equal for rollouts of the same prompt draw, over all processes
    condition: Condition
    trajectory: Trajectory
    media: Tensor  # (B, C, H, W) or (B, F, C, H, W) float in [0, 1]
    rewards: Rewards
    guidance: float = 1.0  # the CFG scale that the rollout was drawn with

    def __len__(self) -> int:
        return len(self.group)

    def select(self, index: Tensor) -> Rollout:
        """The rollouts ``index`` (a long tensor)."""
        rows = index.tolist()
        return replace(
            self,
            prompts=[self.prompts[i] for i in rows],
            metadata=[self.metadata[i] for i in rows],
            group=self.group[index],
            condition=self.condition.select(index),
            trajectory=self.trajectory.select(index),
            media=self.media[index],
            rewards=self.rewards.select(index),
        )


Advantage = Tensor
"""(B, T, K) or (B, T, K, *S): detached fp32; ``T`` of 1 broadcasts over the steps."""


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """What an objective returns: a loss per reward, a penalty outside the balancer, numbers."""

    losses: Tensor  # (K,) with grad
    penalty: Tensor  # () with grad
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # detached scalars


@runtime_checkable
class Policy(Protocol):
    """A generator normalised to one call, ``velocity``; samplers know nothing else of a model."""

    def encode(self, prompts: Sequence[str]) -> Condition:
        """Prompts to a condition, negative included."""
        ...

    def velocity(
        self, x: Tensor, t: Tensor, condition: Condition | None, guidance: float = 1.0
    ) -> Tensor:
        """``v = E[noise - data | x_t]``, shape of ``x``; ``t`` is ``()`` or ``(B,)`` in [0, 1]."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Clean latents ``(B, *S)`` to media in [0, 1]."""
        ...

    def times(self, n: int, shape: Sequence[int]) -> Tensor:
        """The model's grid of ``n`` steps for a latent of ``shape``: ``(n + 1,)`` from 1 to 0."""
        ...


class Trainable(Policy, Protocol):
    """A policy with weights: parameters that train and the frozen views of them."""

    def latent_shape(self, height: int | None = None, width: int | None = None) -> tuple[int, ...]:
        """Shape ``S`` of one latent for an image size in pixels (default: the model's own)."""
        ...

    def named_trainable(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters the optimizer moves, by stable name."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """Within it the policy is the frozen start (LoRA disabled, or the kept copy)."""
        ...

    def old(self) -> AbstractContextManager[None]:
        """Within it the policy has the ``old`` snapshot's weights."""
        ...

    def ema(self) -> AbstractContextManager[None]:
        """Within it the policy has the EMA weights."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """One transition of a generator as a Gaussian; drawing and scoring happen elsewhere, once."""

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
        """``p(x_s | x_t)`` for ``s < t``."""
        ...


@runtime_checkable
class Reward(Protocol):
    """A plug-in that scores media; see ``flowalign.rewards``."""

    name: str
    needs: frozenset[str]  # keys that each prompt's metadata must have
    differentiable: bool
    groupwise: bool

    def __call__(
        self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> tuple[Tensor, Tensor]:
        """``(values (B,), valid (B,))`` for media ``(B, C, H, W)`` in [0, 1]."""
        ...
