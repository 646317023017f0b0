"""Find a recipe, apply overrides, and turn every mistake into one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from flowalign.config import Config
from flowalign.errors import ConfigError, unknown

_RECIPES = "flowalign.recipes"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: PyYAML reads ``1e-5`` as a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def recipe_names() -> list[str]:
    """The shipped recipes, e.g. ``embedded/flow_grpo``."""
    root = Path(str(resources.files(_RECIPES)))
    return sorted(p.relative_to(root).with_suffix("").as_posix() for p in root.rglob("*.yaml"))


def find_recipe(name: str) -> Path:
    """The file of a shipped recipe name or of a path.

    Raises:
        ConfigError: with the nearest recipe, if there is none.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise ConfigError(
            f"the recipe file {name} does not exist; give a path or one of the shipped "
            f"recipes: {', '.join(recipe_names())}"
        )
    if name not in recipe_names():
        raise ConfigError(unknown("recipe", name, recipe_names()))
    return Path(str(resources.files(_RECIPES))) / f"{name}.yaml"


def load_config(recipe: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply ``section.key=value`` overrides (values are YAML).

    Raises:
        ConfigError: for a missing file, bad YAML, an unknown key (with the nearest name), a wrong
            type
            or a value out of range.
    """
    path = find_recipe(str(recipe))
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must be a mapping of sections, e.g. `model: {{name: embedded}}`")
    for override in overrides:
        _apply(data, override)
    return parse_config(data, source=str(recipe))


def parse_config(data: Mapping[str, Any], source: str = "the configuration") -> Config:
    """Validate plain data; all mistakes become one ``ConfigError``."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(_sentence(e) for e in error.errors())}") from error


def dump_config(config: Config) -> str:
    """The resolved recipe as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _apply(data: Any, override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {override!r} must look like section.key=value")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of override {override!r} is not valid YAML") from error
    *parents, last = key.split(".")
    node = data
    for depth, part in enumerate(parents):
        if isinstance(node, list):
            node = node[_index(node, part, override)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        if node is None or not isinstance(node, dict | list):
            raise ConfigError(
                f"override {override!r}: {'.'.join(parents[: depth + 1])} is a value, not a section"
            )
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    else:
        node[last] = value


def _index(node: list[Any], part: str, override: str) -> int:
    if part.isdigit() and int(part) < len(node):
        return int(part)
    raise ConfigError(
        f"override {override!r}: {part!r} is no entry of this list; use 0 to {len(node) - 1}"
    )


def _sentence(error: Any) -> str:
    """One pydantic error as words, with the nearest key for an unknown one."""
    location = [part for part in error["loc"]]
    name = ".".join(str(part) for part in location)
    if error["type"] == "extra_forbidden":
        section = _section(Config, location[:-1])
        return unknown(
            f"key {'.'.join(map(str, location[:-1])) or 'at the top level'}".strip(),
            str(location[-1]),
            list(section.model_fields) if section else [],
        )
    if error["type"] == "missing":
        return f"{name} is missing"
    shown = "" if isinstance(error["input"], dict | list) else f", got {error['input']!r}"
    return f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}{shown}"


def _section(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The section class at a location such as ``("rewards", 0)``."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        current = current.model_fields[part].annotation
        while get_origin(current) in (list, Union, UnionType):
            current = next((a for a in get_args(current) if a is not type(None)), None)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
