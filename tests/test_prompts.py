"""Prompt files are read to the letter or refused by line, and draws are fair and repeatable."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowalign.config import PromptConfig
from flowalign.embedded.grammar import GENEVAL_TASKS, is_held_out
from flowalign.errors import ConfigError
from flowalign.prompts import PromptSet, embedded_prompts, load_prompts, read_prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Written to anew by each test; hypothesis cannot take the function-scoped ``tmp_path``."""
    return tmp_path_factory.mktemp("prompts")


@pytest.fixture(scope="module")
def write(folder):
    def write(name: str, content: str | bytes):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_a_text_file_has_one_prompt_a_line(write):
    found = read_prompts(write("a.txt", 'a cat\n\n  a dog \r\n   \n\ta "red" fox'))
    assert list(found.prompts) == ["a cat", "a dog", 'a "red" fox']
    assert list(found.metadata) == [{"prompt": prompt} for prompt in found.prompts]
    assert len(found) == 3


def test_a_jsonl_file_carries_its_metadata(write):
    rows = [
        {"prompt": "a cat", "tag": "single_object", "include": [{"class": "cat", "count": 1}]},
        {"prompt": " as it is \n"},
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    found = read_prompts(write("a.jsonl", f"{text}\n\n"))
    assert list(found.metadata) == rows
    assert list(found.prompts) == ["a cat", " as it is \n"]  # JSON says what belongs to a prompt


PLAIN = ["ein grüner Kreis", "一个红色的圆", "🟥 и круг", "cafe\u0301"]
STRANGE = [*PLAIN, "a\u2028b", "x\x0cy", "z\x85"]  # these end a line for str.splitlines


def test_unicode_is_kept(write):
    assert list(read_prompts(write("u.txt", "\n".join(PLAIN))).prompts) == PLAIN
    for ascii_only in (True, False):
        rows = [json.dumps({"prompt": p}, ensure_ascii=ascii_only) for p in STRANGE]
        assert list(read_prompts(write("u.jsonl", "\n".join(rows))).prompts) == STRANGE


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(write):
    assert list(read_prompts(write("b.txt", b"\xef\xbb\xbfa cat\na dog")).prompts) == [
        "a cat",
        "a dog",
    ]
    assert list(read_prompts(write("b.jsonl", b'\xef\xbb\xbf{"prompt": "x"}')).prompts) == ["x"]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(st.tuples(st.dictionaries(TEXT, JSON, max_size=3), TEXT), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_whatever_is_written_as_jsonl_is_read_back(write, rows, ascii_only, end):
    rows = [more | {"prompt": prompt} for more, prompt in rows]
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + end for row in rows)
    found = read_prompts(write("round.jsonl", text))
    assert list(found.metadata) == rows
    assert list(found.prompts) == [row["prompt"] for row in rows]


LINE = TEXT.map(lambda text: text.replace("\n", " ").replace("\r", " ").strip()).filter(bool)


@given(st.lists(LINE, min_size=1, max_size=5), st.sampled_from(["\n", "\r\n", "\n  \n"]))
def test_whatever_is_written_as_text_is_read_back(write, lines, end):
    lines = [line.removeprefix("\ufeff").strip() or "x" for line in lines]
    assert list(read_prompts(write("round.txt", end.join(lines))).prompts) == lines


@pytest.mark.parametrize("name", ["e.txt", "e.jsonl"])
@pytest.mark.parametrize("content", ["", "\n", "  \n\t\r\n"])
def test_a_file_without_prompts_is_refused(write, name, content):
    path = write(name, content)
    with pytest.raises(ConfigError, match="has no prompts") as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(folder):
    for path in (folder / "missing.txt", folder / "missing.jsonl"):
        with pytest.raises(ConfigError, match="does not exist") as caught:
            read_prompts(path)
        assert str(path) in str(caught.value)


GOOD = '{"prompt": "a cat"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a cat", "is not valid JSON"),
        ('{"prompt": "a cat"', "is not valid JSON"),
        (f"{GOOD} {GOOD}", "is not valid JSON"),
        ('"a cat"', 'must be an object with a "prompt" string'),
        ('["a cat"]', 'must be an object with a "prompt" string'),
        ("3", 'must be an object with a "prompt" string'),
        ("{}", 'must be an object with a "prompt" string'),
        ('{"prompt": 3}', 'must be an object with a "prompt" string'),
        ('{"prompt": null}', 'must be an object with a "prompt" string'),
        ('{"Prompt": "a cat"}', 'must be an object with a "prompt" string'),
    ],
)
def test_a_malformed_line_is_named_by_its_number(write, line, message):
    path = write("bad.jsonl", f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    assert f"{path}, line 3 {message}" in str(caught.value)


@pytest.mark.parametrize("name", ["latin.txt", "latin.jsonl"])
def test_a_file_that_is_not_utf8_is_refused(write, name):
    row = {"latin.txt": "gr\u00fcn", "latin.jsonl": '{"prompt": "gr\u00fcn"}'}[name]
    path = write(name, f"{GOOD}\n{row}\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    assert f"{path} is not UTF-8 text" in str(caught.value)


def named(n: int) -> PromptSet:
    return PromptSet(prompts=[f"p{i}" for i in range(n)], metadata=[{} for _ in range(n)])


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 5), st.integers(0, 1000))
def test_draws_form_one_chain_of_shuffled_passes(size, n, iterations, seed):
    prompts = named(size)
    chain = [i for k in range(iterations + 1) for i in prompts.draw(k, n, seed)]
    assert len(chain) == (iterations + 1) * n
    for start in range(0, len(chain) - size + 1, size):
        assert sorted(chain[start : start + size]) == list(range(size))  # each once
    rest = chain[len(chain) // size * size :]
    assert len(set(rest)) == len(rest) and set(rest) <= set(range(size))
    counts = Counter(chain)
    assert max(counts[i] for i in range(size)) - min(counts[i] for i in range(size)) <= 1
    assert prompts.draw(iterations, n, seed) == chain[iterations * n :]  # as a resumed run asks


def test_the_chain_is_the_same_however_it_is_cut():
    prompts = named(7)
    whole = prompts.draw(0, 42, 3)
    for n in (1, 2, 3, 6, 14):
        assert [i for k in range(42 // n) for i in prompts.draw(k, n, 3)] == whole


def test_passes_and_seeds_are_shuffled_differently():
    prompts = named(20)
    passes = [tuple(prompts.draw(k, 20, seed)) for seed in range(3) for k in range(3)]
    assert len(set(passes)) == 9
    assert tuple(range(20)) not in passes


def test_the_checksum_names_prompts_and_metadata():
    one = PromptSet(prompts=["a", "b"], metadata=[{"x": 1, "y": 2}, {}])
    same = PromptSet(prompts=["a", "b"], metadata=[{"y": 2, "x": 1}, {}])
    assert one.sha256 == same.sha256 and len(one.sha256) == 64
    others = [
        PromptSet(prompts=["b", "a"], metadata=one.metadata),
        PromptSet(prompts=["a", "b"], metadata=[{"x": 1, "y": 3}, {}]),
        PromptSet(prompts=["a"], metadata=[{"x": 1, "y": 2}]),
    ]
    assert len({one.sha256, *(other.sha256 for other in others)}) == 4


def test_embedded_prompts_are_records_of_the_asked_tasks_and_split():
    train = embedded_prompts("embedded:geneval", 60, "train", 0)
    assert [m["tag"] for m in train.metadata] == list(GENEVAL_TASKS) * 10
    assert list(train.prompts) == [m["prompt"] for m in train.metadata]
    assert not any(is_held_out(m) for m in train.metadata)
    few = embedded_prompts("embedded:geneval", 10, "heldout", 0, ["counting", "colors"])
    assert [m["tag"] for m in few.metadata] == ["counting", "colors"] * 5
    assert all(is_held_out(m) for m in few.metadata)
    assert {m["tag"] for m in embedded_prompts("embedded:ocr", 5, "train", 0).metadata} == {"ocr"}
    assert len({m["tag"] for m in embedded_prompts("embedded:all", 7, "train", 0).metadata}) == 7


def test_unknown_worlds_and_tasks_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'embedded:geneval'"):
        embedded_prompts("embedded:genevall", 1, "train", 0)
    with pytest.raises(ConfigError, match="unknown task 'count'.*did you mean 'counting'"):
        embedded_prompts("embedded:geneval", 1, "train", 0, ["count"])
    with pytest.raises(ConfigError, match="unknown task 'ocr'"):
        embedded_prompts("embedded:geneval", 1, "train", 0, ["ocr"])


def test_a_recipe_chooses_its_prompts(write):
    config = PromptConfig(source="embedded:geneval", tasks=["colors"], count=9, seed=2)
    found = load_prompts(config)
    assert found == embedded_prompts("embedded:geneval", 9, "train", 2, ["colors"])
    path = write("r.txt", "a cat\n")
    assert list(load_prompts(PromptConfig(source=str(path))).prompts) == ["a cat"]
    with pytest.raises(ConfigError, match="prompts.tasks"):
        load_prompts(PromptConfig(source=str(path), tasks=["colors"]))
