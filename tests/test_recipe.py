"""Reading recipes: overrides, and mistakes as one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flowalign.config import Config
from flowalign.errors import ConfigError
from flowalign.geometry import geometry
from flowalign.recipe import find_recipe, load_config, recipe_names

SHORT = "embedded/flow_grpo_short"


def refusal(*overrides: str, recipe: str = SHORT) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_loads_says_what_it_is_and_fits_its_geometry(name: str) -> None:
    config = load_config(name)
    plan = geometry(config)
    rollout, training = config.rollout, config.training
    assert len(config.description) > 10
    assert plan.rollouts == rollout.prompts_per_iteration * rollout.group_size
    assert plan.local_transitions * training.updates_per_iteration == plan.rollouts * len(
        plan.steps
    )


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("rollout.group_size=8", lambda c: c.rollout.group_size == 8),
        ("rewards.0.weight=2", lambda c: c.rewards[0].weight == 2.0),
        ("rewards.0.options.rule=strict", lambda c: c.rewards[0].options == {"rule": "strict"}),
        ("training.ema_decay=null", lambda c: c.training.ema_decay is None),
        ("training.ema_decay=", lambda c: c.training.ema_decay is None),
        ("optimizer.learning_rate=2e-3", lambda c: c.optimizer.learning_rate == 2e-3),
        ("optimizer.betas=[0.5, 0.6]", lambda c: c.optimizer.betas == (0.5, 0.6)),
        ("optimizer.betas.1=0.7", lambda c: c.optimizer.betas == (0.9, 0.7)),
        ("rollout.same_noise=no", lambda c: c.rollout.same_noise is False),
        ("model.name=my/model=1", lambda c: c.model.name == "my/model=1"),
        ("description='a: b'", lambda c: c.description == "a: b"),
        ("model.lora.targets=[to_q, to_k]", lambda c: c.model.lora.targets == ["to_q", "to_k"]),
        ("penalties=[{name: kl}]", lambda c: [p.name for p in c.penalties] == ["kl"]),
        ("evaluation.benchmark=null", lambda c: c.evaluation.benchmark is None),
        ("tracking.trackers=[wandb]", lambda c: c.tracking.trackers == ["wandb"]),
    ],
)
def test_an_override_reaches_its_key(override: str, read: Callable[[Config], bool]) -> None:
    assert not read(load_config(SHORT))
    assert read(load_config(SHORT, [override]))


def test_mixed_precision_no_is_the_word_although_yaml_reads_it_as_false() -> None:
    assert load_config(SHORT, ["training.mixed_precision=no"]).training.mixed_precision == "no"
    assert "got True" in refusal("training.mixed_precision=yes")


def test_a_later_override_wins_and_others_stay() -> None:
    changed = load_config(SHORT, ["seed=1", "seed=2"])
    assert changed == load_config(SHORT).model_copy(update={"seed": 2})


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.group_sise=8", ["key rollout 'group_sise'", "did you mean 'group_size'?"]),
        ("rolout.group_size=8", ["'rolout'", "did you mean 'rollout'?"]),
        ("rewards.0.wieght=2", ["key rewards.0 'wieght'", "did you mean 'weight'?"]),
        ("model.lora.rnak=4", ["key model.lora 'rnak'", "did you mean 'rank'?"]),
        ("rewards.3.weight=2", ["'3'", "use 0 to 0"]),
        ("rewards.first.weight=2", ["'first'", "use 0 to 0"]),
        ("training.threads.value=2", ["training.threads is a value, not a section"]),
        ("seed.value=2", ["seed", "valid integer"]),
        ("group_size", ["must look like section.key=value"]),
        ("=3", ["must look like section.key=value"]),
        ("seed=[1", ["not valid YAML"]),
        ("rollout.group_size=many", ["rollout.group_size", "valid integer", "got 'many'"]),
        ("rollout.group_size=1", ["rollout.group_size", "greater than or equal to 2", "got 1"]),
        ("rollout.group_size=2.5", ["rollout.group_size", "integer", "got 2.5"]),
        ("rollout.group_size=null", ["rollout.group_size", "valid integer", "got None"]),
        ("training.ema_decay=1", ["training.ema_decay", "less than 1"]),
        ("model.train=half", ["model.train", "'lora' or 'full'", "got 'half'"]),
        ("rewards=[]", ["rewards", "at least 1"]),
        ("rewards=[{weight: 1}]", ["rewards.0.name is missing"]),
        ("model=embedded", ["model", "got 'embedded'"]),
    ],
)
def test_a_mistake_is_a_sentence_with_the_nearest_choice(override: str, words: list[str]) -> None:
    message = refusal(override)
    for word in words:
        assert word in message, message


def test_all_mistakes_are_told_at_once() -> None:
    message = refusal("rollout.group_size=1", "optimizer.eps=-1", "seed=x")
    assert all(key in message for key in ("rollout.group_size", "optimizer.eps", "seed"))


def test_a_missing_recipe_names_the_nearest_one_or_the_file() -> None:
    assert "did you mean 'embedded/demo'?" in refusal(recipe="embedded/dmo")
    assert "absent.yaml does not exist" in refusal(recipe="absent.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [("model: {", "not valid YAML"), ("- 1", "must be a mapping"), ("", "must be a mapping")],
)
def test_a_broken_recipe_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert words in refusal(recipe=str(path))


def test_a_file_is_read_like_a_shipped_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(find_recipe(SHORT).read_text())
    assert load_config(path) == load_config(SHORT)


@given(seed=st.integers(0, 2**31), rate=st.floats(1e-12, 1e3), name=st.text(max_size=20))
def test_any_value_survives_an_override_in_yaml(seed: int, rate: float, name: str) -> None:
    def pair(key: str, value: object) -> str:
        return f"{key}={yaml.safe_dump(value, default_flow_style=True)}"

    overrides = [
        pair("seed", seed),
        pair("optimizer.learning_rate", rate),
        pair("rewards.0.name", name),
        pair("model.options", {"a.b": [name, None, rate]}),
    ]
    config = load_config(SHORT, overrides)
    assert config.seed == seed
    assert config.optimizer.learning_rate == rate
    assert config.rewards[0].name == name
    assert config.model.options == {"a.b": [name, None, rate]}


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_override_is_applied_or_refused_in_one_sentence(key: str, value: str) -> None:
    try:
        assert isinstance(load_config(SHORT, [f"{key}={value}"]), Config)
    except ConfigError as error:
        assert str(error)


LEAVES = ["seed", "rewards.0", "rewards.0.weight", "rollout", "rollout.steps.kind", "model.lora"]


@given(
    st.sampled_from(LEAVES),
    st.lists(st.sampled_from(["0", "-1", "7", "name", "x", "", "options"]), max_size=3),
    st.sampled_from(
        ["1", "[]", "{}", "{a: [1]}", "x", "null", "-.inf", "2001-01-01", "*a", "!!set"]
    ),
)
def test_any_path_is_applied_or_refused(start: str, more: list[str], value: str) -> None:
    try:
        assert isinstance(load_config(SHORT, [f"{'.'.join([start, *more])}={value}"]), Config)
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "1.e-5", "+1e-05", "0.00001"])
def test_numbers_in_options_are_numbers_however_they_are_written(text):
    config = load_config("embedded/demo", [f"objective.options.clip_range={text}"])
    assert config.objective.options["clip_range"] == 1e-5


def test_options_alone_belong_to_the_default():
    config = load_config(
        "embedded/flow_grpo_short",
        ["objective.options.clip_range=0.1", "credit.options.std=none"],
    )
    assert (config.objective.name, config.credit.name) == ("flow_grpo", "group")
    assert config.credit.options == {"std": "none"}
