"""Read a run folder into typed records, whatever state the run is in.

A run may be in progress, interrupted in the middle of a line, or miss whole files: what can be read
is read, and `Run.notes` says in plain sentences what could not be.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flowalign.errors import FlowalignError
from flowalign.report.records import Evaluation, Run, Sample, Series, TaskScore

_EVALUATION = re.compile(r"step-\d+\.json")


def read_run(folder: Path) -> Run:
    """The run in ``folder``. Raises `FlowalignError` if the folder holds no run."""
    if not folder.is_dir():
        raise FlowalignError(f"{folder} is not a folder; give the folder of a training run")
    evaluations = sorted(p for p in folder.glob("eval/*.json") if _EVALUATION.fullmatch(p.name))
    known = [folder / "run.json", folder / "metrics.jsonl", *evaluations]
    if not any(path.is_file() for path in known):
        raise FlowalignError(
            f"{folder} is not a run folder: it has no run.json, no metrics.jsonl and no "
            "eval/step-*.json"
        )
    notes: list[str] = []
    about = _read_object(known[0], notes)
    metrics = _read_metrics(known[1], notes)
    config = _read_text(folder / "config.yaml", notes)
    return Run(
        folder=folder,
        status=str(about.get("status") or "unknown"),
        recipe=str(about.get("recipe") or folder.resolve().name),
        base_model=str(about.get("base_model") or ""),
        message=str(about.get("message") or ""),
        seconds=_seconds(about, metrics),
        stated_steps=_count(about.get("iterations")) or 0,
        planned_steps=_planned_steps(config),
        config=config,
        metrics=metrics,
        evaluations=_read_evaluations(evaluations, notes),
        notes=tuple(notes),
    )


def _seconds(about: Mapping[str, Any], metrics: Mapping[str, Series]) -> float:
    """Stated at the end of a session only, so a running one is counted by its iterations."""
    counted = metrics["time/total"].finite.sum() if "time/total" in metrics else math.nan
    return float(np.fmax(_number(about.get("seconds")), counted))


def _planned_steps(config: str | None) -> int | None:
    try:
        return _count(yaml.safe_load(config or "")["training"]["iterations"])
    except (yaml.YAMLError, TypeError, KeyError):
        return None


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if math.isfinite(number) else None


def _read_text(path: Path, notes: list[str]) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror}).")
    return None


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    written = _read_text(path, notes)
    if written is None:
        return {}
    try:
        value = json.loads(written)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} is not a JSON object and was left out.")
    return {}


def _number(value: object) -> float:
    """``value`` as a float; NaN for whatever is not a number."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _read_metrics(path: Path, notes: list[str]) -> dict[str, Series]:
    """One series per key. A resumed run repeats steps: the later line is the one that counts."""
    rows: dict[int, dict[str, Any]] = {}
    unreadable = 0
    for line in (_read_text(path, notes) or "").splitlines():
        try:
            row = json.loads(line) if line.strip() else {}
            if row:
                rows.setdefault(int(row["step"]), {}).update(row)
        except (ValueError, TypeError, KeyError, AttributeError):
            unreadable += 1
    if unreadable:
        lines = "1 line was" if unreadable == 1 else f"{unreadable} lines were"
        notes.append(f"{lines} left out of {path.name}: not readable.")
    recorded: dict[str, list[tuple[int, float]]] = {}
    for step in sorted(rows):
        for key, value in rows[step].items():
            if key != "step" and (value is None or isinstance(value, int | float)):
                number = _number(value)
                recorded.setdefault(key, []).append(
                    (step, number if math.isfinite(number) else math.nan)
                )
    columns = {key: np.array(pairs, dtype=np.float64) for key, pairs in recorded.items()}
    return {
        key: Series(name=key, steps=column[:, 0], values=column[:, 1])
        for key, column in columns.items()
    }


def _read_evaluations(paths: list[Path], notes: list[str]) -> tuple[Evaluation, ...]:
    found: list[Evaluation] = []
    for path in paths:
        raw = _read_object(path, notes)
        if not raw:
            continue
        try:
            found.append(_evaluation(raw, int(path.stem.removeprefix("step-"))))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            notes.append(f"eval/{path.name} has an unexpected form ({error!r}) and was left out.")
    return tuple(sorted(found, key=lambda evaluation: evaluation.step))


def _evaluation(raw: Mapping[str, Any], step: int) -> Evaluation:
    metrics = {str(key): _number(value) for key, value in (raw.get("metrics") or {}).items()}
    tasks = {
        str(key): TaskScore(
            score=_number(task.get("score")),
            stderr=_number(task.get("stderr")),
            n=_count(task.get("n")) or 0,
        )
        for key, task in (raw.get("tasks") or {}).items()
    }
    return Evaluation(
        step=int(raw.get("step", step)),
        benchmark=str(raw.get("benchmark") or "benchmark"),
        judge=str(raw.get("judge") or ""),
        score=_number(raw.get("score")),
        stderr=_number(raw.get("stderr")),
        protocol=dict(raw.get("protocol") or {}),
        metrics=metrics,
        tasks=tasks,
        samples=tuple(_sample(sample) for sample in raw.get("samples") or ()),
    )


def _sample(raw: Mapping[str, Any]) -> Sample:
    image = raw.get("image")
    return Sample(
        prompt=str(raw.get("prompt") or ""),
        tag=str(raw.get("tag") or "all"),
        seed=str(raw.get("seed", "")),
        score=_number(raw.get("score")),
        image=None if image is None else str(image),
    )
