"""A run folder as the trainer leaves it, written by the trainer's own writers; scores made up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowalign.embedded.grammar import GENEVAL_TASKS
from flowalign.evaluation import EvalResult, save_png
from flowalign.recipe import dump_config, load_config
from flowalign.run import RunFolder, write_atomic
from flowalign.tracking import append_metrics

RECIPE = "embedded/demo"
PROTOCOL = {
    "images_per_prompt": 2,
    "sampler": "ode",
    "num_inference_steps": 10,
    "guidance_scale": 1.0,
    "seed": 0,
    "split": "heldout",
    "prompts_sha256": "5f" * 32,
}
BuildRun = Callable[..., Path]


def iteration(step: int, rng: np.random.Generator) -> dict[str, float]:
    """The scalars of one iteration."""
    reward = 0.55 - 0.25 * math.exp(-step / 50) + 0.03 * rng.standard_normal()
    clip = 0.1 * rng.random()
    return {
        "loss": 0.01 * rng.standard_normal(),
        "penalty": 0.0,
        "ratio/mean": 1 + 1e-4 * rng.standard_normal(),
        "ratio/max_abs_log": 0.01 + 0.005 * rng.random(),
        "clip_fraction": clip,
        "clip_fraction/low": clip / 2,
        "clip_fraction/high": clip / 2,
        "approx_kl": 1e-6 * (1 + rng.random()),
        "grad_norm": 0.4 + 0.1 * rng.random(),
        "lr": 5e-4,
        "skipped_updates": 0.0,
        "trained_transitions": 0.8 + 0.1 * rng.random(),
        "time/total": 2.5 + rng.random(),
        "time/rollout": 1.5 + 0.5 * rng.random(),
        "reward/embedded_geneval/mean": reward,
        "reward/embedded_geneval/std": 0.4,
        "reward/embedded_geneval/invalid": 0.0,
        "group_std": 0.2 + 0.02 * rng.standard_normal(),
        "zero_variance_groups": 0.2 * rng.random(),
        "images": 96.0 * step,
    }


def evaluation(
    scores: Sequence[float],
    step: int = 0,
    *,
    prompts: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    images: Sequence[str | None] | None = None,
    **protocol: Any,
) -> EvalResult:
    """Two pictures of each prompt, in order; the numbers follow from ``scores``."""
    count = len(scores) // 2
    prompts = prompts or [f"prompt {i}" for i in range(count)]
    tags = tags or ["counting"] * count
    values = np.array(scores).reshape(count, 2)
    tasks = {tag: _task(values[[t == tag for t in tags]]) for tag in sorted(set(tags))}
    score = sum(task["score"] for task in tasks.values()) / len(tasks)
    return EvalResult(
        step=step,
        benchmark="geneval",
        judge="embedded/strict",
        protocol={"prompts": count, "distinct_prompts": len(set(prompts))} | PROTOCOL | protocol,
        score=score,
        stderr=math.sqrt(sum(task["stderr"] ** 2 for task in tasks.values())) / len(tasks),
        metrics={"strict": score, "partial": min(1.0, score + 0.2)},
        tasks=tasks,
        samples=[
            {
                "prompt": prompts[row // 2],
                "tag": tags[row // 2],
                "seed": row % 2,
                "score": float(scores[row]),
                "image": images[row] if images else None,
            }
            for row in range(len(scores))
        ],
    )


def _task(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    per = values.mean(1)
    error = per.std(ddof=1) / len(per) ** 0.5 if len(per) > 1 else 0.0
    return {"score": float(per.mean()), "stderr": float(error), "n": values.size}


def draw(folder: RunFolder, step: int, rows: int, rng: np.random.Generator) -> list[str | None]:
    """A picture of every second row: a disc on a plain ground."""
    images: list[str | None] = [None] * rows
    y, x = np.mgrid[:32, :32]
    folder.images(step).mkdir(parents=True, exist_ok=True)
    for row in range(0, rows, 2):
        disc = np.hypot(x - rng.integers(9, 23), y - rng.integers(9, 23)) < rng.integers(4, 9)
        picture = np.where(disc, rng.random((3, 1, 1)), 0.92 - 0.1 * rng.random())
        save_png(torch.from_numpy(picture).float(), folder.images(step) / f"{row:04d}.png")
        images[row] = f"samples/{folder.images(step).name}/{row:04d}.png"
    return images


@pytest.fixture
def build_run(tmp_path: Path) -> BuildRun:
    """Write a run: ``evaluated`` maps steps to the share of pictures that score 1."""

    def build(
        *,
        name: str = "run",
        done: int = 150,
        status: str | None = "finished",
        message: str = "",
        evaluated: Mapping[int, float] | None = None,
        prompts: int = 48,
        first_prompt: str = "a photo of a red circle",
        settings: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Path:
        folder, rng = RunFolder(root=tmp_path / name), np.random.default_rng(0)
        write_atomic(folder.config, dump_config(load_config(RECIPE, ["training.iterations=150"])))
        for step in range(1, done + 1):
            append_metrics(folder.metrics, step, iteration(step, rng))
        facts = {} if status == "running" else {"seconds": 512.3}
        if status is not None:
            folder.write_status(
                recipe=RECIPE,
                base_model="embedded",
                iterations=0 if status == "running" else done,
                status=status,
                message=message,
                **facts,
            )
        tags = [GENEVAL_TASKS[i % len(GENEVAL_TASKS)] for i in range(prompts)]
        texts = [
            first_prompt,
            *(f"a photo of a blue square, number {i}" for i in range(1, prompts)),
        ]
        luck = rng.random(2 * prompts)
        for step, share in ({0: 0.3, done: 0.55} if evaluated is None else evaluated).items():
            images = draw(folder, step, 2 * prompts, rng)
            noisy = 0.8 * luck + 0.2 * rng.random(2 * prompts)
            scores = (noisy.argsort().argsort() < round(share * len(noisy))).astype(float).tolist()
            extra = dict((settings or {}).get(step, {}))
            result = evaluation(scores, step, prompts=texts, tags=tags, images=images, **extra)
            write_atomic(folder.evaluation(step), result.to_json())
        return folder.root

    return build
