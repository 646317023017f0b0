"""GenEval's scoring rules, on whatever a detector says it saw.

The rules know detections and metadata, not pictures, so that the embedded detector and GenEval's
own (Mask2Former and CLIP colours) are judged alike. Metadata is GenEval's record (arXiv
2310.11513, ``evaluation_metadata.jsonl``)::

    {"tag": ..., "include": [{"class": c, "count": n, "color": k, "position": [relation, index]},
    ...],
     "exclude": [{"class": c, "count": n}]}

``color``, ``position`` and ``exclude`` are optional. A clause's position relates its objects to
those of the clause at ``index``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Box = tuple[float, float, float, float]
Clause = Mapping[str, Any]

MARGIN = 0.1  # share of the summed box sizes by which an offset is shrunk


class Seen(Protocol):
    """What the rules ask of a detection."""

    @property
    def label(self) -> str:
        """The class; one that no clause names is an extra object."""
        ...

    @property
    def color(self) -> str:
        """The colour's name; read only where a clause asks for it."""
        ...

    @property
    def score(self) -> float:
        """Confidence in [0, 1]; orders the detections of a class."""
        ...

    @property
    def box(self) -> Box:
        """``(x0, y0, x1, y1)`` in pixels, y down."""
        ...


def relations(a: Box, b: Box) -> frozenset[str]:
    """Where box ``a`` stands as seen from ``b``: a subset of left of, right of, above, below.

    GenEval's ``relative_position``: the offset of the centres, each axis shrunk towards 0 by
    ``MARGIN`` times the summed box sizes, divided by the length of the *unshrunk* offset; a
    relation holds where that exceeds 1/2. Two relations can hold on a diagonal; none where the
    boxes are centred alike.
    """
    offset = [(a[i] + a[i + 2] - b[i] - b[i + 2]) / 2 for i in (0, 1)]
    room = [MARGIN * (a[i + 2] - a[i] + b[i + 2] - b[i]) for i in (0, 1)]
    dx, dy = (
        max(abs(d) - r, 0.0) * (1 if d > 0 else -1) for d, r in zip(offset, room, strict=True)
    )
    if abs(dx) < 1e-3 and abs(dy) < 1e-3:
        return frozenset()
    length = (offset[0] ** 2 + offset[1] ** 2) ** 0.5
    dx, dy = dx / length, dy / length
    holds = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return frozenset(name for name, true in holds.items() if true)


def official(seen: Sequence[Seen], metadata: Mapping[str, Any]) -> bool:
    """GenEval's verdict: every ``include`` clause holds and no ``exclude`` clause does.

    A clause takes the ``count`` best detections of its class; fewer, one in another colour, or one
    out of relation to an object of the related clause fails it. Further objects do no harm unless
    ``exclude`` names them.
    """
    taken: list[Sequence[Seen] | None] = []  # per clause; None where its objects are not right
    correct = True
    for clause in metadata["include"]:
        best = _of_class(seen, clause)[: clause["count"]]
        right = len(best) == clause["count"] and all(_has_color(d, clause) for d in best)
        taken.append(best if right else None)
        correct = correct and right and _related(taken, clause)
    excluded = (len(_of_class(seen, c)) >= c["count"] for c in metadata.get("exclude", ()))
    return correct and not any(excluded)


def strict(seen: Sequence[Seen], metadata: Mapping[str, Any], extras: bool = True) -> bool:
    """The exact verdict: right classes, exact counts, right colours, right relations, nothing
    else.

    It is true exactly where ``partial`` is 1.

    Args:
        seen: all visible objects, with a label that no clause names where it is unclear what they
        are. metadata: GenEval's record.
        extras: whether objects of classes that are not asked for are wrong. True for the embedded
            world, whose pictures show nothing but objects; False for photographs.
    """
    return partial(seen, metadata, extras) == 1.0


def partial(seen: Sequence[Seen], metadata: Mapping[str, Any], extras: bool = True) -> float:
    """Credit in [0, 1] for what is right: the mean over the requirements that the prompt makes.

    Each clause gives ``closeness(n, count)`` of its class, with a colour also ``closeness(n of
    that colour, count)``, with a position 1 or 0; with ``extras`` the number of all objects gives
    one more ``closeness``, where ``closeness(n, count) = max(0, 1 - |n - count| / count)``. The
    first two terms
    are those of Flow-GRPO's reward server, which appends a 0 for the colour instead where the
    count is wrong; the graded form gives RL a denser signal.
    """
    clauses = metadata["include"]
    taken: list[Sequence[Seen] | None] = []
    terms = []
    for clause in clauses:
        wanted = sum(c["count"] for c in clauses if c["class"] == clause["class"])
        own = _of_class(seen, clause)
        terms.append(closeness(len(own), wanted))
        if "color" in clause:
            own = [d for d in own if _has_color(d, clause)]
            terms.append(closeness(len(own), clause["count"]))
        taken.append(own[: clause["count"]] or None)
        if "position" in clause:
            terms.append(float(_related(taken, clause)))
    if extras:
        terms.append(closeness(len(seen), sum(clause["count"] for clause in clauses)))
    return sum(terms) / len(terms)


def closeness(n: int, count: int) -> float:
    """``max(0, 1 - |n - count| / count)``."""
    return max(0.0, 1 - abs(n - count) / count)


def keep(seen: Sequence[Seen], threshold: float, most: int = 16) -> list[Seen]:
    """GenEval's filter: per class, the ``most`` best detections that score above ``threshold``.

    GenEval uses 0.3, and 0.9 for the tag ``counting``.
    """
    kept: list[Seen] = []
    for label in dict.fromkeys(d.label for d in seen):
        own = sorted((d for d in seen if d.label == label), key=lambda d: -d.score)
        kept += [d for d in own[:most] if d.score > threshold]
    return kept


def _of_class(seen: Sequence[Seen], clause: Clause) -> list[Seen]:
    return sorted((d for d in seen if d.label == clause["class"]), key=lambda d: -d.score)


def _has_color(detection: Seen, clause: Clause) -> bool:
    return "color" not in clause or detection.color == clause["color"]


def _related(taken: Sequence[Sequence[Seen] | None], clause: Clause) -> bool:
    """Whether the last clause's objects stand in its relation to all of the related clause's."""
    if "position" not in clause:
        return True
    relation, index = clause["position"]
    here, there = taken[-1], taken[index]
    if here is None or there is None:
        return False
    return all(relation in relations(a.box, b.box) for a in here for b in there)
