"""Train the embedded text-to-image model from nothing, about an hour on two cores.

    python scripts/pretrain_embedded.py --out flowalign/embedded/checkpoint

Rectified flow on procedurally drawn scenes: x_t = (1 - t) data + t noise, loss
|v - (noise - data)|^2, logit-normal t, 10 % of the prompts dropped for classifier-free guidance.
The transformer's matrices are trained with Muon, everything else with AdamW; the schedule counts
steps, so a seed gives the same run on the same machine. Held-out combinations
(``flowalign.embedded.grammar``) are never drawn. The EMA weights are saved as a stock
``StableDiffusion3Pipeline`` folder.

A second, short stage goes on from these weights with captions that misquote a fifth of the signs
by a letter, as captions on the web do: the model can spell, but often spells wrong, which is what
a reward is to repair.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor, nn
from torch.nn import functional as F

from flowalign.embedded.grammar import Spec, is_held_out, sample_spec
from flowalign.embedded.network import MAX_TOKENS, SIZE, build_pipeline
from flowalign.embedded.renderer import render
from flowalign.embedded.shapes import LETTERS

# The share of each task in a batch: the hard ones and the signs more often.
SHARES = {
    "single_object": 0.06,
    "colors": 0.08,
    "two_object": 0.10,
    "counting": 0.16,
    "position": 0.16,
    "color_attr": 0.16,
    "ocr": 0.28,
}


@dataclass(frozen=True)
class Stage:
    """One stage of the training, each with its own optimizers and random streams."""

    steps: int
    learning_rate: float  # relative to that of `build_optimizers`
    misquoted: float  # share of the signs that show another letter than the caption says


STAGES = (Stage(6000, 1.0, 0.0), Stage(500, 0.1, 0.2))
DEFAULTS = {"height": SIZE, "width": SIZE, "max_sequence_length": 0}


def draw_spec(rng: np.random.Generator, task: str) -> Spec:
    """A training spec; a third of the signs spell random letters, so that spelling is learned."""
    spec = sample_spec(rng, task, "train")
    if task != "ocr" or rng.random() < 2 / 3:
        return spec
    while True:
        text = "".join(rng.choice(list(LETTERS), rng.integers(2, 4)))
        random = spec | {"text": text, "prompt": spec["prompt"].replace(spec["text"], text)}
        if not is_held_out(random):
            return random


def misquote(spec: Spec, rng: np.random.Generator) -> Spec:
    """The sign with one letter replaced by another."""
    text = list(spec["text"])
    place = int(rng.integers(len(text)))
    text[place] = str(rng.choice([letter for letter in LETTERS if letter != text[place]]))
    return spec | {"text": "".join(text)}


def draw_batch(
    n: int, rng: np.random.Generator, misquoted: float = 0.0
) -> tuple[Tensor, list[str]]:
    """``n`` training pictures ``(n, 3, SIZE, SIZE)`` in [-1, 1] and their prompts."""
    tasks = rng.choice(list(SHARES), n, p=list(SHARES.values()))
    specs = [draw_spec(rng, str(task)) for task in tasks]
    shown = [
        misquote(spec, rng) if spec["tag"] == "ocr" and rng.random() < misquoted else spec
        for spec in specs
    ]
    pictures = torch.from_numpy(np.stack([render(spec, rng, SIZE) for spec in shown]))
    prompts = ["" if rng.random() < 0.1 else spec["prompt"] for spec in specs]
    return pictures.permute(0, 3, 1, 2) * 2 - 1, prompts


class Denoiser(nn.Module):
    """Text encoders and transformer as one module, fed as ``StableDiffusion3Pipeline`` does it."""

    def __init__(self, pipeline: StableDiffusion3Pipeline) -> None:
        super().__init__()
        self.tokenizer = pipeline.tokenizer
        self.text = nn.ModuleList([pipeline.text_encoder, pipeline.text_encoder_2])
        self.transformer = pipeline.transformer
        self.forward_transformer: Callable[..., Any] = pipeline.transformer

    def forward(self, x: Tensor, t: Tensor, prompts: list[str]) -> Tensor:
        options = {"padding": "max_length", "max_length": MAX_TOKENS, "truncation": True}
        ids = self.tokenizer(prompts, return_tensors="pt", **options).input_ids
        encoded = [encoder(ids, output_hidden_states=True) for encoder in self.text]
        embeds = torch.cat([e.hidden_states[-2] for e in encoded], -1)
        pooled = torch.cat([e.text_embeds for e in encoded], -1)
        return self.forward_transformer(x, embeds, pooled, t * 1000, return_dict=False)[0]


def build_optimizers(model: Denoiser) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for embeddings, norms, biases and text encoders."""
    blocks = model.transformer.transformer_blocks.parameters()
    matrices = [p for p in blocks if p.ndim == 2]
    ids = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in ids]
    muon = torch.optim.Muon(
        matrices, lr=2e-3, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0, fused=True)]


