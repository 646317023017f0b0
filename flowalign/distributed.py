"""All communication between processes, and what accelerate does to a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from flowalign.types import Rollout


def local_rows(accelerator: Accelerator, rollouts: int) -> range:
    """This process' contiguous share of an iteration's rows."""
    share = rollouts // accelerator.num_processes
    return range(accelerator.process_index * share, (accelerator.process_index + 1) * share)


@contextmanager
def without_autocast(module: nn.Module) -> Iterator[None]:
    """Within it a module that accelerate prepared computes in the dtype of its weights.

    accelerate puts autocast around ``forward`` as an attribute of the instance.
    """
    wrapped = module.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            module.__dict__["forward"] = wrapped


def gather_rows(accelerator: Accelerator, value: Tensor) -> Tensor:
    """The rows of all processes in rank order; every process has equally many."""
    gathered = accelerator.gather(value.to(accelerator.device).contiguous())
    assert isinstance(gathered, Tensor)
    return gathered.to(value.device)


def gather_scores(accelerator: Accelerator, rollout: Rollout) -> Rollout:
    """The rollout with the groups and rewards of all processes, which credit is computed from.

    Media, prompts and trajectory stay those of this process.
    """
    rewards = replace(
        rollout.rewards,
        values=gather_rows(accelerator, rollout.rewards.values),
        valid=gather_rows(accelerator, rollout.rewards.valid),
    )
    return replace(rollout, group=gather_rows(accelerator, rollout.group), rewards=rewards)


def mean_over_processes(accelerator: Accelerator, values: dict[str, float]) -> dict[str, float]:
    """Scalars averaged over processes; keys with ``max`` take the largest."""
    if accelerator.num_processes == 1:
        return values
    names = sorted(values)
    stacked = torch.tensor([[values[name] for name in names]], dtype=torch.float32)
    rows = gather_rows(accelerator, stacked)
    means, tops = rows.mean(0).tolist(), rows.amax(0).tolist()
    merged = zip(names, means, tops, strict=True)
    return {name: top if "max" in name else mean for name, mean, top in merged}


def any_process(accelerator: Accelerator, flag: bool) -> bool:
    """Whether any process raised the flag."""
    value = torch.tensor([float(flag)])
    return bool(gather_rows(accelerator, value).max() > 0)


def gather_rng(accelerator: Accelerator) -> list[dict[str, Tensor]]:
    """The torch RNG states of every process, on every process."""
    states = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    gathered = {name: gather_rows(accelerator, state[None]) for name, state in states.items()}
    return [
        {name: rows[rank] for name, rows in gathered.items()}
        for rank in range(accelerator.num_processes)
    ]


def restore_rng(accelerator: Accelerator, states: dict[str, Tensor]) -> None:
    """Set this process' torch RNG states."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and accelerator.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], accelerator.device)
