"""Kernels against the Gaussian oracle, by the affine recursion and without Monte-Carlo."""

from __future__ import annotations

import pytest
import torch

from flowalign.models.toy import GaussianPolicy
from flowalign.samplers import ODE, FlowSDE

POLICY = GaussianPolicy(0.7, 0.5)


def recursion(sampler, n: int) -> tuple[float, float]:
    """Final mean and variance over a uniform grid: M <- A M + b, S <- A^2 S + std^2."""
    times = torch.linspace(1, 0, n + 1, dtype=torch.float64)
    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    mean, variance = 0.0, 1.0
    for t, s in zip(times, times[1:], strict=False):
        kernel = sampler.kernel(POLICY, ends, t, s, None)
        b, one = kernel.mean.flatten().tolist()
        mean = (one - b) * mean + b
        variance = (one - b) ** 2 * variance + float(kernel.std) ** 2
    return mean, variance


@pytest.mark.parametrize(
    ("sampler", "n", "variance"),
    [
        (ODE(), 10, 0.18557),
        (ODE(), 40, 0.23214),
        (ODE(), 160, 0.24541),
        (ODE(), 1000, 0.24926),
        (FlowSDE(noise=0.7), 10, 0.22996),
        (FlowSDE(noise=0.7), 40, 0.24737),
        (FlowSDE(noise=0.7), 160, 0.25091),
        (FlowSDE(noise=0.7), 1000, 0.25092),
    ],
)
def test_closed_form(sampler, n, variance):
    mean, got = recursion(sampler, n)
    assert abs(mean - 0.7) < 1e-9  # exact for every grid
    assert abs(got - variance) < 1e-5


def test_flow_sde_approaches_the_data_for_every_noise_level():
    for noise in (0.3, 0.7, 1.0):
        assert abs(recursion(FlowSDE(noise=noise), 4000)[1] - 0.25) < 4e-3


def test_euler_is_of_first_order():
    error = {n: abs(recursion(ODE(), n)[1] - 0.25) for n in (200, 400)}
    assert 1.8 < error[200] / error[400] < 2.2


@pytest.mark.parametrize("t,s", [(1.0, 0.9), (0.6, 0.4), (0.1, 0.0)])
def test_without_noise_it_is_the_ode_step(t, s):
    x = torch.randn(3, 2, dtype=torch.float64)
    grid = (torch.tensor(t).double(), torch.tensor(s).double())
    still, ode = FlowSDE(noise=0.0), ODE()
    a, b = still.kernel(POLICY, x, *grid, None), ode.kernel(POLICY, x, *grid, None)
    torch.testing.assert_close(a.mean, b.mean)
    assert float(a.std) == float(b.std) == 0.0


def test_sigma_at_the_noise_end_uses_the_second_grid_point_or_sigma_max():
    x = torch.zeros(1, 1, dtype=torch.float64)
    t, s = torch.tensor(1.0).double(), torch.tensor(0.8).double()
    std = FlowSDE(noise=0.7).kernel(POLICY, x, t, s, None).std
    assert float(std) == pytest.approx(0.7 * (1 / 0.2) ** 0.5 * 0.2**0.5)
    std = FlowSDE(noise=0.7, sigma_max=0.9).kernel(POLICY, x, t, s, None).std
    assert float(std) == pytest.approx(0.7 * (1 / 0.1) ** 0.5 * 0.2**0.5)


def test_rows_may_have_times_of_their_own():
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    t, s = torch.tensor([1.0, 0.7, 0.3]).double(), torch.tensor([0.9, 0.5, 0.1]).double()
    for sampler in (ODE(), FlowSDE()):
        together = sampler.kernel(POLICY, x, t, s, None)
        for i in range(3):
            alone = sampler.kernel(POLICY, x[i : i + 1], t[i], s[i], None)
            torch.testing.assert_close(together.mean[i : i + 1], alone.mean)
            assert float(together.std[i]) == pytest.approx(float(alone.std))


def test_a_step_that_would_flip_the_latent_is_refused():
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="too coarse"):
        FlowSDE(noise=2.0).kernel(POLICY, x, torch.tensor(0.95), torch.tensor(0.4), None)


@pytest.mark.parametrize("options", [{"noise": -0.1}, {"sigma_max": 1.0}, {"sigma_max": 0.0}])
def test_refuses_bad_options(options):
    with pytest.raises(ValueError):
        FlowSDE(**options)
