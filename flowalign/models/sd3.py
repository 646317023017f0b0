"""Stable Diffusion 3 and 3.5 (medium with dual attention, large), and the embedded model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

import torch
from diffusers import StableDiffusion3Pipeline
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from flowalign.errors import FlowalignError
from flowalign.models.base import PipelinePolicy
from flowalign.types import Condition

_ENCODE_BATCH = 64


class SD3Policy(PipelinePolicy):
    """An SD3-class pipeline as a policy.

    Args:
        pipeline: the loaded pipeline.
        height: default picture height in pixels; None: the model's own.
        width: default width.
        max_sequence_length: T5 tokens, as in the pipeline; without T5 the pipeline feeds this many
            zero tokens, and 0 feeds none.
        negative_prompt: what true CFG contrasts with.
        shift: time shift in place of the scheduler's own.
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
        self.height, self.width = height, width
        self.max_sequence_length, self.negative_prompt = max_sequence_length, negative_prompt
        self.scheduler = copy.deepcopy(pipeline.scheduler)
        if shift is not None:
            self.scheduler.register_to_config(use_dynamic_shifting=False)
            self.scheduler = type(self.scheduler).from_config(self.scheduler.config, shift=shift)

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> Condition:
        """CLIP x 2 (and T5) embeddings by the pipeline's own ``encode_prompt``.

        Raises:
            FlowalignError: after ``free_text_encoders``.
        """
        if self.pipeline.text_encoder is None and self.pipeline.text_encoder_2 is None:
            raise FlowalignError(
                "the text encoders were freed; encode all prompts before free_text_encoders()"
            )
        parts = [
            self._encode(list(prompts[i : i + _ENCODE_BATCH]))
            for i in range(0, len(prompts), _ENCODE_BATCH)
        ]
        negative = self._encode([self.negative_prompt])
        index = torch.zeros(len(prompts), dtype=torch.long, device=self.device)
        positive = Condition.cat(parts)
        return Condition(
            embeds=positive.embeds, pooled=positive.pooled, negative=negative.select(index)
        )

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
        """
        assert condition is not None and condition.pooled is not None
        embeds, pooled = condition.embeds, condition.pooled
        timestep = (1000 * torch.as_tensor(t, dtype=torch.float32)).to(x.device).expand(len(x))
        latents = x.to(self.dtype)
        if guidance != 1.0:
            negative = condition.negative
            assert negative is not None and negative.pooled is not None
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
        scaled = latents / vae.config.scaling_factor + vae.config.shift_factor
        decoded: Tensor = vae.decode(scaled.to(vae.dtype), return_dict=False)[0]
        return (decoded.float() / 2 + 0.5).clamp(0, 1)

    def latent_shape(self, height: int | None = None, width: int | None = None) -> tuple[int, ...]:
        """``(C, H, W)`` for a picture size in pixels; the default is the model's own."""
        factor = self.pipeline.vae_scale_factor
        own = self.pipeline.default_sample_size * factor
        height, width = height or self.height or own, width or self.width or own
        return (self.module.config.in_channels, height // factor, width // factor)  # type: ignore[union-attr,return-value]

    def times(self, n: int, shape: Sequence[int]) -> Tensor:
        """The scheduler's own sigmas for ``n`` steps, ``(n + 1,)`` from noise to 0, on the CPU."""
        scheduler = copy.deepcopy(self.scheduler)
        options = {}
        config = scheduler.config
        if config.get("use_dynamic_shifting"):
            patch = self.module.config.patch_size  # type: ignore[union-attr]
            options["mu"] = calculate_shift(
                (shape[-2] // patch) * (shape[-1] // patch),  # type: ignore[operator]
                config.get("base_image_seq_len", 256),
                config.get("max_image_seq_len", 4096),
                config.get("base_shift", 0.5),
                config.get("max_shift", 1.16),
            )
        scheduler.set_timesteps(n, device="cpu", **options)
        return torch.as_tensor(scheduler.sigmas, dtype=torch.float32)

    def noise(
        self,
        n: int,
        generator: torch.Generator | list[torch.Generator] | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> Tensor:
        """Initial noise ``(n, C, H, W)`` as the pipeline draws it from the same generator."""
        shape = (n, *self.latent_shape(height, width))
        drawn: Tensor = randn_tensor(
            shape, generator=generator, device=self.device, dtype=self.dtype
        )
        return drawn.float()
