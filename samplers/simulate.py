"""The one loop over time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from flowalign.gaussian import Gaussian, reduce
from flowalign.samplers.ode import ODE
from flowalign.types import Condition, Policy, Sampler, Trajectory

Generators = torch.Generator | Sequence[torch.Generator] | None


def randn(shape: Sequence[int], generator: Generators, device: torch.device | str) -> Tensor:
    """Standard normal ``shape``; with a generator a row, rows do not depend on the batch."""
    if generator is None or isinstance(generator, torch.Generator):
        source = "cpu" if generator is None else generator.device
        return torch.randn(tuple(shape), generator=generator, device=source).to(device)
    if len(generator) != shape[0]:
        raise ValueError(f"{len(generator)} generators for {shape[0]} rows; give one a row")
    rows = [torch.randn(tuple(shape[1:]), generator=g, device=g.device) for g in generator]
    return torch.stack(rows).to(device)


def simulate(
    policy: Policy,
    sampler: Sampler,
    times: Tensor,
    x: Tensor,
    condition: Condition | None,
    generator: Generators = None,
    stochastic: Tensor | None = None,
    *,
    guidance: float = 1.0,
    keep: Collection[int] | None = None,
    storage_dtype: torch.dtype | None = None,
    log_prob_reduction: str = "mean",
) -> Trajectory:
    """Sample trajectories from noise to data.

    A drawn latent is rounded through ``storage_dtype`` before its log-prob is taken and before the
    next step, so that a replay from storage sees exactly what the rollout saw.

    Args:
        policy: gives the velocity.
        sampler: gives the kernel of the stochastic steps; the other steps are the ODE's.
        times: grid from 1 to 0, ``(T + 1,)``, kept on the CPU.
        x: initial noise at ``times[0]``, ``(B, *S)``.
        condition: encoded prompts of the ``B`` rows, or None for an unconditional policy.
        generator: one generator, or one a row (then the draw does not depend on batching).
        stochastic: which steps draw noise, ``(T,)`` bool; default all but the last.
        guidance: CFG scale, 1 = off.
        keep: grid points whose latents are stored besides the last; default all.
        storage_dtype: dtype of the stored latents; default that of ``x``.
        log_prob_reduction: ``mean`` (the field's habit) or ``sum`` (the likelihood) over a latent.

    Raises:
        ValueError: for a grid that does not fall, or a mask of another length.
    """
    times = times.detach().cpu()
    n = len(times) - 1
    if n < 1 or bool((times.diff() >= 0).any()):
        raise ValueError("times must fall strictly from noise (1) to data (0) in at least one step")
    if stochastic is None:
        stochastic = torch.arange(n) < n - 1
    if len(stochastic) != n:
        raise ValueError(f"stochastic has {len(stochastic)} entries for {n} steps")
    stochastic = stochastic.cpu() & (not getattr(sampler, "deterministic", False))
    points = sorted({*(range(n + 1) if keep is None else keep), n})
    storage = storage_dtype or x.dtype
    x = x.to(storage).to(x.dtype)
    stored, log_probs, ode = [x] * (0 in points), [], ODE()
    for i in range(n):
        kernel_of = sampler.kernel if stochastic[i] else ode.kernel
        kernel = kernel_of(policy, x, times[i], times[i + 1], condition, guidance=guidance)
        if stochastic[i]:
            x = _draw(kernel, generator, storage)
            log_probs.append(reduce(kernel.log_prob(x), log_prob_reduction))
        else:
            x = kernel.mean.to(storage).to(x.dtype)
            log_probs.append(x.new_zeros(len(x)))
        if i + 1 in points:
            stored.append(x)
    return Trajectory(
        times=times,
        latents=torch.stack(stored, 1).to(storage),
        stochastic=stochastic,
        log_prob=torch.stack(log_probs, 1),
        points=tuple(points),
    )


def _draw(kernel: Gaussian, generator: Generators, storage: torch.dtype) -> Tensor:
    noise = randn(kernel.mean.shape, generator, kernel.mean.device).to(kernel.mean.dtype)
    return kernel.sample(noise=noise, dtype=storage)
