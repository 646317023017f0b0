"""What the verbs share: options, progress, the JSON line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]
Out = Annotated[Path | None, typer.Option(help="Run folder (default: runs/<recipe>).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides, e.g. rollout.group_size=8 rewards.0.weight=2."),
]

console = Console(stderr=True, highlight=False)


def speaks() -> bool:
    """Whether this is the process, of all that a launcher started, that talks to the user."""
    return os.environ.get("RANK", "0") == "0"


def emit(result: dict[str, Any], as_json: bool) -> None:
    """The machine-readable result, if asked for."""
    if as_json and speaks():
        print(json.dumps(result), flush=True)


def say(text: str) -> None:
    """A line for a person, on stderr."""
    if speaks():
        console.print(text, markup=False, soft_wrap=True)


def bar() -> Progress:
    """The progress bar of all verbs."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not speaks(),
    )


def tracked(description: str) -> Callable[[Iterable[int]], Iterable[int]]:
    """A progress wrapper for a loop over batches."""

    def wrap(items: Iterable[int]) -> Iterable[int]:
        rows = list(items)
        with bar() as progress:
            yield from progress.track(rows, description=description)

    return wrap
