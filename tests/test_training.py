"""The loop on the embedded model: rewards rise, and no way of computing changes the update."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors.torch import load_file
from torch import Tensor

import flowalign
from flowalign.checkpoint import latest_checkpoint
from flowalign.cli import main
from flowalign.errors import FlowalignError
from flowalign.models.load import embedded_folder, load_policy
from flowalign.models.quiet import quiet
from flowalign.recipe import load_config
from flowalign.rewards import build
from flowalign.samplers import ODE, simulate
from flowalign.trainer import RunResult, Trainer
from flowalign.types import LossOutput

RECIPE = "embedded/flow_grpo_short"
REDDER = [
    "rewards=[{name: color_fraction, options: {color: red}}]",
    "rollout.group_size=8",
    "rollout.batch_size=32",
    "training.batch_size=64",
    "training.iterations=8",
    "optimizer.learning_rate=5e-3",
    "model.lora={rank: 16, alpha: 32}",
    "evaluation.benchmark=null",
    "checkpoint.every=100",
]
SMALL = [
    "rewards=[{name: color_fraction, options: {color: red}}]",
    "rollout.prompts_per_iteration=2",
    "training.iterations=1",
    "evaluation.benchmark=null",
]
PLUGINS = """
import torch

class Bright:
    name = "bright"
    needs = frozenset()
    differentiable = groupwise = False

    def __call__(self, media, prompts, metadata):
        values = media.flatten(1).mean(1)
        return values, torch.ones_like(values).bool()

class Constant(Bright):
    name = "constant"

    def __call__(self, media, prompts, metadata):
        return torch.full((len(media),), 0.25), torch.ones(len(media)).bool()

class Flaky(Bright):
    name = "flaky"

    def __call__(self, media, prompts, metadata):
        values = torch.arange(len(media)).float()
        return torch.where(values % 4 == 0, torch.nan, values), values % 4 != 3
"""

Run = Callable[..., Path]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def series(out: Path, name: str) -> list[float]:
    return [row[name] for row in rows(out)]


def saved(out: Path, name: str = "parameters") -> dict[str, Tensor]:
    checkpoint = latest_checkpoint(out)
    assert checkpoint is not None
    return load_file(checkpoint / f"{name}.safetensors")


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[key]).abs().max()) for key, value in one.items())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train the small recipe with overrides in a folder of its own."""
    (tmp_path / "training_plugins.py").write_text(PLUGINS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "training_plugins", raising=False)
    count = iter(range(100))

    def train(*overrides: str) -> Path:
        out = tmp_path / f"run-{next(count)}"
        flowalign.train(load_config(RECIPE, [*SMALL, *overrides]), out, cpu=True)
        return out

    return train


