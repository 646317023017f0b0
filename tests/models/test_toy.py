"""The oracles themselves: consistency with densities, ODEs and each other."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from flowalign.models.toy import GaussianPolicy, MixturePolicy
from flowalign.path import velocity_to_score

X = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def mixture() -> MixturePolicy:
    means = torch.tensor([[1.0, -1.0], [-2.0, 0.5]], dtype=torch.float64)
    stds, weights = torch.tensor([0.5, 0.8]).double(), torch.tensor([1.0, 3.0]).double()
    return MixturePolicy(means, stds, weights)


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9, 1.0])
def test_mixture_score_is_the_gradient_of_its_density(t):
    x = X.clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(mixture().log_density(x, t).sum(), x)
    torch.testing.assert_close(mixture().score(X, t), expected, rtol=1e-10, atol=1e-12)
    if t < 1:
        v = mixture().velocity(X, t)
        torch.testing.assert_close(velocity_to_score(v, X, t), expected, rtol=1e-8, atol=1e-10)


def test_one_component_is_the_gaussian():
    one = MixturePolicy(
        torch.full((1, 2), 0.7).double(), torch.tensor([0.5]).double(), torch.ones(1).double()
    )
    gauss = GaussianPolicy(0.7, 0.5)
    for t in (0.2, 0.6, 1.0):
        torch.testing.assert_close(one.velocity(X, t), gauss.velocity(X, t))
    rows = torch.tensor([0.1, 0.3, 0.5, 0.7, 1.0]).double()
    torch.testing.assert_close(one.velocity(X, rows), gauss.velocity(X, rows))


def test_flow_map_is_the_limit_of_the_ode():
    policy, x, n = GaussianPolicy(0.7, 0.5), X, 20000
    times = torch.linspace(0.9, 0.2, n + 1, dtype=torch.float64)
    for t, s in zip(times, times[1:], strict=False):
        x = x - (t - s) * policy.velocity(x, t)
    torch.testing.assert_close(policy.flow_map(X, 0.9, 0.2), x, rtol=0, atol=1e-4)
    back = policy.flow_map(policy.flow_map(X, 0.9, 0.2), 0.2, 0.9)
    torch.testing.assert_close(back, X)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_densities_and_moments_are_those_of_torch(t):
    policy = MixturePolicy([1.0, -2.0], [0.5, 0.8], [1.0, 3.0])
    means, stds = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 0.8]).double()
    spread = ((1 - t) ** 2 * stds**2 + t**2).sqrt()
    expected = MixtureSameFamily(
        Categorical(torch.tensor([0.25, 0.75]).double()), Normal((1 - t) * means, spread)
    )
    x = X[:, 0]
    torch.testing.assert_close(policy.log_density(x, t), expected.log_prob(x))
    mean, variance = policy.marginal(t)
    torch.testing.assert_close((mean, variance), (expected.mean, expected.variance))
    mean, variance = GaussianPolicy(1.0, 0.5).marginal(t)
    torch.testing.assert_close((mean, variance), ((1 - t) * means[0], spread[0] ** 2))


@pytest.mark.parametrize("t", [0.0, 0.999, 0.999999, 1.0])
def test_fp32_is_accurate_up_to_both_ends(t):
    for policy in (mixture(), GaussianPolicy(0.7, 0.5)):
        v = policy.velocity(X.float(), t)
        assert v.dtype == torch.float32
        torch.testing.assert_close(v.double(), policy.velocity(X, t), rtol=0, atol=2e-6)


def test_shapes():
    for policy in (GaussianPolicy(0.7, 0.5, (2, 3)), MixturePolicy([1, 0], [1, 1], shape=(2, 3))):
        assert policy.latent_shape() == (2, 3)
        mean, variance = policy.marginal(torch.tensor([0.1, 0.5, 0.9]))
        assert mean.shape == (3, 2, 3) and variance.shape in {(3, 1, 1), (3, 2, 3)}
    condition = policy.encode(["a", "b"])
    assert len(condition) == len(condition.negative) == 2
    assert policy.times(4).tolist() == [1, 0.75, 0.5, 0.25, 0]


def test_impossible_laws_are_refused():
    with pytest.raises(ValueError, match="std must be >= 0"):
        GaussianPolicy(0.0, -1.0)
    for weights in ([1.0], [1.0, 0.0]):
        with pytest.raises(ValueError, match="one value a component"):
            MixturePolicy([0.0, 1.0], [1.0, 1.0], weights)


def test_velocity_is_the_conditional_expectation():
    """v = E[noise - data | x_t]: regression over joint samples recovers the closed form."""
    g = torch.Generator().manual_seed(1)
    data = 0.7 + 0.5 * torch.randn(400_000, generator=g, dtype=torch.float64)
    noise = torch.randn(400_000, generator=g, dtype=torch.float64)
    t = 0.4
    x = (1 - t) * data + t * noise
    design = torch.stack([torch.ones_like(x), x], 1)
    fit = torch.linalg.lstsq(design, (noise - data).unsqueeze(1)).solution.flatten()
    policy = GaussianPolicy(0.7, 0.5)
    points = torch.tensor([0.0, 1.0], dtype=torch.float64)
    intercept, end = policy.velocity(points, t)
    assert abs(fit[0] - intercept) < 0.01 and abs(fit[0] + fit[1] - end) < 0.01
