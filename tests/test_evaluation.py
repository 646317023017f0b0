"""Scores that can be repeated, with the error that they have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from flowalign.benchmarks import Benchmark, get_benchmark
from flowalign.errors import ConfigError, RewardError
from flowalign.evaluation import EvalResult, evaluate, save_png, standard_error
from flowalign.models.load import load_policy
from flowalign.models.sd3 import SD3Policy
from flowalign.prompts import embedded_prompts
from flowalign.rewards import build
from flowalign.samplers import ODE, simulate
from flowalign.seeding import Purpose, generator

OPTIONS: dict[str, Any] = {"prompts": 8, "images_per_prompt": 2, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def policy() -> SD3Policy:
    loaded = load_policy("embedded", device="cpu")
    assert isinstance(loaded, SD3Policy)
    return loaded


class Judge:
    """Scores that are known beforehand, in the order of the pictures."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = torch.tensor(values)

    def __call__(self, media: Tensor, prompts: Any, metadata: Any) -> tuple[Tensor, Tensor]:
        return self.values, torch.isfinite(self.values)


def judged(monkeypatch: pytest.MonkeyPatch, *columns: Sequence[float]) -> None:
    """Replace the judge's rules, the headline first."""
    rules = {f"rule{i}": Judge(values) for i, values in enumerate(columns)}
    monkeypatch.setattr(Benchmark, "rewards", lambda self: rules)
    monkeypatch.setattr(Benchmark, "headline", "rule0")


