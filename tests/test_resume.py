"""A killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flowalign.checkpoint import checkpoint_path, latest_checkpoint
from flowalign.cli import main
from flowalign.config import Config
from flowalign.errors import CheckpointError, ConfigError
from flowalign.prompts import PromptSet, load_prompts
from flowalign.recipe import load_config
from flowalign.rollout import PromptEncoder
from flowalign.tracking import append_metrics, truncate_metrics
from flowalign.trainer import Trainer

RECIPE = "embedded/flow_grpo_short"
ITERATIONS = 5
OVERRIDES = [
    f"training.iterations={ITERATIONS}",
    "rollout.prompts_per_iteration=2",
    "training.updates_per_iteration=2",
    "optimizer.warmup_iterations=3",
    "prompts.count=3",  # so that prompts come back
    "evaluation.benchmark=null",
    "checkpoint.keep=9",
]
FILES = ("parameters", "snapshots", "optimizer")


def command(out: Path, *options: str) -> list[str]:
    python = [sys.executable, "-m", "flowalign", "train", RECIPE, *OVERRIDES]
    return [*python, "--cpu", "--out", str(out), *options]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def rows(out: Path) -> list[dict[str, Any]]:
    """The metrics but for the clock."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("time/")}
        for line in lines
    ]


def tensors(checkpoint: Path) -> dict[str, Tensor]:
    return {
        f"{name}:{key}": value
        for name in FILES
        for key, value in load_file(checkpoint / f"{name}.safetensors").items()
    }


def state(checkpoint: Path) -> dict[str, Any]:
    """The scalars; the random state of a process is its own, so its checksum is too."""
    facts = json.loads((checkpoint / "state.json").read_text())
    assert facts["crc32"].pop("rng-00000")
    return dict(facts)


def assert_equal_runs(one: Path, other: Path) -> None:
    """Weights, EMA, optimizer, random states and metrics, bit by bit."""
    first, second = latest_checkpoint(one), latest_checkpoint(other)
    assert first and second and first.name == second.name == f"step-{ITERATIONS:06d}"
    saved, again = tensors(first), tensors(second)
    assert saved.keys() == again.keys()
    assert any(key.startswith("snapshots:ema/") for key in saved)
    assert any(key.endswith("exp_avg_sq") for key in saved)
    for key, value in saved.items():
        assert torch.equal(value, again[key]), key
    assert state(first) == state(second)
    assert rows(one) == rows(other)
    assert [row["step"] for row in rows(one)] == list(range(1, ITERATIONS + 1))
    assert (one / "config.yaml").read_bytes() == (other / "config.yaml").read_bytes()
    loras = [load_file(run / "lora" / "pytorch_lora_weights.safetensors") for run in (one, other)]
    assert all(torch.equal(value, loras[1][key]) for key, value in loras[0].items())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("resume") / "whole"
    subprocess.run(command(out), check=True, capture_output=True, env=environment())
    return out


