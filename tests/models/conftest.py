"""Tiny random checkpoints of the real classes, and the two ways of sampling from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import Unigram
from torch import Tensor
from transformers import T5Config, T5EncoderModel, T5TokenizerFast

from flowalign.embedded.network import build_pipeline, build_text_encoder, build_tokenizer
from flowalign.models.load import embedded_folder, load_policy
from flowalign.models.quiet import quiet
from flowalign.models.sd3 import SD3Policy
from flowalign.samplers import ODE, simulate

PROMPTS = ["a red circle", "two blue squares"]
T5_TOKENS = 8
T5_WIDTH = 40  # wider than the two CLIPs together, so that the pipeline's padding is at work
CLIP_WIDTH = 16

Make = Callable[..., SD3Policy]


def _t5_tokenizer() -> T5TokenizerFast:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -5.0)]
    pieces += [(letter, -3.0) for letter in "\u2581abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return T5TokenizerFast(tokenizer_object=tokenizer, extra_ids=0)


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _sd3(folder: Path, **transformer: Any) -> StableDiffusion3Pipeline:
    """An SD3-like pipeline with T5, 16 latent channels and pictures of 32 x 32."""
    torch.manual_seed(1)
    tokenizer = build_tokenizer(folder)
    t5 = T5Config(
        vocab_size=32,
        d_model=T5_WIDTH,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.1,
    )
    return StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=16,
            out_channels=16,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=T5_WIDTH,
            caption_projection_dim=32,
            pooled_projection_dim=2 * CLIP_WIDTH,
            pos_embed_max_size=12,
            **transformer,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(),
        text_encoder=build_text_encoder(tokenizer, CLIP_WIDTH),
        tokenizer=tokenizer,
        text_encoder_2=build_text_encoder(tokenizer, CLIP_WIDTH),
        tokenizer_2=tokenizer,
        text_encoder_3=T5EncoderModel(t5),
        tokenizer_3=_t5_tokenizer(),
    )


def _randomise(pipeline: StableDiffusion3Pipeline) -> StableDiffusion3Pipeline:
    """No weight is zero: a block that starts as the identity would hide a wrong input."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return pipeline


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: ``tiny`` (no T5), ``sd3``, ``sd35`` (dual attention, q/k norm), ``embedded``."""
    root = tmp_path_factory.mktemp("checkpoints")
    dual = {"dual_attention_layers": (0,), "qk_norm": "rms_norm"}
    with quiet(), torch.random.fork_rng():
        built = {
            "tiny": (build_pipeline(seed=0), 0),
            "sd3": (_sd3(root / "words"), T5_TOKENS),
            "sd35": (_sd3(root / "words", **dual), T5_TOKENS),
        }
        for name, (pipeline, tokens) in built.items():
            _randomise(pipeline).save_pretrained(root / name)
            own = json.dumps({"max_sequence_length": tokens})
            (root / name / "flowalign.json").write_text(own)
    return {name: root / name for name in built} | {"embedded": embedded_folder()}


@pytest.fixture
def make(checkpoints: dict[str, Path]) -> Make:
    """``make(name, scheduler={...}, **options)``: a freshly loaded policy on the CPU."""

    def load(name: str, scheduler: dict[str, Any] | None = None, **options: Any) -> SD3Policy:
        policy = load_policy(checkpoints[name], device="cpu", **options)
        assert isinstance(policy, SD3Policy)
        if scheduler is None:
            return policy
        pipeline = policy.pipeline
        pipeline.scheduler = FlowMatchEulerDiscreteScheduler(**scheduler)
        return SD3Policy(pipeline, **policy.defaults)

    return load


@pytest.fixture
def copy_of(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint that a test may damage."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(checkpoints[name], tmp_path / "model"))

    return copy


@pytest.fixture
def stock() -> Callable[[Path], DiffusionPipeline]:
    """What a user without flowalign loads."""

    def load(folder: Path) -> DiffusionPipeline:
        index = json.loads((folder / "model_index.json").read_text())
        absent = {name: None for name, spec in index.items() if spec == [None, None]}
        with quiet():
            return DiffusionPipeline.from_pretrained(folder, **absent)

    return load


@pytest.fixture
def sample() -> Callable[..., tuple[Tensor, Tensor]]:
    """Our loop over time: ``(latents, pictures)``."""

    @torch.no_grad()
    def run(
        policy: SD3Policy, guidance: float = 1.0, size: tuple[int, int] | None = None, **noise: Any
    ) -> tuple[Tensor, Tensor]:
        height, width = size or (None, None)
        generator = noise.get("generator") or torch.Generator().manual_seed(3)
        x = policy.noise(generator, len(PROMPTS), height, width)
        grid = policy.times(5, policy.latent_shape(height, width))
        condition = policy.encode(PROMPTS)
        path = simulate(policy, ODE(), grid, x, condition, guidance=guidance)
        return path.final, policy.decode(path.final)

    return run


@pytest.fixture
def reference_sample() -> Callable[..., tuple[Tensor, Tensor]]:
    """The pipeline's own call: ``(latents, pictures)``."""

    def run(
        pipeline: Any,
        tokens: int,
        guidance: float = 1.0,
        size: tuple[int, int] | None = None,
        **o: Any,
    ) -> tuple[Tensor, Tensor]:
        pipeline.set_progress_bar_config(disable=True)
        height, width = size or (None, None)
        results = []
        for output in ("latent", "pt"):
            options = {"generator": torch.Generator().manual_seed(3)} | {
                key: value() if callable(value) else value for key, value in o.items()
            }
            result = pipeline(
                PROMPTS,
                num_inference_steps=5,
                guidance_scale=guidance,
                max_sequence_length=tokens,
                height=height,
                width=width,
                output_type=output,
                **options,
            )
            results.append(result.images)
        return results[0], results[1]

    return run
