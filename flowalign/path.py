"""The linear path between data and noise, and the conversions between what a network may predict.

``t`` lies in [0, 1], ``t = 1`` is noise::

    x_t = (1 - t) data + t noise        v = dx/dt = noise - data

Every conversion is exact for the conditional expectations given ``x_t`` and comes with its inverse.
Tensors are ``(B, *S)``; ``t`` is a float, ``()`` or ``(B,)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

Time = Tensor | float


def expand(t: Time, x: Tensor) -> Tensor:
    """``t`` in the dtype of ``x``, ready to broadcast against it.

    A scalar stays a scalar on its own device (a CPU scalar mixes with CUDA tensors without a sync);
    ``(B,)`` becomes ``(B, 1, ...)`` on the device of ``x``.
    """
    t = torch.as_tensor(t, dtype=x.dtype)
    return t if t.ndim == 0 else t.to(x.device).reshape(-1, *[1] * (x.ndim - 1))


def interpolate(data: Tensor, noise: Tensor, t: Time) -> Tensor:
    """``x_t = (1 - t) data + t noise``."""
    t = expand(t, data)
    return (1 - t) * data + t * noise


def velocity_to_data(v: Tensor, x: Tensor, t: Time) -> Tensor:
    """``E[data | x_t] = x - t v``."""
    return x - expand(t, x) * v


def data_to_velocity(data: Tensor, x: Tensor, t: Time) -> Tensor:
    """``v = (x - data) / t``; singular at ``t = 0``."""
    return (x - data) / expand(t, x)


def velocity_to_noise(v: Tensor, x: Tensor, t: Time) -> Tensor:
    """``E[noise | x_t] = x + (1 - t) v``."""
    return x + (1 - expand(t, x)) * v


def noise_to_velocity(noise: Tensor, x: Tensor, t: Time) -> Tensor:
    """``v = (noise - x) / (1 - t)``; singular at ``t = 1``."""
    return (noise - x) / (1 - expand(t, x))


def velocity_to_score(v: Tensor, x: Tensor, t: Time) -> Tensor:
    """``grad log p_t(x) = -(x + (1 - t) v) / t``; singular at ``t = 0``."""
    return -velocity_to_noise(v, x, t) / expand(t, x)


def score_to_velocity(score: Tensor, x: Tensor, t: Time) -> Tensor:
    """``v = -(x + t score) / (1 - t)``; singular at ``t = 1``."""
    t = expand(t, x)
    return -(x + t * score) / (1 - t)
