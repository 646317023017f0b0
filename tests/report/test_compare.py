"""The verdict, against standard errors worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowalign.report.compare import Change, Verdict, compare
from flowalign.report.data import read_run
from flowalign.report.records import Evaluation
from tests.report.conftest import evaluation


def read(folder: Path, scores: Sequence[float], step: int = 0, **options: Any) -> Evaluation:
    """An evaluation as it comes back from its file."""
    path = folder / "eval" / f"step-{step:06d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(evaluation(scores, step, **options).to_json())
    return next(e for e in read_run(folder).evaluations if e.step == step)


def test_paired_error_of_one_task(tmp_path: Path) -> None:
    """Six of twelve prompts gain 1 in both pictures: changes 1 and 0, standard deviation 0.522."""
    before = read(tmp_path, [0.0] * 24)
    after = read(tmp_path, [1.0] * 12 + [0.0] * 12, 1)
    found = compare(before, after)
    assert found.change.value == 0.5
    assert found.change.stderr == pytest.approx(math.sqrt(12 * 0.25 / 11) / math.sqrt(12))
    assert (found.paired, found.prompts) == (True, 12)
    assert (found.count(1), found.count(0), found.count(-1)) == (12, 12, 0)
    assert found.verdict is Verdict.BETTER
    assert compare(after, before).verdict is Verdict.WORSE


def test_what_the_prompts_have_in_common_cancels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base, gain = rng.random(40), 0.05 + 0.01 * rng.standard_normal(40)
    before = read(tmp_path, base.tolist())
    after = read(tmp_path, (base + gain).tolist(), 1)
    found = compare(before, after)
    per_prompt = gain.reshape(20, 2).mean(1)
    assert found.change.stderr == pytest.approx(per_prompt.std(ddof=1) / math.sqrt(20))
    assert found.change.stderr < 0.1 * math.hypot(before.stderr, after.stderr)


def test_tasks_count_equally(tmp_path: Path) -> None:
    """The score is a mean over tasks, so its error is that of the tasks' mean."""
    tags = ["colors"] * 4 + ["counting"] * 12
    rng = np.random.default_rng(1)
    old, new = rng.random(32), rng.random(32)
    before = read(tmp_path, old.tolist(), tags=tags)
    after = read(tmp_path, new.tolist(), 1, tags=tags)
    found = compare(before, after)
    per_prompt = (new - old).reshape(16, 2).mean(1)
    few, many = per_prompt[:4], per_prompt[4:]
    errors = [part.std(ddof=1) / math.sqrt(len(part)) for part in (few, many)]
    assert found.change.value == pytest.approx((few.mean() + many.mean()) / 2)
    assert found.change.stderr == pytest.approx(math.hypot(*errors) / 2)
    assert found.tasks["colors"].value == pytest.approx(few.mean())
    assert found.tasks["colors"].stderr == pytest.approx(errors[0])


def test_few_prompts_give_no_paired_error(tmp_path: Path) -> None:
    before = read(tmp_path, [0.0, 1.0, 0.0, 0.0])
    after = read(tmp_path, [1.0, 1.0, 0.0, 1.0], 1)
    found = compare(before, after)
    assert (found.paired, found.prompts) == (False, 0)
    assert found.change.stderr == pytest.approx(math.hypot(before.stderr, after.stderr))


def test_a_prompt_drawn_twice_is_paired_in_order(tmp_path: Path) -> None:
    prompts = ["twin", "twin", *(f"p{i}" for i in range(10))]
    before = read(tmp_path, [0, 0, 1, 1] + [0] * 20, prompts=prompts)
    after = read(tmp_path, [1, 1, 1, 1] + [0] * 20, 1, prompts=prompts)
    found = compare(before, after)
    assert [pair.change for pair in found.pairs[:4]] == [1, 1, 0, 0]
    assert found.paired and found.prompts == 11


def test_different_protocols_are_not_compared(tmp_path: Path) -> None:
    before = read(tmp_path, [0.0] * 24)
    after = read(tmp_path, [1.0] * 24, 1, guidance_scale=3.0, seed=1)
    found = compare(before, after)
    assert found.differences == ("guidance_scale", "seed")
    assert found.verdict is Verdict.INCOMPARABLE


@pytest.mark.parametrize(
    ("value", "stderr", "verdict"),
    [
        (0.1, 0.05, Verdict.BETTER),
        (-0.1, 0.05, Verdict.WORSE),
        (0.097, 0.05, Verdict.NOISE),
        (0.0, 0.0, Verdict.NOISE),
        (0.1, math.nan, Verdict.UNKNOWN),
        (0.1, 0.0, Verdict.UNKNOWN),
        (math.nan, 0.1, Verdict.UNKNOWN),
    ],
)
def test_verdict(value: float, stderr: float, verdict: Verdict) -> None:
    assert Change(value=value, stderr=stderr).verdict is verdict
