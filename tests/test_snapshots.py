"""Snapshots: what is swapped in, and that it is always swapped back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowalign.errors import FlowalignError
from flowalign.snapshots import Snapshots


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.fixture
def snapshots(model: nn.Linear) -> Snapshots:
    return Snapshots(dict(model.named_parameters()))


def shift(model: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def test_use_swaps_in_and_back(model: nn.Linear, snapshots: Snapshots) -> None:
    start, x = model.weight.detach().clone(), torch.ones(1, 3)
    at_start = model(x)
    snapshots.take("reference")
    shift(model, 1.0)
    moved = model(x)
    with snapshots.use("reference"):
        assert torch.equal(model.weight, start)
        assert torch.equal(model(x), at_start)
    assert torch.equal(model(x), moved)
    assert not torch.equal(moved, at_start)


def test_use_keeps_parameter_identity_and_gradient(model: nn.Linear, snapshots: Snapshots) -> None:
    snapshots.take("old")
    model(torch.ones(1, 3)).sum().backward()
    grad, pointer, identity = model.weight.grad, model.weight.data_ptr(), id(model.weight)
    with snapshots.use("old"):
        assert model.weight.data_ptr() != pointer
    assert model.weight.data_ptr() == pointer
    assert id(model.weight) == identity
    assert model.weight.grad is grad
    assert model.weight.requires_grad


def test_live_weights_return_after_an_exception(model: nn.Linear, snapshots: Snapshots) -> None:
    snapshots.take("ema")
    shift(model, 1.0)
    live = model.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), snapshots.use("ema"):
        raise ZeroDivisionError
    assert torch.equal(model.weight, live)
    with snapshots.use("ema"):  # and the name is free again
        assert not torch.equal(model.weight, live)


def test_misuse_is_refused_and_leaves_the_weights(model: nn.Linear, snapshots: Snapshots) -> None:
    snapshots.take("reference")
    snapshots.take("ema")
    shift(model, 1.0)
    live, kept = model.weight.detach().clone(), snapshots.state_dict()["ema/weight"].clone()
    for action in (
        lambda: snapshots.use("ema").__enter__(),
        lambda: snapshots.use("reference").__enter__(),
        lambda: snapshots.take("old"),
        lambda: snapshots.take("ema"),
        lambda: snapshots.blend("ema", 0.5),
        lambda: snapshots.load_state_dict(snapshots.state_dict()),
    ):
        with pytest.raises(RuntimeError, match=r"inside use\('ema'\)"), snapshots.use("ema"):
            action()
    assert torch.equal(model.weight, live)
    assert torch.equal(snapshots.state_dict()["ema/weight"], kept)
    assert snapshots.names == ("reference", "ema")


def test_unknown_name_says_what_there_is(snapshots: Snapshots) -> None:
    snapshots.take("reference")
    with pytest.raises(FlowalignError, match="'refrence'; did you mean 'reference'"):
        snapshots.use("refrence").__enter__()
    with pytest.raises(FlowalignError, match="unknown snapshot 'ema'"):
        snapshots.blend("ema", 0.9)
    with pytest.raises(ValueError, match="slash"):
        snapshots.take("a/b")


def test_blend_is_the_moving_average_in_closed_form(model: nn.Linear, snapshots: Snapshots) -> None:
    start, decay, n = model.weight.detach().clone(), 0.8, 5
    snapshots.take("ema")
    for _ in range(n):
        shift(model, 1.0)
        snapshots.blend("ema", decay)
    # sum_k (1 - d) d^(n - k) (start + k) + d^n start for k = 1 .. n
    expected = start + sum((1 - decay) * decay ** (n - k) * k for k in range(1, n + 1))
    torch.testing.assert_close(snapshots.state_dict()["ema/weight"], expected)


def test_blend_limits(model: nn.Linear, snapshots: Snapshots) -> None:
    snapshots.take("ema")
    start = model.weight.detach().clone()
    shift(model, 0.3)
    snapshots.blend("ema", 1.0)
    assert torch.equal(snapshots.state_dict()["ema/weight"], start)
    snapshots.blend("ema", 0.0)
    assert torch.equal(snapshots.state_dict()["ema/weight"], model.weight)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        snapshots.blend("ema", 1.1)


def test_state_dict_round_trip(model: nn.Linear, snapshots: Snapshots) -> None:
    snapshots.take("reference")
    shift(model, 1.0)
    snapshots.take("ema")
    state = {key: value.clone() for key, value in snapshots.state_dict().items()}
    assert set(state) == {"reference/weight", "reference/bias", "ema/weight", "ema/bias"}
    shift(model, 1.0)
    fresh = Snapshots(dict(model.named_parameters()))
    fresh.take("old")
    fresh.load_state_dict(state)
    assert fresh.names == ("reference", "ema")
    state["ema/weight"].zero_()  # the loaded copies are their own
    for key, value in snapshots.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value)


def test_state_dict_of_another_model_is_refused(snapshots: Snapshots) -> None:
    snapshots.take("ema")
    other = Snapshots({"weight": nn.Parameter(torch.zeros(2, 3))})
    with pytest.raises(ValueError, match="ema/bias"):
        other.load_state_dict(snapshots.state_dict())
    wrong = {"ema/weight": torch.zeros(4, 3), "ema/bias": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"ema/weight is \(4, 3\), not \(2, 3\)"):
        snapshots.load_state_dict(wrong)
    assert snapshots.state_dict()["ema/weight"].shape == (2, 3)


def test_swap_is_seen_through_the_autocast_cache(model: nn.Linear, snapshots: Snapshots) -> None:
    snapshots.take("reference")
    shift(model, 1.0)
    x = torch.ones(1, 3)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        with snapshots.use("reference"):
            within = model(x)
        after = model(x)
    assert torch.equal(before, after)
    assert (before - within).abs().min() > 1


def test_copies_on_another_device_move_in_on_use() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    snapshots = Snapshots({"p": parameter})
    snapshots.take("reference", device="meta")  # stands for an accelerator on a machine without one
    assert snapshots.state_dict()["reference/p"].device.type == "meta"
    snapshots.take("reference", device="cpu")
    shift_by_one = parameter.detach() + 1
    parameter.data = shift_by_one
    with snapshots.use("reference"):
        assert parameter.device.type == "cpu"
        assert torch.equal(parameter, torch.zeros(2))
    assert parameter.data_ptr() == shift_by_one.data_ptr()
