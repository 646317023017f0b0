"""The one Gaussian against torch.distributions and closed forms."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from flowalign.gaussian import Gaussian, reduce

MEAN = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
STD = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64).reshape(3, 1, 1)


def test_log_prob_is_the_normal_density():
    x = MEAN + 0.7
    ours = Gaussian(mean=MEAN, std=STD).log_prob(x)
    torch.testing.assert_close(ours, Normal(MEAN, STD).log_prob(x), rtol=1e-12, atol=1e-12)


def test_kl_is_the_normal_divergence():
    other = Gaussian(mean=MEAN * 0.5, std=STD * 1.7)
    expected = kl_divergence(Normal(MEAN, STD), Normal(MEAN * 0.5, STD * 1.7))
    torch.testing.assert_close(Gaussian(mean=MEAN, std=STD).kl(other), expected, rtol=1e-12, atol=0)


def test_kl_at_equal_std_is_half_the_squared_shift():
    ours = Gaussian(mean=MEAN, std=STD).kl(Gaussian(mean=MEAN + 0.2, std=STD))
    torch.testing.assert_close(ours, (0.02 / STD**2).expand_as(MEAN))


def test_a_small_kl_does_not_vanish_beside_equal_stds():
    std, shift = torch.tensor(0.5), 1e-5
    kl = Gaussian(mean=torch.zeros(1, 3), std=std).kl(
        Gaussian(mean=torch.full((1, 3), shift), std=std)
    )
    torch.testing.assert_close(kl, torch.full((1, 3), 2e-10), rtol=1e-5, atol=0)


def test_sample_is_mean_plus_noise_and_seeded():
    noise = torch.randn(MEAN.shape, dtype=torch.float64)
    gauss = Gaussian(mean=MEAN, std=STD)
    torch.testing.assert_close(gauss.sample(noise=noise), MEAN + STD * noise)
    one = gauss.sample(torch.Generator().manual_seed(3))
    assert torch.equal(one, gauss.sample(torch.Generator().manual_seed(3)))


def test_a_draw_is_rounded_through_the_storage_dtype():
    drawn = Gaussian(mean=MEAN.float(), std=STD.float()).sample(
        torch.Generator().manual_seed(0), dtype=torch.bfloat16
    )
    assert drawn.dtype == torch.float32 and torch.equal(drawn, drawn.bfloat16().float())


def test_half_precision_is_computed_in_full():
    full = Gaussian(mean=MEAN.bfloat16().float(), std=STD.float())
    half = Gaussian(mean=MEAN.bfloat16(), std=STD.float())
    drawn = half.sample(torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.bfloat16
    assert torch.equal(drawn, full.sample(torch.Generator().manual_seed(0)).bfloat16())
    assert torch.equal(half.log_prob(drawn), full.log_prob(drawn.float()))
    assert torch.equal(half.kl(full), torch.zeros_like(full.mean))


def test_the_drawn_latent_is_a_constant_for_the_gradient():
    mean = MEAN.clone().requires_grad_(True)
    gauss = Gaussian(mean=mean, std=STD)
    x = gauss.sample(noise=torch.ones_like(MEAN))
    gauss.log_prob(x).sum().backward()
    torch.testing.assert_close(mean.grad, (1 / STD).expand_as(MEAN))


def test_a_point_mass_has_no_density():
    point = Gaussian(mean=MEAN, std=torch.tensor(0.0))
    assert torch.equal(point.sample(torch.Generator().manual_seed(0)), MEAN)
    with pytest.raises(ValueError, match="no log-prob"):
        point.log_prob(MEAN)
    with pytest.raises(ValueError, match="no log-prob"):
        Gaussian(mean=MEAN, std=STD).kl(point)


def test_reduce():
    torch.testing.assert_close(reduce(MEAN, "sum"), 8 * reduce(MEAN))
    assert torch.equal(reduce(MEAN[:, 0, 0]), MEAN[:, 0, 0])  # one scalar a row
    with pytest.raises(ValueError, match="mean or sum"):
        reduce(MEAN, "max")
