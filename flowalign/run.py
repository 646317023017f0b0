"""The run folder: what a training leaves on disk, and how it is opened."""

from __future__ import annotations

import json
import os
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
         "evaluation.every", "evaluation.keep_images", "checkpoint", "tracking")  # fmt: skip

# What a run leaves; the marks of a run folder come last.
_OWN = ("checkpoints", "eval", "samples", "lora", "model", "metrics.jsonl", "report.html",
        "config.yaml", "run.json")  # fmt: skip


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

    @property
    def status(self) -> Path:
        """How far the run came; what tells a run folder from any other."""
        return self.root / "run.json"

    def seconds(self) -> float:
        """Seconds that earlier sessions of this run took."""
        return float(self._facts().get("seconds", 0.0))

    def write_status(self, **facts: Any) -> None:
        """Update ``run.json``."""
        write_atomic(self.status, json.dumps(self._facts() | facts, indent=2) + "\n")

    def begin(self, config: Config, overwrite: bool) -> None:
        """Write the first files; ``overwrite`` removes an earlier run, and nothing else, before.

        Raises:
            ConfigError: if the folder cannot be written.
        """
        try:
            if overwrite and self.status.is_file():
                self._remove()
            self.write_status(status="starting")
            write_atomic(self.config, dump_config(config))
        except OSError as error:
            raise _unwritable(self.root, error.strerror or str(error)) from error

    def _facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.status.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # it only informs
            return {}

    def _remove(self) -> None:
        for name in _OWN:
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Write a file by one rename, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def open_run(
    root: Path, config: Config, resume: bool, overwrite: bool
) -> tuple[RunFolder, Path | None]:
    """Look at a run folder, without a change, before the weights are loaded.

    Returns:
        the folder, and the checkpoint to go on from, if there is one.

    Raises:
        ConfigError: if the folder holds a run and neither flag is given, or cannot be written.
        CheckpointError: if the run to resume was made by another recipe or its checkpoint is
            damaged.
    """
    run = RunFolder(root=root)
    place = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    if not place.is_dir():
        raise _unwritable(root, f"{place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unwritable(root, f"{place} may not be written by you")
    foreign = [] if run.status.is_file() else [n for n in _OWN if (root / n).exists()]
    if foreign:
        raise ConfigError(
            f"{root} holds {foreign[0]} but is no run folder: give --out a folder of its own"
        )
    if not run.config.is_file() or overwrite:
        return run, None
    if not resume:
        raise ConfigError(
            f"{root} already holds a run: add --resume to go on, --overwrite to start again, "
            "or --out for another folder"
        )
    _check_same(load_config(run.config), config, root)
    checkpoint = latest_checkpoint(root)
    if checkpoint:
        read_state(checkpoint)
    return run, checkpoint


def _unwritable(root: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the run folder {root} cannot be written ({reason}): give --out a folder of your own"
    )


def _check_same(old: Config, new: Config, root: Path) -> None:
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    for key in sorted(before.keys() | after.keys()):
        free = any(key == name or key.startswith(f"{name}.") for name in _FREE)
        if key == "training.iterations" and new.optimizer.schedule != "constant":
            free = False  # it would change every rate
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
