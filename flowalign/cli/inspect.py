"""``explain``, ``list`` and ``doctor``: look before you run."""

from __future__ import annotations

import importlib.util
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from flowalign.cli.common import Json, Overrides, emit, say
from flowalign.errors import FlowalignError


class Kind(str, Enum):
    """What can be listed."""

    samplers = "samplers"
    objectives = "objectives"
    credit = "credit"
    penalties = "penalties"
    balancers = "balancers"
    rewards = "rewards"
    models = "models"
    recipes = "recipes"


def _rows(kind: Kind) -> list[tuple[str, str]]:
    """Names of one kind and what to say of each."""
    from flowalign import registry
    from flowalign.recipe import find_recipe, load_config, recipe_names

    if kind is Kind.recipes:
        return [(name, load_config(find_recipe(name)).description) for name in recipe_names()]
    tables = {
        Kind.samplers: registry.SAMPLERS,
        Kind.objectives: registry.OBJECTIVES,
        Kind.credit: registry.CREDITS,
        Kind.penalties: registry.PENALTIES,
        Kind.balancers: registry.BALANCERS,
        Kind.rewards: registry.REWARDS,
        Kind.models: registry.MODELS,
    }
    return [
        (
            entry.name,
            entry.summary
            + (" (reconstruction)" if entry.reconstruction else "")
            + (f"  arXiv {entry.paper}" if entry.paper else ""),
        )
        for entry in tables[kind].entries()
    ]


def explain(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a file.")],
    overrides: Overrides = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that would run it.")] = 1,
    config: Annotated[bool, typer.Option("--config", help="Also print every key.")] = False,
    json: Json = False,
) -> None:
    """Show what a recipe will do, before any weight is loaded.

    Example: flowalign explain embedded/flow_grpo rollout.group_size=16 --processes 2
    """
    from flowalign.build import build_parts
    from flowalign.geometry import explain as plan_of
    from flowalign.recipe import dump_config, load_config

    resolved = load_config(recipe, overrides or [])
    plan = plan_of(resolved, processes)
    parts = build_parts(resolved)
    plan = {"prompts in the set": len(parts.prompts)} | plan
    width = max(map(len, plan))
    for label, value in plan.items():
        say(f"{label:{width}s}  {value}")
    if config:
        say(dump_config(resolved))
    emit(plan, json)


def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list (default: everything).")] = None,
    json: Json = False,
) -> None:
    """List what recipes can name, with one line and the paper.

    Example: flowalign list rewards
    """
    kinds = [kind] if kind else list(Kind)
    rows = {each.value: _rows(each) for each in kinds}
    if json:
        emit({each: [name for name, _ in named] for each, named in rows.items()}, json)
        return
    width = max(len(name) for named in rows.values() for name, _ in named)
    for each, named in rows.items():
        if len(rows) > 1:
            print(f"{each}")
        for name, summary in named:
            print(f"{'  ' if len(rows) > 1 else ''}{name:{width}s}  {summary}")


def doctor(
    recipe: Annotated[str | None, typer.Argument(help="Also check this recipe.")] = None,
    json: Json = False,
) -> None:
    """Check the installation, every reward, and optionally a recipe.

    Example: flowalign doctor embedded/flow_grpo
    """
    import torch

    from flowalign.registry import REWARDS

    checks: list[tuple[str, bool, str]] = []
    for package in ("torch", "diffusers", "transformers", "accelerate", "peft"):
        try:
            checks.append((package, True, version(package)))
        except PackageNotFoundError:
            checks.append((package, False, "not installed"))
    gpus = torch.cuda.device_count()
    checks.append(
        ("device", True, f"{gpus} GPU(s)" if gpus else f"CPU, {torch.get_num_threads()} threads")
    )
    for package, extra in (("rapidocr", "ocr"), ("tensorboard", "tensorboard")):
        found = importlib.util.find_spec(package) is not None
        note = "available" if found else f"missing: pip install 'flowalign-toolkit[{extra}]'"
        checks.append((f"optional {package}", True, note))
    for name in REWARDS.names():
        checks.append((f"reward {name}", *_try(lambda name=name: REWARDS.get(name))))
    checks.append(("embedded model", *_try(_load_embedded)))
    if recipe is not None:
        checks.append((f"recipe {recipe}", *_try(lambda: _check_recipe(recipe))))
    for label, good, note in checks:
        say(f"{'ok  ' if good else 'FAIL'}  {label:28s} {note}")
    failed = [label for label, good, _ in checks if not good]
    emit({"ok": not failed, "failed": failed}, json)
    if failed:
        raise FlowalignError(f"{len(failed)} check(s) failed: {', '.join(failed)}")


def _try(check: object) -> tuple[bool, str]:
    assert callable(check)
    try:
        note = check()
    except Exception as error:  # a doctor reports whatever is wrong
        return False, " ".join(str(error).split())
    return True, note if isinstance(note, str) else "usable"


def _load_embedded() -> str:
    from flowalign.models.load import load_policy

    policy = load_policy("embedded", device="cpu")
    millions = sum(p.numel() for p in policy.module.parameters()) / 1e6
    return f"loads, {millions:.1f} M parameters"


def _check_recipe(recipe: str) -> str:
    from flowalign.build import build_parts
    from flowalign.geometry import geometry
    from flowalign.recipe import load_config

    config = load_config(recipe)
    build_parts(config)
    return f"{geometry(config).rollouts} images per iteration"
