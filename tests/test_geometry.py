"""Groups, batches and gradient steps, before any weight is loaded."""

from __future__ import annotations

import json
import re

import pytest
import torch

import flowalign.build  # noqa: F401  imported first: diffusers builds modules at import
from flowalign.cli import main
from flowalign.config import Config
from flowalign.errors import ConfigError
from flowalign.geometry import explain, geometry
from flowalign.recipe import load_config

RECIPE = "embedded/flow_grpo_short"


def sized(**values: object) -> Config:
    """The short recipe with ``section__key=value``, its sizes easy to count by hand."""
    base = {
        "rollout__prompts_per_iteration": 6,
        "rollout__group_size": 4,
        "rollout__num_inference_steps": 5,
        "rollout__batch_size": 7,
        "rollout__steps": "{kind: all}",
        "training__batch_size": 10,
        "training__iterations": 3,
    }
    pairs = (base | values).items()
    return load_config(RECIPE, [f"{key.replace('__', '.')}={value}" for key, value in pairs])


@pytest.mark.parametrize(
    ("processes", "updates", "local", "transitions", "micro"),
    [(1, 1, 24, 96, 10), (2, 1, 12, 48, 5), (2, 3, 12, 16, 2), (8, 3, 3, 4, 1), (24, 1, 1, 4, 1)],
)
def test_the_counts_are_those_of_the_hand(
    processes: int, updates: int, local: int, transitions: int, micro: int
) -> None:
    plan = geometry(sized(training__updates_per_iteration=updates), processes)
    assert (plan.prompts, plan.group_size, plan.rollouts) == (6, 4, 24)
    assert plan.steps == (0, 1, 2, 3)  # all but the last of 5
    assert plan.local_rollouts == local
    assert plan.local_transitions == transitions
    assert plan.micro_batches == micro


@pytest.mark.parametrize(
    ("steps", "trained"),
    [
        ("{kind: all, last: true}", (0, 1, 2, 3, 4)),
        ("{kind: window, start: 1, length: 2}", (1, 2)),
        ("{kind: window, start: 4, length: 1, last: true}", (4,)),
    ],
)
def test_the_trained_steps_follow_the_selection(steps: str, trained: tuple[int, ...]) -> None:
    assert geometry(sized(rollout__steps=steps)).steps == trained


def test_guidance_doubles_the_denoiser_evaluations() -> None:
    assert geometry(sized(rollout__guidance_scale=1)).forwards == 24 * (5 + 4)
    assert geometry(sized(rollout__guidance_scale=3)).forwards == 2 * 24 * (5 + 4)
    assert geometry(sized(rollout__guidance_scale=0)).forwards == 2 * 24 * (5 + 4)


@pytest.mark.parametrize(
    ("prompts", "group", "processes", "updates", "nearest"),
    [(6, 4, 5, 1, 5), (7, 4, 8, 1, 8), (1, 3, 2, 1, 2), (9, 3, 4, 2, 8), (3, 5, 1, 2, 4)],
)
def test_rollouts_that_do_not_divide_are_refused_with_a_choice_that_does(
    prompts: int, group: int, processes: int, updates: int, nearest: int
) -> None:
    sizes = {"rollout__group_size": group, "training__updates_per_iteration": updates}
    with pytest.raises(ConfigError) as caught:
        geometry(sized(rollout__prompts_per_iteration=prompts, **sizes), processes)
    assert f"set rollout.prompts_per_iteration to {nearest}," in str(caught.value)
    assert f"{prompts} prompts x group_size {group} = {prompts * group}" in str(caught.value)
    geometry(sized(rollout__prompts_per_iteration=nearest, **sizes), processes)


@pytest.mark.parametrize(
    "steps",
    [
        "{kind: window, start: 2, length: 3}",  # would make the last step stochastic
        "{kind: window, start: 5, length: 1}",
    ],
)
def test_steps_outside_of_the_grid_are_refused(steps: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout.steps: .* do not fit the 5 steps"):
        geometry(sized(rollout__steps=steps))


def test_a_single_step_cannot_be_trained_unless_the_last_may_be() -> None:
    with pytest.raises(ConfigError, match="do not fit the 1 steps"):
        geometry(sized(rollout__num_inference_steps=1))
    last = sized(rollout__num_inference_steps=1, rollout__steps="{kind: all, last: true}")
    assert geometry(last).steps == (0,)


def test_explain_tells_the_plan() -> None:
    config = sized(
        training__updates_per_iteration=3,
        evaluation__prompts=10,
        evaluation__images_per_prompt=2,
        rewards__0__weight=0.5,
    )
    plan = explain(config, processes=2)
    assert plan["rewards"] == "embedded_geneval x 0.5"
    assert {
        "prompts (groups) per iteration": 6,
        "group size": 4,
        "images per iteration": 24,
        "images per iteration and process": 12,
        "rollout batches per process": 2,  # 12 in batches of 7
        "sampling steps": 5,
        "trained steps": "4 of 5: [0, 1, 2, 3]",
        "optimizer steps per iteration": 3,
        "transitions per optimizer step and process": 16,
        "micro-batches per optimizer step": 2,  # 16 in batches of 10
        "denoiser evaluations per iteration": 216,
        "iterations": 3,
        "optimizer steps in all": 9,
        "images in all": 72,
        "images per evaluation": 20,
    }.items() <= plan.items()
    assert explain(sized(evaluation__benchmark="null"))["images per evaluation"] == 0


def test_explain_builds_no_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a module was built")

    monkeypatch.setattr(torch.nn.Module, "__init__", refuse)
    with pytest.raises(SystemExit) as leaving:
        main(["explain", RECIPE, "model.name=no/such-model", "rollout.group_size=16", "--json"])
    assert not leaving.value.code
    shown = capsys.readouterr()
    plan = json.loads(shown.out.splitlines()[-1])
    assert plan["model"] == "no/such-model (lora)"
    assert plan["prompts in the set"] == 64
    assert plan["images per iteration"] == 4 * 16
    for label, value in plan.items():  # a person reads the same
        assert re.search(rf"^{re.escape(label)} +{re.escape(str(value))}$", shown.err, re.M)
