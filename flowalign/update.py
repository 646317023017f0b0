"""Optimizer updates on a scored rollout: replay in micro-batches, loss, backward, step."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor

from flowalign.build import Parts
from flowalign.config import Config
from flowalign.distributed import any_process
from flowalign.errors import FlowalignError
from flowalign.models.base import PipelinePolicy
from flowalign.preflight import check_moved, fingerprint
from flowalign.replay import Minibatch, advantage_rows
from flowalign.seeding import Purpose, generator
from flowalign.tracking import Metrics
from flowalign.types import Advantage, Rollout


@dataclass(kw_only=True)
class Updater:
    """Owns the optimizer; ``run`` does all updates of one iteration."""

    policy: PipelinePolicy
    parts: Parts
    config: Config
    accelerator: Accelerator
    optimizer: torch.optim.Optimizer
    skipped: int = 0  # non-finite updates in a row
    moved: bool = field(default=False, init=False)

    def run(self, rollout: Rollout, advantage: Advantage, iteration: int, metrics: Metrics) -> None:
        """All updates of an iteration.

        Args:
            rollout: this process' rollouts.
            advantage: their mixed advantages ``(B, T or 1, K)``.
            iteration: counted from 0.
            metrics: receives the scalars.
        """
        stream = generator(Purpose.SHUFFLE, self.config.seed, iteration)
        order = torch.randperm(len(rollout), generator=stream)
        for rows in order.chunk(self.config.training.updates_per_iteration):
            self._update(rollout, advantage, rows, iteration, metrics)

    def _update(
        self, rollout: Rollout, advantage: Advantage, rows: Tensor, iteration: int, metrics: Metrics
    ) -> None:
        steps = torch.tensor(rollout.trajectory.replayable)
        pairs = torch.cartesian_prod(rows, steps)  # (rows x steps, 2)
        total = len(pairs)  # the same on every process, whatever is dropped below
        signal = advantage_rows(advantage.cpu(), *pairs.unbind(1)).flatten(1).any(1)
        moves = any_process(self.accelerator, bool(signal.any()))
        if not self.parts.penalties:  # without signal and penalty a transition has no gradient
            if not moves:
                metrics.add({"skipped_updates": 0.0})
                return
            pairs = pairs[signal] if bool(signal.any()) else pairs[:1]
        metrics.add({"trained_transitions": len(pairs) / total})
        batches = pairs.split(self.config.training.batch_size)
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            wait = (
                contextlib.nullcontext() if last else self.accelerator.no_sync(self.policy.denoiser)
            )
            with wait:
                loss = self._loss(rollout, advantage, batch, metrics) * (len(batch) / total)
                self.accelerator.backward(loss)
        self._step(iteration, metrics, moves)

    def _loss(
        self, rollout: Rollout, advantage: Advantage, pairs: Tensor, metrics: Metrics
    ) -> Tensor:
        rows, steps = pairs.unbind(1)
        batch = Minibatch(
            self.policy,
            self.parts.sampler,
            rollout,
            rows,
            steps,
            advantage_rows(advantage.cpu(), rows, steps),
            self.config.rollout.log_prob_reduction,
        )
        output = self.parts.objective.loss(batch)
        loss = self.parts.balancer.total(output.losses)
        scalars = {"loss": loss, **output.metrics}
        penalty = output.penalty
        for extra in self.parts.penalties:
            value, numbers = extra(batch)
            penalty = penalty + value
            scalars |= numbers
        metrics.add(scalars | {"penalty": penalty}, weight=len(pairs))
        return loss + penalty

    def _step(self, iteration: int, metrics: Metrics, moves: bool) -> None:
        """Clip and step; ``moves``: some advantage is not 0, so that a parameter must move."""
        rate = learning_rate(self.config, iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parameters = list(self.policy.named_trainable().values())
        norm = self.accelerator.clip_grad_norm_(parameters, self.config.optimizer.max_grad_norm)
        finite = math.isfinite(float(norm)) if norm is not None else True
        metrics.add({"lr": rate, "skipped_updates": float(not finite)})
        if finite:
            self.skipped = 0
            before = fingerprint(parameters) if moves and not self.moved else None
            self.optimizer.step()
            self.optimizer.zero_grad()
            metrics.add({"grad_norm": float(norm) if norm is not None else 0.0})
            if before is not None:
                check_moved(before, fingerprint(parameters))
                self.moved = True
            return
        self.optimizer.zero_grad()
        self.skipped += 1
        if self.skipped > self.config.training.max_skipped_updates:
            raise FlowalignError(
                f"{self.skipped} updates in a row had a non-finite gradient (iteration "
                f"{iteration + 1}): the last checkpoint is intact; lower optimizer.learning_rate "
                "or use training.mixed_precision=no"
            )


def learning_rate(config: Config, iteration: int) -> float:
    """The rate of an iteration, counted from 0: linear warm-up, then constant or linear to 0."""
    options, left = config.optimizer, config.training.iterations - iteration
    rate = options.learning_rate * min(1.0, (iteration + 1) / (options.warmup_iterations + 1))
    return rate * left / config.training.iterations if options.schedule == "linear" else rate