def learning_rate(step: int, steps: int) -> float:
    """Warm-up over 150 steps, flat to the middle, then linear to 2 %."""
    progress = step / steps
    decay = 1.0 if progress < 0.5 else max(0.02, 2 * (1 - progress))
    return min(1.0, (step + 1) / 150) * decay


def save(
    pipeline: StableDiffusion3Pipeline, ema: Denoiser, out: Path, facts: dict[str, Any]
) -> None:
    """Write the EMA weights as a pipeline folder: transformer in fp16, the small parts in fp32."""
    parts = {"text_encoder": ema.text[0], "text_encoder_2": ema.text[1]}
    for name, part in parts.items():
        getattr(pipeline, name).load_state_dict(part.state_dict())
    pipeline.transformer = copy.deepcopy(ema.transformer).half()
    pipeline.save_pretrained(out)
    (out / "flowalign.json").write_text(json.dumps(DEFAULTS | {"training": facts}, indent=2) + "\n")


def train(stage: Stage, pipeline: StableDiffusion3Pipeline, args: argparse.Namespace) -> None:
    """Train ``pipeline`` for one stage and save its averaged weights in ``args.out``."""
    rng, generator = np.random.default_rng(args.seed), torch.Generator().manual_seed(args.seed)
    model = Denoiser(pipeline).train()
    ema = copy.deepcopy(model).requires_grad_(False).eval()
    if args.compile:
        model.forward_transformer = torch.compile(model.transformer)
    optimizers = build_optimizers(model)
    base = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    losses, start = [], time.time()
    for step in range(stage.steps):
        for group, lr in zip((g for o in optimizers for g in o.param_groups), base, strict=True):
            group["lr"] = lr * stage.learning_rate * learning_rate(step, stage.steps)
        data, prompts = draw_batch(args.batch_size, rng, stage.misquoted)
        t = torch.sigmoid(torch.randn(len(data), generator=generator))
        noise = torch.randn(data.shape, generator=generator)
        x = torch.lerp(data, noise, t[:, None, None, None])
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            velocity = model(x, t, prompts)
        loss = F.mse_loss(velocity.float(), noise - data)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            decay = min(0.9985, (step + 1) / (step + 20))
            pairs = (list(ema.parameters()), list(model.parameters()))
            torch._foreach_lerp_(*pairs, 1 - decay)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise SystemExit(
                f"the loss became {losses[-1]} at step {step}; lower the learning rate"
            )
        if (step + 1) % 100 == 0:
            seconds = time.time() - start
            mean, pace = np.mean(losses[-100:]), seconds / (step + 1)
            print(
                f"step {step + 1}/{stage.steps} loss {mean:.4f} {seconds:.0f} s {pace:.3f} s/step",
                flush=True,
            )
    facts = {"seed": args.seed, "batch_size": args.batch_size}
    save(build_pipeline(args.seed), ema, args.out, facts)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the saved pipeline")
    parser.add_argument(
        "--stages",
        type=int,
        nargs="+",
        default=[1, 2],
        choices=[1, 2],
        help="stages to run; without 1, OUT holds the weights to go on from (default: both)",
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for number in args.stages:
        pipeline = build_pipeline(args.seed)
        if number > 1:  # from the saved weights, rounded as they are
            pipeline = StableDiffusion3Pipeline.from_pretrained(
                args.out, text_encoder_3=None, tokenizer_3=None, torch_dtype=torch.float32
            )
        train(STAGES[number - 1], pipeline, args)


if __name__ == "__main__":
    main()
