"""``bench``: a benchmark score with its protocol."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from flowalign.cli.common import Json, emit, say, tracked


class Name(str, Enum):
    """The benchmarks."""

    geneval = "geneval"
    ocr = "ocr"


def bench(
    benchmark: Annotated[Name, typer.Argument(help="What to measure.")],
    model: Annotated[
        str, typer.Option(help="embedded, a diffusers folder or a hub id.")
    ] = "embedded",
    lora: Annotated[Path | None, typer.Option(help="Folder of an exported LoRA.")] = None,
    detector: Annotated[str, typer.Option(help="The judge's eye.")] = "embedded",
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts.")] = 204,
    images: Annotated[int, typer.Option(min=1, help="Pictures per prompt.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Sampling steps.")] = 10,
    guidance: Annotated[float, typer.Option(min=0, help="True CFG scale; 1 = off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of prompts and noise.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures per forward.")] = 64,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the result and its pictures.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure a model on a benchmark's held-out prompts.

    Example: flowalign bench geneval --lora runs/demo/lora --guidance 3
    """
    from flowalign.evaluation import evaluate
    from flowalign.models.load import load_policy
    from flowalign.run import write_atomic

    policy = load_policy(model)
    if lora is not None:
        policy.load_lora(lora)
    result = evaluate(
        policy,
        benchmark.value,
        detector=detector,
        prompts=prompts,
        images_per_prompt=images,
        num_inference_steps=steps,
        guidance_scale=guidance,
        seed=seed,
        batch_size=batch_size,
        images=out / "samples" / benchmark.value if out else None,
        progress=tracked(benchmark.value),
    )
    for task, numbers in result.tasks.items():
        score = f"{numbers['score']:.3f} ± {numbers['stderr']:.3f}"
        say(f"{task:15s} {score}  ({numbers['n']} pictures)")
    others = ", ".join(f"{name} {value:.3f}" for name, value in result.metrics.items())
    say(f"{benchmark.value} ({result.judge}) {result.score:.3f} ± {result.stderr:.3f}  [{others}]")
    if out:
        write_atomic(out / f"{benchmark.value}.json", result.to_json())
        say(f"result: {out / f'{benchmark.value}.json'}")
    summary: dict[str, Any] = {
        "benchmark": result.benchmark,
        "judge": result.judge,
        "score": result.score,
    }
    summary |= {"stderr": result.stderr, "metrics": dict(result.metrics)}
    emit(summary | {"tasks": dict(result.tasks), "protocol": dict(result.protocol)}, json)
