"""Conversions are inverse pairs and agree with their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowalign import path

TIMES = st.floats(0.01, 0.99)


def fields(seed: int, n: int = 3):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 2, 4, generator=g, dtype=torch.float64) for _ in range(2)]


@given(t=TIMES, seed=st.integers(0, 1000))
@pytest.mark.parametrize("name", ["data", "noise", "score"])
def test_round_trips(name, t, seed):
    v, x = fields(seed)
    there = getattr(path, f"velocity_to_{name}")(v, x, t)
    back = getattr(path, f"{name}_to_velocity")(there, x, t)
    torch.testing.assert_close(back, v, rtol=1e-12, atol=1e-10)


@given(t=TIMES, seed=st.integers(0, 1000))
def test_definitions(t, seed):
    data, noise = fields(seed)
    x, v = path.interpolate(data, noise, t), noise - data
    torch.testing.assert_close(path.velocity_to_data(v, x, t), data, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.velocity_to_noise(v, x, t), noise, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.velocity_to_score(v, x, t), -noise / t, rtol=1e-10, atol=1e-10)


def test_expand():
    x = torch.zeros(2, 3, 4, dtype=torch.float64)
    assert path.expand(0.5, x).ndim == 0 and path.expand(0.5, x).dtype == torch.float64
    assert path.expand(torch.tensor([0.1, 0.2]), x).shape == (2, 1, 1)
