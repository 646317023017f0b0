"""Group credit against numpy written by hand, and its edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowalign.objectives.balancers.weighted_sum import WeightedSum
from flowalign.objectives.credit.group import GroupCredit


def by_hand(rewards: np.ndarray, groups: np.ndarray, std: str) -> np.ndarray:
    out = np.zeros_like(rewards)
    for g in np.unique(groups):
        own = rewards[groups == g]
        scale = {"group": own.std(), "global": rewards.std(), "none": None}[std]
        out[groups == g] = (own - own.mean()) / (1.0 if scale is None else scale + 1e-4)
    return out


@pytest.mark.parametrize("std", ["group", "global", "none"])
def test_equals_the_formula(toy_rollout, std):
    rewards = torch.tensor([0.1, 0.5, 0.9, 2.0, 3.0, 7.0])
    groups = torch.tensor([5, 5, 5, 2, 2, 2])
    advantage = GroupCredit(std=std)(toy_rollout(rewards, groups))
    assert advantage.shape == (6, 1, 1)
    expected = by_hand(rewards.numpy().astype(np.float64), groups.numpy(), std)
    np.testing.assert_allclose(advantage.flatten().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_groups_may_interleave_and_rewards_stay_apart(toy_rollout):
    values = torch.tensor([[0.0, 5.0], [1.0, 1.0], [2.0, 7.0], [5.0, 1.0]])
    groups = torch.tensor([0, 1, 0, 1])
    advantage = GroupCredit()(toy_rollout(values, groups))[:, 0]
    torch.testing.assert_close(advantage[:, 0], torch.tensor([-1.0, -1, 1, 1]), rtol=1e-3, atol=0)
    torch.testing.assert_close(advantage[:, 1], torch.tensor([-1.0, 0, 1, 0]), rtol=1e-3, atol=0)


def test_sums_to_zero_and_ignores_scale_and_shift(toy_rollout):
    rewards = torch.rand(12, generator=torch.Generator().manual_seed(3))
    groups = torch.arange(12) // 4
    one = GroupCredit()(toy_rollout(rewards, groups))
    two = GroupCredit()(toy_rollout(100 * rewards + 7, groups))
    assert one.view(3, 4).sum(1).abs().max() < 1e-5
    torch.testing.assert_close(one, two, rtol=2e-3, atol=1e-4)


def test_a_failed_reward_enters_no_statistic(toy_rollout):
    rewards = torch.tensor([0.0, 1.0, float("nan"), 0.0, 1.0, 2.0])
    valid = torch.tensor([True, True, False, True, True, True])
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    advantage = GroupCredit()(toy_rollout(rewards, groups, valid)).flatten()
    assert advantage[2] == 0
    torch.testing.assert_close(advantage[:2], torch.tensor([-1.0, 1.0]), rtol=1e-3, atol=0)
    everywhere = GroupCredit(std="global")(toy_rollout(rewards, groups, valid)).flatten()
    assert torch.isfinite(everywhere).all()


def test_ties_and_single_survivors_carry_no_signal(toy_rollout):
    rewards = torch.tensor([0.3, 0.3 + 1e-8, 1.0, 2.0])
    valid = torch.tensor([True, True, True, False])
    advantage = GroupCredit()(toy_rollout(rewards, torch.tensor([0, 0, 1, 1]), valid))
    assert (advantage == 0).all()


def test_weighted_sum_mixes_before_the_loss():
    advantage = torch.tensor([[[1.0, -2.0]], [[0.5, 4.0]]])
    mixed = WeightedSum(weights=[2.0, 0.25]).mix(advantage)
    torch.testing.assert_close(mixed, torch.tensor([[[1.5]], [[2.0]]]))


@pytest.mark.parametrize("options", [{"std": "batch"}, {"eps": -1.0}])
def test_refuses_bad_options(options):
    with pytest.raises(ValueError):
        GroupCredit(**options)
