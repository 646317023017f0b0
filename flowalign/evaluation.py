"""Measure a policy on a benchmark: fixed prompts and seeds, the protocol in the result."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from flowalign.benchmarks import Benchmark, get_benchmark
from flowalign.errors import RewardError
from flowalign.prompts import PromptSet
from flowalign.rollout import PromptEncoder
from flowalign.samplers.ode import ODE
from flowalign.samplers.simulate import randn, simulate
from flowalign.seeding import Purpose, generator
from flowalign.types import Trainable

Progress = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """A score with all that is needed to repeat it; ``to_json`` is the ``eval/*.json`` file."""

    step: int
    benchmark: str
    judge: str
    protocol: Mapping[str, Any]
    score: float  # mean over the tasks of the mean over pictures
    stderr: float  # of `score`, pictures of one prompt counted as one observation
    metrics: Mapping[str, float]  # all scorings of the judge, averaged as `score`
    tasks: Mapping[str, Mapping[str, float]]  # per task: score, stderr, n pictures
    samples: Sequence[Mapping[str, Any]]  # per picture: prompt, tag, seed, score, image

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=1)


def evaluate(
    policy: Trainable,
    benchmark: str = "geneval",
    *,
    detector: str = "embedded",
    prompts: int = 204,
    images_per_prompt: int = 2,
    num_inference_steps: int = 10,
    guidance_scale: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    height: int | None = None,
    width: int | None = None,
    step: int = 0,
    images: Path | None = None,
    keep_images: int = 96,
    encoder: PromptEncoder | None = None,
    progress: Progress | None = None,
) -> EvalResult:
    """Generate with the ODE sampler and score.

    Picture ``j`` of prompt ``i`` starts from noise keyed by ``(seed, i, j)``: the same for every
    model, batch size and machine.

    Args:
        policy: the model under test.
        benchmark: ``geneval`` or ``ocr``.
        detector: the judge's eye; ``embedded`` for the model that ships with the package.
        prompts: number of held-out prompts.
        images_per_prompt: pictures of each.
        num_inference_steps: Euler steps.
        guidance_scale: true CFG; 1 = off.
        seed: of the prompt draw and the noise.
        batch_size: pictures per forward.
        height: pixels; default the model's own.
        width: pixels.
        step: recorded in the result.
        images: folder for PNG pictures, beside the result file; None keeps none.
        keep_images: how many pictures are kept, spread evenly over the prompts.
        encoder: a prompt cache to share between evaluations.
        progress: wraps the loop over batches.

    Raises:
        ConfigError: for an unknown benchmark or detector.
        RewardError: if a picture cannot be scored.
    """
    bench = get_benchmark(benchmark, detector)
    chosen = bench.prompts(prompts, seed)
    pairs = [(i, j) for i in range(len(chosen)) for j in range(images_per_prompt)]
    shape = policy.latent_shape(height, width)
    times = policy.times(num_inference_steps, shape)
    encoder = encoder or PromptEncoder(policy, getattr(policy, "device", "cpu"))
    pictures: list[Tensor] = []
    starts: Iterable[int] = range(0, len(pairs), batch_size)
    for start in progress(starts) if progress else starts:
        part = pairs[start : start + batch_size]
        condition = encoder([chosen.prompts[i] for i, _ in part])
        streams = [generator(Purpose.EVALUATION, seed, i, j) for i, j in part]
        noise = randn((len(part), *shape), streams, condition.embeds.device)
        with torch.no_grad():
            path = simulate(
                policy, ODE(), times, noise, condition, guidance=guidance_scale, keep=()
            )
            pictures.append(policy.decode(path.final).cpu())
    media = torch.cat(pictures)
    protocol = {
        "prompts": len(chosen),
        "distinct_prompts": len(set(chosen.prompts)),
        "images_per_prompt": images_per_prompt,
        "sampler": "ode",
        "num_inference_steps": num_inference_steps,
        "guidance_scale": guidance_scale,
        "seed": seed,
        "size": list(media.shape[-2:]),
        "dtype": str(getattr(policy, "dtype", torch.float32)).removeprefix("torch."),
        "split": bench.split,
        "prompts_sha256": chosen.sha256,
    }
    files = _keep(media, images, keep_images) if images else {}
    return _result(bench, chosen, pairs, media, protocol, step, files)


def _result(
    bench: Benchmark,
    chosen: PromptSet,
    pairs: Sequence[tuple[int, int]],
    media: Tensor,
    protocol: Mapping[str, Any],
    step: int,
    files: Mapping[int, str],
) -> EvalResult:
    texts = [chosen.prompts[i] for i, _ in pairs]
    metadata = [chosen.metadata[i] for i, _ in pairs]
    tags = [str(row["tag"]) for row in metadata]
    scores: dict[str, Tensor] = {}
    for name, reward in bench.rewards().items():
        values, valid = reward(media, texts, metadata)
        if not bool(valid.all()):
            worst = texts[int((~valid).nonzero()[0])]
            raise RewardError(
                f"the {name} score failed for the prompt {worst!r}; no result is written"
            )
        scores[name] = values
    headline = scores[bench.headline]
    tasks = {}
    for tag in sorted(set(tags)):
        own = [row for row, other in enumerate(tags) if other == tag]
        tasks[tag] = _task([float(headline[row]) for row in own], [texts[row] for row in own])
    metrics = {
        name: sum(float(v[_where(tags, tag)].mean()) for tag in tasks) / len(tasks)
        for name, v in scores.items()
    }
    return EvalResult(
        step=step,
        benchmark=bench.name,
        judge=f"{bench.detector}/{bench.headline}",
        protocol=protocol,
        score=metrics[bench.headline],
        stderr=sum(task["stderr"] ** 2 for task in tasks.values()) ** 0.5 / len(tasks),
        metrics=metrics,
        tasks=tasks,
        samples=[
            {
                "prompt": texts[row],
                "tag": tags[row],
                "seed": pairs[row][1],
                "score": float(headline[row]),
                "image": files.get(row),
            }
            for row in range(len(pairs))
        ],
    )


def _where(tags: Sequence[str], tag: str) -> Tensor:
    return torch.tensor([t == tag for t in tags])


def _task(scores: Sequence[float], prompts: Sequence[str]) -> dict[str, float]:
    """Mean and standard error of one task."""
    return {
        "score": sum(scores) / len(scores),
        "stderr": standard_error(scores, prompts),
        "n": len(scores),
    }


def standard_error(scores: Sequence[float], prompts: Sequence[str]) -> float:
    """Of the mean of scores in [0, 1]: all pictures of one prompt count as one observation.

    Cluster-robust, ``sqrt(n / (n - 1) * sum_prompt (sum of residuals)^2) / pictures``. With a
    single prompt it cannot be known, and 0.5, the most that it can be, stands for it.
    """
    mean = sum(scores) / len(scores)
    residuals: dict[str, float] = defaultdict(float)
    for value, prompt in zip(scores, prompts, strict=True):
        residuals[prompt] += value - mean
    n = len(residuals)
    if n < 2:
        return 0.5
    return math.sqrt(n / (n - 1) * sum(r * r for r in residuals.values())) / len(scores)


def _keep(media: Tensor, folder: Path, count: int) -> dict[int, str]:
    """Save up to ``count`` pictures, evenly spread; returns row -> path relative to the run."""
    folder.mkdir(parents=True, exist_ok=True)
    stride = max(1, -(-len(media) // count)) if count else len(media) + 1
    files = {}
    for row in range(0, len(media) if count else 0, stride):
        name = f"{row:04d}.png"
        save_png(media[row], folder / name)
        files[row] = f"{folder.parent.name}/{folder.name}/{name}"
    return files


def save_png(picture: Tensor, path: Path) -> None:
    """Write one picture ``(3, H, W)`` in [0, 1]."""
    values = (picture.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(values).save(path)
