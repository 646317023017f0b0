"""Two processes do what one does, on the same samples."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flowalign.checkpoint import checkpoint_path
from flowalign.cli import launch as launched
from flowalign.distributed import local_rows, mean_over_processes
from flowalign.errors import FlowalignError

ROOT = Path(__file__).parents[1]
RECIPE = "embedded/flow_grpo_short"
OVERRIDES = [
    "training.batch_size=8",  # so that gradients accumulate without synchronisation
    "evaluation.prompts=6",
]
ITERATIONS = 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(processes: int, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """``accelerate launch scripts/train.py`` as the README says it."""
    launcher = [str(Path(sys.executable).with_name("accelerate")), "launch", "--cpu"]
    launcher += ["--num_processes", str(processes), "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--main_process_port", str(free_port())]
    script = [str(ROOT / "scripts" / "train.py"), RECIPE, *OVERRIDES, "--out", str(out), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*launcher, *script, *more],
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
        cwd=out.parent,
        start_new_session=True,
    )
    try:
        shown = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers too, should they wait for ever
    return subprocess.CompletedProcess(process.args, process.returncode, *shown)


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def tensors(out: Path, name: str, step: int = ITERATIONS) -> dict[str, Tensor]:
    return load_file(checkpoint_path(out, step) / f"{name}.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same recipe on one and on two processes."""
    folder = tmp_path_factory.mktemp("distributed")
    made = {}
    for processes in (1, 2):
        made[processes] = folder / f"on-{processes}"
        done = launch(processes, made[processes])
        assert done.returncode == 0, done.stderr[-3000:]
        summary = json.loads(done.stdout.splitlines()[-1])
        assert summary["iterations"] == ITERATIONS
        assert len([line for line in done.stdout.splitlines() if line.startswith("{")]) == 1
    return made


def test_two_processes_worked(runs: dict[int, Path]) -> None:
    for processes, out in runs.items():
        state = json.loads((checkpoint_path(out, ITERATIONS) / "state.json").read_text())
        assert state["processes"] == processes
        states = sorted(path.name for path in checkpoint_path(out, ITERATIONS).glob("rng-*"))
        assert states == [f"rng-{rank:05d}.safetensors" for rank in range(processes)]


def test_the_first_iteration_draws_the_same_samples_and_statistics(runs: dict[int, Path]) -> None:
    alone, together = (rows(runs[n])[0] for n in (1, 2))
    for key in (
        "reward/embedded_geneval/mean",
        "reward/embedded_geneval/std",
        "reward/embedded_geneval/invalid",
        "group_std",
        "zero_variance_groups",
        "images",
    ):
        assert together[key] == pytest.approx(alone[key], abs=1e-6), key
    assert alone["group_std"] > 0
    assert alone["images"] == 16


def test_the_updates_are_those_of_one_process(runs: dict[int, Path]) -> None:
    for key in ("grad_norm", "trained_transitions", "lr"):
        alone, together = (rows(runs[n])[0][key] for n in (1, 2))
        assert together == pytest.approx(alone, rel=1e-4), key
    moved = 0.0
    for name in ("parameters", "snapshots"):
        alone, together = (tensors(runs[n], name) for n in (1, 2))
        start = tensors(runs[1], "snapshots")
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, atol=1e-5, rtol=0)
            if name == "parameters":
                moved = max(moved, float((value - start[f"reference/{key}"]).abs().max()))
    assert moved > 1e-3  # a hundred times the tolerance


def test_the_evaluations_agree(runs: dict[int, Path]) -> None:
    for step in (0, ITERATIONS):
        alone, together = (
            json.loads((runs[n] / "eval" / f"step-{step:06d}.json").read_text()) for n in (1, 2)
        )
        assert together["score"] == pytest.approx(alone["score"], abs=1e-6)
        assert together["protocol"] == alone["protocol"]


def test_a_mistake_ends_all_processes_with_its_sentence(tmp_path: Path) -> None:
    done = launch(2, tmp_path / "run", "rewards.0.name=embedded_genevil")
    assert done.returncode != 0
    assert "error: unknown reward 'embedded_genevil'; did you mean" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["accelerate", "launch", "--num_processes", "2", "train.py"], 2),
        (["accelerate", "launch", "--num-processes=12", "train.py"], 12),
        (["accelerate", "launch", "train.py"], None),
        (["accelerate", "launch", "--num_processes"], None),
    ],
)
def test_the_number_of_processes_is_read_from_the_launcher(
    words: list[str], count: int | None
) -> None:
    assert launched._option(words, "num_processes") == count


def test_a_launch_that_cannot_be_understood_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launched._STARTED:
        monkeypatch.delenv(name, raising=False)
    launched.start_missing_processes()  # no launcher: nothing to do
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    launched.start_missing_processes()  # one process was asked for
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(FlowalignError, match="torchrun --nproc_per_node N"):
        launched.start_missing_processes()
    monkeypatch.setenv("WORLD_SIZE", "2")
    launched.start_missing_processes()  # they were started


class Ranks:
    """What ``local_rows`` and ``mean_over_processes`` ask of accelerate, for process ``rank``."""

    device = torch.device("cpu")

    def __init__(self, processes: int, rank: int = 0, others: Tensor | None = None) -> None:
        self.num_processes, self.process_index, self.others = processes, rank, others

    def gather(self, value: Tensor) -> Tensor:
        assert self.others is not None
        return torch.cat([value, self.others])


def test_rows_are_cut_without_overlap_or_gap() -> None:
    cut = [local_rows(Ranks(4, rank), 24) for rank in range(4)]
    assert [row for part in cut for row in part] == list(range(24))


def test_metrics_are_averaged_but_maxima_are_not() -> None:
    ranks = Ranks(2, others=torch.tensor([[3.0, 0.5]]))  # in the order of the names
    merged = mean_over_processes(ranks, {"ratio/max_abs_log": 0.1, "loss": 1.0})
    assert merged == pytest.approx({"loss": 2.0, "ratio/max_abs_log": 0.5})
    alone = {"loss": 1.0}
    assert mean_over_processes(Ranks(1), alone) == alone
