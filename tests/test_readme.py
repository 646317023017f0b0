"""What the README shows works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flowalign.cli.app import app
from flowalign.recipe import load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.S)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
]


def test_the_two_commands_that_need_no_set_up_are_targets():
    makes = [command for command in COMMANDS if command.startswith("make ")]
    assert makes == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in makes:
        assert re.search(rf"^{command.split()[1]}: .venv/.installed", makefile, re.M)


@pytest.mark.parametrize("line", [c for c in COMMANDS if c.startswith("flowalign ")])
def test_every_command_names_a_verb_with_its_options_and_a_recipe(line):
    verb, *arguments = shlex.split(line)[1:]
    by_name = {command.name: command.callback for command in app.registered_commands}
    assert verb in by_name
    help_text = " ".join(by_name[verb].__annotations__)
    for argument in arguments:
        if argument.startswith("--"):
            assert argument.removeprefix("--").replace("-", "_") in help_text
    if verb in ("train", "explain"):
        recipe, *overrides = [a for a in arguments if "/" in a or "=" in a]
        load_config(recipe, [o for o in overrides if "=" in o])


def test_the_python_runs(tmp_path, monkeypatch):
    (first, second) = (block for language, block in BLOCKS if language == "python")
    names: dict[str, object] = {}
    exec(first, names)
    assert 0 <= names["result"].score <= 1
    assert bool(names["valid"].all())

    from flowalign import load_policy

    policy = load_policy("embedded")
    policy.set_trainable("lora")
    policy.export_lora(tmp_path / "runs/demo/lora")
    monkeypatch.chdir(tmp_path)
    exec(second, names)
    assert names["picture"].size == (32, 32)
