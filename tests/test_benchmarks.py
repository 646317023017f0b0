"""Benchmarks are found by name, judged by their own rules, and asked only what was held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowalign.benchmarks import get_benchmark
from flowalign.embedded.grammar import GENEVAL_TASKS, combination, is_held_out, prompt_set
from flowalign.embedded.renderer import render
from flowalign.errors import ConfigError
from flowalign.rewards import Scorer, check_metadata

NAMES = ("geneval", "ocr")


def test_an_unknown_benchmark_names_the_nearest_and_all():
    with pytest.raises(ConfigError) as caught:
        get_benchmark("genevel")
    assert "unknown benchmark 'genevel'; did you mean 'geneval'?" in str(caught.value)
    assert "(available: geneval, ocr)" in str(caught.value)


def test_an_unknown_detector_names_the_nearest():
    for name in NAMES:
        with pytest.raises(ConfigError) as caught:
            get_benchmark(name, "embeded")
        assert f"unknown detector for {name} 'embeded'" in str(caught.value)
        assert "did you mean 'embedded'?" in str(caught.value)


def test_a_name_like_nothing_gets_no_hint():
    with pytest.raises(ConfigError) as caught:
        get_benchmark("zzz")
    assert "did you mean" not in str(caught.value) and "geneval, ocr" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "headline", "rules"),
    [("geneval", "strict", ("strict", "partial")), ("ocr", "exact", ("exact", "edit"))],
)
def test_the_headline_is_the_strictest_rule(name, headline, rules):
    bench = get_benchmark(name)
    assert (bench.name, bench.detector, bench.split) == (name, "embedded", "heldout")
    assert bench.headline == headline and bench.rules == rules
    assert get_benchmark(name, "embedded") == bench


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_held_out_from_training(name):
    bench = get_benchmark(name)
    found = bench.prompts(120, seed=0)
    assert len(found) == 120 and all(is_held_out(m) for m in found.metadata)
    tasks = GENEVAL_TASKS if name == "geneval" else ("ocr",)
    assert [m["tag"] for m in found.metadata] == [tasks[i % len(tasks)] for i in range(120)]
    trained = {combination(spec) for spec in prompt_set(600, tasks, "train", seed=0)}
    assert not trained & {combination(m) for m in found.metadata}


@pytest.mark.parametrize("name", NAMES)
def test_prompts_depend_on_the_seed_alone(name):
    bench = get_benchmark(name)
    assert bench.prompts(24, seed=1) == bench.prompts(24, seed=1)
    assert bench.prompts(24, seed=1).sha256 != bench.prompts(24, seed=2).sha256


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_has_a_judge_that_can_judge_the_prompts(name):
    bench = get_benchmark(name)
    judges = bench.rewards()
    assert tuple(judges) == bench.rules
    asked = bench.prompts(12, seed=0)
    check_metadata(list(judges.values()), asked.prompts, asked.metadata)


def pictures(metadata, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([render(m, rng) for m in metadata])).permute(0, 3, 1, 2)


def test_true_drawings_pass_geneval_and_drawings_of_other_prompts_do_not():
    bench = get_benchmark("geneval")
    asked = bench.prompts(60, seed=0)
    media = pictures(asked.metadata)
    for rule, judge in bench.rewards().items():
        scores = Scorer([judge], 0.0)
        right = scores(media, asked.prompts, asked.metadata).values
        wrong = scores(media.roll(1, 0), asked.prompts, asked.metadata).values  # another task's
        assert right.mean() >= 0.98, rule
        assert wrong.mean() < {"strict": 0.02, "partial": 0.6}[rule]
