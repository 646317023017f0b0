"""``train``, ``report`` and ``export``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from flowalign.cli.common import Json, Out, Overrides, bar, emit, say
from flowalign.errors import ConfigError, FlowalignError

Recipe = Annotated[
    str, typer.Argument(help="A shipped recipe (`flowalign list recipes`) or a file.")
]


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
    json: Json = False,
) -> None:
    """Align a model by a recipe.

    Example: flowalign train embedded/flow_grpo training.iterations=20 --out runs/mine
    """
    summary = train_recipe(recipe, overrides or [], out, resume, overwrite, cpu)
    emit(summary, json)


def train_recipe(
    recipe: str,
    overrides: list[str],
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    cpu: bool = False,
) -> dict[str, Any]:
    """Train, write the report, and say where things are; also behind ``scripts/train.py``."""
    from flowalign.recipe import load_config, recipe_names
    from flowalign.report import write_report
    from flowalign.trainer import Trainer

    config = load_config(recipe, overrides)
    out = out or Path("runs") / (Path(recipe).stem if recipe not in recipe_names() else recipe)
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other; give one")
    with bar() as progress:
        task = progress.add_task("align", total=config.training.iterations, start=True)

        def show(done: int, total: int, values: dict[str, float]) -> None:
            means = (key for key in values if re.fullmatch("reward/.+/mean", key))
            text = f"align · reward {' '.join(f'{values[key]:.3f}' for key in means)}"
            progress.update(task, completed=done, total=total, description=text)

        trainer = Trainer(
            config,
            out,
            recipe=recipe,
            resume=resume,
            overwrite=overwrite,
            cpu=cpu,
            on_iteration=show,
            say=say,
        )
        try:
            result = trainer.train()
        except KeyboardInterrupt as error:
            raise FlowalignError(
                f"interrupted after {trainer.done} iterations; the same command with --resume goes "
                "on from the last checkpoint"
            ) from error
    summary: dict[str, Any] = {
        "run": str(result.run),
        "iterations": result.iterations,
        "seconds": round(result.seconds, 1),
        "before": result.before.score if result.before else None,
        "after": result.after.score if result.after else None,
    }
    if trainer.accelerator.is_main_process:
        page = write_report(result.run)
        summary["report"] = str(page)
        say(f"report: {page}")
    return summary


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="The page (default: RUN/report.html).")] = None,
    json: Json = False,
) -> None:
    """Write the report of a run as one self-contained page.

    Example: flowalign report runs/embedded/demo
    """
    from flowalign.report import write_report

    page = write_report(run, out)
    say(f"report: {page}")
    emit({"report": str(page)}, json)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="Target folder (default: RUN/lora).")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write the whole pipeline, not only the LoRA.")
    ] = False,
    ema: Annotated[
        bool | None,
        typer.Option("--ema/--no-ema", help="Averaged weights (default: as the run measured)."),
    ] = None,
    json: Json = False,
) -> None:
    """Export a run's last checkpoint for stock diffusers.

    Example: flowalign export runs/embedded/demo --out my-lora
    """
    from flowalign.export import export_run

    folder = export_run(run, out, full=full, ema=ema)
    say(f"exported: {folder}")
    emit({"folder": str(folder)}, json)