def test_a_run_killed_in_the_middle_resumes_to_the_same_bits(
    uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    victim = subprocess.Popen(
        command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    try:
        deadline = time.monotonic() + 120
        while len(rows(out)) < 2 and victim.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL  # it was still at work
    done = latest_checkpoint(out)
    assert done is not None and 1 <= int(done.name[-6:]) < ITERATIONS
    assert json.loads((out / "run.json").read_text())["status"] == "running"
    again = subprocess.run(
        command(out, "--resume"), capture_output=True, text=True, env=environment()
    )
    assert again.returncode == 0, again.stderr
    assert f"after {int(done.name[-6:])} iterations" in again.stderr
    assert_equal_runs(uninterrupted, out)
    assert not list(out.rglob(".partial-*"))


def test_every_checkpoint_is_one_to_go_on_from(uninterrupted: Path, tmp_path: Path) -> None:
    for step in (1, 4):
        out = tmp_path / f"from-{step}"
        run_until(out, step)
        torn = out / "checkpoints" / f".partial-step-{step + 1:06d}"
        torn.mkdir()
        (torn / "parameters.safetensors").write_bytes(b"half of it")
        with (out / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9, "lo')
        resumed = trainer(out, resume=True)
        assert resumed.done == step
        resumed.train()
        assert_equal_runs(uninterrupted, out)
        assert not torn.exists()


def test_a_resumed_run_meets_the_prompts_that_would_have_come(tmp_path: Path) -> None:
    run_until(tmp_path / "run", 2)
    resumed = trainer(tmp_path / "run", resume=True)
    whole = trainer(tmp_path / "other", stop=3)
    asked: dict[str, list[list[str]]] = {"whole": [], "resumed": []}
    for name, each in (("whole", whole), ("resumed", resumed)):
        each.encoder = Recorder(each.encoder, asked[name])
    whole.train()
    resumed.train()
    assert asked["resumed"][0] == asked["whole"][2]
    assert asked["whole"][1] != asked["whole"][2]


def test_the_global_random_state_is_restored(tmp_path: Path) -> None:
    run_until(tmp_path / "run", 1)
    latest = latest_checkpoint(tmp_path / "run")
    assert latest is not None
    torch.manual_seed(99)
    trainer(tmp_path / "run", resume=True)
    saved = load_file(latest / "rng-00000.safetensors")["cpu"]
    assert torch.equal(torch.get_rng_state(), saved)
    assert not torch.equal(torch.manual_seed(99).get_state(), saved)


def test_more_iterations_may_be_asked_for_later(uninterrupted: Path, tmp_path: Path) -> None:
    trainer(tmp_path / "run", stop=3).train()
    trainer(tmp_path / "run", resume=True).train()
    assert_equal_runs(uninterrupted, tmp_path / "run")


def test_a_finished_run_is_left_as_it_is(uninterrupted: Path) -> None:
    before = tensors(checkpoint_path(uninterrupted, ITERATIONS))
    metrics = (uninterrupted / "metrics.jsonl").read_bytes()
    trainer(uninterrupted, resume=True).train()
    after = tensors(checkpoint_path(uninterrupted, ITERATIONS))
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert (uninterrupted / "metrics.jsonl").read_bytes() == metrics


def test_ctrl_c_says_how_to_go_on(
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = command(tmp_path / "run")[3:]
    log = Trainer._log

    def press(self: Trainer, values: dict[str, float]) -> None:
        log(self, values)
        if self.done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as leaving:
        patch.setattr(Trainer, "_log", press)
        main(arguments)
    assert leaving.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: interrupted after 3 iterations; the same command with --resume")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["message"] == "interrupted"
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--resume"])
    assert not leaving.value.code
    assert_equal_runs(uninterrupted, tmp_path / "run")


def test_resume_without_a_checkpoint_starts_at_the_beginning(
    uninterrupted: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    Trainer(config(), tmp_path / "new", resume=True, cpu=True, say=said.append).train()
    assert said[0] == "no checkpoint to resume from yet: starting at iteration 0"
    assert_equal_runs(uninterrupted, tmp_path / "new")


def test_a_run_folder_is_never_overwritten_by_accident(uninterrupted: Path) -> None:
    before = sorted(path for path in uninterrupted.rglob("*"))
    with pytest.raises(ConfigError, match="already holds a run: add --resume"):
        trainer(uninterrupted)
    assert sorted(path for path in uninterrupted.rglob("*")) == before


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    run_until(tmp_path / "run", 1)
    path = checkpoint_path(tmp_path / "run", 1) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processes": 2}))
    with pytest.raises(CheckpointError, match=r"written by 2 process\(es\), not 1"):
        trainer(tmp_path / "run", resume=True)


def test_the_prompts_of_an_iteration_cover_each_pass_once() -> None:
    prompts = PromptSet(prompts=[str(i) for i in range(10)], metadata=[{}] * 10)
    drawn = [index for iteration in range(5) for index in prompts.draw(iteration, 4, seed=1)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert prompts.draw(0, 25, seed=1)[:20] == drawn
    assert len(load_prompts(config().prompts)) == 3


def test_metrics_lose_the_lines_after_the_checkpoint_and_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        append_metrics(path, step, {"loss": float("nan") if step == 1 else 0.5})
    path.write_text(path.read_text() + '{"step": 4, "lo')
    truncate_metrics(path, 2)
    assert path.read_text() == '{"step": 1, "loss": null}\n{"step": 2, "loss": 0.5}\n'


class Recorder(PromptEncoder):
    """Notes the prompts of each rollout."""

    def __init__(self, encoder: PromptEncoder, notes: list[list[str]]) -> None:
        super().__init__(encoder.policy, encoder.device)
        self.notes = notes

    def __call__(self, prompts: Any) -> Any:
        self.notes.append(list(prompts))
        return super().__call__(prompts)


def config(*more: str, stop: int = ITERATIONS) -> Config:
    return load_config(RECIPE, [*OVERRIDES, f"training.iterations={stop}", *more])


def trainer(out: Path, *, stop: int = ITERATIONS, resume: bool = False) -> Trainer:
    return Trainer(config(stop=stop), out, recipe=RECIPE, resume=resume, cpu=True)


def run_until(out: Path, step: int) -> None:
    """A run that dies after the checkpoint of ``step``, amid the next iteration."""

    class Stop(Exception):
        pass

    def stop(done: int, total: int, values: dict[str, float]) -> None:
        if done == step + 1:
            raise Stop

    with pytest.raises(Stop):
        Trainer(config(), out, recipe=RECIPE, cpu=True, on_iteration=stop).train()


def test_what_decides_the_scores_may_not_change_in_a_run(
    uninterrupted: Path, tmp_path: Path
) -> None:
    for override in ("evaluation.benchmark=geneval", "evaluation.seed=3"):
        with pytest.raises(CheckpointError, match=r"was trained with evaluation\."):
            Trainer(config(override), uninterrupted, resume=True, cpu=True)


def test_a_falling_rate_fixes_the_number_of_iterations(tmp_path: Path) -> None:
    linear = "optimizer.schedule=linear"
    Trainer(config(linear, "training.iterations=1"), tmp_path / "run", cpu=True).train()
    with pytest.raises(CheckpointError, match=r"training\.iterations=1, not 2"):
        Trainer(config(linear, "training.iterations=2"), tmp_path / "run", resume=True, cpu=True)
