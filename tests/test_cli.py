"""The verbs, as a user types them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowalign import registry
from flowalign.cli import main
from flowalign.evaluation import evaluate
from flowalign.models.load import load_policy
from flowalign.recipe import recipe_names

VERBS = ["demo", "train", "bench", "report", "explain", "list", "doctor", "export"]

Verb = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Run a verb in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            main(list(arguments))
        code = leaving.value.code
        shown = capsys.readouterr()
        return (0 if code is None else int(code)), shown.out, shown.err

    return run


def last_object(out: str) -> dict[str, Any]:
    result = json.loads(out.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("name", VERBS)
def test_help_shows_an_example_that_starts_with_the_verb(name: str, verb: Verb) -> None:
    code, out, _ = verb(name, "--help")
    assert code == 0
    assert re.search(rf"Example: flowalign {name}\b", out)
    assert "--json" in out


@pytest.mark.parametrize("name", VERBS)
def test_the_example_of_help_names_options_that_exist(name: str, verb: Verb) -> None:
    _, out, _ = verb(name, "--help")
    example = " ".join(out.split("Example: ")[1].split("\n\n")[0].split())
    for option in re.findall(r"--[a-z-]+", example):
        assert re.search(rf"^ +{option}\b", out, re.M), option


def test_the_overview_names_every_verb(verb: Verb) -> None:
    code, out, _ = verb("--help")
    assert code == 0
    assert re.findall(r"^  ([a-z]+) {2,}", out.split("Commands:")[1], re.M) == VERBS


def test_list_prints_each_name_with_a_line_and_the_paper(verb: Verb) -> None:
    code, out, err = verb("list", "samplers")
    assert code == 0 and not err
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert set(lines) >= {"ode", "flow_sde"}
    assert lines["flow_sde"].endswith("marginals  arXiv 2505.05470")


def test_list_as_json_holds_everything_that_a_recipe_can_name(verb: Verb) -> None:
    code, out, _ = verb("list", "--json")
    assert code == 0
    tables = {
        "samplers": registry.SAMPLERS,
        "objectives": registry.OBJECTIVES,
        "credit": registry.CREDITS,
        "penalties": registry.PENALTIES,
        "balancers": registry.BALANCERS,
        "rewards": registry.REWARDS,
        "models": registry.MODELS,
    }
    named = {kind: [entry.name for entry in table.entries()] for kind, table in tables.items()}
    assert last_object(out) == named | {"recipes": recipe_names()}
    assert "flow_sde" in named["samplers"] and "embedded_geneval" in named["rewards"]
    assert len(out.splitlines()) == 1


def test_doctor_tells_the_versions_and_that_all_is_well(verb: Verb) -> None:
    code, out, err = verb("doctor", "embedded/flow_grpo_short", "--json")
    assert code == 0, err
    assert last_object(out) == {"ok": True, "failed": []}
    assert re.search(rf"ok +torch +{re.escape(importlib.metadata.version('torch'))}", err)
    assert re.search(r"ok +recipe embedded/flow_grpo_short +16 images per iteration", err)
    assert re.search(r"ok +embedded model +loads", err)


def test_doctor_names_what_is_broken_and_how_to_leave_it(
    verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = registry.Registry(
        "reward", "none", [registry.Entry("gone", "no_such_module:Reward", summary="")]
    )
    monkeypatch.setattr(registry, "REWARDS", broken)
    code, out, err = verb("doctor", "--json")
    assert code == 1
    assert last_object(out) == {"ok": False, "failed": ["reward gone"]}
    assert re.search(r"FAIL +reward gone .*no_such_module", err)
    assert err.splitlines()[-1] == "error: 1 check(s) failed: reward gone"


def test_explain_as_json_is_the_plan(verb: Verb) -> None:
    code, out, err = verb(
        "explain", "embedded/flow_grpo_short", "rollout.group_size=6", "--processes", "2", "--json"
    )
    assert code == 0, err
    plan = last_object(out)
    assert plan["images per iteration"] == 24
    assert plan["images per iteration and process"] == 12


def test_explain_config_prints_every_key(verb: Verb) -> None:
    _, _, err = verb("explain", "embedded/flow_grpo_short", "seed=7", "--config")
    assert "\nseed: 7\n" in err and "max_skipped_updates: 3" in err


def test_bench_as_json_is_the_score_of_the_api_with_its_protocol(
    verb: Verb, tmp_path: Path
) -> None:
    options = ["--prompts", "12", "--images", "1", "--steps", "4", "--seed", "3"]
    code, out, err = verb("bench", "geneval", *options, "--out", str(tmp_path / "b"), "--json")
    assert code == 0, err
    result = last_object(out)
    again = evaluate(
        load_policy("embedded", device="cpu"),
        "geneval",
        prompts=12,
        images_per_prompt=1,
        num_inference_steps=4,
        seed=3,
        batch_size=5,
    )
    assert result["score"] == again.score
    assert result["stderr"] == again.stderr
    assert result["protocol"] == again.protocol
    assert result["judge"] == "embedded/strict"
    saved = json.loads((tmp_path / "b" / "geneval.json").read_text())
    assert saved["score"] == again.score
    for sample in saved["samples"]:
        assert (tmp_path / "b" / sample["image"]).is_file()
    assert not list(tmp_path.rglob(".partial-*"))


def test_the_module_and_the_console_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("flowalign")
    shown = [
        subprocess.run([*command, "list", "recipes"], capture_output=True, text=True, check=True)
        for command in ([sys.executable, "-m", "flowalign"], [str(script)])
    ]
    assert shown[0].stdout == shown[1].stdout
    assert shown[0].stdout.startswith("embedded/demo")
