"""Numbers of a run: always a JSONL, and the trackers that accelerate knows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from flowalign.errors import ConfigError
from flowalign.run import write_atomic


class Metrics:
    """Collects the scalars of one iteration: weighted means, and maxima for keys with ``max``."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, float]] = {}
        self.times: dict[str, float] = {}

    def add(self, values: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
        """Add scalars; tensors stay on their device until ``result``."""
        for name, value in values.items():
            value = torch.as_tensor(value).detach()
            if "max" in name:
                before = self._sums.get(name, (value, 1.0))[0]
                self._sums[name] = (torch.maximum(before, value), 1.0)
            else:
                total, count = self._sums.get(name, (torch.zeros_like(value), 0.0))
                self._sums[name] = (total + value * weight, count + weight)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds spent inside to ``time/<stage>``."""
        start = perf_counter()
        try:
            yield
        finally:
            self.times[stage] = self.times.get(stage, 0.0) + perf_counter() - start

    def result(self) -> dict[str, float]:
        """All scalars as floats."""
        means = {name: float(total) / count for name, (total, count) in self._sums.items()}
        return means | {f"time/{stage}": seconds for stage, seconds in self.times.items()}


def append_metrics(path: Path, step: int, values: Mapping[str, float]) -> None:
    """Append one line to ``metrics.jsonl``; non-finite numbers become null."""
    row: dict[str, Any] = {"step": step}
    row |= {name: value if math.isfinite(value) else None for name, value in values.items()}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def truncate_metrics(path: Path, step: int) -> None:
    """Drop the lines after ``step``: what a resumed run is about to do again."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break  # the line that was being written when the run died
        if row["step"] <= step:
            kept.append(line)
    write_atomic(path, "".join(line + "\n" for line in kept))


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed: accelerate would leave them out without a word.

    Raises:
        ConfigError: naming the package.
    """
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"the tracker {name} is not installed: pip install {name}")
