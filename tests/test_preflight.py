"""Training refuses to start on a wrong gradient, and to go on without one."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flowalign.errors import PreflightError
from flowalign.gaussian import Gaussian
from flowalign.models.toy import GaussianPolicy
from flowalign.preflight import (
    check_in_sync,
    check_moved,
    check_ratio,
    fingerprint,
    preflight_bound,
    replayed_log_ratio,
)
from flowalign.recipe import load_config
from flowalign.samplers import FlowSDE
from flowalign.trainer import Trainer

RECIPE = "embedded/flow_grpo_short"
SMALL = [
    "rollout.prompts_per_iteration=2",
    "training.iterations=1",
    "evaluation.benchmark=null",
]


class Shifted(FlowSDE):
    """A kernel whose mean is off by ``shift`` in the steps that start below ``t = 0.6``."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        object.__setattr__(self, "shift", shift)

    def kernel(self, policy: Any, x: Tensor, t: Tensor, *rest: Any, **options: Any) -> Gaussian:
        kernel = super().kernel(policy, x, t, *rest, **options)
        wrong = (t < 0.6).view(-1, *[1] * (x.dim() - 1))
        return replace(kernel, mean=kernel.mean + self.shift * wrong)


def trainer(out: Path, *overrides: str, said: list[str] | None = None) -> Trainer:
    say = (lambda text: None) if said is None else said.append
    return Trainer(load_config(RECIPE, [*SMALL, *overrides]), out, cpu=True, say=say)


