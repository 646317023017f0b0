"""Stable Diffusion 3 and 3.5 (medium with dual attention, large), and the embedded model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from flowalign.errors import ConfigError
from flowalign.models.base import PipelinePolicy
from flowalign.types import Condition

_ENCODE_BATCH = 32  # prompts per forward of the text encoders


class SD3Policy(PipelinePolicy):
    """An SD3-class pipeline as a policy.

    Args:
        pipeline: the loaded pipeline.
        height: default picture height in pixels; None: the model's own.
        width: default width.
        max_sequence_length: T5 tokens, as in the pipeline; without T5 the pipeline feeds this many
            zero tokens, and 0 feeds none.
        negative_prompt: what true CFG contrasts with.
        shift: static time shift > 0 in place of the scheduler's own, dynamic or not.

    Raises:
        ConfigError: for a picture size the model cannot make, or another scheduler than flow-match
            Euler, whose grid would not be the ODE's.
    """

    lora_targets: ClassVar[tuple[str, ...]] = (
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
    )

    def __init__(
        self,
        pipeline: StableDiffusion3Pipeline,
        *,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int = 256,
        negative_prompt: str = "",
        shift: float | None = None,
    ) -> None:
        super().__init__(pipeline)
        self.scheduler: Any = self.pipeline.scheduler
        kind = type(self.scheduler)
        if not issubclass(kind, FlowMatchEulerDiscreteScheduler):
            raise ConfigError(
                f"the scheduler {kind.__name__} is not supported: save the pipeline with a "
                "FlowMatchEulerDiscreteScheduler"
            )
        if shift is not None and shift <= 0:
            raise ConfigError(f"shift is > 0 (1 = none), not {shift}")
        if shift is not None:
            options = {"shift": shift, "use_dynamic_shifting": False}
            self.scheduler = kind.from_config(self.pipeline.scheduler.config, **options)
        self.height, self.width = height, width
        self.max_sequence_length, self.negative_prompt = max_sequence_length, negative_prompt
        own = {"height": height, "width": width, "max_sequence_length": max_sequence_length}
        self.defaults = {name: value for name, value in own.items() if value is not None}
        self.latent_shape()  # refuses an impossible default size at once

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> Condition:
        """CLIP x 2 (and T5) embeddings by the pipeline's own ``encode_prompt``.

        Args:
            prompts: at least one.

        Raises:
            FlowalignError: after ``free_text_encoders``.
            ValueError: without any prompt.
        """
        self._refuse_freed()
        if not prompts:
            raise ValueError("encode needs at least one prompt")
        chunks = [prompts[i : i + _ENCODE_BATCH] for i in range(0, len(prompts), _ENCODE_BATCH)]
        positive = Condition.cat([self._encode(list(chunk)) for chunk in chunks])
        negative = self._negative
        assert negative.pooled is not None
        return Condition(
            embeds=positive.embeds,
            pooled=positive.pooled,
            negative=Condition(  # one row in memory, seen once a prompt
                embeds=negative.embeds.expand(len(prompts), -1, -1),
                pooled=negative.pooled.expand(len(prompts), -1),
            ),
        )

    @cached_property
    def _negative(self) -> Condition:
        return self._encode([self.negative_prompt])

    def _encode(self, prompts: list[str]) -> Condition:
        embeds, _, pooled, _ = self.pipeline.encode_prompt(
            prompt=prompts,
            prompt_2=prompts,
            prompt_3=prompts,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
        )
        return Condition(embeds=embeds, pooled=pooled)

    def velocity(
        self, x: Tensor, t: Tensor, condition: Condition | None, guidance: float = 1.0
    ) -> Tensor:
        """``v(x_t, t)`` in fp32; true CFG ``v_neg + g (v_pos - v_neg)`` is one batched forward.

        Args:
            x: latents ``(B, C, H, W)``.
            t: time in [0, 1], ``()`` or ``(B,)``.
            condition: the encoded prompts of the ``B`` rows, required.
            guidance: the CFG scale ``g``; 1 runs the conditional branch alone.

        Raises:
            ValueError: without a condition, or for CFG without its negative.
        """
        if condition is None or condition.pooled is None:
            raise ValueError("this model needs a condition with pooled embeddings: use encode()")
        embeds, pooled = condition.embeds, condition.pooled
        steps = self.scheduler.config.num_train_timesteps
        timestep = torch.as_tensor(t, dtype=torch.float32).to(x.device).expand(len(x)) * steps
        latents = x.to(self.dtype)
        if guidance != 1.0:
            negative = condition.negative
            if negative is None or negative.pooled is None:
                raise ValueError("guidance needs a condition with a negative: use encode()")
            embeds = torch.cat([negative.embeds, embeds])
            pooled = torch.cat([negative.pooled, pooled])
            latents, timestep = torch.cat([latents, latents]), torch.cat([timestep, timestep])
        v: Tensor = self.denoiser(
            hidden_states=latents,
            timestep=timestep,
            encoder_hidden_states=embeds.to(self.dtype),
            pooled_projections=pooled.to(self.dtype),
            return_dict=False,
        )[0].float()
        if guidance == 1.0:
            return v
        v_neg, v_pos = v.chunk(2)
        return v_neg + guidance * (v_pos - v_neg)

    def decode(self, latents: Tensor) -> Tensor:
        """Latents ``(B, C, H, W)`` to pictures ``(B, 3, H', W')`` in [0, 1]; differentiable."""
        vae = self.pipeline.vae
        scaled = latents / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
        decoded: Tensor = vae.decode(scaled.to(vae.dtype), return_dict=False)[0]
        return (decoded.float() / 2 + 0.5).clamp(0, 1)

    def encode_images(self, media: Tensor) -> Tensor:
        """Pictures ``(B, 3, H, W)`` in [0, 1] to fp32 latents, the mode of the VAE's posterior."""
        vae = self.pipeline.vae
        encoded = vae.encode((2 * media - 1).to(vae.dtype))
        latents: Tensor = (
            encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latents
        )
        scaled: Tensor = (latents.float() - (vae.config.shift_factor or 0.0)) * (
            vae.config.scaling_factor
        )
        return scaled

    def latent_shape(self, height: int | None = None, width: int | None = None) -> tuple[int, ...]:
        """``(C, H, W)`` for a size in pixels; the default is the policy's, then the model's own.

        Raises:
            ConfigError: for a size that is no multiple of a patch or beyond the model's positions.
        """
        config, factor = self.module.config, self.pipeline.vae_scale_factor
        own = config.sample_size * factor
        sides = (height or self.height or own, width or self.width or own)
        unit = config.patch_size * factor
        largest = config.pos_embed_max_size * unit
        for side in sides:
            if side % unit or not 0 < side <= largest:
                near = min(max(round(side / unit), 1) * unit, largest)
                raise ConfigError(
                    f"{sides[0]} x {sides[1]} pixels do not fit this model: height and width are "
                    f"multiples of {unit} up to {largest}; the nearest to {side} is {near}"
                )
        return (config.in_channels, sides[0] // factor, sides[1] // factor)

    def times(self, n: int, shape: Sequence[int]) -> Tensor:
        """The scheduler's own sigmas for ``n`` steps, ``(n + 1,)`` from noise to 0, on the CPU."""
        scheduler = copy.deepcopy(self.scheduler)  # the pipeline's stays as it is
        options = {}
        config = scheduler.config
        if config.get("use_dynamic_shifting"):
            patch = self.module.config.patch_size
            # the fallbacks are those of the pipeline's own call
            options["mu"] = calculate_shift(
                (shape[-2] // patch) * (shape[-1] // patch),
                config.get("base_image_seq_len", 256),
                config.get("max_image_seq_len", 4096),
                config.get("base_shift", 0.5),
                config.get("max_shift", 1.16),
            )
        scheduler.set_timesteps(n, device="cpu", **options)
        return torch.as_tensor(scheduler.sigmas, dtype=torch.float32)

    def noise(
        self,
        generator: torch.Generator | list[torch.Generator] | None,
        n: int,
        height: int | None = None,
        width: int | None = None,
    ) -> Tensor:
        """Initial noise ``(n, C, H, W)``, fp32: what the pipeline draws from the same generator.

        Args:
            generator: one, or one a row; None: the global random state, as the pipeline does.
            n: number of latents.
            height: pixels; default the policy's.
            width: pixels.

        Raises:
            ValueError: if the generators are not as many as the rows.
        """
        shape = (n, *self.latent_shape(height, width))
        drawn: Tensor = randn_tensor(
            shape, generator=generator, device=self.device, dtype=self.dtype
        )
        return drawn.float()
