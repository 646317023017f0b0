"""The answer in plain words: what the run says about itself, and whether it got better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flowalign.report.compare import BEYOND, Comparison, Verdict
from flowalign.report.markup import number, plural, score, signed
from flowalign.report.records import Evaluation, Run

_BENCHMARKS = {"geneval": "GenEval", "ocr": "OCR"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The verdict: a style of the style sheet, a word, and a sentence or two."""

    style: str
    word: str
    sentence: str


def answer(run: Run, comparison: Comparison | None) -> Answer:
    """Did it get better?"""
    if comparison is None or run.before is None or run.after is None:
        return _not_compared(run)
    before, after, change = run.before, run.after, comparison.change
    old, new = score(before.score), score(after.score)
    if comparison.verdict is Verdict.INCOMPARABLE:
        sentence = (
            f"The evaluations {moment(before)} and {moment(after)} differ in "
            f"{listed(comparison.differences)}, so their scores, {old} and {new}, "
            "do not say whether the model changed."
        )
        return Answer(style="unknown", word="Not comparable", sentence=sentence)
    verb = "rose" if change.value > 0 else "fell" if change.value < 0 else "went"
    course = f"stayed at {new}" if old == new else f"{verb} from {old} to {new}"
    lead = f"{subject(after)} {course}{_so_far(run, after)}."
    shown = f"The change, {signed(change.value, after.score)}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
    shown += score(change.stderr)
    if comparison.verdict is Verdict.UNKNOWN:
        tail = "Without a standard error, nothing can be said about chance."
        return Answer(style="unknown", word="No verdict", sentence=f"{lead} {tail}")
    if comparison.verdict is Verdict.NOISE:
        tail = f"{shown}, is within the {BEYOND} standard errors that chance explains."
        return Answer(style="noise", word="Within noise", sentence=f"{lead} {tail}")
    strength = f"{number(abs(change.errors), 2)} standard errors"
    tail = f"{shown}, is {strength}: more than chance explains."
    better = comparison.verdict is Verdict.BETTER
    return Answer(
        style="better" if better else "worse",
        word="Better" if better else "Worse",
        sentence=f"{lead} {tail}",
    )


def _not_compared(run: Run) -> Answer:
    if run.before is None:
        sentence = "The run has no evaluation, so nothing is known about held-out prompts."
        if run.status == "running":
            sentence = "No evaluation has been written yet."
        return Answer(style="unknown", word="Not measured", sentence=sentence)
    sentence = (
        f"{subject(run.before)} was {score(run.before.score)} ± {score(run.before.stderr)} "
        f"{moment(run.before)}. There is no second evaluation to compare it with"
        f"{' yet' if run.status == 'running' else ''}."
    )
    return Answer(style="unknown", word="Measured once", sentence=sentence)


def subject(evaluation: Evaluation) -> str:
    """``The GenEval score on 204 held-out prompts``."""
    prompts = evaluation.protocol.get("prompts")
    split = {"heldout": "held-out"}.get(str(evaluation.protocol.get("split")), "")
    where = f" on {' '.join(filter(None, [str(prompts), split]))} prompts" if prompts else ""
    return f"The {benchmark_name(evaluation)} score{where}"


def benchmark_name(evaluation: Evaluation) -> str:
    """The benchmark as its authors spell it."""
    return _BENCHMARKS.get(evaluation.benchmark, evaluation.benchmark)


def moment(evaluation: Evaluation) -> str:
    """``before training`` or ``after 150 iterations``."""
    return f"after {plural(evaluation.step, 'iteration')}" if evaluation.step else "before training"


def _so_far(run: Run, after: Evaluation) -> str:
    return "" if run.status == "finished" else f", {moment(after)}"


def state(run: Run) -> str:
    """``Finished: 150 of 150 iterations.``"""
    words = {"finished": "Finished:", "running": "In progress:", "stopped": "Stopped after"}
    of = f" of {run.planned_steps:,}" if run.planned_steps else ""
    done = f"{words.get(run.status, 'State not known:')} {run.steps_done:,}{of} iterations"
    return f"{done}: {run.message}" if run.message else f"{done}."


def basis(comparison: Comparison) -> str:
    """Where the standard error of the change comes from; empty if there is nothing to say."""
    if comparison.differences:
        return ""
    if comparison.paired:
        return (
            f"The ± of the change is one standard error of the paired difference over "
            f"{plural(comparison.prompts, 'prompt')}: both evaluations start each picture from "
            "the same noise."
        )
    if math.isfinite(comparison.change.stderr):
        return (
            "The ± of the change combines the standard errors of the two scores as if they were "
            "independent: the pictures could not be paired."
        )
    return ""


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
