"""Sampling: prompts to scored groups of generations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flowalign.prompts import PromptSet
from flowalign.samplers.simulate import randn, simulate
from flowalign.seeding import Purpose, generator
from flowalign.types import Condition, Metadata, Policy, Rewards, Rollout, Sampler, Trajectory


class PromptEncoder:
    """Encodes each prompt once, the same whatever it comes with, and keeps the result."""

    def __init__(self, policy: Policy, device: torch.device | str = "cpu") -> None:
        """``device`` is where conditions are handed out; the cache stays on the CPU."""
        self.policy, self.device = policy, device
        self._cache: dict[str, Condition] = {}  # without negative, which is one for all
        self._negative: Condition | None = None

    def __call__(self, prompts: Sequence[str]) -> Condition:
        """The condition of ``prompts``, one row each, repeats included."""
        for prompt in dict.fromkeys(prompts):
            if prompt not in self._cache:  # alone: its neighbours would change the last bits
                encoded = self.policy.encode([prompt]).to("cpu")
                self._negative = encoded.negative
                self._cache[prompt] = replace(encoded, negative=None)
        condition = Condition.cat([self._cache[prompt] for prompt in prompts])
        if self._negative is not None:
            rows = torch.zeros(len(prompts), dtype=torch.long)
            condition = replace(condition, negative=self._negative.select(rows))
        return condition.to(self.device)


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """What stays the same from rollout to rollout."""

    sampler: Sampler
    times: Tensor  # (T + 1,)
    stochastic: Tensor  # (T,) bool
    latent_shape: tuple[int, ...]
    group_size: int
    guidance: float
    same_noise: bool
    batch_size: int
    storage_dtype: torch.dtype
    seed: int
    log_prob_reduction: str = "mean"

    @property
    def keep(self) -> set[int]:
        """Grid points that replay needs: both ends of every stochastic step."""
        steps = self.stochastic.nonzero().flatten().tolist()
        return {point for step in steps for point in (step, step + 1)}


def collect(
    policy: Policy,
    encoder: PromptEncoder,
    plan: RolloutPlan,
    prompts: PromptSet,
    chosen: Sequence[int],
    iteration: int,
    rows: range,
) -> Rollout:
    """Sample this process' share of an iteration; rewards are still empty.

    Row ``r`` of the iteration belongs to group ``r // group_size``. Every row has random streams of
    its own, keyed by (seed, iteration, row), so the pictures do not depend on batch size or on how
    rows are spread over processes.

    Args:
        policy: the generator.
        encoder: the prompt cache.
        plan: sampler, grid and sizes.
        prompts: the training set.
        chosen: the prompt index of each group of the iteration.
        iteration: counted from 0.
        rows: the rows of this process.
    """
    index = [chosen[row // plan.group_size] for row in rows]
    texts = [prompts.prompts[i] for i in index]
    metadata: list[Metadata] = [prompts.metadata[i] for i in index]
    condition = encoder(texts)
    device = condition.embeds.device
    paths, media = [], []
    for start in range(0, len(rows), plan.batch_size):
        part = rows[start : start + plan.batch_size]
        selection = slice(start, start + len(part))
        path = _simulate(policy, plan, condition.select(selection), iteration, part, device)
        paths.append(path)
        with torch.no_grad():
            media.append(policy.decode(path.final.float()))
    return Rollout(
        prompts=texts,
        metadata=metadata,
        group=torch.tensor([row // plan.group_size for row in rows], device=device),
        condition=condition,
        trajectory=Trajectory.cat(paths),
        media=torch.cat(media),
        rewards=Rewards(
            names=(), values=torch.empty(len(rows), 0), valid=torch.empty(len(rows), 0).bool()
        ),
        guidance=plan.guidance,
    )


def _simulate(
    policy: Policy,
    plan: RolloutPlan,
    condition: Condition,
    iteration: int,
    rows: range,
    device: torch.device,
) -> Trajectory:
    starts = [row // plan.group_size * plan.group_size if plan.same_noise else row for row in rows]
    first = [generator(Purpose.START, plan.seed, iteration, row) for row in starts]
    noise = randn((len(rows), *plan.latent_shape), first, device)
    with torch.no_grad():
        return simulate(
            policy,
            plan.sampler,
            plan.times,
            noise,
            condition,
            [generator(Purpose.PATH, plan.seed, iteration, row) for row in rows],
            plan.stochastic,
            guidance=plan.guidance,
            keep=plan.keep,
            storage_dtype=plan.storage_dtype,
            log_prob_reduction=plan.log_prob_reduction,
        )
