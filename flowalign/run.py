"""The run folder: what a training leaves on disk, and how it is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowalign.checkpoint import latest_checkpoint, read_state
from flowalign.config import Config
from flowalign.errors import CheckpointError, ConfigError
from flowalign.recipe import dump_config, load_config

# What may differ between a run and its resumption: how long it goes on and what it reports.
_FREE = ("description", "training.iterations", "training.threads", "training.preflight_bound",
         "evaluation", "checkpoint", "tracking")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Paths of one run."""

    root: Path

    @property
    def metrics(self) -> Path:
        """One JSON line an iteration."""
        return self.root / "metrics.jsonl"

    @property
    def config(self) -> Path:
        """The resolved recipe."""
        return self.root / "config.yaml"

    def evaluation(self, step: int) -> Path:
        """Result of the evaluation after ``step`` iterations."""
        return self.root / "eval" / f"step-{step:06d}.json"

    def images(self, step: int) -> Path:
        """Its pictures."""
        return self.root / "samples" / f"step-{step:06d}"

    def seconds(self) -> float:
        """Seconds that earlier sessions of this run took."""
        path = self.root / "run.json"
        status = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return float(status.get("seconds", 0.0))

    def write_status(self, **facts: Any) -> None:
        """Update ``run.json``."""
        path = self.root / "run.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        write_atomic(path, json.dumps(old | facts, indent=2) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write a file by one rename, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def open_run(
    root: Path, config: Config, resume: bool, overwrite: bool
) -> tuple[RunFolder, Path | None]:
    """Make or reopen a run folder; returns it and the checkpoint to go on from.

    Raises:
        ConfigError: if the folder holds a run and neither flag is given, or cannot be written.
        CheckpointError: if the run to resume was made by another recipe or its checkpoint is
            damaged.
    """
    run = RunFolder(root=root)
    checkpoint = None
    if run.config.is_file() and not overwrite:
        if not resume:
            raise ConfigError(
                f"{root} already holds a run: add --resume to go on, --overwrite to start again, "
                "or --out for another folder"
            )
        _check_same(load_config(run.config), config, root)
        checkpoint = latest_checkpoint(root)
        if checkpoint:
            read_state(checkpoint)
    try:
        if overwrite and run.config.is_file():
            shutil.rmtree(root)
        root.mkdir(parents=True, exist_ok=True)
        write_atomic(run.config, dump_config(config))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"the run folder {root} cannot be written ({reason}): give --out a folder of your own"
        ) from error
    return run, checkpoint


def _check_same(old: Config, new: Config, root: Path) -> None:
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    for key in sorted(before.keys() | after.keys()):
        free = any(key == name or key.startswith(f"{name}.") for name in _FREE)
        if not free and before.get(key) != after.get(key):
            raise CheckpointError(
                f"{root} was trained with {key}={before.get(key)!r}, not {after.get(key)!r}: "
                "resume with the same recipe, or give --out another folder"
            )


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
