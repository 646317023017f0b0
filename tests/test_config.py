"""The recipe's schema: defaults, ranges, and what a dump keeps."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from flowalign.config import Config, Section
from flowalign.recipe import dump_config, load_config, parse_config, recipe_names

MINIMAL: dict[str, Any] = {"rewards": [{"name": "embedded_geneval"}]}


def fields(section: type[Section], prefix: str = "") -> dict[str, FieldInfo]:
    """All keys of a recipe by their dotted name."""
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= fields(kind, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


@pytest.mark.parametrize("name", [*recipe_names(), None])
def test_a_dumped_config_reads_back_as_itself(name: str | None) -> None:
    config = load_config(name) if name else parse_config(MINIMAL)
    text = dump_config(config)
    assert parse_config(yaml.safe_load(text)) == config
    assert dump_config(parse_config(yaml.safe_load(text))) == text


def test_a_dump_keeps_every_key_in_the_order_of_the_schema() -> None:
    data = yaml.safe_load(dump_config(parse_config(MINIMAL)))
    assert list(data) == list(Config.model_fields)
    assert list(data["training"]) == list(Config.model_fields["training"].annotation.model_fields)


def test_only_rewards_have_no_default() -> None:
    assert [name for name, field in Config.model_fields.items() if field.is_required()] == [
        "rewards"
    ]
    assert parse_config(MINIMAL).objective.name == "flow_grpo"


def test_no_number_may_be_negative_but_a_weight_and_a_seed() -> None:
    for key, field in fields(Config).items():
        if field.annotation not in (int, float) or key.endswith("seed"):
            continue
        *parents, last = key.split(".")
        data: dict[str, Any] = dict(MINIMAL)
        node = data
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = -1
        with pytest.raises(ValidationError, match="greater than"):
            Config.model_validate(data)


def test_a_config_never_changes() -> None:
    config = parse_config(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1
