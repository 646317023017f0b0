"""The recipe: a strict, typed description of one run.

Every key has a default, a unit and a range; an unknown key, a wrong type or an impossible geometry
is refused before any weight is loaded. Recipes are YAML; ``section.key=value`` overrides them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import Self

Positive = Field(gt=0)
Dtype = Literal["fp32", "bf16", "fp16"]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are never changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True)


class Plugin(Section):
    """A registry name (or ``module:attr``) with the options of its constructor."""

    name: str
    options: dict[str, Any] = {}


def _default_name(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Options alone belong to the default plug-in."""
    if isinstance(value, dict) and value.keys() == {"options"}:
        return {"name": cls.model_fields[str(info.field_name)].default.name, **value}
    return value


class RewardConfig(Plugin):
    """A reward and its weight on the normalised advantages."""

    weight: float = 1.0


class LoraConfig(Section):
    """Low-rank adapters on the denoiser."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0, description="scale = alpha / rank")
    targets: list[str] | None = Field(
        None, description="module suffixes; null: the family's default"
    )
    path: str | None = Field(None, description="folder of an existing adapter to go on training")


class ModelConfig(Section):
    """What is trained."""

    name: str = Field("embedded", description="embedded, a diffusers folder or a hub id")
    train: Literal["lora", "full"] = "lora"
    lora: LoraConfig = LoraConfig()
    dtype: Dtype = Field("fp32", description="dtype of the frozen weights")
    gradient_checkpointing: bool = False
    text_encoder_3: bool = Field(True, description="load T5 where the model has one")
    free_text_encoders: bool = Field(
        False, description="encode all prompts first, then drop the text encoders from memory"
    )
    options: dict[str, Any] = Field({}, description="further options of the policy, e.g. shift")


class PromptConfig(Section):
    """Where training prompts come from."""

    source: str = Field(
        "embedded:geneval", description="embedded:geneval, embedded:ocr, or a .txt/.jsonl file"
    )
    tasks: list[str] | None = Field(None, description="embedded worlds only: a subset of the tasks")
    count: int = Field(1024, ge=1, description="embedded worlds only: prompts drawn for the set")
    seed: int = Field(0, ge=0)


class StepsConfig(Section):
    """Which sampling steps are stochastic, and therefore trained."""

    kind: Literal["all", "window"] = "all"
    start: int = Field(0, ge=0, description="window: first stochastic step")
    length: int = Field(4, ge=1, description="window: number of stochastic steps")
    last: bool = Field(False, description="let the last step be stochastic too")

    @model_validator(mode="after")
    def _window_only(self) -> Self:
        for name in ("start", "length") if self.kind == "all" else ():
            if getattr(self, name) != StepsConfig.model_fields[name].default:
                raise ValueError(f"{name} is for kind=window; with kind=all it changes nothing")
        return self


class RolloutConfig(Section):
    """How trajectories are sampled."""

    sampler: Plugin = Plugin(name="flow_sde")
    _named = field_validator("sampler", mode="before")(_default_name)
    steps: StepsConfig = StepsConfig()
    num_inference_steps: int = Field(10, ge=1)
    guidance_scale: float = Field(1.0, ge=0, description="true CFG in rollout and replay; 1 = off")
    prompts_per_iteration: int = Field(8, ge=1, description="over all processes")
    group_size: int = Field(12, ge=2, description="rollouts per prompt")
    same_noise: bool = Field(False, description="start a group from one initial noise")
    batch_size: int = Field(48, ge=1, description="rollouts per forward, per process")
    height: int | None = Field(None, description="pixels; null: the model's own size")
    width: int | None = None
    storage_dtype: Dtype = "fp32"
    log_prob_reduction: Literal["mean", "sum"] = "mean"


class OptimizerConfig(Section):
    """AdamW on the trainable parameters."""

    learning_rate: float = Field(3e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_iterations: int = Field(0, ge=0)
    schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: down to 0 at the last iteration"
    )
    max_grad_norm: float = Field(1.0, gt=0)


class TrainingConfig(Section):
    """The loop."""

    iterations: int = Field(100, ge=1, description="rollout + update rounds")
    updates_per_iteration: int = Field(1, ge=1, description="optimizer steps on each rollout")
    batch_size: int = Field(
        64, ge=1, description="transitions per forward and backward, per process"
    )
    mixed_precision: Literal["no", "bf16"] = "no"
    ema_decay: float | None = Field(0.9, ge=0, lt=1, description="per iteration; null: no EMA")
    preflight_bound: float | None = Field(
        None, gt=0, description="largest |log ratio| before the first update; null: by precision"
    )
    max_skipped_updates: int = Field(
        3, ge=0, description="non-finite updates in a row before a stop"
    )
    max_invalid_fraction: float = Field(0.5, ge=0, le=1, description="failed rewards in one batch")
    threads: int | None = Field(None, ge=1, description="torch threads on a CPU; null: torch's own")

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _no_is_a_word(cls, value: Any) -> Any:
        """YAML 1.1 reads an unquoted ``no`` as false."""
        return "no" if value is False else value


class EvaluationConfig(Section):
    """Measured before, after and optionally during training, on held-out prompts by the ODE."""

    benchmark: Literal["geneval", "ocr"] | None = "geneval"
    detector: Literal["embedded"] | None = Field(
        None, description="the judge's eye; null: the one that fits the model"
    )
    prompts: int = Field(204, ge=1)
    images_per_prompt: int = Field(2, ge=1)
    num_inference_steps: int | None = Field(None, ge=1, description="null: as in the rollout")
    guidance_scale: float | None = Field(None, ge=0, description="null: as in the rollout")
    batch_size: int = Field(64, ge=1)
    seed: int = Field(0, ge=0)
    every: int = Field(0, ge=0, description="iterations between evaluations; 0: before and after")
    ema: bool = Field(True, description="evaluate and export the EMA weights")
    keep_images: int = Field(96, ge=0, description="pictures kept of each evaluation")


class CheckpointConfig(Section):
    """What an interrupted run can lose at most."""

    every: int = Field(10, ge=1, description="iterations between checkpoints")
    keep: int = Field(2, ge=1)


class TrackingConfig(Section):
    """Trackers beside the JSONL that is always written."""

    trackers: list[Literal["tensorboard", "wandb", "trackio", "swanlab"]] = []
    project: str = "flowalign"


class Config(Section):
    """One run."""

    description: str = ""
    seed: int = Field(0, ge=0)
    model: ModelConfig = ModelConfig()
    prompts: PromptConfig = PromptConfig()
    rollout: RolloutConfig = RolloutConfig()
    rewards: list[RewardConfig] = Field(min_length=1)
    objective: Plugin = Plugin(name="flow_grpo")
    credit: Plugin = Plugin(name="group")
    penalties: list[Plugin] = []
    balancer: Plugin = Plugin(name="weighted_sum")
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    _named = field_validator("objective", "credit", "balancer", mode="before")(_default_name)