@pytest.fixture(scope="module")
def redder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that paints the pictures red."""
    out = tmp_path_factory.mktemp("training") / "red"
    result = flowalign.train(load_config(RECIPE, REDDER), out, cpu=True)
    assert isinstance(result, RunResult) and result.iterations == 8
    return out


def test_the_trained_reward_rises_far_beyond_its_spread(redder: Path) -> None:
    means = series(redder, "reward/color_fraction/mean")
    spread = series(redder, "reward/color_fraction/std")[0]
    assert means[0] < 0.01
    assert sum(means[-2:]) / 2 > 0.1 > means[0] + 5 * spread
    assert means[2] < means[4] < means[6]


def test_a_negative_weight_lowers_the_reward(run: Run) -> None:
    reward = "{name: 'training_plugins:Bright', weight: %d}"
    options = [*REDDER[1:], "training.iterations=4"]
    for weight, sign in ((1, 1), (-1, -1)):
        means = series(run(*options, f"rewards=[{reward % weight}]"), "reward/bright/mean")
        assert sign * (means[3] - means[0]) > 0.05


def test_the_exported_lora_paints_red_in_stock_diffusers(redder: Path) -> None:
    absent = {"text_encoder_3": None, "tokenizer_3": None}
    with quiet():
        pipeline = StableDiffusion3Pipeline.from_pretrained(embedded_folder(), **absent)
    pipeline.set_progress_bar_config(disable=True)
    prompts = ["a blue square", "a green circle"]

    def paint() -> Tensor:
        pictures = pipeline(
            prompts,
            num_inference_steps=4,
            guidance_scale=1.0,
            max_sequence_length=0,
            generator=torch.Generator().manual_seed(3),
            output_type="pt",
        ).images
        assert isinstance(pictures, Tensor)
        return pictures

    plain = paint()
    pipeline.load_lora_weights(redder / "lora")
    aligned = paint()
    red = build("color_fraction", color="red")
    before, after = (red(images, prompts, [{}, {}])[0].mean() for images in (plain, aligned))
    assert after > before + 0.02

    policy = load_policy("embedded", device="cpu")
    policy.load_lora(redder / "lora")
    noise = policy.noise(torch.Generator().manual_seed(3), 2)
    grid = policy.times(4, policy.latent_shape())
    with torch.no_grad():
        path = simulate(policy, ODE(), grid, noise, policy.encode(prompts))
        torch.testing.assert_close(policy.decode(path.final), aligned, atol=1e-4, rtol=0)


@pytest.mark.parametrize("ema", [True, False])
def test_export_writes_the_weights_that_were_asked_for(
    ema: bool, redder: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(
            ["export", str(redder), "--out", str(tmp_path / "out"), "--ema" if ema else "--no-ema"]
        )
    assert not leaving.value.code
    file = "pytorch_lora_weights.safetensors"
    written, of_run = load_file(tmp_path / "out" / file), load_file(redder / "lora" / file)
    assert written.keys() == of_run.keys()
    assert all(torch.equal(value, of_run[key]) for key, value in written.items()) == ema
    live = {**saved(redder)}
    name = "transformer_blocks.0.attn.to_q.lora_B"
    weight = next(value for key, value in live.items() if key.startswith(name))
    assert torch.equal(written[f"transformer.{name}.weight"], weight) != ema


@pytest.mark.parametrize("batch_size", [1, 4, 5, 16, 1000])
def test_gradient_accumulation_does_not_change_the_update(batch_size: int, run: Run) -> None:
    options = ["rollout.prompts_per_iteration=4" if batch_size > 16 else "seed=0"]
    whole = run(*options, "training.batch_size=8")
    parts = run(*options, f"training.batch_size={batch_size}")
    start = {k.removeprefix("reference/"): v for k, v in saved(whole, "snapshots").items()}
    moved = largest_difference(saved(whole), {key: start[key] for key in saved(whole)})
    assert moved > 5e-4  # AdamW's first step is the learning rate
    assert largest_difference(saved(whole), saved(parts)) < 1e-5
    for key in ("grad_norm", "loss", "approx_kl"):
        assert rows(parts)[0][key] == pytest.approx(rows(whole)[0][key], rel=1e-4, abs=1e-6)


def test_the_size_of_rollout_batches_does_not_change_the_pictures(run: Run) -> None:
    whole, parts = (rows(run(f"rollout.batch_size={size}"))[0] for size in (8, 3))
    for key in ("reward/color_fraction/mean", "reward/color_fraction/std", "group_std"):
        assert parts[key] == pytest.approx(whole[key], rel=1e-4)


def test_gradient_checkpointing_gives_the_same_run(run: Run) -> None:
    plain = run("training.iterations=2")
    thrifty = run("training.iterations=2", "model.gradient_checkpointing=true")
    for one, other in zip(rows(plain), rows(thrifty), strict=True):
        for key in one:
            if not key.startswith("time/"):
                assert other[key] == pytest.approx(one[key], rel=1e-4, abs=1e-6), key
    assert largest_difference(saved(plain), saved(thrifty)) < 1e-5


def test_freeing_the_text_encoders_gives_the_same_run(run: Run) -> None:
    options = ["evaluation={prompts: 6, images_per_prompt: 1, num_inference_steps: 2}"]
    plain, freed = run(*options), run(*options, "model.free_text_encoders=true")
    assert largest_difference(saved(plain), saved(freed)) < 1e-6
    scores = [json.loads((out / "eval" / "step-000001.json").read_text()) for out in (plain, freed)]
    assert scores[0]["score"] == scores[1]["score"]


def test_mixed_precision_trains_fp32_weights_near_the_exact_run(run: Run) -> None:
    exact, half = run(), run("training.mixed_precision=bf16")
    assert {value.dtype for value in saved(half).values()} == {torch.float32}
    one, other = rows(exact)[0], rows(half)[0]
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=0.3)
    assert other["grad_norm"] != one["grad_norm"]
    mean = "reward/color_fraction/mean"
    assert other[mean] == pytest.approx(one[mean], rel=0.5)
    assert other["ratio/max_abs_log"] <= 2e-3


def test_a_reward_of_weight_zero_is_only_logged(run: Run) -> None:
    red = "{name: color_fraction, options: {color: red}}"
    alone = run()
    watched = run(f"rewards=[{red}, {{name: sharpness, weight: 0}}]")
    assert largest_difference(saved(alone), saved(watched)) < 1e-6
    assert rows(watched)[0]["reward/sharpness/mean"] > 0


def test_a_reward_that_never_differs_moves_nothing(run: Run) -> None:
    out = run("rewards=[{name: 'training_plugins:Constant'}]", "training.iterations=2")
    for row in rows(out):
        assert row["zero_variance_groups"] == 1
        assert row["reward/constant/mean"] == 0.25 and row["reward/constant/std"] == 0
        assert "grad_norm" not in row
    snapshots = saved(out, "snapshots")
    for key, value in saved(out).items():
        assert torch.equal(value, snapshots[f"reference/{key}"])


def test_failed_samples_are_counted_and_left_out(run: Run) -> None:
    row = rows(run("rewards=[{name: 'training_plugins:Flaky'}]"))[0]
    assert row["reward/flaky/invalid"] == 0.5
    assert row["reward/flaky/mean"] == (1 + 2 + 5 + 6) / 4  # never a 0 for those that failed
    assert row["group_std"] == pytest.approx(0.5)
    assert row["trained_transitions"] == 0.5


def test_the_average_follows_its_formula(run: Run) -> None:
    out = run("training.ema_decay=0.75")
    weights, snapshots = saved(out), saved(out, "snapshots")
    for key, value in weights.items():
        expected = 0.75 * snapshots[f"reference/{key}"] + 0.25 * value
        torch.testing.assert_close(snapshots[f"ema/{key}"], expected, atol=1e-7, rtol=1e-6)
    assert not any(
        key.startswith("ema/") for key in saved(run("training.ema_decay=null"), "snapshots")
    )


def test_the_learning_rate_warms_up_linearly(run: Run) -> None:
    out = run(
        "training.iterations=4", "optimizer.warmup_iterations=2", "optimizer.learning_rate=3e-3"
    )
    assert series(out, "lr") == pytest.approx([1e-3, 2e-3, 3e-3, 3e-3])


def test_the_gradient_is_clipped(run: Run) -> None:
    out = run("optimizer.max_grad_norm=1e-6", "optimizer.betas=[0, 0]")
    moments = saved(out, "optimizer")
    squared = sum(float(v.sum()) for key, v in moments.items() if key.endswith("exp_avg_sq"))
    assert math.sqrt(squared) == pytest.approx(1e-6, rel=1e-2)  # betas 0: the gradient itself
    assert rows(out)[0]["grad_norm"] > 1e-4


def test_full_fine_tuning_exports_a_pipeline_that_loads(run: Run) -> None:
    out = run("model.train=full", "optimizer.learning_rate=1e-4")
    tuned, base = load_policy(out / "model", device="cpu"), load_policy("embedded", device="cpu")
    ema = saved(out, "snapshots")
    name = "transformer_blocks.0.attn.to_q.weight"
    assert torch.equal(tuned.module.get_parameter(name), ema[f"ema/{name}"])
    moved = tuned.module.get_parameter(name) - base.module.get_parameter(name)
    assert 0 < moved.abs().max() < 1e-4


def test_evaluations_are_written_when_asked_for(run: Run) -> None:
    out = run(
        "training.iterations=3",
        "evaluation={prompts: 6, images_per_prompt: 1, num_inference_steps: 2, every: 1}",
    )
    names = [f"step-{step:06d}.json" for step in range(4)]
    assert sorted(path.name for path in (out / "eval").iterdir()) == names
    results = [json.loads((out / "eval" / name).read_text()) for name in names]
    assert [result["step"] for result in results] == [0, 1, 2, 3]
    assert len({result["protocol"]["prompts_sha256"] for result in results}) == 1


class Broken:
    """An objective whose loss is not a number on some calls."""

    needs = frozenset({"trajectory"})

    def __init__(self, real: Any, bad: set[int]) -> None:
        self.real, self.bad, self.calls = real, bad, 0

    def loss(self, batch: Any) -> LossOutput:
        output: LossOutput = self.real.loss(batch)
        self.calls += 1
        factor = math.nan if self.calls in self.bad else 1.0
        return replace(output, losses=output.losses * factor)


def broken(out: Path, bad: set[int], iterations: int) -> Trainer:
    overrides = [*SMALL, f"training.iterations={iterations}", "training.max_skipped_updates=1"]
    trainer = Trainer(load_config(RECIPE, overrides), out, cpu=True)
    parts = replace(trainer.parts, objective=Broken(trainer.parts.objective, bad))
    trainer.updater.parts = trainer.parts = parts
    return trainer


def test_a_non_finite_gradient_is_skipped_and_counted(tmp_path: Path) -> None:
    broken(tmp_path / "run", bad={2}, iterations=3).train()
    assert series(tmp_path / "run", "skipped_updates") == [0, 1, 0]
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    second, third = (load_file(path / "parameters.safetensors") for path in checkpoints)
    assert all(bool(value.isfinite().all()) for value in (*second.values(), *third.values()))
    assert largest_difference(second, third) > 0


def test_non_finite_gradients_in_a_row_stop_the_run_with_its_checkpoint(tmp_path: Path) -> None:
    trainer = broken(tmp_path / "run", bad={2, 3}, iterations=5)
    with pytest.raises(FlowalignError, match=r"2 updates in a row .* \(iteration 3\)"):
        trainer.train()
    assert len(rows(tmp_path / "run")) == 2
    first = load_file(tmp_path / "run/checkpoints/step-000001/parameters.safetensors")
    assert largest_difference(first, saved(tmp_path / "run")) == 0  # as before the bad updates
    status = json.loads((tmp_path / "run" / "run.json").read_text())
    assert status["status"] == "stopped" and "the last checkpoint is intact" in status["message"]


def test_the_learning_rate_can_fall_to_zero(run: Run) -> None:
    out = run(
        "training.iterations=4",
        "optimizer.warmup_iterations=1",
        "optimizer.learning_rate=4e-3",
        "optimizer.schedule=linear",
    )
    assert series(out, "lr") == pytest.approx([2e-3, 3e-3, 2e-3, 1e-3])


def test_a_plugin_beside_the_recipe_trains_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_reward.py").write_text(PLUGINS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["train", RECIPE, *SMALL, "rewards=[{name: 'my_reward:Bright'}]"]
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--cpu", "--out", "run"])
    assert not leaving.value.code
    assert rows(tmp_path / "run")[0]["reward/bright/mean"] > 0


def test_without_signal_and_a_penalty_at_its_minimum_nothing_has_to_move(run: Run) -> None:
    out = run(
        "rewards=[{name: 'training_plugins:Constant'}]", "penalties=[{name: kl}]"
    )  # the gradient of the KL at the reference is 0
    assert rows(out)[0]["grad_norm"] == 0


def test_an_evaluation_in_a_run_is_the_benchmark_of_its_export(run: Run) -> None:
    out = run(
        "training.mixed_precision=bf16",
        "evaluation={benchmark: geneval, prompts: 6, images_per_prompt: 1}",
        "rollout.num_inference_steps=4",
    )
    (path,) = (out / "eval").glob("step-000001.json")
    inside = json.loads(path.read_text())
    policy = load_policy("embedded", device="cpu")
    policy.load_lora(out / "lora")
    outside = flowalign.evaluate(
        policy, "geneval", prompts=6, images_per_prompt=1, num_inference_steps=4
    )
    assert inside["protocol"] == outside.protocol
    assert inside["metrics"] == pytest.approx(dict(outside.metrics))
