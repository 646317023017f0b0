"""The one training loop: collect, score, credit, update; measure before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from flowalign.benchmarks import get_benchmark
from flowalign.build import DTYPES, build_parts, build_policy, check_grid, detector_of
from flowalign.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    read_state,
    save_checkpoint,
)
from flowalign.config import Config
from flowalign.distributed import (
    gather_rng,
    gather_scores,
    local_rows,
    mean_over_processes,
    restore_rng,
    without_autocast,
)
from flowalign.errors import CheckpointError
from flowalign.evaluation import EvalResult, evaluate
from flowalign.geometry import geometry, step_selection
from flowalign.objectives.credit.group import group_statistics
from flowalign.preflight import (
    check_in_sync,
    check_ratio,
    preflight_bound,
    replayed_log_ratio,
)
from flowalign.rollout import PromptEncoder, RolloutPlan, collect
from flowalign.run import RunFolder, open_run, write_atomic
from flowalign.tracking import Metrics, append_metrics, check_trackers, truncate_metrics
from flowalign.types import Rollout
from flowalign.update import Updater

Log = Callable[[int, int, dict[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run came to."""

    run: Path
    iterations: int
    seconds: float  # of this session
    before: EvalResult | None
    after: EvalResult | None


class Trainer:
    """A run in progress. ``flowalign.train`` is the short way."""

    def __init__(
        self,
        config: Config,
        out: Path,
        *,
        recipe: str = "",
        resume: bool = False,
        overwrite: bool = False,
        cpu: bool = False,
        on_iteration: Log | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Check everything that costs nothing, then load the weights."""
        self.config, self.recipe = config, recipe
        self.on_iteration, self.say = on_iteration, say
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        check_trackers(config.tracking.trackers)
        # accelerate refuses a second run of this process that has another precision
        if (
            AcceleratorState._shared_state.get("_mixed_precision")
            != config.training.mixed_precision
        ):
            AcceleratorState._reset_state()
        self.accelerator = Accelerator(
            mixed_precision=config.training.mixed_precision,
            cpu=cpu or not torch.cuda.is_available(),
            log_with=list(config.tracking.trackers) or None,
            project_dir=str(out),
            # buffers never change; broadcasting them would make every forward a collective, also
            # those that the main process does alone
            kwargs_handlers=[
                DistributedDataParallelKwargs(
                    find_unused_parameters=False, broadcast_buffers=False
                ),
                # the others wait while the main process evaluates
                InitProcessGroupKwargs(timeout=timedelta(hours=6)),
            ],
        )
        self.geometry = geometry(config, self.accelerator.num_processes)
        self.parts = build_parts(config)
        if config.evaluation.benchmark:
            get_benchmark(config.evaluation.benchmark, detector_of(config))
        with self.accelerator.main_process_first():
            if self.accelerator.is_main_process:
                self.run, checkpoint = open_run(out, config, resume, overwrite)
            else:
                self.run = RunFolder(root=out)
                checkpoint = latest_checkpoint(out) if resume else None
        self.policy = build_policy(config, self.accelerator)
        self._prepare()
        self.done, self.images = 0, 0
        if checkpoint:
            self._restore(checkpoint)
        elif resume:
            self.say("no checkpoint to resume from yet: starting at iteration 0")
        if self.accelerator.is_main_process:  # nothing was written before all could be loaded
            self.run.begin(config, overwrite)
            truncate_metrics(self.run.metrics, self.done)

    def _prepare(self) -> None:
        """Optimizer, snapshots, distributed wrapping, and the plan of the rollouts."""
        config, policy = self.config, self.policy
        options = config.optimizer
        optimizer = torch.optim.AdamW(
            policy.named_trainable().values(),
            lr=options.learning_rate,
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
        )
        if config.training.ema_decay is not None:
            policy.snapshots.take("ema")
        policy.denoiser, optimizer = self.accelerator.prepare(policy.denoiser, optimizer)
        self.updater = Updater(
            policy=policy,
            parts=self.parts,
            config=config,
            accelerator=self.accelerator,
            optimizer=optimizer,
        )
        self.encoder = PromptEncoder(policy, self.accelerator.device)
        if config.model.free_text_encoders:
            self._encode_all()
        shape = policy.latent_shape(config.rollout.height, config.rollout.width)
        times = policy.times(config.rollout.num_inference_steps, shape)
        stochastic = step_selection(config).mask(config.rollout.num_inference_steps)
        check_grid(self.parts.sampler, times, stochastic)
        self.plan = RolloutPlan(
            sampler=self.parts.sampler,
            times=times,
            stochastic=stochastic,
            latent_shape=shape,
            group_size=config.rollout.group_size,
            guidance=config.rollout.guidance_scale,
            same_noise=config.rollout.same_noise,
            batch_size=config.rollout.batch_size,
            storage_dtype=DTYPES[config.rollout.storage_dtype],
            seed=config.seed,
            log_prob_reduction=config.rollout.log_prob_reduction,
        )

    def train(self) -> RunResult:
        """Run to the end; Ctrl-C and errors leave the last checkpoint whole."""
        start, status, message = time.time(), "stopped", "interrupted"
        earlier = self.run.seconds()
        try:
            self._write_status(status="running", message="")
            self.accelerator.init_trackers(self.config.tracking.project)
            before, after, preflight = self._evaluate(0), None, True
            if self._evaluation_due():  # a run may have been killed between checkpoint and this
                self._evaluate(self.done)
            while self.done < self.geometry.iterations:
                self._iteration(preflight)
                preflight = False
                if self._evaluation_due():
                    self._evaluate(self.done)
            after = self._evaluate(self.done)
            self._export()
            status, message = "finished", ""
        except Exception as error:
            message = " ".join(str(error).split())
            raise
        finally:
            took = time.time() - start
            self._write_status(status=status, message=message, seconds=earlier + took)
            self.accelerator.end_training()
        return RunResult(
            run=self.run.root, iterations=self.done, seconds=took, before=before, after=after
        )

    def _encode_all(self) -> None:
        """Encode every prompt the run will meet, then let the text encoders leave memory."""
        self.encoder(self.parts.prompts.prompts)
        options = self.config.evaluation
        if options.benchmark:
            bench = get_benchmark(options.benchmark, detector_of(self.config))
            self.encoder(bench.prompts(options.prompts, options.seed).prompts)
        self.policy.free_text_encoders()

    def _iteration(self, preflight: bool) -> None:
        """One round: rollout, rewards, credit, updates, bookkeeping."""
        metrics, config = Metrics(), self.config
        with metrics.timed("total"):
            rollout = self._rollout(metrics)
            if preflight:
                self._preflight(rollout, metrics)
            scores = gather_scores(self.accelerator, rollout)
            advantage = self.parts.balancer.mix(self.parts.credit(scores))
            own = local_rows(self.accelerator, self.geometry.rollouts)
            with metrics.timed("update"):
                self.updater.run(rollout, advantage[own.start : own.stop], self.done, metrics)
            if config.training.ema_decay is not None:
                self.policy.snapshots.blend("ema", config.training.ema_decay)
        self.done += 1
        self.images += self.geometry.rollouts
        values = mean_over_processes(self.accelerator, metrics.result())
        self._log(values | reward_metrics(scores) | {"images": float(self.images)})
        last = self.done == self.geometry.iterations
        if self.done % config.checkpoint.every == 0 or last:
            self._save()

    def _evaluation_due(self) -> bool:
        every = self.config.evaluation.every
        return bool(every) and 0 < self.done < self.geometry.iterations and self.done % every == 0

    def _rollout(self, metrics: Metrics) -> Rollout:
        rows = local_rows(self.accelerator, self.geometry.rollouts)
        chosen = self.parts.prompts.draw(self.done, self.geometry.prompts, self.config.seed)
        with metrics.timed("rollout"):
            rollout = collect(
                self.policy, self.encoder, self.plan, self.parts.prompts, chosen, self.done, rows
            )
        with metrics.timed("reward"):
            rewards = self.parts.scorer(rollout.media, rollout.prompts, rollout.metadata)
        return replace(rollout, rewards=rewards)

    def _preflight(self, rollout: Rollout, metrics: Metrics) -> None:
        """The blocking check: replay must reproduce the rollout's log-probs."""
        if "trajectory" not in self.parts.needs:
            return
        with metrics.timed("preflight"):
            size = self.config.training.batch_size
            reduction = self.config.rollout.log_prob_reduction
            ratio = replayed_log_ratio(self.policy, self.parts.sampler, rollout, size, reduction)
            bound = preflight_bound(self.config, self.plan.latent_shape)
            largest = check_ratio(ratio, rollout.trajectory.replayable, bound)
        self.say(f"preflight: replay equals rollout within {largest:.1e} (allowed {bound:.0e})")

    def _log(self, values: dict[str, float]) -> None:
        self.accelerator.log(values, step=self.done)
        if self.accelerator.is_main_process:
            append_metrics(self.run.metrics, self.done, values)
            if self.on_iteration:
                self.on_iteration(self.done, self.geometry.iterations, values)

    def _evaluate(self, step: int) -> EvalResult | None:
        """Evaluate on the main process (EMA weights if asked); a result that exists is kept."""
        options, result = self.config.evaluation, None
        path = self.run.evaluation(step)
        if options.benchmark is None:
            return None
        if self.accelerator.is_main_process:
            if path.is_file():
                result = EvalResult(**json.loads(path.read_text(encoding="utf-8")))
            elif step == self.done:  # another step's weights are gone
                with self._weights(), without_autocast(self.policy.module):
                    result = self._measure(step)
                write_atomic(path, result.to_json())
            if result:
                self.say(
                    f"{result.benchmark} after {step} iterations: {result.score:.3f} "
                    f"± {result.stderr:.3f} ({options.prompts} held-out prompts)"
                )
        self.accelerator.wait_for_everyone()
        return result

    def _measure(self, step: int) -> EvalResult:
        options, rollout = self.config.evaluation, self.config.rollout
        guidance = options.guidance_scale
        return evaluate(
            self.policy,
            str(options.benchmark),
            detector=detector_of(self.config),
            prompts=options.prompts,
            images_per_prompt=options.images_per_prompt,
            num_inference_steps=options.num_inference_steps or rollout.num_inference_steps,
            guidance_scale=rollout.guidance_scale if guidance is None else guidance,
            seed=options.seed,
            batch_size=options.batch_size,
            height=rollout.height,
            width=rollout.width,
            step=step,
            images=self.run.images(step),
            keep_images=options.keep_images,
            encoder=self.encoder,
        )

    def _weights(self) -> AbstractContextManager[None]:
        """The weights that are measured and exported."""
        use_ema = self.config.evaluation.ema and self.config.training.ema_decay is not None
        return self.policy.ema() if use_ema else nullcontext()

    def _export(self) -> None:
        """Leave a LoRA (or a whole pipeline) that stock diffusers loads."""
        if self.accelerator.is_main_process:
            with self._weights():
                if self.config.model.train == "lora":
                    self.policy.export_lora(self.run.root / "lora")
                else:
                    self.policy.export_full(self.run.root / "model")
        self.accelerator.wait_for_everyone()

    def _save(self) -> None:
        check_in_sync(self.accelerator, self.policy.named_trainable().values())
        rng = gather_rng(self.accelerator)
        if self.accelerator.is_main_process:
            save_checkpoint(
                self.run.root,
                self.done,
                self.policy.named_trainable(),
                self.policy.snapshots,
                self.updater.optimizer,
                rng,
                {
                    "images": self.images,
                    "processes": self.geometry.processes,
                    "skipped": self.updater.skipped,
                },
                self.config.checkpoint.keep,
            )
        self.accelerator.wait_for_everyone()

    def _restore(self, checkpoint: Path) -> None:
        """Go on exactly where the checkpoint was written."""
        state = read_state(checkpoint)
        if state["processes"] != self.geometry.processes:
            raise CheckpointError(
                f"{checkpoint} was written by {state['processes']} process(es), not "
                f"{self.geometry.processes}: resume with as many, or give --out another folder"
            )
        rng = load_checkpoint(
            checkpoint,
            self.policy.named_trainable(),
            self.policy.snapshots,
            self.updater.optimizer,
            self.accelerator.process_index,
        )
        restore_rng(self.accelerator, rng)
        self.done, self.images = state["step"], state["images"]
        self.updater.skipped, self.updater.moved = state["skipped"], True
        self.say(f"resumed from {checkpoint} after {self.done} iterations")

    def _write_status(self, **facts: str | float) -> None:
        if self.accelerator.is_main_process:
            self.run.write_status(
                recipe=self.recipe,
                base_model=self.config.model.name,
                iterations=self.done,
                **facts,
            )


def reward_metrics(rollout: Rollout) -> dict[str, float]:
    """Mean, spread and failures of each reward over the rollouts of all processes."""
    rewards, metrics = rollout.rewards, {}
    _, std, signal = group_statistics(rewards.values, rewards.valid, rollout.group)
    for k, name in enumerate(rewards.names):
        valid = rewards.values[rewards.valid[:, k], k]
        metrics[f"reward/{name}/mean"] = float(valid.mean())
        metrics[f"reward/{name}/std"] = float(valid.std(correction=0))
        metrics[f"reward/{name}/invalid"] = 1 - len(valid) / len(rewards.values)
    metrics["group_std"] = float(std.mean())
    metrics["zero_variance_groups"] = 1 - float(signal.any(1).float().mean())
    return metrics


def train(config: Config, out: str | Path = "runs/run", **options: Any) -> RunResult:
    """Train a recipe and write its run folder; see ``Trainer`` for the options."""
    return Trainer(config, Path(out), **options).train()