def test_replay_with_the_rollouts_kernel_gives_a_ratio_of_one(toy_rollout: Any) -> None:
    rollout = toy_rollout(torch.zeros(6), torch.arange(6) // 3)
    for batch_size in (1, 4, 6):
        ratio = replayed_log_ratio(GaussianPolicy(0.7, 0.5), FlowSDE(), rollout, batch_size)
        assert ratio.shape == (6, 3)
        assert check_ratio(ratio, rollout.trajectory.replayable, 1e-6) < 1e-6


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_log_ratio_of_a_shifted_kernel_is_the_one_in_closed_form(
    toy_rollout: Any, reduction: str
) -> None:
    rollout = toy_rollout(torch.zeros(6), torch.arange(6) // 3)
    policy, shift, size = GaussianPolicy(0.7, 0.5), 0.01, rollout.trajectory.latents[0, 0].numel()
    if reduction == "sum":
        path = replace(rollout.trajectory, log_prob=rollout.trajectory.log_prob * size)
        rollout = replace(rollout, trajectory=path)
    ratio = replayed_log_ratio(policy, Shifted(shift), rollout, 4, reduction)
    path = rollout.trajectory
    for column, step in enumerate(path.replayable):
        t, s = path.times[step], path.times[step + 1]
        kernel = FlowSDE().kernel(policy, path.latents[:, step], t, s, rollout.condition)
        error = shift if t < 0.6 else 0.0
        distance = (path.latents[:, step + 1] - kernel.mean).double()
        exact = (error * distance - error**2 / 2) / kernel.std.double() ** 2
        exact = exact.flatten(1).mean(1) if reduction == "mean" else exact.flatten(1).sum(1)
        torch.testing.assert_close(ratio[:, column].double(), exact, atol=2e-5, rtol=1e-3)


def test_another_kernel_is_refused_with_the_step_and_the_difference(toy_rollout: Any) -> None:
    rollout = toy_rollout(torch.zeros(6), torch.arange(6) // 3)  # times 1, 0.75, 0.5
    ratio = replayed_log_ratio(GaussianPolicy(0.7, 0.5), Shifted(0.01), rollout, 6)
    assert ratio[:, :2].abs().max() < 1e-6
    with pytest.raises(PreflightError) as caught:
        check_ratio(ratio, rollout.trajectory.replayable, 1e-5)
    message = str(caught.value)
    assert message.startswith("replaying step 2 gives another log-prob")
    told = float(re.search(r"largest difference ([\d.e-]+)", message).group(1))
    assert told == pytest.approx(float(ratio.abs().max()), rel=1e-2)
    assert "allowed 1e-05" in message


def test_other_weights_are_refused(toy_rollout: Any) -> None:
    rollout = toy_rollout(torch.zeros(6), torch.arange(6) // 3)
    ratio = replayed_log_ratio(GaussianPolicy(0.71, 0.5), FlowSDE(), rollout, 6)
    with pytest.raises(PreflightError, match="replaying step"):
        check_ratio(ratio, rollout.trajectory.replayable, 1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_ratio_that_is_no_number_is_refused(bad: float) -> None:
    ratio = torch.zeros(3, 2)
    ratio[1, 1] = bad
    with pytest.raises(PreflightError, match="replaying step 7 "):
        check_ratio(ratio, (4, 7), 1e9)


def test_the_largest_difference_may_equal_the_bound() -> None:
    assert check_ratio(torch.tensor([[0.25, -0.5]]), (0, 1), 0.5) == 0.5
    with pytest.raises(PreflightError, match="step 1"):
        check_ratio(torch.tensor([[0.25, -0.5]]), (0, 1), 0.49)


@pytest.mark.parametrize(
    ("overrides", "bound"),
    [
        ([], 1e-5),
        (["training.mixed_precision=bf16"], 2e-3),
        (["model.dtype=bf16"], 2e-3),
        (["rollout.storage_dtype=bf16"], 2e-3),
        (["rollout.storage_dtype=fp16"], 1e-3),
        (["rollout.storage_dtype=fp16", "model.dtype=bf16"], 2e-3),
        (["training.mixed_precision=bf16", "training.preflight_bound=0.01"], 0.01),
        (["rollout.log_prob_reduction=sum"], 3 * 32 * 32 * 1e-5),
    ],
)
def test_the_bound_is_that_of_the_lowest_precision(overrides: list[str], bound: float) -> None:
    assert preflight_bound(load_config(RECIPE, overrides), (3, 32, 32)) == bound


@pytest.mark.parametrize(
    ("overrides", "bound"),
    [
        ([], 1e-5),
        (["rollout.guidance_scale=3"], 1e-5),
        (["model.train=full"], 1e-5),
        (["rollout.batch_size=3", "training.batch_size=5"], 1e-5),
        (["training.mixed_precision=bf16"], 2e-3),
        (["training.mixed_precision=bf16", "rollout.batch_size=3"], 2e-3),
        (["model.dtype=bf16"], 2e-3),
        (["rollout.storage_dtype=bf16"], 2e-3),
    ],
)
def test_a_real_run_passes_and_says_the_difference(
    overrides: list[str], bound: float, tmp_path: Path
) -> None:
    said: list[str] = []
    trainer(tmp_path / "run", *overrides, said=said).train()
    told = re.fullmatch(r"preflight: replay equals rollout within (\S+) \(allowed (\S+)\)", said[0])
    assert told and float(told[1]) <= float(told[2]) == bound


def test_a_run_whose_replay_differs_stops_before_any_update(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run")
    before = [p.detach().clone() for p in run.policy.named_trainable().values()]
    run.updater.parts = run.parts = replace(run.parts, sampler=Shifted(0.5))  # rollout has its own
    with pytest.raises(PreflightError, match="replaying step 1 .* allowed 1e-05"):
        run.train()
    after = run.policy.named_trainable().values()
    assert all(torch.equal(b, a) for b, a in zip(before, after, strict=True))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_accepted_bound_is_the_users_choice(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "training.preflight_bound=1e9")
    run.updater.parts = run.parts = replace(run.parts, sampler=Shifted(0.5))
    assert run.train().iterations == 1


def test_a_run_that_moves_no_parameter_stops_after_the_first_update(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run")
    stray = torch.nn.Parameter(torch.zeros(2))
    stray.grad = torch.ones(2)
    run.updater.optimizer = torch.optim.AdamW([stray])  # bound to something else
    with pytest.raises(PreflightError, match="the first update moved no trainable parameter"):
        run.train()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_fingerprint_tells_any_change_also_of_order() -> None:
    values = torch.tensor([1.0, 2.0, 3.0])
    plain = fingerprint([torch.nn.Parameter(values)])
    for other in (values.flip(0), values + 1e-6, torch.tensor([2.0, 1.0, 3.0])):
        assert not torch.equal(fingerprint([torch.nn.Parameter(other)]), plain)
    assert torch.equal(fingerprint([torch.nn.Parameter(values.clone())]), plain)
    two = [torch.nn.Parameter(values), torch.nn.Parameter(torch.ones(2, 2))]
    assert fingerprint(two).tolist() == [14.0, 10.0]


def test_one_moved_tensor_is_movement() -> None:
    check_moved(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    with pytest.raises(PreflightError, match="optimizer is not bound"):
        check_moved(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))


class Gathered:
    """An accelerator whose other processes hold ``others``."""

    device = torch.device("cpu")

    def __init__(self, *others: Tensor) -> None:
        self.others = others

    def gather(self, value: Tensor) -> Tensor:
        prints = [fingerprint([torch.nn.Parameter(other)]).unsqueeze(0) for other in self.others]
        return torch.cat([value, *prints])


def test_processes_with_other_weights_are_named() -> None:
    own, other = torch.ones(3), torch.tensor([1.0, 1.0, 1.0 + 1e-7])
    parameters = [torch.nn.Parameter(own)]
    check_in_sync(Gathered(own, own), parameters)
    with pytest.raises(PreflightError, match=r"weights of process\(es\) 2 differ from process 0"):
        check_in_sync(Gathered(own, other), parameters)
