"""The embedded model: every part is the diffusers/transformers class that SD3.5 uses, only tiny.

``StableDiffusion3Pipeline`` with an ``SD3Transformer2DModel`` of 3.5 M parameters on 32 x 32
pixels, two CLIP text encoders of 64 channels, no T5, and an ``AutoencoderTiny`` whose hand-set
weights pass pixels through unchanged, so that a latent is a picture in [-1, 1].
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderTiny,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

from flowalign.embedded.grammar import VOCABULARY

SIZE = 32
MAX_TOKENS = 16
_BOS, _EOS = "<|startoftext|>", "<|endoftext|>"


def build_tokenizer(folder: Path) -> Any:
    """A byte-level CLIP tokenizer that knows the grammar's words whole and spells all others.

    The merges build a word from its end, so a sign's text stays one token a letter but for a few
    shared endings (``c at``).
    """
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    vocab = {token: i for i, token in enumerate(alphabet + [c + "</w>" for c in alphabet])}
    merges: dict[tuple[str, str], None] = {}
    for word in sorted(VOCABULARY):
        tail = word[-1] + "</w>"
        for head in reversed(word[:-1]):
            merges[head, tail] = None
            tail = head + tail
            vocab.setdefault(tail, len(vocab))
    for special in (_BOS, _EOS):
        vocab[special] = len(vocab)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    rules = "\n".join(" ".join(pair) for pair in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{rules}\n")
    config = {"model_max_length": MAX_TOKENS, "tokenizer_class": "CLIPTokenizer"}
    config |= {"bos_token": _BOS, "eos_token": _EOS, "unk_token": _EOS, "pad_token": _EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return CLIPTokenizer.from_pretrained(str(folder))


def build_text_encoder(tokenizer: Any, width: int = 64) -> CLIPTextModelWithProjection:
    """A two-layer CLIP text encoder for the embedded vocabulary."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        projection_dim=width,
        bos_token_id=tokenizer.convert_tokens_to_ids(_BOS),
        eos_token_id=tokenizer.convert_tokens_to_ids(_EOS),
        pad_token_id=tokenizer.convert_tokens_to_ids(_EOS),
    )
    return CLIPTextModelWithProjection(config)


def build_transformer(text_width: int = 128, width: int = 128, layers: int = 6) -> Any:
    """The MM-DiT, started as DiT is: every block an identity and the output zero."""
    model: Any = SD3Transformer2DModel(
        sample_size=SIZE,
        patch_size=4,
        in_channels=3,
        out_channels=3,
        num_layers=layers,
        attention_head_dim=32,
        num_attention_heads=width // 32,
        joint_attention_dim=text_width,
        caption_projection_dim=width,
        pooled_projection_dim=text_width,
        pos_embed_max_size=SIZE // 4,
        qk_norm="rms_norm",
    )
    gates = [norm for b in model.transformer_blocks for norm in (b.norm1, b.norm1_context)]
    for layer in [gate.linear for gate in (*gates, model.norm_out)] + [model.proj_out]:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


def pass_through_vae(gain: float = 0.05) -> Any:
    """An ``AutoencoderTiny`` with latents == pixels in [-1, 1].

    Its decoder ends in ``3 tanh(x / 3)``, linear to 2e-4 for the small ``gain`` used inside.
    """
    vae: Any = AutoencoderTiny(
        encoder_block_out_channels=(3,),
        decoder_block_out_channels=(3,),
        latent_channels=3,
        num_encoder_blocks=(0,),
        num_decoder_blocks=(0,),
        scaling_factor=2 / gain,
        shift_factor=gain / 2,
    )
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
        encoder = [m for m in vae.encoder.modules() if isinstance(m, nn.Conv2d)]
        decoder = [m for m in vae.decoder.modules() if isinstance(m, nn.Conv2d)]
        for conv in encoder + decoder:
            conv.weight[:, :, 1, 1] = torch.eye(3)
        encoder[0].weight.mul_(gain)
        decoder[-1].weight.div_(gain)
    return vae


def build_pipeline(seed: int = 0) -> StableDiffusion3Pipeline:
    """The whole pipeline with random weights, the start of ``scripts/pretrain_embedded.py``."""
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        tokenizer = build_tokenizer(Path(folder))
        return StableDiffusion3Pipeline(
            transformer=build_transformer().eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=pass_through_vae().eval(),
            text_encoder=build_text_encoder(tokenizer).eval(),
            tokenizer=tokenizer,
            text_encoder_2=build_text_encoder(tokenizer).eval(),
            tokenizer_2=tokenizer,
            text_encoder_3=None,
            tokenizer_3=None,
        )
