"""Shared fixtures: one thread count, the embedded policy once a session, hand-made rollouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flowalign.models.toy import GaussianPolicy
from flowalign.samplers import FlowSDE, simulate
from flowalign.types import Condition, Rewards, Rollout

torch.set_num_threads(2)


def condition(n: int) -> Condition:
    """A condition that a toy policy ignores."""
    return Condition(embeds=torch.zeros(n, 1, 1))


@pytest.fixture
def toy_rollout() -> Callable[..., Rollout]:
    """A rollout of the Gaussian oracle with given rewards and groups."""

    def build(
        values: Tensor, group: Tensor, valid: Tensor | None = None, steps: int = 4
    ) -> Rollout:
        n = len(values)
        policy = GaussianPolicy(0.7, 0.5)
        noise = torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(0))
        times = torch.linspace(1, 0, steps + 1)
        path = simulate(
            policy, FlowSDE(), times, noise, condition(n), torch.Generator().manual_seed(1)
        )
        values = values.view(n, -1)
        return Rollout(
            prompts=[f"prompt {int(g)}" for g in group],
            metadata=[{} for _ in range(n)],
            group=group,
            condition=condition(n),
            trajectory=path,
            media=torch.zeros(n, 3, 2, 2),
            rewards=Rewards(
                names=tuple(f"r{k}" for k in range(values.shape[1])),
                values=values,
                valid=torch.ones_like(values).bool() if valid is None else valid.view(n, -1),
            ),
        )

    return build
