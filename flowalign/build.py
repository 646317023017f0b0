"""From a recipe to live parts; what is cheap comes first, so that mistakes cost no weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from flowalign.config import Config, Plugin
from flowalign.errors import ConfigError
from flowalign.models.base import LoraOptions, PipelinePolicy
from flowalign.models.load import load_policy
from flowalign.models.toy import GaussianPolicy
from flowalign.objectives.base import Balancer, Credit, Objective, Penalty
from flowalign.prompts import PromptSet, load_prompts
from flowalign.registry import (
    BALANCERS,
    CREDITS,
    OBJECTIVES,
    PENALTIES,
    REWARDS,
    SAMPLERS,
    Registry,
)
from flowalign.rewards.base import Scorer, check_metadata
from flowalign.types import Reward, Sampler

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PROVIDED = frozenset({"trajectory", "reference"})  # what the loop can give an objective


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All of a run but its weights."""

    prompts: PromptSet
    sampler: Sampler
    scorer: Scorer
    objective: Objective
    credit: Credit
    penalties: Sequence[Penalty]
    balancer: Balancer

    @property
    def needs(self) -> frozenset[str]:
        """What objective and penalties ask of the loop."""
        return self.objective.needs.union(*(penalty.needs for penalty in self.penalties))


def build_parts(config: Config) -> Parts:
    """Build prompts, sampler, rewards and the objective's parts.

    Raises:
        ConfigError: for an unknown name or option, a prompt that a reward cannot judge, or a need
            that
            the loop does not provide.
    """
    prompts = load_prompts(config.prompts)
    rewards = [_reward(reward) for reward in config.rewards]
    names = [reward.name for reward in rewards]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"rewards: {', '.join(names)} would be logged under one name; use each once"
        )
    check_metadata(rewards, prompts.prompts, prompts.metadata)
    parts = Parts(
        prompts=prompts,
        sampler=_plugin(SAMPLERS, config.rollout.sampler),
        scorer=Scorer(rewards, max_invalid_fraction=config.training.max_invalid_fraction),
        objective=_plugin(OBJECTIVES, config.objective),
        credit=_plugin(CREDITS, config.credit),
        penalties=[_plugin(PENALTIES, penalty) for penalty in config.penalties],
        balancer=_plugin(BALANCERS, config.balancer, weights=[r.weight for r in config.rewards]),
    )
    if getattr(parts.sampler, "deterministic", False) and "trajectory" in parts.objective.needs:
        raise ConfigError(
            f"{config.objective.name} trains on stochastic transitions, but the sampler "
            f"{config.rollout.sampler.name} draws no noise: use flow_sde with noise > 0"
        )
    missing = parts.needs - _PROVIDED
    if missing:
        raise ConfigError(
            f"{config.objective.name} needs {', '.join(sorted(missing))}, which this "
            "version of the loop does not provide"
        )
    return parts


def detector_of(config: Config) -> str:
    """The eye that judges the evaluations.

    Raises:
        ConfigError: if none fits the model by itself.
    """
    if config.evaluation.detector is None and config.model.name != "embedded":
        raise ConfigError(
            f"no detector here fits the pictures of {config.model.name}: set "
            "evaluation.benchmark=null, or evaluation.detector=embedded if it draws the embedded "
            "world"
        )
    return config.evaluation.detector or "embedded"


def _reward(plugin: Plugin) -> Reward:
    reward = REWARDS.build(plugin.name, **plugin.options)
    for attribute in ("name", "needs", "differentiable", "groupwise"):
        if not hasattr(reward, attribute):
            raise ConfigError(
                f"the reward {plugin.name} has no `{attribute}`: subclass "
                "flowalign.rewards.RewardBase, which has defaults for all but the name"
            )
    checked: Reward = reward
    return checked


def check_grid(sampler: Sampler, times: Tensor, stochastic: Tensor) -> None:
    """Try the sampler's stochastic steps on one number, before any picture is made.

    Raises:
        ConfigError: if a step is impossible on this grid.
    """
    policy, x = GaussianPolicy(0.0, 1.0), torch.zeros(1, 1)
    for step in stochastic.nonzero().flatten().tolist():
        try:
            sampler.kernel(policy, x, times[step], times[step + 1], None)
        except ValueError as error:
            raise ConfigError(f"rollout.sampler: {error}") from error


def _plugin(registry: Registry, plugin: Plugin, **given: object) -> Any:
    accepted = inspect.signature(registry.get(plugin.name)).parameters
    if taken := sorted(plugin.options.keys() & given.keys()):
        raise ConfigError(
            f"{registry.kind} {plugin.name}: {taken[0]} are rewards.N.weight, not an option"
        )
    return registry.build(
        plugin.name,
        **plugin.options,
        **{name: value for name, value in given.items() if name in accepted},
    )


def build_policy(config: Config, accelerator: Accelerator) -> PipelinePolicy:
    """Load the model on this process' device and make it trainable."""
    model = config.model
    policy = load_policy(
        model.name,
        dtype=model.dtype,
        device=accelerator.device,
        text_encoder_3=model.text_encoder_3,
        **model.options,
    )
    if not isinstance(policy, PipelinePolicy):
        raise ConfigError(f"{model.name} is not a model that can be trained")
    lora = LoraOptions(
        rank=model.lora.rank,
        alpha=model.lora.alpha,
        targets=tuple(model.lora.targets) if model.lora.targets else None,
        path=model.lora.path,
    )
    policy.set_trainable(model.train, lora, seed=config.seed)
    if model.gradient_checkpointing:
        policy.enable_gradient_checkpointing()
    return policy
