"""What a run folder says, as typed records."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric over the iterations at which it was recorded."""

    name: str
    steps: Array  # (N,) increasing
    values: Array  # (N,) NaN where the run recorded a value that is not finite

    @property
    def finite(self) -> Array:
        """The finite values, in order."""
        return self.values[np.isfinite(self.values)]

    @property
    def last(self) -> float:
        """The last finite value; NaN if there is none."""
        return float(self.finite[-1]) if len(self.finite) else math.nan


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The score of one task of a benchmark, over ``n`` images."""

    score: float
    stderr: float  # NaN if not stated
    n: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One evaluated image."""

    prompt: str
    tag: str
    seed: str
    score: float
    image: str | None  # path relative to the run folder


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation of the policy on a benchmark."""

    step: int
    benchmark: str
    judge: str
    score: float
    stderr: float  # NaN if not stated
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tasks: Mapping[str, TaskScore] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run folder says."""

    folder: Path
    status: str  # finished | running | stopped | unknown
    recipe: str
    base_model: str
    message: str
    seconds: float  # NaN if not known
    stated_steps: int  # iterations that run.json says were done
    planned_steps: int | None  # of the recipe
    config: str | None
    metrics: Mapping[str, Series]
    evaluations: tuple[Evaluation, ...]  # by step
    notes: tuple[str, ...]

    @property
    def before(self) -> Evaluation | None:
        """The evaluation before training."""
        return self.evaluations[0] if self.evaluations else None

    @property
    def after(self) -> Evaluation | None:
        """The last evaluation, if there is one besides `before`."""
        return self.evaluations[-1] if len(self.evaluations) > 1 else None

    @property
    def steps_done(self) -> int:
        """The last iteration on record."""
        recorded = max((series.steps[-1] for series in self.metrics.values()), default=0)
        return max(int(recorded), self.stated_steps)

    @property
    def images(self) -> int | None:
        """Images generated for training."""
        count = self.last("images")
        return int(count) if math.isfinite(count) else None

    def last(self, name: str) -> float:
        """The last finite value of a metric; NaN if there is none."""
        return self.metrics[name].last if name in self.metrics else math.nan

    @property
    def rewards(self) -> tuple[str, ...]:
        """The names of the trained rewards."""
        names = (re.fullmatch(r"reward/(.+)/mean", key) for key in self.metrics)
        return tuple(match[1] for match in names if match)
