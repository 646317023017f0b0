"""Groups, batches and gradient steps of a recipe, checked before any weight is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowalign.config import Config
from flowalign.errors import ConfigError
from flowalign.samplers.steps import StepSelection


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How one iteration is cut up. All counts are integers; ``local`` means per process."""

    processes: int
    prompts: int  # groups per iteration
    group_size: int
    rollouts: int  # prompts x group_size, over all processes
    local_rollouts: int
    steps: tuple[int, ...]  # the trained steps of the grid
    num_inference_steps: int
    updates: int  # optimizer steps per iteration
    local_transitions: int  # transitions per update
    micro_batches: int  # forward-backward passes per update
    iterations: int
    guidance_scale: float

    @property
    def forwards(self) -> int:
        """Denoiser evaluations per iteration, replay counted once; CFG doubles them."""
        factor = 1 if self.guidance_scale == 1 else 2
        return factor * self.rollouts * (self.num_inference_steps + len(self.steps))


def step_selection(config: Config) -> StepSelection:
    """The recipe's stochastic steps."""
    steps = config.rollout.steps
    return StepSelection(kind=steps.kind, start=steps.start, length=steps.length, last=steps.last)


def geometry(config: Config, processes: int = 1) -> Geometry:
    """Derive the geometry for a number of processes.

    Raises:
        ConfigError: if rollouts do not divide over processes and updates (with the nearest valid
            choice), or the stochastic steps leave the grid.
    """
    rollout, training = config.rollout, config.training
    n = rollout.prompts_per_iteration * rollout.group_size
    parts = processes * training.updates_per_iteration
    if n % parts:
        unit = parts // math.gcd(parts, rollout.group_size)
        nearest = max(1, round(rollout.prompts_per_iteration / unit)) * unit
        raise ConfigError(
            f"{rollout.prompts_per_iteration} prompts x group_size {rollout.group_size} = {n} "
            f"rollouts do not divide over {processes} process(es) x "
            f"{training.updates_per_iteration} update(s): set "
            f"rollout.prompts_per_iteration to {nearest}, or change group_size or "
            "training.updates_per_iteration"
        )
    try:
        mask = step_selection(config).mask(rollout.num_inference_steps)
    except ValueError as error:
        raise ConfigError(f"rollout.steps: {error}") from error
    steps = tuple(i for i, drawn in enumerate(mask.tolist()) if drawn)
    local = n // processes
    transitions = local // training.updates_per_iteration * len(steps)
    return Geometry(
        processes=processes,
        prompts=rollout.prompts_per_iteration,
        group_size=rollout.group_size,
        rollouts=n,
        local_rollouts=local,
        steps=steps,
        num_inference_steps=rollout.num_inference_steps,
        updates=training.updates_per_iteration,
        local_transitions=transitions,
        micro_batches=math.ceil(transitions / training.batch_size),
        iterations=training.iterations,
        guidance_scale=rollout.guidance_scale,
    )


def explain(config: Config, processes: int = 1) -> dict[str, str | int | float]:
    """The plan of a run as label -> value, in reading order."""
    g = geometry(config, processes)
    evaluation = config.evaluation
    images = evaluation.prompts * evaluation.images_per_prompt if evaluation.benchmark else 0
    return {
        "model": f"{config.model.name} ({config.model.train})",
        "objective": config.objective.name,
        "rewards": ", ".join(f"{r.name} x {r.weight:g}" for r in config.rewards),
        "processes": g.processes,
        "prompts (groups) per iteration": g.prompts,
        "group size": g.group_size,
        "images per iteration": g.rollouts,
        "images per iteration and process": g.local_rollouts,
        "rollout batches per process": math.ceil(g.local_rollouts / config.rollout.batch_size),
        "sampling steps": g.num_inference_steps,
        "trained steps": f"{len(g.steps)} of {g.num_inference_steps}: {list(g.steps)}",
        "optimizer steps per iteration": g.updates,
        "transitions per optimizer step and process": g.local_transitions,
        "micro-batches per optimizer step": g.micro_batches,
        "denoiser evaluations per iteration": g.forwards,
        "iterations": g.iterations,
        "optimizer steps in all": g.iterations * g.updates,
        "images in all": g.iterations * g.rollouts,
        "images per evaluation": images,
    }
