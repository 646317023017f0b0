"""The script that made the shipped model still makes one, the same from the same seed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import flowalign
from flowalign.embedded.detector import detect
from flowalign.embedded.grammar import MEDIUMS, TASKS, VOCABULARY, is_held_out
from flowalign.embedded.network import build_pipeline
from flowalign.embedded.shapes import LETTERS, SHAPES
from flowalign.models.quiet import quiet
from flowalign.models.sd3 import SD3Policy

SCRIPT = Path(__file__).parents[1] / "scripts" / "pretrain_embedded.py"
# The script with a few steps in place of its thousands; each argument is one command line.
DRIVER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pretrain", {script!r})
pretrain = importlib.util.module_from_spec(spec)
sys.modules["pretrain"] = pretrain
spec.loader.exec_module(pretrain)
pretrain.STAGES = (pretrain.Stage(3, 1.0, 0.0), pretrain.Stage(2, 0.1, 1.0))
for line in sys.argv[1:]:
    sys.argv = ["pretrain_embedded.py", *line.split()]
    pretrain.main()
"""


@pytest.fixture(scope="module")
def pretrain() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pretrain_embedded", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(folder: Path, *lines: str) -> None:
    common = "--batch-size 6 --threads 1 --no-compile"
    code = DRIVER.format(script=str(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-c", code, *(f"{line} {common}" for line in lines)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """``a`` and ``b`` of seed 0 by two processes, the second after ``other`` of seed 1."""
    folder = tmp_path_factory.mktemp("pretrain")
    run(folder, "--out a --seed 0", "--out first --seed 0 --stages 1")
    run(folder, "--out other --seed 1 --stages 1", "--out b --seed 0")
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}.{name}": tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def test_a_seed_gives_the_same_weights_again_and_another_gives_others(trained):
    a, b, other = (weights(trained / name) for name in ("a", "b", "other"))
    assert a.keys() == b.keys() == other.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(
        a["text_encoder.text_projection.weight"], other["text_encoder.text_projection.weight"]
    )


def test_every_part_but_the_autoencoder_is_trained(trained, pretrain):
    """Even the layers that start at zero move, and the second stage goes on from the first."""
    first, second = weights(trained / "first"), weights(trained / "a")
    pipeline = build_pipeline(0)
    for part in ("text_encoder", "text_encoder_2", "transformer", "vae"):
        start = getattr(pipeline, part).state_dict().items()
        pairs = [(v, first[f"{part}.{k}"]) for k, v in start if f"{part}.{k}" in first]
        moved = [not torch.equal(old.to(new.dtype), new) for old, new in pairs]
        assert any(moved) == (part != "vae"), part
        went_on = [not torch.equal(second[k], first[k]) for k in first if k.startswith(f"{part}.")]
        assert any(went_on) == (part != "vae"), part
    near = [(second[k].float() - first[k].float()).abs().max() for k in first]
    assert max(near) < 0.01  # a tenth of the learning rate, two steps of warm-up
    assert first["transformer.proj_out.weight"].abs().max() > 0


def test_the_output_loads_as_the_shipped_model_does(trained):
    with quiet():
        policy = flowalign.load_policy(trained / "a", device="cpu")
    shipped = flowalign.load_policy("embedded", device="cpu")
    assert policy.defaults == shipped.defaults
    assert policy.pipeline.tokenizer.get_vocab() == shipped.pipeline.tokenizer.get_vocab()
    for part in ("transformer", "text_encoder", "text_encoder_2", "vae"):
        ours, theirs = (getattr(p.pipeline, part).state_dict() for p in (policy, shipped))
        assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    stated = json.loads((trained / "a" / "flowalign.json").read_text())
    assert stated["training"] == {"seed": 0, "batch_size": 6}
    kept = load_file(trained / "a" / "transformer" / "diffusion_pytorch_model.safetensors")
    assert {t.dtype for t in kept.values()} == {torch.float16}


def test_batches_show_training_combinations_and_misquote_no_caption(pretrain):
    rng = np.random.default_rng(0)
    tasks = Counter()
    for task in TASKS:
        for _ in range(300):
            spec = pretrain.draw_spec(rng, task)
            assert not is_held_out(spec)
            tasks[spec["tag"]] += 1
            if task == "ocr":
                assert f'"{spec["text"]}"' in spec["prompt"]
    assert set(tasks) == set(TASKS)
    assert set(pretrain.SHARES) == set(TASKS) and sum(pretrain.SHARES.values()) == pytest.approx(1)


def test_a_misquoted_sign_differs_in_one_letter_and_keeps_its_caption(pretrain):
    rng = np.random.default_rng(0)
    for text in ("FOX", "NO"):
        spec = {"tag": "ocr", "text": text, "prompt": f'a sign that says "{text}"'}
        for _ in range(50):
            wrong = pretrain.misquote(spec, rng)
            assert wrong["prompt"] == spec["prompt"] and len(wrong["text"]) == len(text)
            assert sum(a != b for a, b in zip(wrong["text"], text, strict=True)) == 1
            assert set(wrong["text"]) <= set(LETTERS)


def test_a_batch_is_what_its_prompts_say(pretrain):
    pictures, prompts = pretrain.draw_batch(200, np.random.default_rng(0))
    assert pictures.shape == (200, 3, 32, 32)
    assert pictures.min() >= -1 and pictures.max() <= 1 and pictures.min() < -0.8
    assert 0.04 < np.mean([prompt == "" for prompt in prompts]) < 0.17
    alone = re.compile(rf"an? (?:{'|'.join(MEDIUMS)}) of an? (?:\w+ )?({'|'.join(SHAPES)})")
    shown = detect((pictures + 1) / 2)
    pairs = [(alone.fullmatch(p), seen) for p, seen in zip(prompts, shown, strict=True)]
    right = [[d.label for d in seen] == [match[1]] for match, seen in pairs if match]
    assert len(right) > 10 and np.mean(right) > 0.95


def test_the_learning_rate_warms_up_stays_and_falls(pretrain):
    rate = pretrain.learning_rate
    assert rate(0, 6000) == pytest.approx(1 / 150)
    assert rate(74, 6000) == pytest.approx(0.5)
    assert rate(149, 6000) == rate(2999, 6000) == 1
    assert rate(4500, 6000) == pytest.approx(0.5)
    assert rate(5999, 6000) == pytest.approx(0.02)


def test_training_feeds_the_model_what_the_pipeline_feeds_it(pretrain):
    pipeline = build_pipeline(3)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    policy = SD3Policy(pipeline, height=32, width=32, max_sequence_length=0)
    model = pretrain.Denoiser(pipeline).eval()
    x, t = torch.randn(3, 3, 32, 32), torch.tensor([0.9, 0.5, 0.1])
    prompts = ["a photo of a red circle", 'a sign that says "FOX"', ""]
    with torch.no_grad():
        mine, own = model(x, t, prompts), policy.velocity(x, t, policy.encode(prompts))
    assert own.std() > 0.01
    torch.testing.assert_close(mine, own, atol=1e-5, rtol=1e-4)


def test_each_optimizer_has_its_own_parameters_and_none_is_left_out(pretrain):
    model = pretrain.Denoiser(build_pipeline(0))
    muon, adam = pretrain.build_optimizers(model)
    own = [{id(p) for g in o.param_groups for p in g["params"]} for o in (muon, adam)]
    assert not own[0] & own[1]
    assert own[0] | own[1] == {id(p) for p in model.parameters()}
    assert all(p.ndim == 2 for g in muon.param_groups for p in g["params"])
    assert set(VOCABULARY) <= {t.removesuffix("</w>") for t in model.tokenizer.get_vocab()}
