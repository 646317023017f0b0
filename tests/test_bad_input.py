"""Mistakes of a user: one sentence that says what to do, no traceback, nothing left behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowalign.cli import main
from flowalign.recipe import load_config
from flowalign.trainer import Trainer

RECIPE = "embedded/flow_grpo_short"
SMALL = [
    "rollout.prompts_per_iteration=2",
    "training.iterations=2",
    "evaluation.benchmark=null",
]
PLUGIN = """
import torch

class Reward:
    name = "mine"
    needs = frozenset()
    differentiable = groupwise = False

    def __call__(self, media, prompts, metadata):
        values = torch.full((len(media),), float("nan"))
        return values, torch.isfinite(values)

class Nameless:
    def __call__(self, media, prompts, metadata):
        return media.flatten(1).mean(1), torch.ones(len(media)).bool()

class Crash(Reward):
    def __call__(self, media, prompts, metadata):
        raise RuntimeError("the service\\nis down")
"""

Refused = Callable[..., str]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder by its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Run a verb that must fail without a trace on the disk; returns its sentence."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 1) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main(list(arguments))
        shown = capsys.readouterr()
        assert leaving.value.code == code
        assert contents(tmp_path) == before
        return sentence(shown.err)

    return run


def sentence(err: str) -> str:
    """The last line of stderr, which is all that was said about the mistake."""
    assert "Traceback" not in err
    lines = err.splitlines()
    told = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    assert told == [len(lines) - 1], err
    return lines[-1].removeprefix("error: ")


def train(*overrides: str, out: str = "run") -> list[str]:
    return ["train", RECIPE, *SMALL, *overrides, "--cpu", "--out", out]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rollout.group_sise=8", ["unknown key", "'group_sise'", "did you mean 'group_size'?"]),
        ("training.iterations=many", ["training.iterations", "valid integer", "got 'many'"]),
        ("training.updates_per_iteration=3", ["set rollout.prompts_per_iteration to 3"]),
        ("rollout.num_inference_steps=2", ["rollout.steps", "change steps.start, steps.length"]),
        ("prompts.source=absent.txt", ["absent.txt does not exist"]),
        ("prompts.source=embedded:genval", ["did you mean 'embedded:geneval'?"]),
        ("prompts.tasks=[colours]", ["unknown task", "did you mean 'colors'?"]),
        ("rewards.0.name=embedded_genevil", ["did you mean 'embedded_geneval'?"]),
        ("rewards.0.name=no_module:Reward", ["cannot be imported", "no_module"]),
        ("rewards.0.options.rulee=strict", ["option of embedded_geneval", "did you mean 'rule'?"]),
        ("rewards.0.options.rule=harsh", ["rule must be", "harsh"]),
        ("rollout.sampler={name: ode}", ["draws no noise", "use flow_sde"]),
        ("rollout.sampler.options.noise=-1", ["noise"]),
        ("objective.name=flow_gpro", ["did you mean 'flow_grpo'?"]),
        ("objective.options.clip_range=x", ["flow_grpo"]),
        ("model.name=./absent", ["./absent does not exist: give `embedded`"]),
        ("model.lora.targets=[to_z]", ["no module of the model is named 'to_z'"]),
        ("model.lora.path=absent", ["absent holds no readable"]),
        ("rollout.height=17", ["17"]),
        ("evaluation.benchmark=genval", ["evaluation.benchmark", "'geneval'"]),
        ("seed=-1", ["seed", "greater than or equal to 0"]),
        ("rollout.sampler.options.noise=3", ["too coarse for noise=3", "use more steps"]),
        ("balancer.options.weights=[1]", ["weights are rewards.N.weight"]),
        ("tracking.trackers=[swanlab]", ["swanlab is not installed: pip install swanlab"]),
        ("training.mixed_precision=fp16", ["training.mixed_precision", "'no' or 'bf16'"]),
        ("rollout.steps={kind: all, length: 2}", ["length is for kind=window"]),
        ("prompts.source=prompts.csv", ["must be embedded:geneval", ".jsonl"]),
    ],
)
def test_a_recipe_that_cannot_run_leaves_no_folder(
    override: str, told: list[str], refused: Refused, tmp_path: Path
) -> None:
    message = refused(*train(override))
    for words in told:
        assert words in message, message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("prompts.txt", "", "has no prompts; write one a line"),
        ("prompts.txt", "\n  \n", "has no prompts; write one a line"),
        ("prompts.jsonl", '{"prompt": "a"}\n{"prompt"', "line 2 is not valid JSON"),
        ("prompts.jsonl", '{"text": "a"}', 'line 1 must be an object with a "prompt" string'),
        ("prompts.txt", "a red circle\n", "use prompts with this metadata or another reward"),
    ],
)
def test_a_prompt_file_that_cannot_be_used_is_refused(
    name: str, text: str, told: str, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert told in refused(*train(f"prompts.source={name}"))
    assert not (tmp_path / "run").exists()


def test_prompts_that_are_no_text_are_refused(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes(b"\xff\xfe\x00broken")
    assert "prompts.txt is not UTF-8 text" in refused(*train("prompts.source=prompts.txt"))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("Reward", "it gave no finite value"),
        ("Crash", "RuntimeError: the service is down"),
    ],
)
def test_a_reward_that_always_fails_stops_the_run_with_its_cause(
    kind: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "failing_reward.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_reward", raising=False)
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as leaving:
        main(train(f"rewards=[{{name: 'failing_reward:{kind}'}}]", out=str(out)))
    assert leaving.value.code == 1
    message = sentence(capsys.readouterr().err)
    assert message.startswith("the reward mine failed on ")
    assert told in message and "repair the reward" in message
    status = json.loads((out / "run.json").read_text())
    assert status["status"] == "stopped" and status["message"] == message
    assert not (out / "metrics.jsonl").exists() and not (out / "checkpoints").exists()
    assert not list(out.rglob(".partial-*"))


def test_an_output_below_a_file_is_refused(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    message = refused(*train(out="file/run"))
    assert "cannot be written" in message and "--out" in message
    message = refused("bench", "geneval", "--prompts", "1", "--images", "1", "--out", "file/b")
    assert "file" in message
    assert "file" in refused(*train(out="file"))


def test_a_folder_of_another_program_is_refused(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("years: of work")
    for option in ([], ["--overwrite"], ["--resume"]):
        assert "is no run folder: give --out" in refused(*train(), *option)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["report", "absent"], "absent"),
        (["export", "absent"], "absent is no run folder"),
        (["bench", "geneval", "--model", "./absent"], "does not exist"),
        (["bench", "geneval", "--lora", "absent"], "absent holds no readable"),
        (["bench", "geneval", "--detector", "mask2former"], "unknown detector for geneval"),
        (["explain", "embedded/flow_grp"], "did you mean 'embedded/flow_grpo'?"),
        (["explain", "absent.yaml"], "absent.yaml does not exist"),
        (["train", RECIPE, "--resume", "--overwrite"], "exclude each other; give one"),
        (["train", RECIPE, "--out", "run", "seed"], "must look like section.key=value"),
    ],
)
def test_each_verb_refuses_what_it_cannot_use(
    arguments: list[str], told: str, refused: Refused
) -> None:
    assert told in refused(*arguments)


@pytest.mark.parametrize(
    "arguments", [["trian"], ["train"], ["bench", "genval"], ["list", "sampler"], ["demo", "--sed"]]
)
def test_a_usage_error_points_to_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    shown = capsys.readouterr().err
    assert leaving.value.code == 2
    assert "Traceback" not in shown
    assert "Try 'flowalign " in shown and "\nError: " in shown


def test_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "absent.yaml", "--debug"])
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.splitlines()[-1].startswith("error: ")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bad_input") / "run"
    Trainer(load_config(RECIPE, SMALL), out, recipe=RECIPE, cpu=True).train()
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def blank(path: Path) -> None:
    path.write_bytes(b"")


def scramble(path: Path) -> None:
    """The length of the header, and some of the header."""
    data = bytearray(path.read_bytes())
    data[:40] = bytes(byte ^ 0xFF for byte in data[:40])
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [cut, blank, scramble, Path.unlink])
@pytest.mark.parametrize(
    "file",
    [
        "parameters.safetensors",
        "snapshots.safetensors",
        "optimizer.safetensors",
        "rng-00000.safetensors",
        "state.json",
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_way_out(
    file: str, damage: Callable[[Path], None], run: Path, refused: Refused
) -> None:
    folder = run / "checkpoints" / "step-000002"
    damage(folder / file)
    message = refused(*train("training.iterations=3"), "--resume")
    assert f"the checkpoint run/checkpoints/{folder.name} cannot be read" in message
    assert "delete this folder to resume from the one before it" in message


@pytest.mark.parametrize("file", ["parameters", "snapshots", "optimizer"])
def test_flipped_bits_in_a_tensor_are_noticed(file: str, run: Path, refused: Refused) -> None:
    path = run / "checkpoints" / "step-000002" / f"{file}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 0x10
    path.write_bytes(bytes(data))
    assert "cannot be read" in refused(*train("training.iterations=3"), "--resume")


def test_the_way_out_of_a_damaged_checkpoint_works(run: Path, refused: Refused) -> None:
    folder = run / "checkpoints" / "step-000002"
    cut(folder / "optimizer.safetensors")
    refused(*train(), "--resume")
    shutil.rmtree(folder)
    trainer = Trainer(load_config(RECIPE, SMALL), run, recipe=RECIPE, resume=True, cpu=True)
    assert trainer.done == 1


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rollout.group_size=8", "rollout.group_size=4, not 8"),
        ("rollout.prompts_per_iteration=4", "rollout.prompts_per_iteration=2, not 4"),
        ("rollout.sampler.options.noise=0.5", "rollout.sampler.options.noise=0.9, not 0.5"),
        ("model.lora.rank=4", "model.lora.rank=8, not 4"),
        ("seed=1", "seed=0, not 1"),
        ("rewards.0.weight=2", "rewards"),
    ],
)
def test_resuming_another_recipe_is_refused(
    override: str, told: str, run: Path, refused: Refused
) -> None:
    message = refused(*train(override), "--resume")
    assert told in message
    assert "resume with the same recipe, or give --out another folder" in message


def test_a_run_is_not_replaced_unless_told_to(run: Path, refused: Refused) -> None:
    message = refused(*train())
    assert "--resume" in message and "--overwrite" in message and "--out" in message


def test_a_mistake_beside_overwrite_keeps_the_run(run: Path, refused: Refused) -> None:
    refused(*train("rewards.0.name=nothing"), "--overwrite")
    refused(*train("model.name=./absent"), "--overwrite")
    refused(*train("model.lora.targets=[to_z]"), "--overwrite")


def test_overwrite_removes_the_run_and_nothing_else(run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "lora" / "stale.txt").write_text("of the run")
    config = load_config(RECIPE, [*SMALL, "training.iterations=1"])
    Trainer(config, run, recipe=RECIPE, overwrite=True, cpu=True).train()
    assert (run / "notes.txt").read_text() == "mine"
    assert not (run / "lora" / "stale.txt").exists()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000001"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "flowalign"], [sys.executable, "scripts/train.py"]]
)
def test_the_same_in_a_process_of_its_own(command: list[str], tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    script = command[-1].endswith(".py")
    command = [part if part != "scripts/train.py" else str(root / part) for part in command]
    arguments = train("rollout.group_sise=8")[script:]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 1 and not done.stdout
    assert "did you mean 'group_size'?" in sentence(done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model/weights", "samples/holiday", "config.yaml"])
def test_a_folder_with_names_of_a_run_is_not_taken_for_one(
    name: str, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    told = refused(*train(out="."), "--overwrite")
    assert name.split("/")[0] in told and "is no run folder" in told


def test_another_models_pictures_are_not_judged_as_the_embedded_worlds(
    refused: Refused, tmp_path: Path
) -> None:
    told = refused(*train("evaluation.benchmark=geneval", f"model.name={tmp_path}"))
    assert "no detector here fits" in told and "evaluation.benchmark=null" in told


def test_a_reward_without_a_name_is_refused_before_any_picture(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nameless_reward.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    told = refused(*train("rewards=[{name: 'nameless_reward:Nameless'}]"))
    assert "has no `name`" in told and "RewardBase" in told