def test_score_and_error_are_those_of_the_hand(
    policy: SD3Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = [row["tag"] for row in get_benchmark("geneval").prompts(8, 0).metadata]
    rng = np.random.default_rng(0)
    values, others = rng.random(16).round(3), rng.random(16).round(3)
    judged(monkeypatch, values.tolist(), others.tolist())
    result = evaluate(policy, **OPTIONS)
    means, errors, other_means = [], [], []
    for tag in sorted(set(tags)):
        rows = [i for i, each in enumerate(tags) if each == tag]
        per_prompt = [values[2 * i : 2 * i + 2].mean() for i in rows]
        means.append(np.mean(per_prompt))
        other_means.append(np.mean([others[2 * i : 2 * i + 2].mean() for i in rows]))
        error = np.std(per_prompt, ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else 0.5
        errors.append(error)
        assert result.tasks[tag]["score"] == pytest.approx(means[-1], abs=1e-6)
        assert result.tasks[tag]["stderr"] == pytest.approx(error, abs=1e-6)
        assert result.tasks[tag]["n"] == 2 * len(rows)
    assert result.score == result.metrics["rule0"] == pytest.approx(np.mean(means), abs=1e-6)
    assert result.metrics["rule1"] == pytest.approx(np.mean(other_means), abs=1e-6)
    expected = np.sqrt(np.sum(np.square(errors))) / len(errors)
    assert result.stderr == pytest.approx(expected, abs=1e-6)
    assert [s["score"] for s in result.samples] == pytest.approx(values.tolist())


def test_a_picture_that_cannot_be_judged_ends_the_evaluation(
    policy: SD3Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, [0.5] * 5 + [float("nan")] + [0.5] * 10)
    prompt = get_benchmark("geneval").prompts(8, 0).prompts[2]  # two pictures a prompt
    with pytest.raises(RewardError) as caught:
        evaluate(policy, **OPTIONS)
    assert repr(prompt) in str(caught.value) and "no result is written" in str(caught.value)


def test_the_batch_size_changes_no_picture(policy: SD3Policy, tmp_path: Path) -> None:
    pictures = {}
    for size in (3, 64):
        folder = tmp_path / str(size) / "images"
        evaluate(policy, **OPTIONS, batch_size=size, images=folder)
        files = sorted(folder.iterdir())
        pictures[size] = np.stack([np.asarray(Image.open(file)).astype(int) for file in files])
    assert len(pictures[3]) == 16
    assert np.abs(pictures[3] - pictures[64]).max() <= 1  # of 255


def test_the_same_seed_gives_the_same_result_and_another_does_not(policy: SD3Policy) -> None:
    first, again, other = (evaluate(policy, **OPTIONS, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.protocol["prompts_sha256"] != other.protocol["prompts_sha256"]
    assert [s["prompt"] for s in first.samples] != [s["prompt"] for s in other.samples]


def test_a_result_holds_all_that_is_needed_to_repeat_it(policy: SD3Policy) -> None:
    result = evaluate(policy, **OPTIONS, guidance_scale=2.0, seed=5, step=7)
    read = EvalResult(**json.loads(result.to_json()))
    protocol = read.protocol
    assert (read.step, read.benchmark, read.judge) == (7, "geneval", "embedded/strict")
    prompts = embedded_prompts("embedded:geneval", protocol["prompts"], "heldout", protocol["seed"])
    assert prompts.sha256 == protocol["prompts_sha256"]
    assert protocol["distinct_prompts"] == len(set(prompts.prompts))
    noise = [
        torch.randn(policy.latent_shape(), generator=generator(Purpose.EVALUATION, 5, i, 1))
        for i in range(8)
    ]
    grid = policy.times(protocol["num_inference_steps"], policy.latent_shape())
    with torch.no_grad():
        condition = policy.encode(prompts.prompts)
        guidance = protocol["guidance_scale"]
        path = simulate(policy, ODE(), grid, torch.stack(noise), condition, guidance=guidance)
        media = policy.decode(path.final)
    judge = build("embedded_geneval", rule="strict")
    values, _ = judge(media, prompts.prompts, prompts.metadata)
    second = [sample for sample in read.samples if sample["seed"] == 1]
    assert [sample["prompt"] for sample in second] == prompts.prompts
    assert [sample["score"] for sample in second] == values.tolist()


def test_no_training_prompt_is_held_out() -> None:
    for source in ("embedded:geneval", "embedded:ocr"):
        train = embedded_prompts(source, 2000, "train", 0).prompts
        heldout = embedded_prompts(source, 500, "heldout", 0).prompts
        assert not set(train) & set(heldout)


@pytest.mark.parametrize(("keep", "rows"), [(0, []), (3, [0, 6, 12]), (96, list(range(16)))])
def test_kept_pictures_are_spread_evenly_and_named_in_the_result(
    keep: int, rows: list[int], policy: SD3Policy, tmp_path: Path
) -> None:
    folder = tmp_path / "samples" / "step-000007"
    result = evaluate(policy, **OPTIONS, images=folder, keep_images=keep)
    named = {i: sample["image"] for i, sample in enumerate(result.samples) if sample["image"]}
    assert list(named) == rows
    assert sorted(named.values()) == [f"samples/step-000007/{row:04d}.png" for row in rows]
    assert sorted(path.name for path in folder.iterdir()) == [f"{row:04d}.png" for row in rows]


def test_a_png_is_rounded_to_the_nearest_level(tmp_path: Path) -> None:
    picture = torch.tensor([-0.5, 0.0, 0.499 / 255, 0.501 / 255, 1.0, 1.5]).expand(3, 1, 6)
    save_png(picture, tmp_path / "p.png")
    assert np.asarray(Image.open(tmp_path / "p.png"))[0, :, 0].tolist() == [0, 0, 0, 1, 255, 255]


@pytest.mark.parametrize(
    ("benchmark", "detector", "told"),
    [
        ("genval", "embedded", "did you mean 'geneval'?"),
        ("geneval", "embeded", "unknown detector for geneval 'embeded'; did you mean 'embedded'?"),
    ],
)
def test_an_unknown_judge_is_refused_before_any_picture(
    benchmark: str, detector: str, told: str
) -> None:
    nothing: Any = None
    with pytest.raises(ConfigError) as caught:
        evaluate(nothing, benchmark, detector=detector)
    assert told in str(caught.value)


def test_pictures_of_one_prompt_are_one_observation_however_often_it_was_drawn() -> None:
    scores = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    prompts = ["a", "a", "b", "a", "c", "c"]  # residual sums 0.5, 0.5 and -1
    expected = (3 / 2 * (0.25 + 0.25 + 1)) ** 0.5 / 6
    assert standard_error(scores, prompts) == pytest.approx(expected)
    assert standard_error([1.0, 0.0], ["a", "a"]) == 0.5


def test_no_two_purposes_share_a_stream() -> None:
    keys = [(0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0), (1, 0, 0)]
    drawn = {
        float(torch.rand((), generator=generator(purpose, *key), dtype=torch.float64))
        for purpose in Purpose
        for key in keys
    }
    assert len(drawn) == len(keys) * len(Purpose)
