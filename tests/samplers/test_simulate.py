"""The loop over time: storage, replay, random streams, step selection."""

from __future__ import annotations

import pytest
import torch

from flowalign.models.toy import GaussianPolicy
from flowalign.replay import Minibatch
from flowalign.samplers import ODE, FlowSDE, StepSelection, simulate
from flowalign.samplers.simulate import randn
from tests.conftest import condition

POLICY = GaussianPolicy(0.7, 0.5)
TIMES = torch.linspace(1, 0, 7)


def run(n=4, sampler=None, **options):
    noise = torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(0))
    generator = options.pop("generator", torch.Generator().manual_seed(1))
    return simulate(POLICY, sampler or FlowSDE(), TIMES, noise, condition(n), generator, **options)


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])
def test_replay_from_storage_gives_ratio_one(storage):
    path = run(storage_dtype=storage)
    assert path.latents.dtype == storage
    for step in path.replayable:
        x, x_next = path.at(step).float(), path.at(step + 1).float()
        kernel = FlowSDE().kernel(POLICY, x, path.times[step], path.times[step + 1], None)
        log_prob = kernel.log_prob(x_next).flatten(1).mean(1)
        assert torch.equal(log_prob, path.log_prob[:, step])


def test_the_last_step_is_deterministic_unless_asked():
    assert run().stochastic.tolist() == [True] * 5 + [False]
    assert run().replayable == (0, 1, 2, 3, 4)
    asked = run(stochastic=torch.ones(6).bool())
    assert asked.replayable == (0, 1, 2, 3, 4, 5)
    assert not torch.equal(asked.final, run().final)


def test_ode_draws_nothing():
    path = run(sampler=ODE())
    assert path.replayable == () and not path.stochastic.any() and (path.log_prob == 0).all()
    assert torch.equal(path.final, run(sampler=ODE(), generator=None).final)
    still = run(sampler=FlowSDE(noise=0.0))
    torch.testing.assert_close(still.final, path.final)


def test_only_what_replay_needs_is_stored():
    mask = StepSelection(kind="window", start=2, length=2).mask(6)
    full = run(stochastic=mask)
    some = run(stochastic=mask, keep=[2, 3, 4])
    assert some.points == (2, 3, 4, 6) and some.latents.shape == (4, 4, 2, 3)
    assert some.replayable == full.replayable == (2, 3)
    for point in some.points:
        assert torch.equal(some.at(point), full.at(point))
    with pytest.raises(KeyError, match="not stored"):
        some.at(0)


def test_a_generator_a_row_makes_the_draw_independent_of_the_batch():
    streams = lambda rows: [torch.Generator().manual_seed(100 + r) for r in rows]  # noqa: E731
    whole = run(generator=streams(range(4)))
    noise = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    part = simulate(POLICY, FlowSDE(), TIMES, noise[2:], condition(2), streams([2, 3]))
    assert torch.equal(whole.final[2:], part.final)
    with pytest.raises(ValueError, match="one a row"):
        randn((3, 2), streams([0]), "cpu")


def test_a_stored_minibatch_is_the_transition(toy_rollout):
    rollout = toy_rollout(torch.rand(4), torch.tensor([0, 0, 1, 1]))
    rows, steps = torch.tensor([3, 0]), torch.tensor([2, 0])
    batch = Minibatch(POLICY, FlowSDE(), rollout, rows, steps, torch.ones(2, 1))
    path = rollout.trajectory
    assert torch.equal(batch.x[0], path.at(2)[3]) and torch.equal(batch.x_next[1], path.at(1)[0])
    assert torch.equal(batch.t, path.times[steps]) and torch.equal(batch.s, path.times[steps + 1])
    torch.testing.assert_close(batch.transition.log_prob, batch.old_log_prob, rtol=0, atol=1e-6)


def test_grids_that_do_not_fall_are_refused():
    with pytest.raises(ValueError, match="fall strictly"):
        simulate(POLICY, ODE(), torch.tensor([1.0, 0.5, 0.5]), torch.zeros(1, 1), None)
    with pytest.raises(ValueError, match="entries"):
        run(stochastic=torch.ones(3).bool())


@pytest.mark.parametrize(
    ("selection", "n", "chosen"),
    [
        (StepSelection(), 4, [0, 1, 2]),
        (StepSelection(last=True), 4, [0, 1, 2, 3]),
        (StepSelection(kind="window", start=1, length=2), 6, [1, 2]),
        (StepSelection(kind="window", start=4, length=1), 6, [4]),
    ],
)
def test_step_selection(selection, n, chosen):
    assert selection.mask(n).nonzero().flatten().tolist() == chosen


@pytest.mark.parametrize(
    "selection",
    [StepSelection(kind="window", start=4, length=2), StepSelection(kind="window", start=9)],
)
def test_a_window_off_the_grid_is_refused(selection):
    with pytest.raises(ValueError, match="do not fit"):
        selection.mask(6)
