"""``demo``: the whole path on the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowalign.cli.common import Json, emit, say
from flowalign.cli.run import train_recipe


def demo(
    out: Annotated[
        Path, typer.Option(help="Run folder; an earlier demo there is replaced.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    json: Json = False,
) -> None:
    """Align the embedded model in minutes on a CPU, measure before and after, write the report.

    Example: flowalign demo --seed 1 --json
    """
    summary = train_recipe("embedded/demo", [f"seed={seed}"], out, overwrite=True, cpu=True)
    gain = summary["after"] - summary["before"]
    say(
        f"held-out GenEval {summary['before']:.3f} -> {summary['after']:.3f} ({gain:+.3f}) in "
        f"{summary['seconds']:.0f} s; open {summary['report']}"
    )
    emit(summary, json)
