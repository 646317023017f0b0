"""GenEval's rules on hand-made detections: every verdict and fraction was worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowalign.rewards.geneval_rules import closeness, keep, official, partial, relations, strict


@dataclass(frozen=True)
class Seen:
    label: str
    color: str = "red"
    score: float = 0.9
    box: tuple[float, float, float, float] = (0, 0, 4, 4)


def at(x: float, y: float, width: float = 4, height: float = 4):
    """The box of that size around a centre."""
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def clause(label: str, count: int = 1, **more) -> dict:
    return {"class": label, "count": count, **more}


def see(*words: str, **more) -> list[Seen]:
    """``see("red circle", "star")``: these, all with the same box and score."""
    return [Seen(w.split()[-1], w.split()[0] if " " in w else "red", **more) for w in words]


SINGLE = {"tag": "single_object", "include": [clause("circle")]}
TWO = {"tag": "two_object", "include": [clause("circle"), clause("square")]}
COUNTING = {
    "tag": "counting",
    "include": [clause("circle", 3)],
    "exclude": [clause("circle", 4)],
}
COLORED_COUNTING = {
    "tag": "counting",
    "include": [clause("circle", 3, color="red")],
    "exclude": [clause("circle", 4, color="red")],
}
COLORS = {"tag": "colors", "include": [clause("circle", color="red")]}
POSITION = {
    "tag": "position",  # a star left of a circle
    "include": [clause("circle"), clause("star", position=["left of", 0])],
}
COLORED_POSITION = {
    "tag": "position",  # a blue star left of a red circle
    "include": [
        clause("circle", color="red"),
        clause("star", color="blue", position=["left of", 0]),
    ],
}
ATTRIBUTES = {
    "tag": "color_attr",
    "include": [clause("circle", color="red"), clause("square", color="blue")],
}

LEFT, RIGHT, MIDDLE = {"box": at(5, 16)}, {"box": at(27, 16)}, {"box": at(16, 16)}
CIRCLE, STAR = see("red circle", **MIDDLE), "blue star"

# metadata, what is seen, the official verdict, partial credit; strict is credit 1
CASES = [
    (SINGLE, see("circle"), True, F(1)),
    (SINGLE, see("blue circle"), True, F(1)),  # no colour was asked for
    (SINGLE, [], False, F(0)),
    (SINGLE, see("square"), False, F(1, 2)),  # wrong class 0, right number of objects 1
    (SINGLE, see("circle", "square"), True, F(1, 2)),  # class 1, number closeness(2, 1) = 0
    (SINGLE, see("circle", "circle"), True, F(0)),
    (SINGLE, see("circle", "unclear"), True, F(1, 2)),
    (TWO, see("square", "circle"), True, F(1)),
    (TWO, see("circle"), False, F(1, 2)),  # (1 + 0 + 1/2) / 3
    (TWO, see("circle", "circle"), False, F(1, 3)),  # (0 + 0 + 1) / 3
    (TWO, see("circle", "square", "star"), True, F(5, 6)),  # (1 + 1 + 1/2) / 3
    (TWO, see("circle", "square", "square"), True, F(1, 2)),  # (1 + 0 + 1/2) / 3
    (TWO, [], False, F(0)),
    (COUNTING, see(*["circle"] * 3), True, F(1)),
    (COUNTING, see(*["circle"] * 2), False, F(2, 3)),
    (COUNTING, see(*["circle"] * 4), False, F(2, 3)),
    (COUNTING, see(*["circle"] * 5), False, F(1, 3)),
    (COUNTING, see(*["circle"] * 7), False, F(0)),
    (COUNTING, see(*["circle"] * 3, "star"), True, F(5, 6)),  # (1 + 2/3) / 2
    (COUNTING, see(*["circle"] * 2, "star"), False, F(5, 6)),  # (2/3 + 1) / 2
    (COUNTING, see("red circle", "blue circle", "cyan circle"), True, F(1)),
    (COLORED_COUNTING, see(*["red circle"] * 3), True, F(1)),
    (COLORED_COUNTING, see("red circle", "red circle", "blue circle"), False, F(8, 9)),
    (COLORED_COUNTING, see(*["blue circle"] * 3), False, F(2, 3)),
    (COLORED_COUNTING, see(*["red circle"] * 2), False, F(2, 3)),
    (COLORED_COUNTING, see(*["red circle"] * 3, "blue circle"), False, F(7, 9)),
    (COLORS, see("red circle"), True, F(1)),
    (COLORS, see("blue circle"), False, F(2, 3)),  # (1 + 0 + 1) / 3
    (COLORS, see("red square"), False, F(1, 3)),  # (0 + 0 + 1) / 3
    (COLORS, see("red circle", "blue square"), True, F(2, 3)),  # (1 + 1 + 0) / 3
    (COLORS, [], False, F(0)),
    (POSITION, CIRCLE + see("star", **LEFT), True, F(1)),
    (POSITION, see("star", **LEFT) + CIRCLE, True, F(1)),  # the order of detections is nothing
    (POSITION, CIRCLE + see("star", **RIGHT), False, F(3, 4)),
    (POSITION, CIRCLE + see("star", box=at(16, 5)), False, F(3, 4)),  # above
    (POSITION, CIRCLE + see("star", **MIDDLE), False, F(3, 4)),
    (POSITION, CIRCLE, False, F(3, 8)),  # (1 + 0 + 0 + 1/2) / 4
    (POSITION, see("star", **LEFT), False, F(3, 8)),  # (0 + 1 + 0 + 1/2) / 4
    (COLORED_POSITION, CIRCLE + see(STAR, **LEFT), True, F(1)),
    (COLORED_POSITION, CIRCLE + see(STAR, **RIGHT), False, F(5, 6)),
    (COLORED_POSITION, CIRCLE + see("green star", **LEFT), False, F(2, 3)),  # colour, position
    (COLORED_POSITION, see("cyan circle", **MIDDLE) + see(STAR, **LEFT), False, F(2, 3)),
    (ATTRIBUTES, see("red circle", "blue square"), True, F(1)),
    (ATTRIBUTES, see("blue circle", "red square"), False, F(3, 5)),  # colours swapped
    (ATTRIBUTES, see("red circle", "red square"), False, F(4, 5)),
    (ATTRIBUTES, see("red circle"), False, F(1, 2)),  # (1 + 1 + 0 + 0 + 1/2) / 5
    (ATTRIBUTES, see("red circle", "blue square", "red star"), True, F(9, 10)),
    (ATTRIBUTES, [], False, F(0)),
]


@pytest.mark.parametrize(("metadata", "seen", "verdict", "credit"), CASES)
def test_known_pictures_get_their_known_verdicts(metadata, seen, verdict, credit):
    assert official(seen, metadata) is verdict
    assert partial(seen, metadata) == pytest.approx(float(credit), abs=1e-12)
    assert strict(seen, metadata) is (credit == 1)


def test_further_objects_of_other_classes_can_be_left_out_of_the_verdict():
    seen = see("circle", "square", "dog")
    assert partial(seen, TWO) == pytest.approx(5 / 6) and not strict(seen, TWO)
    assert partial(seen, TWO, extras=False) == 1.0 and strict(seen, TWO, extras=False)
    assert partial(see("circle", "circle"), SINGLE, extras=False) == 0.0


def test_the_official_verdict_looks_at_the_best_detections_of_a_class_only():
    good, poor = Seen("circle", "red", 0.9), Seen("circle", "blue", 0.4)
    assert official([poor, good], COLORS)
    assert not official([replace(poor, score=0.95), good], COLORS)
    star = Seen("star", "blue", 0.9, at(5, 16))
    circle = Seen("circle", "red", 0.9, at(16, 16))
    astray = Seen("star", "blue", 0.4, at(27, 16))
    assert official([circle, astray, star], POSITION)
    assert not official([circle, replace(astray, score=0.95), star], POSITION)


def test_every_object_must_stand_in_relation_to_every_object_of_the_other_clause():
    metadata = {
        "tag": "position",
        "include": [clause("circle", 2), clause("star", 2, position=["above", 0])],
    }
    circles = [Seen("circle", box=at(10, 26)), Seen("circle", box=at(20, 26))]
    high, low = Seen("star", box=at(15, 5)), Seen("star", box=at(15, 31))
    assert official([*circles, high, high], metadata) and strict([*circles, high, high], metadata)
    for stars in ([high, low], [low, high]):
        assert not official([*circles, *stars], metadata)
        assert partial([*circles, *stars], metadata) == 3 / 4


def test_a_relation_to_a_clause_that_failed_does_not_hold():
    blue = see("blue circle", **MIDDLE)
    assert not official(blue + see(STAR, **LEFT), COLORED_POSITION)
    metadata = {
        "tag": "position",
        "include": [clause("circle", 2), clause("star", position=["left of", 0])],
    }
    assert not official(CIRCLE + see("star", **LEFT), metadata)


def test_an_excluded_class_fails_the_official_verdict_from_its_count_on():
    metadata = {"tag": "x", "include": [clause("circle")], "exclude": [clause("star", 2)]}
    assert official(see("circle", "star"), metadata)
    assert not official(see("circle", "star", "star"), metadata)


@pytest.mark.parametrize(
    ("n", "count", "value"),
    [
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 0),
        (0, 4, 0),
        (1, 4, 0.25),
        (3, 4, 0.75),
        (5, 4, 0.75),
        (9, 4, 0),
    ],
)
def test_closeness_of_counts(n, count, value):
    assert closeness(n, count) == value


# Where the first stands as seen from the second, both 4 x 4 unless told: the offset shrinks by
# 0.1 (4 + 4) = 0.8 along each axis, and counts where it is more than half the unshrunk length.
PLACES = [
    (at(0, 16), at(16, 16), {"left of"}),
    (at(32, 16), at(16, 16), {"right of"}),
    (at(16, 0), at(16, 16), {"above"}),
    (at(16, 32), at(16, 16), {"below"}),
    (at(0, 0), at(16, 16), {"left of", "above"}),  # 15.2 / 22.6 = 0.67 on both axes
    (at(32, 0), at(16, 16), {"right of", "above"}),
    (at(0, 32), at(16, 16), {"left of", "below"}),
    (at(32, 32), at(16, 16), {"right of", "below"}),
    (at(22, 26), at(16, 16), {"below"}),  # dx 5.2 / 11.66 = 0.45, dy 9.2 / 11.66 = 0.79
    (at(23, 26), at(16, 16), {"right of", "below"}),  # dx 6.2 / 12.21 = 0.508, dy 0.75
    (at(16, 16), at(16, 16), set()),  # centred alike
    (at(16, 16, 2, 2), at(16, 16, 20, 20), set()),  # one inside the other
    (at(16.5, 16), at(16, 16), set()),  # nearer than the margin of 0.8
    (at(17.5, 16), at(16, 16), set()),  # 0.7 / 1.5 = 0.47
    (at(17.7, 16), at(16, 16), {"right of"}),  # 0.9 / 1.7 = 0.53
    (at(19, 19, 10, 10), at(16, 16, 10, 10), set()),  # 3 - 2 = 1 of 4.24 on both axes
    (at(24, 16, 30, 2), at(16, 16, 30, 2), set()),  # wide boxes: 8 - 6 = 2 of 8
    (at(24, 24, 30, 2), at(16, 16, 30, 2), {"below"}),  # dx 2 / 11.3, dy 7.6 / 11.3 = 0.67
]


@pytest.mark.parametrize(("a", "b", "expected"), PLACES)
def test_relations_of_hand_computed_boxes(a, b, expected):
    assert relations(a, b) == expected


def test_a_share_of_exactly_one_half_is_no_relation():
    # sizes 0 + 10 shrink by 1: 2 - 1 = 1 of 2 along x
    assert relations(at(18, 16, 0, 0), at(16, 16, 10, 10)) == frozenset()


OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@st.composite
def boxes(draw):
    """Boxes with whole corners, on which all arithmetic of the rules is exact enough."""
    x, y = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    return (x, y, x + draw(st.integers(1, 24)), y + draw(st.integers(1, 24)))


@given(boxes(), boxes())
def test_relations_are_antisymmetric_and_never_contradict_themselves(a, b):
    there = relations(a, b)
    assert relations(b, a) == {OPPOSITE[r] for r in there}
    assert not {OPPOSITE[r] for r in there} & there
    assert relations(a, a) == frozenset()


@given(boxes(), boxes())
def test_relations_equal_the_published_formula(a, b):
    """``relative_position`` of GenEval, as its authors vectorised it."""
    corners = np.array([a, b], float).reshape(2, 2, 2)
    centre = corners.mean(1)
    size = np.abs(np.diff(corners, axis=1))[:, 0]
    offset = centre[0] - centre[1]
    shrunk = np.maximum(np.abs(offset) - 0.1 * size.sum(0), 0) * np.sign(offset)
    expected = set()
    if not (np.abs(shrunk) < 1e-3).all():
        dx, dy = shrunk / np.linalg.norm(offset)
        assume(min(abs(abs(dx) - 0.5), abs(abs(dy) - 0.5)) > 1e-9)  # rounding decides there
        expected |= {"left of"} if dx < -0.5 else {"right of"} if dx > 0.5 else set()
        expected |= {"above"} if dy < -0.5 else {"below"} if dy > 0.5 else set()
    assert relations(a, b) == expected


def moved(box, scale: float, x: float, y: float):
    return tuple(scale * v + d for v, d in zip(box, (x, y, x, y), strict=True))


MOVES = (st.sampled_from([0.25, 0.5, 2.0, 8.0]), st.integers(-64, 64), st.integers(-64, 64))


@given(boxes(), boxes(), *MOVES)
def test_relations_do_not_depend_on_the_place_or_the_resolution(a, b, scale, x, y):
    assert relations(moved(a, scale, x, y), moved(b, scale, x, y)) == relations(a, b)


LABELS, TONES = ["circle", "square", "star"], ["red", "blue"]


@st.composite
def records(draw):
    """GenEval records on three classes: clauses of different classes, counts up to 3."""
    labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=2, unique=True))
    include = [clause(label, draw(st.integers(1, 3))) for label in labels]
    for item in include:
        if draw(st.booleans()):
            item["color"] = draw(st.sampled_from(TONES))
    if len(include) == 2 and draw(st.booleans()):
        include[1]["position"] = [draw(st.sampled_from(sorted(OPPOSITE))), 0]
    return {"tag": "any", "include": include}


@st.composite
def pictures(draw, record):
    """What is asked for, often with something missing, added, repainted or moved."""
    ask = record["include"]
    seen = []
    for k, item in enumerate(ask):
        place = {"left of": (5, 20), "right of": (35, 20), "above": (20, 5), "below": (20, 35)}
        x, y = place[item["position"][0]] if "position" in item else ((20, 20), (5, 5))[k]
        for _ in range(item["count"]):
            seen.append(Seen(item["class"], item.get("color", "red"), 0.9, at(x, y)))
    for change in draw(st.lists(st.sampled_from(["drop", "add", "paint", "move"]), max_size=2)):
        index = draw(st.integers(0, max(0, len(seen) - 1)))
        if change == "add":
            label, color = draw(st.sampled_from([*LABELS, "unclear"])), draw(st.sampled_from(TONES))
            seen.insert(index, Seen(label, color, draw(st.floats(0.1, 1)), draw(boxes())))
        elif seen and change == "drop":
            del seen[index]
        elif seen and change == "paint":
            seen[index] = replace(seen[index], color=draw(st.sampled_from(TONES)))
        elif seen:
            seen[index] = replace(seen[index], box=draw(boxes()))
    return seen


@st.composite
def situations(draw):
    record = draw(records())
    return draw(pictures(record)), record


def exact(seen: list[Seen], record: dict) -> bool:
    """The exact verdict told anew: nothing but what is asked for, all of it, as it is asked for."""
    groups = []
    for item in record["include"]:
        group = [d for d in seen if d.label == item["class"]]
        if len(group) != item["count"]:
            return False
        if any(d.color != item.get("color", d.color) for d in group):
            return False
        groups.append(group)
        if "position" in item:
            relation, index = item["position"]
            pairs = ((a, b) for a in group for b in groups[index])
            if not all(relation in relations(a.box, b.box) for a, b in pairs):
                return False
    return len(seen) == sum(len(group) for group in groups)


@given(situations())
def test_strict_is_full_credit_and_means_exactly_what_was_asked_for(situation):
    seen, record = situation
    credit = partial(seen, record)
    assert 0 <= credit <= 1
    assert strict(seen, record) == (credit == 1) == exact(seen, record)
    if strict(seen, record):
        assert official(seen, record)


@given(situations(), *MOVES)
def test_verdicts_do_not_depend_on_the_place_or_the_resolution(situation, scale, x, y):
    seen, record = situation
    shifted = [replace(d, box=moved(d.box, scale, x, y)) for d in seen]
    assert partial(shifted, record) == partial(seen, record)
    assert official(shifted, record) == official(seen, record)


@given(situations(), st.randoms(use_true_random=False))
def test_verdicts_do_not_depend_on_the_order_of_detections(situation, random):
    seen, record = situation
    seen = [replace(d, score=0.9 - 0.01 * i) for i, d in enumerate(seen)]  # no ties
    mixed = random.sample(seen, len(seen))
    assert partial(mixed, record) == partial(seen, record)
    assert official(mixed, record) == official(seen, record)


def test_the_filter_keeps_what_scores_above_the_threshold():
    seen = [Seen("circle", score=s) for s in (0.2, 0.3, 0.31, 0.95)]
    assert [d.score for d in keep(seen, 0.3)] == [0.95, 0.31]
    assert [d.score for d in keep(seen, 0.9)] == [0.95]
    assert keep(seen, 0.95) == [] and keep([], 0.3) == []


def test_the_filter_keeps_the_best_few_of_each_class():
    seen = [Seen(label, score=0.5 + i / 100) for i in range(20) for label in ("circle", "star")]
    kept = keep(seen, 0.3)
    for label in ("circle", "star"):
        scores = [d.score for d in kept if d.label == label]
        assert scores == [0.5 + i / 100 for i in range(19, 3, -1)]  # 16 of them, best first
    assert [d.score for d in keep(seen, 0.3, most=1)] == [0.69, 0.69]
    assert {d.label for d in keep(seen, 0.3, most=1)} == {"circle", "star"}
