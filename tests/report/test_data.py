"""What can be read is read; what cannot is said."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flowalign.errors import FlowalignError
from flowalign.report.data import read_run
from flowalign.tracking import append_metrics
from tests.report.conftest import BuildRun


def test_a_finished_run_is_read_whole(build_run: BuildRun) -> None:
    run = read_run(build_run())
    assert (run.status, run.recipe, run.base_model) == ("finished", "embedded/demo", "embedded")
    assert (run.steps_done, run.planned_steps, run.images) == (150, 150, 14400)
    assert run.rewards == ("embedded_geneval",)
    assert run.notes == ()
    assert run.before is not None and run.before.step == 0
    assert run.after is not None and run.after.step == 150
    assert len(run.after.samples) == 96
    assert run.after.tasks["counting"].n == 16


def test_a_truncated_last_line_is_left_out_and_noted(build_run: BuildRun) -> None:
    folder = build_run(done=5, evaluated={})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "loss": 0.1')
    run = read_run(folder)
    assert run.steps_done == 5
    assert run.notes == ("1 line was left out of metrics.jsonl: not readable.",)


def test_numbers_that_are_not_finite_become_gaps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_metrics(path, 1, {"loss": 1.0})
    append_metrics(path, 2, {"loss": math.nan})
    with path.open("a") as file:
        file.write('{"step": 3, "loss": Infinity}\n{"step": 4, "loss": 2.0}\n')
    loss = read_run(tmp_path).metrics["loss"]
    assert loss.steps.tolist() == [1, 2, 3, 4]
    assert [math.isfinite(value) for value in loss.values] == [True, False, False, True]
    assert loss.last == 2.0


def test_a_repeated_step_counts_once_with_its_later_line(tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (2, 5.0)):
        append_metrics(tmp_path / "metrics.jsonl", step, {"loss": value})
    assert read_run(tmp_path).metrics["loss"].values.tolist() == [1.0, 5.0]


def test_missing_files_are_noted(build_run: BuildRun) -> None:
    folder = build_run(done=3, evaluated={})
    for name in ("run.json", "config.yaml"):
        (folder / name).unlink()
    run = read_run(folder)
    assert run.notes == ("run.json is missing.", "config.yaml is missing.")
    assert (run.status, run.recipe, run.planned_steps) == ("unknown", "run", None)


def test_a_damaged_evaluation_is_left_out(build_run: BuildRun) -> None:
    folder = build_run()
    path = folder / "eval" / "step-000150.json"
    path.write_text(path.read_text()[:200])
    run = read_run(folder)
    assert run.after is None
    assert run.notes == ("step-000150.json is not a JSON object and was left out.",)


def test_an_evaluation_of_another_form_is_left_out(build_run: BuildRun) -> None:
    folder = build_run(evaluated={0: 0.3})
    (folder / "eval" / "step-000009.json").write_text(json.dumps({"samples": [1]}))
    run = read_run(folder)
    assert len(run.evaluations) == 1
    assert "eval/step-000009.json has an unexpected form" in run.notes[0]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowalignError, match=r"is not a run folder: it has no run\.json"):
        read_run(tmp_path)
    with pytest.raises(FlowalignError, match="is not a folder"):
        read_run(tmp_path / "nowhere")
