"""Checkpoints: safetensors and JSON, written atomically, restored exactly.

``checkpoints/step-000020/`` holds ``state.json`` (step, geometry, optimizer scalars, checksums),
``parameters.safetensors``, ``snapshots.safetensors``, ``optimizer.safetensors`` and one
``rng-<rank>.safetensors`` a process. A checkpoint appears by one rename, so a killed run leaves the
previous one whole. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flowalign.errors import CheckpointError
from flowalign.snapshots import Snapshots

_PREFIX, _PARTIAL = "step-", ".partial-"


def checkpoint_path(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return run / "checkpoints" / f"{_PREFIX}{step:06d}"


def latest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, if any."""
    found = sorted((run / "checkpoints").glob(f"{_PREFIX}*"))
    return found[-1] if found else None


def save_checkpoint(
    run: Path,
    step: int,
    parameters: Mapping[str, nn.Parameter],
    snapshots: Snapshots,
    optimizer: torch.optim.Optimizer,
    rng: list[dict[str, Tensor]],
    facts: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write a checkpoint under a temporary name, rename it, and drop all but the last ``keep``."""
    target = checkpoint_path(run, step)
    partial = target.with_name(_PARTIAL + target.name)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors, scalars = _split_optimizer(optimizer.state_dict())
    files = {
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "snapshots": snapshots.state_dict(),
        "optimizer": tensors,
    } | {f"rng-{rank:05d}": state for rank, state in enumerate(rng)}
    for name, values in files.items():
        contiguous = {key: value.cpu().contiguous() for key, value in values.items()}
        save_file(contiguous, partial / f"{name}.safetensors")
    sums = {name: _checksum(partial / f"{name}.safetensors") for name in files}
    state = dict(facts) | {"step": step, "optimizer": scalars, "crc32": sums}
    (partial / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    for file in partial.iterdir():
        _sync(file)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    _sync(target.parent)
    for old in sorted(target.parent.glob(f"{_PREFIX}*"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def read_state(path: Path) -> dict[str, Any]:
    """The ``state.json`` of a checkpoint.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if not isinstance(state["step"], int):
            raise TypeError("step is no integer")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, error) from error
    return dict(state)


def load_checkpoint(
    path: Path,
    parameters: Mapping[str, nn.Parameter],
    snapshots: Snapshots,
    optimizer: torch.optim.Optimizer,
    rank: int,
) -> dict[str, Tensor]:
    """Restore parameters, snapshots and optimizer in place; returns this rank's RNG states.

    Raises:
        CheckpointError: if a file is missing or damaged, or belongs to other parameters.
    """
    names = ("parameters", "snapshots", "optimizer", f"rng-{rank:05d}")
    saved, taken, moments, rng = (read_tensors(path, name) for name in names)  # all before any
    try:
        if saved.keys() != parameters.keys():
            raise KeyError("it holds other parameters than this recipe trains")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])
        snapshots.load_state_dict(taken)
        optimizer.load_state_dict(_join_optimizer(moments, read_state(path)["optimizer"]))
    except (ValueError, KeyError, RuntimeError) as error:
        raise _corrupt(path, error) from error
    return rng


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """One file of a checkpoint, e.g. ``parameters``, after its checksum.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    file = path / f"{name}.safetensors"
    try:
        if _checksum(file) != read_state(path)["crc32"][name]:
            raise ValueError(f"{file.name} is damaged")
        return load_file(file)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise _corrupt(path, error) from error


def _corrupt(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} cannot be read ({' '.join(str(error).split())}): delete this "
        "folder to resume from the one before it, or start again with --overwrite"
    )


def _split_optimizer(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``Optimizer.state_dict()`` as flat tensors ``index/name`` and JSON scalars."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}/{name}"] = value
            else:
                scalars[f"{index}/{name}"] = value
    return tensors, {"state": scalars, "param_groups": state["param_groups"]}


def _join_optimizer(tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **scalars["state"]}.items():
        index, name = key.split("/", 1)
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": scalars["param_groups"]}


def _checksum(path: Path) -> str:
    """CRC-32 of a file: a flipped bit in a tensor would load without a word."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk, so that the rename cannot overtake the data."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
