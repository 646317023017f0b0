"""Did it really get better? The change of a score, and how much of it noise could explain.

Both evaluations draw the same pictures' noise for the same prompts, so the change is taken picture
by picture: what the prompts have in common cancels, and the standard error of the change is smaller
than the two scores' own errors suggest. Pictures of one prompt count as one observation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from flowalign.report.records import Evaluation, Sample

BEYOND = 1.96
"""A change counts as real from this many standard errors on (95 %, two-sided)."""

FEWEST_PROMPTS = 10
"""Fewer prompts give a standard error that is itself a guess."""

_NOT_COMPARED = frozenset({"distinct_prompts"})  # follows from the other fields


class Verdict(Enum):
    """The answer."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "noise"
    UNKNOWN = "unknown"  # no usable standard error
    INCOMPARABLE = "incomparable"  # measured in different ways


@dataclass(frozen=True, kw_only=True)
class Change:
    """A difference of two scores, and its standard error."""

    value: float
    stderr: float  # NaN if not known

    @property
    def errors(self) -> float:
        """The change in standard errors; NaN if they are not known."""
        return self.value / self.stderr if self.stderr > 0 else math.nan

    @property
    def verdict(self) -> Verdict:
        """Beyond noise or not."""
        if self.value == 0 and math.isfinite(self.stderr):
            return Verdict.NOISE
        if not math.isfinite(self.errors):
            return Verdict.UNKNOWN
        if abs(self.errors) < BEYOND:
            return Verdict.NOISE
        return Verdict.BETTER if self.value > 0 else Verdict.WORSE


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One picture before and after."""

    before: Sample
    after: Sample

    @property
    def change(self) -> float:
        """The change of its score; NaN if one is not known."""
        return self.after.score - self.before.score


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two evaluations side by side."""

    change: Change
    paired: bool  # whether `change.stderr` is that of the paired difference
    prompts: int  # observations behind it; 0 if not paired
    differences: tuple[str, ...]  # protocol fields that differ
    tasks: Mapping[str, Change]
    pairs: tuple[Pair, ...]

    @property
    def verdict(self) -> Verdict:
        """The answer to the report's question."""
        return Verdict.INCOMPARABLE if self.differences else self.change.verdict

    def count(self, sign: int) -> int:
        """How many pictures got better (``1``), worse (``-1``) or stayed (``0``)."""
        changes = [pair.change for pair in self.pairs]
        return sum(math.isfinite(c) and int(np.sign(c)) == sign for c in changes)


def compare(before: Evaluation, after: Evaluation) -> Comparison:
    """``after`` minus ``before``."""
    pairs, complete = _pair(before.samples, after.samples)
    by_task: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_task[pair.after.tag].append(pair)
    paired = {tag: _paired_change(group) for tag, group in by_task.items()} if complete else {}
    tasks = {}
    for tag in before.tasks.keys() & after.tasks.keys():
        old, new = before.tasks[tag], after.tasks[tag]
        value = new.score - old.score
        found = paired.get(tag)
        agrees = found is not None and abs(found.value - value) < 1e-4
        error = found.stderr if found and agrees else math.hypot(old.stderr, new.stderr)
        tasks[tag] = Change(value=value, stderr=error)
    prompts = len({(pair.after.tag, pair.after.prompt) for pair in pairs})
    error = _paired_error(after.score - before.score, pairs, paired) if complete else math.nan
    is_paired = math.isfinite(error) and prompts >= FEWEST_PROMPTS
    return Comparison(
        change=Change(
            value=after.score - before.score,
            stderr=error if is_paired else math.hypot(before.stderr, after.stderr),
        ),
        paired=is_paired,
        prompts=prompts if is_paired else 0,
        differences=_differences(before, after),
        tasks=tasks,
        pairs=pairs,
    )


def _differences(before: Evaluation, after: Evaluation) -> tuple[str, ...]:
    fields = (before.protocol.keys() | after.protocol.keys()) - _NOT_COMPARED
    changed = {key for key in fields if before.protocol.get(key) != after.protocol.get(key)}
    changed |= {"benchmark"} if before.benchmark != after.benchmark else set()
    changed |= {"judge"} if before.judge != after.judge else set()
    return tuple(sorted(changed))


def _pair(before: Sequence[Sample], after: Sequence[Sample]) -> tuple[tuple[Pair, ...], bool]:
    """Pictures of the same prompt and seed, and whether that covers all of them.

    A prompt that was drawn twice has several pictures of one seed: they are paired in order.
    """
    waiting: dict[tuple[str, str, str, int], Sample] = dict(_keyed(before))
    pairs = [
        Pair(before=waiting.pop(key), after=sample)
        for key, sample in _keyed(after)
        if key in waiting
    ]
    complete = bool(pairs) and not waiting and len(pairs) == len(after)
    return tuple(pairs), complete


def _keyed(samples: Iterable[Sample]) -> Iterable[tuple[tuple[str, str, str, int], Sample]]:
    seen: Counter[tuple[str, str, str]] = Counter()
    for sample in samples:
        key = (sample.tag, sample.prompt, sample.seed)
        yield (*key, seen[key]), sample
        seen[key] += 1


def _paired_change(pairs: Sequence[Pair]) -> Change:
    """Mean change over pictures, with the standard error over prompts (cluster-robust)."""
    changes = np.array([pair.change for pair in pairs])
    mean = float(changes.mean())
    residuals: dict[str, float] = defaultdict(float)
    for pair, change in zip(pairs, changes, strict=True):
        residuals[pair.after.prompt] += float(change) - mean
    n = len(residuals)
    if n < 2:
        return Change(value=mean, stderr=math.nan)
    squares = sum(value**2 for value in residuals.values())
    return Change(value=mean, stderr=math.sqrt(squares * n / (n - 1)) / len(pairs))


def _paired_error(value: float, pairs: Sequence[Pair], tasks: Mapping[str, Change]) -> float:
    """Standard error of ``value``, if it is the mean over tasks or over pictures; else NaN."""
    macro = sum(change.value for change in tasks.values()) / len(tasks)
    if abs(macro - value) < 1e-4:
        return math.sqrt(sum(change.stderr**2 for change in tasks.values())) / len(tasks)
    pooled = _paired_change(pairs)
    return pooled.stderr if abs(pooled.value - value) < 1e-4 else math.nan
