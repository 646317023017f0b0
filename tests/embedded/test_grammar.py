"""Prompts of the embedded world: GenEval's records, honestly split into training and held-out."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from flowalign.embedded.grammar import (
    GENEVAL_TASKS,
    MEDIUMS,
    NUMBERS,
    RELATIONS,
    TASKS,
    VOCABULARY,
    WORDS,
    combination,
    is_held_out,
    plural,
    prompt_set,
    sample_spec,
)
from flowalign.embedded.shapes import COLORS, LETTERS, SHAPES, SIGN_COLORS

DRAWS = 3000
PAIRS = 15  # of six shapes
# How many different things each task can show.
COMBINATIONS = {
    "single_object": len(MEDIUMS) * 6,
    "two_object": PAIRS,
    "counting": 3 * 6 * (1 + 8),
    "colors": 6 * 8,
    "position": 4 * 30 * (1 + 56),
    "color_attr": 30 * 56 // 2,
    "ocr": len(set(WORDS)),
}


def draw(task: str, split: str, n: int = DRAWS, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [sample_spec(rng, task, split) for _ in range(n)]


def everything(task: str) -> set[str]:
    """Every combination of a task, from the list of what there is and not from the sampler."""
    shapes, colors = list(SHAPES), list(COLORS)
    one = [f"1 {shape}" for shape in shapes]
    painted = [(f"1 {color} {shape}", color, shape) for color in colors for shape in shapes]
    two = [
        (a, b) for (a, k, s), (b, m, z) in itertools.permutations(painted, 2) if k != m and s != z
    ]
    plain = list(itertools.permutations(one, 2))
    return {
        "single_object": {f"{m} {a}" for m in MEDIUMS for a in one},
        "two_object": {" and ".join(sorted(pair)) for pair in plain},
        "counting": {
            f"{n}{k} {s}" for n in NUMBERS for k in ("", *(f" {c}" for c in colors)) for s in shapes
        },
        "colors": {a for a, _, _ in painted},
        "position": {f"{a} {relation} {b}" for a, b in plain + two for relation in RELATIONS},
        "color_attr": {" and ".join(sorted(pair)) for pair in two},
        "ocr": {f"sign {word}" for word in WORDS},
    }[task]


def spec_of(task: str, name: str) -> dict:
    """A record whose combination has this name."""
    if task == "ocr":
        return {"tag": task, "text": name.removeprefix("sign ")}

    def item(text: str) -> dict:
        count, *color, shape = text.split()
        return {"class": shape, "count": int(count)} | ({"color": color[0]} if color else {})

    if task == "position":
        here, relation, there = re.fullmatch(rf"(.+) ({'|'.join(RELATIONS)}) (.+)", name).groups()
        return {"tag": task, "include": [item(there), item(here) | {"position": [relation, 0]}]}
    if task == "single_object":
        medium, thing = name.split(" ", 1)
        return {"tag": task, "include": [item(thing)], "prompt": f"a {medium} of it"}
    return {"tag": task, "include": [item(part) for part in name.split(" and ")]}


@pytest.mark.parametrize("task", TASKS)
def test_training_and_held_out_draws_share_no_combination(task):
    train = {combination(spec) for spec in draw(task, "train")}
    held = {combination(spec) for spec in draw(task, "heldout")}
    assert train and held and not train & held
    assert train | held <= everything(task)
    assert not {s["prompt"] for s in draw(task, "train")} & {
        s["prompt"] for s in draw(task, "heldout")
    }


@pytest.mark.parametrize("task", TASKS)
def test_each_task_holds_out_between_a_sixth_and_a_quarter(task):
    names = everything(task)
    assert len(names) == COMBINATIONS[task]
    held = {name for name in names if is_held_out(spec_of(task, name))}
    assert 1 / 6 <= len(held) / len(names) <= 1 / 4
    if len(names) < 500:  # few enough that the draws meet all of them, on their own side
        assert {combination(spec) for spec in draw(task, "train")} == names - held
        assert {combination(spec) for spec in draw(task, "heldout")} == held


def test_the_wording_does_not_move_a_combination_to_the_other_side():
    for task in set(GENEVAL_TASKS) - {"single_object"}:  # its wording is a part of the combination
        for spec in draw(task, "all", 300):
            other = spec | {"prompt": "another wording"}
            if len(spec["include"]) == 2 and task != "position":
                other["include"] = spec["include"][::-1]
            assert is_held_out(other) == is_held_out(spec)
    for spec in draw("ocr", "all", 300):
        assert is_held_out(spec | {"color": "blue", "prompt": ""}) == is_held_out(spec)


def test_both_directions_of_a_relation_are_different_combinations():
    here, there = {"class": "star", "count": 1}, {"class": "ring", "count": 1}
    specs = [
        {"tag": "position", "include": [a, b | {"position": [relation, 0]}]}
        for a, b in ((here, there), (there, here))
        for relation in RELATIONS
    ]
    assert len({combination(spec) for spec in specs}) == 8
    assert combination(specs[0]) == "1 ring left of 1 star"


@pytest.mark.parametrize("task", GENEVAL_TASKS)
def test_specs_are_records_of_geneval(task):
    for spec in draw(task, "all", 500):
        assert set(spec) == {"tag", "include", "prompt"} | ({"exclude"} & set(spec))
        assert spec["tag"] == task and isinstance(spec["prompt"], str)
        assert ("exclude" in spec) == (task == "counting")
        for item in spec["include"]:
            assert {"class", "count"} <= set(item) <= {"class", "count", "color", "position"}
            assert item["class"] in SHAPES and item.get("color", "red") in COLORS
            assert type(item["class"]) is str and type(item["count"]) is int
        shapes = [item["class"] for item in spec["include"]]
        colors = [item["color"] for item in spec["include"] if "color" in item]
        counts = [item["count"] for item in spec["include"]]
        assert len(set(shapes)) == len(shapes) and len(set(colors)) == len(colors)
        n = 2 if task in ("two_object", "position", "color_attr") else 1
        assert len(shapes) == n
        assert len(colors) in {"single_object": {0}, "two_object": {0}, "counting": {0, 1}}.get(
            task, {0, 2} if task == "position" else {n}
        )
        if task == "counting":
            assert counts[0] in NUMBERS
            excluded = spec["exclude"]
            assert [(c["class"], c["count"]) for c in excluded] == [(shapes[0], counts[0] + 1)]
        else:
            assert counts == [1] * n
        positions = [item.get("position") for item in spec["include"]]
        if task == "position":
            assert positions[0] is None
            assert positions[1][0] in RELATIONS and positions[1][1] == 0
        else:
            assert not any(positions)


def test_signs_carry_their_text_and_perhaps_their_colour():
    specs = draw("ocr", "all", 500)
    for spec in specs:
        assert set(spec) in ({"tag", "text", "prompt"}, {"tag", "text", "color", "prompt"})
        assert spec["text"] in WORDS and set(spec["text"]) <= set(LETTERS)
        assert re.findall('"(.*?)"', spec["prompt"]) == [spec["text"]]
        assert spec.get("color", "red") in SIGN_COLORS
        named = set(spec["prompt"].split()) & set(COLORS)
        assert named == ({spec["color"]} if "color" in spec else set())
    assert 0.15 < np.mean(["color" not in spec for spec in specs]) < 0.35


def test_the_words_of_signs_are_distinct_and_short():
    assert len(set(WORDS)) == len(WORDS)
    assert {len(word) for word in WORDS} == {2, 3}


GRAMMAR = {
    "single_object": r"(an?) {m} of (an?) {s}",
    "two_object": r"(an?) {m} of (an?) {s} and (an?) {s}",
    "counting": r"(an?) {m} of (two|three|four) (?:{c} )?{p}",
    "colors": r"(an?) {m} of (an?) {c} {s}",
    "position": r"(an?) {m} of (an?) (?:{c} )?{s} {r} (an?) (?:{c} )?{s}",
    "color_attr": r"(an?) {m} of (an?) {c} {s} and (an?) {c} {s}",
    "ocr": r'(an?) (?:{c} )?sign that says "([A-Z]+)"',
}


@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_english_in_the_vocabulary_that_the_tokenizer_knows(task):
    options = {"m": MEDIUMS, "s": SHAPES, "p": map(plural, SHAPES), "c": COLORS, "r": RELATIONS}
    pattern = GRAMMAR[task].format(**{k: f"(?:{'|'.join(v)})" for k, v in options.items()})
    for spec in draw(task, "all", 500):
        prompt = spec["prompt"]
        assert re.fullmatch(pattern, prompt), prompt
        assert set(re.sub('"[A-Z]+"', "", prompt).split()) <= set(VOCABULARY)
        for article, vowel in re.findall(r"\b(an?) ([a-z])", prompt):
            assert (article == "an") == (vowel in "aeiou"), prompt


def test_the_prompt_says_what_the_record_says():
    said = {
        "two_object": lambda a, b: f"{a['class']} and",
        "color_attr": lambda a, b: f"{a['color']} {a['class']} and",
        "position": lambda a, b: f"{b['class']} {b['position'][0]} a",
    }
    for task, words in said.items():
        for spec in draw(task, "all", 300):
            a, b = spec["include"]
            assert words(a, b) in spec["prompt"]
            assert spec["prompt"].endswith((b if task != "position" else a)["class"])
            for item in (a, b):
                if "color" in item:
                    assert f"{item['color']} {item['class']}" in spec["prompt"]
    for spec in draw("counting", "all", 300):
        (item,) = spec["include"]
        assert f" of {NUMBERS[item['count']]} " in spec["prompt"]
        color = f"{item['color']} " if "color" in item else ""
        assert spec["prompt"].endswith(f" {color}{plural(item['class'])}")


def test_the_vocabulary_has_no_word_that_no_prompt_uses():
    prompts = [spec["prompt"] for task in TASKS for spec in draw(task, "all", 1000)]
    used = {word for prompt in prompts for word in re.sub('"[A-Z]+"', "", prompt).split()}
    assert used == set(VOCABULARY)


def test_plurals():
    assert [plural(shape) for shape in ("circle", "cross", "star")] == [
        "circles",
        "crosses",
        "stars",
    ]


@pytest.mark.parametrize("split", ["train", "heldout", "all"])
def test_a_prompt_set_depends_on_its_seed_alone(split):
    assert prompt_set(60, TASKS, split, 3) == prompt_set(60, TASKS, split, 3)
    assert prompt_set(60, TASKS, split, 3) != prompt_set(60, TASKS, split, 4)
    assert prompt_set(60, TASKS, split, 3)[:20] == prompt_set(20, TASKS, split, 3)


@pytest.mark.parametrize("tasks", [TASKS, GENEVAL_TASKS, ("ocr",), ("position", "colors")])
def test_the_tasks_of_a_prompt_set_take_turns(tasks):
    specs = prompt_set(5 * len(tasks), tasks, "heldout", 1)
    assert [spec["tag"] for spec in specs] == list(tasks) * 5


def test_a_prompt_set_stays_on_its_side_of_the_split():
    assert all(is_held_out(spec) for spec in prompt_set(300, TASKS, "heldout", 0))
    assert not any(is_held_out(spec) for spec in prompt_set(300, TASKS, "train", 0))


def test_prompts_repeat_only_when_a_task_has_no_new_ones():
    many = prompt_set(400, ("color_attr", "position"), "train", 0)
    assert len({spec["prompt"] for spec in many}) == 400
    few = Counter(spec["prompt"] for spec in prompt_set(60, ("single_object",), "heldout", 0))
    possible = sum(is_held_out(spec_of("single_object", n)) for n in everything("single_object"))
    assert len(few) == possible and sum(few.values()) == 60  # all there are, then again


def test_an_unknown_task_is_named_with_those_that_exist():
    with pytest.raises(
        ValueError, match="unknown task 'colours'; the tasks are single_object, two"
    ):
        sample_spec(np.random.default_rng(0), "colours")
