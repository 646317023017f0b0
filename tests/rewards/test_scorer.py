"""A failure of a reward is never a score: what fails is invalid, counted, and told about."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flowalign.errors import ConfigError, RewardError
from flowalign.rewards.base import RewardBase, Scorer, check_metadata

PROMPTS = ["zero", "one", "two", "three"]
KNOWN: list[dict] = [{} for _ in PROMPTS]
MEDIA = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 2, 2) / 4
MEANS = torch.tensor([0.0, 0.25, 0.5, 0.75])


class Brightness(RewardBase):
    """The mean of the picture, and a note of the size of each call."""

    name = "brightness"
    differentiable = True

    def __init__(self):
        self.calls = []

    def score(self, media, prompts, metadata):
        self.calls.append(len(prompts))
        return media.mean((1, 2, 3))


class Scripted(Brightness):
    """Brightness, but ``answer(prompts, values)`` has the last word."""

    name = "scripted"

    def __init__(self, answer, groupwise=False):
        super().__init__()
        self.answer, self.groupwise = answer, groupwise

    def __call__(self, media, prompts, metadata):
        return self.answer(list(prompts), super().score(media, prompts, metadata))


def raise_for(*bad: str, error: type[Exception] = ValueError):
    def answer(prompts, values):
        for prompt in prompts:
            if prompt in bad:
                raise error(f"cannot see {prompt}")
        return values, torch.ones(len(values), dtype=torch.bool)

    return answer


def nan_for(*bad: str):
    def answer(prompts, values):
        worth = [math.nan if p in bad else float(v) for p, v in zip(prompts, values, strict=True)]
        return torch.tensor(worth), torch.ones(len(worth), dtype=torch.bool)

    return answer


def score(*rewards, limit=1.0):
    scorer = Scorer(rewards, limit)
    return scorer, scorer(MEDIA, PROMPTS, KNOWN)


def assert_only(scores, column: int, good: list[bool]) -> None:
    """The good samples have their brightness, all others are NaN and invalid."""
    good = torch.tensor(good)
    assert torch.equal(scores.valid[:, column], good)
    expected = torch.where(good, MEANS, torch.nan)
    assert torch.allclose(scores.values[:, column], expected, equal_nan=True)


def test_scores_of_healthy_rewards_arrive_in_columns_named_like_them():
    class Darkness(Brightness):
        name = "darkness"

        def score(self, media, prompts, metadata):
            return 1 - super().score(media, prompts, metadata)

    scorer, scores = score(Brightness(), Darkness(), limit=0.0)
    assert scores.names == ("brightness", "darkness")
    assert torch.allclose(scores.values, torch.stack([MEANS, 1 - MEANS], 1))
    assert scores.valid.all() and scores.valid.dtype == torch.bool
    assert scorer.causes == {}


def test_a_reward_that_always_raises_is_invalid_and_not_zero():
    scorer, scores = score(Scripted(raise_for(*PROMPTS, error=OSError)))
    assert_only(scores, 0, [False] * 4)
    assert scorer.causes["scripted"].prompt == "zero"
    assert scorer.causes["scripted"].message == "OSError: cannot see zero"


def test_one_sample_that_raises_costs_only_itself():
    reward = Scripted(raise_for("two"))
    scorer, scores = score(reward, limit=0.25)
    assert_only(scores, 0, [True, True, False, True])
    assert scorer.causes["scripted"].prompt == "two"
    assert scorer.causes["scripted"].message == "cannot see two"
    assert reward.calls == [4, 1, 1, 1, 1]


def test_a_failure_that_does_not_recur_alone_leaves_every_score_and_no_cause():
    def answer(prompts, values):
        if len(prompts) > 1:
            raise MemoryError
        return values, torch.ones(len(values), dtype=torch.bool)

    scorer, scores = score(Scripted(answer), limit=0.0)
    assert_only(scores, 0, [True] * 4)
    assert scorer.causes == {}


@pytest.mark.parametrize("worth", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_invalid_even_when_called_valid(worth):
    def answer(prompts, values):
        values = values.clone()
        values[1] = worth
        return values, torch.ones(len(values), dtype=torch.bool)

    reward = Scripted(answer)
    scorer, scores = score(reward)
    assert_only(scores, 0, [True, False, True, True])
    assert scorer.causes["scripted"].prompt == "one"
    assert "no finite value" in scorer.causes["scripted"].message
    assert reward.calls == [4]  # nothing raised, so nothing is tried again


def test_a_sample_that_the_reward_itself_calls_invalid_is_nan_whatever_its_value():
    def answer(prompts, values):
        return values, torch.tensor([p != "three" for p in prompts])

    _, scores = score(Scripted(answer))
    assert_only(scores, 0, [True, True, True, False])


def test_the_base_class_calls_nan_invalid():
    class Blind(RewardBase):
        name = "blind"

        def score(self, media, prompts, metadata):
            return torch.tensor([1, math.nan, math.inf, 0.0], dtype=torch.float64)

    values, valid = Blind()(MEDIA, PROMPTS, KNOWN)
    assert values.dtype == torch.float32
    assert valid.tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda p, v: (v[:-1], torch.ones(len(v) - 1)), "its values have the shape"),
        (lambda p, v: (v, torch.ones(len(v) + 1)), "its valid have the shape"),
        (lambda p, v: (v[:, None], torch.ones(len(v))), "its values have the shape"),
        (lambda p, v: (v.mean(), torch.tensor(True)), "its values have the shape"),
        (lambda p, v: v, "it must return (values, valid)"),
        (lambda p, v: 0.5, "it must return (values, valid)"),
        (lambda p, v: None, "it must return (values, valid)"),
        (lambda p, v: (v, v, v), "it must return (values, valid)"),
        (lambda p, v: (["good"] * len(v), [True] * len(v)), ""),
        (lambda p, v: ({"score": v}, v), ""),
    ],
)
def test_a_reward_that_breaks_its_contract_is_invalid_and_not_zero(answer, message):
    scorer, scores = score(Scripted(answer))
    assert_only(scores, 0, [False] * 4)
    assert message in scorer.causes["scripted"].message


def test_plain_lists_are_as_good_as_tensors():
    _, scores = score(Scripted(lambda p, v: (v.tolist(), [True] * len(v))), limit=0.0)
    assert_only(scores, 0, [True] * 4)


def test_a_groupwise_reward_is_not_tried_one_by_one():
    reward = Scripted(raise_for("two"), groupwise=True)
    scorer, scores = score(reward)
    assert reward.calls == [4]
    assert_only(scores, 0, [False] * 4)
    assert scorer.causes["scripted"].message == "cannot see two"


def test_one_broken_reward_does_not_touch_the_others():
    _, scores = score(Brightness(), Scripted(raise_for(*PROMPTS)))
    assert_only(scores, 0, [True] * 4)
    assert_only(scores, 1, [False] * 4)


@pytest.mark.parametrize("answer", [raise_for("one", "two"), nan_for("one", "two")])
def test_too_many_failures_name_the_reward_the_first_prompt_and_the_cause(answer):
    with pytest.raises(RewardError) as caught:
        score(Scripted(answer), limit=0.25)
    text = str(caught.value)
    assert "the reward scripted" in text and "'one'" in text and "2 or more of 4" in text
    assert ("cannot see one" in text) or ("no finite value" in text)
    assert "max_invalid_fraction (now 0.25)" in text


def test_failures_up_to_the_limit_are_borne():
    _, scores = score(Scripted(nan_for("one", "two")), limit=0.5)
    assert_only(scores, 0, [True, False, False, True])


def test_a_dead_reward_is_given_up_as_soon_as_the_limit_is_passed():
    reward = Scripted(raise_for(*PROMPTS))
    with pytest.raises(RewardError, match="cannot see zero"):
        score(reward, limit=0.25)
    assert reward.calls == [4, 1, 1]  # two of four are more than a quarter


def test_an_interrupt_is_not_taken_for_a_failure():
    with pytest.raises(KeyboardInterrupt):
        score(Scripted(raise_for("one", error=KeyboardInterrupt)))


def test_causes_are_those_of_the_last_call_alone():
    scorer = Scorer([Scripted(nan_for("one"))], 1.0)
    scorer(MEDIA, PROMPTS, KNOWN)
    assert set(scorer.causes) == {"scripted"}
    scorer(MEDIA[2:], PROMPTS[2:], KNOWN[2:])
    assert scorer.causes == {}


def gradient(reward, limit=1.0) -> Tensor:
    media = MEDIA.clone().requires_grad_()
    scores = Scorer([reward], limit)(media, PROMPTS, KNOWN)
    scores.values[scores.valid].sum().backward()
    return media.grad


def test_gradients_of_a_differentiable_reward_reach_the_media():
    assert torch.allclose(gradient(Brightness()), torch.full((4, 3, 2, 2), 1 / 12))


@pytest.mark.parametrize(
    "answer",
    [
        raise_for("two"),
        lambda p, v: (v, torch.tensor([x != "two" for x in p])),
        lambda p, v: (torch.where(torch.tensor([x == "two" for x in p]), torch.nan, v), [True] * 4),
    ],
)
def test_an_invalid_sample_has_gradient_zero_and_the_others_keep_theirs(answer):
    expected = torch.full((4, 3, 2, 2), 1 / 12)
    expected[2] = 0
    assert torch.allclose(gradient(Scripted(answer)), expected)


@pytest.mark.parametrize("rewards", [[], [Brightness(), Brightness()]])
def test_rewards_must_be_given_and_differ_in_name(rewards):
    with pytest.raises(ConfigError, match="different names"):
        Scorer(rewards)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_the_limit_must_be_a_fraction(fraction):
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\]"):
        Scorer([Brightness()], fraction)


def test_metadata_that_a_reward_needs_is_asked_for_before_training():
    class Judge(Brightness):
        name = "judge"
        needs = frozenset({"tag", "include"})

    full = {"tag": "colors", "include": [], "more": 1}
    check_metadata([Brightness(), Judge()], ["a", "b"], [full, full])
    with pytest.raises(ConfigError) as caught:
        check_metadata([Brightness(), Judge()], ["a", "b"], [full, {"more": 1}])
    assert "the reward judge needs include, tag" in str(caught.value)
    assert "'b'" in str(caught.value)
    with pytest.raises(ConfigError, match="needs include for"):
        check_metadata([Judge()], ["b"], [{"tag": "colors"}])
    with pytest.raises(ValueError):
        check_metadata([Judge()], ["a", "b"], [full])
