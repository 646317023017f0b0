"""Flow-GRPO and KL: gradients against autograd of the written formula, limits, clipping."""

from __future__ import annotations

import math

import pytest
import torch

from flowalign.gaussian import Gaussian
from flowalign.models.toy import GaussianPolicy
from flowalign.objectives.flow_grpo import FlowGRPO, clipped_surrogate
from flowalign.objectives.penalties.kl import KL
from flowalign.replay import Minibatch, Transition
from flowalign.samplers import FlowSDE


class Fake:
    """A minibatch whose transitions are given, in float64."""

    def __init__(self, mean, old_log_prob, advantage, x_next, std, reference=None, t=1.0, s=0.5):
        kernel = Gaussian(mean=mean, std=std)
        log_prob = kernel.log_prob(x_next).flatten(1).mean(1)
        self.transition = Transition(kernel=kernel, log_prob=log_prob)
        self.old_log_prob, self.advantage = old_log_prob, advantage
        self.t, self.s = torch.full((len(mean),), t), torch.full((len(mean),), s)
        if reference is not None:
            self.reference = Transition(kernel=Gaussian(mean=reference, std=std), log_prob=log_prob)


def tensors(n=6, shape=(2, 3)):
    g = torch.Generator().manual_seed(0)
    draw = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731
    mean = draw(n, *shape).requires_grad_(True)
    return mean, draw(n, *shape), draw(n, 1), draw(n) * 0.05


def test_gradient_equals_the_written_formula():
    mean, x_next, advantage, shift = tensors()
    std = torch.tensor(0.3, dtype=torch.float64)
    log_prob = (-((x_next - mean.detach()) ** 2) / (2 * std**2) - std.log()).flatten(1).mean(1)
    old = log_prob - 0.5 * math.log(2 * math.pi) + shift
    batch = Fake(mean, old, advantage, x_next, std)
    output = FlowGRPO(clip_range=0.02).loss(batch)
    (ours,) = torch.autograd.grad(output.losses.sum(), mean)

    lp = (-((x_next - mean) ** 2) / (2 * std**2) - std.log()).flatten(1).mean(1)
    rho = torch.exp(lp - 0.5 * math.log(2 * math.pi) - old)
    a = advantage.clamp(-5, 5)[:, 0]
    written = torch.maximum(-a * rho, -a * rho.clamp(0.98, 1.02)).mean()
    (expected,) = torch.autograd.grad(written, mean)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-14)
    assert 0 < float(output.metrics["clip_fraction"]) < 1


def test_at_ratio_one_it_is_reinforce():
    mean, x_next, advantage, _ = tensors()
    std = torch.tensor(0.3, dtype=torch.float64)
    old = Gaussian(mean=mean.detach(), std=std).log_prob(x_next).flatten(1).mean(1)
    batch = Fake(mean, old, advantage, x_next, std)
    (ours,) = torch.autograd.grad(FlowGRPO().loss(batch).losses.sum(), mean, retain_graph=True)
    reinforce = -(advantage.clamp(-5, 5)[:, 0] * batch.transition.log_prob).mean()
    (expected,) = torch.autograd.grad(reinforce, mean)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-14)


def test_a_clipped_ratio_has_no_gradient_on_the_side_it_left():
    ratio = torch.tensor([0.5, 0.5, 2.0, 2.0], dtype=torch.float64)
    log_ratio = ratio.log().requires_grad_(True)
    advantage = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=torch.float64)
    clipped_surrogate(log_ratio, advantage, 0.1, 0.2).sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([-0.5, 0, 0, 2.0]).double())


def test_the_upper_side_can_differ():
    log_ratio = torch.tensor([1.15]).log()
    loss = clipped_surrogate(log_ratio, torch.tensor([[1.0]]), 0.1, 0.2)
    torch.testing.assert_close(loss, torch.tensor([[-1.15]]))
    loss = clipped_surrogate(log_ratio, torch.tensor([[1.0]]), 0.1, 0.1)
    torch.testing.assert_close(loss, torch.tensor([[-1.1]]))


def test_one_loss_per_reward_and_clipped_advantages():
    mean, x_next, _, _ = tensors(4)
    std = torch.tensor(0.3, dtype=torch.float64)
    old = Gaussian(mean=mean.detach(), std=std).log_prob(x_next).flatten(1).mean(1)
    advantage = torch.tensor([[1.0, 0], [2, 0], [3, 0], [50, 0]], dtype=torch.float64)
    losses = FlowGRPO().loss(Fake(mean, old, advantage, x_next, std)).losses
    torch.testing.assert_close(losses.detach(), torch.tensor([-(1 + 2 + 3 + 5) / 4, 0]).double())


@pytest.mark.parametrize("form,factor", [("exact", 1.0), ("published", 0.5)])
def test_kl_forms(form, factor):
    mean, reference, _, _ = tensors()
    std = torch.tensor(0.3, dtype=torch.float64)
    batch = Fake(mean, mean[:, 0, 0], None, reference, std, reference, t=1.0, s=0.5)
    value, metrics = KL(weight=2.0, form=form)(batch)
    exact = ((mean - reference) ** 2 / (2 * 0.09)).flatten(1).mean(1).mean()
    torch.testing.assert_close(value, 2.0 * factor * exact)
    torch.testing.assert_close(metrics["kl"], exact.detach())


def test_kl_of_flow_sde_is_the_velocity_form(toy_rollout):
    """KL = (h / 2) (1 / sigma + sigma (1 - t) / 2t)^2 mean (v - v_ref)^2, methods C2."""
    rollout = toy_rollout(torch.rand(4), torch.tensor([0, 0, 1, 1]))
    a, t, s = 0.7, 0.75, 0.5
    ours, other = GaussianPolicy(0.7, 0.5), GaussianPolicy(0.9, 0.4)
    x = rollout.trajectory.at(1)
    times = [torch.tensor(t), torch.tensor(s)]
    sampler = FlowSDE(noise=a)
    one = sampler.kernel(ours, x, *times, None)
    two = sampler.kernel(other, x, *times, None)
    gap = ours.velocity(x, times[0], None) - other.velocity(x, times[0], None)
    sigma, h = a * (t / (1 - t)) ** 0.5, t - s
    expected = h / 2 * (1 / sigma + sigma * (1 - t) / (2 * t)) ** 2 * gap**2
    torch.testing.assert_close(one.kl(two), expected, rtol=1e-4, atol=1e-6)


def test_kl_and_ratio_at_the_reference_are_neutral(toy_rollout):
    rollout = toy_rollout(torch.rand(4), torch.tensor([0, 0, 1, 1]))

    class Frozen(GaussianPolicy):
        def reference(self):
            import contextlib

            return contextlib.nullcontext()

    rows, steps = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 0])
    policy = Frozen(0.7, 0.5)
    batch = Minibatch(policy, FlowSDE(), rollout, rows, steps, torch.ones(4, 1))
    value, _ = KL()(batch)
    assert float(value) == 0
    assert float(FlowGRPO().loss(batch).metrics["ratio/max_abs_log"]) < 1e-6


@pytest.mark.parametrize("options", [{"clip_range": 0.0}, {"advantage_clip": 0.0}])
def test_refuses_bad_options(options):
    with pytest.raises(ValueError):
        FlowGRPO(**options)
