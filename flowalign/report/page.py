"""The page: its sections in order, style sheet and script inlined."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib import resources

from flowalign.report import details
from flowalign.report.compare import Comparison, compare
from flowalign.report.curves import evaluation_section, health_section, reward_section
from flowalign.report.gallery import gallery
from flowalign.report.markup import EMPTY, Html, duration, element, score, signed, text
from flowalign.report.pictures import Album
from flowalign.report.records import Evaluation, Run
from flowalign.report.tasks import tasks
from flowalign.report.words import answer, basis, state

# Nothing is fetched, whatever the run folder holds.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(run: Run) -> str:
    """The whole page; the same run gives the same bytes."""
    comparison = compare(run.before, run.after) if run.before and run.after else None
    album = Album(folder=run.folder)
    main = element(
        "main",
        reward_section(run),
        evaluation_section(run),
        tasks(run.before, run.after, comparison),
        gallery(run, comparison, album),
        health_section(run),
        details.protocol(run),
        details.repeat(run),
        details.notes(run, album.lost),
        details.config(run),
    )
    tip = element("div", class_="tip", role="status", hidden=True)
    script = element("script", _asset("report.js"))
    body = element("body", _header(run, comparison), main, tip, script)
    page = element("html", _head(run), body, lang="en")
    return f"<!doctype html>\n{page}\n"


def _head(run: Run) -> Html:
    return element(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<link rel="icon" href="data:,">'),
        element("title", text(f"{run.recipe} · flowalign report")),
        element("style", _asset("report.css")),
    )


def _asset(name: str) -> Html:
    return Html(resources.files("flowalign.report").joinpath(name).read_text(encoding="utf-8"))


def _header(run: Run, comparison: Comparison | None) -> Html:
    found = answer(run, comparison)
    model = f" · {run.base_model}" if run.base_model else ""
    source = basis(comparison) if comparison else ""
    verdict = element(
        "div",
        element("strong", text(found.word)),
        element("p", text(found.sentence)),
        element("p", text(source), class_="fine") if source else EMPTY,
        class_=f"verdict {found.style}",
    )
    return element(
        "header",
        element("p", text(f"flowalign{model}"), class_="eyebrow"),
        element("h1", text(run.recipe)),
        element("p", text(state(run)), class_="state"),
        verdict,
        element("dl", *_figures(run, comparison), class_="figures"),
    )


def _figures(run: Run, comparison: Comparison | None) -> Iterable[Html]:
    for evaluation in filter(None, (run.before, run.after)):
        label = _score_label(run, evaluation)
        yield _figure(label, score(evaluation.score), _error(evaluation.stderr))
    if comparison and run.after and not comparison.differences:
        change = comparison.change
        yield _figure("Change", signed(change.value, run.after.score), _error(change.stderr))
    of = f"of {run.planned_steps:,}" if run.planned_steps else ""
    yield _figure("Iterations", f"{run.steps_done:,}", of)
    if run.images is not None:
        yield _figure("Training pictures", f"{run.images:,}")
    if math.isfinite(run.seconds):
        yield _figure("Time", duration(run.seconds))
    if run.before and "prompts" in run.before.protocol:
        yield _figure("Evaluation prompts", str(run.before.protocol["prompts"]))


def _score_label(run: Run, evaluation: Evaluation) -> str:
    if not evaluation.step:
        return "Score before"
    last = evaluation is run.after and run.status == "finished"
    return "Score after" if last else f"Score at iteration {evaluation.step:,}"


def _error(stderr: float) -> str:
    return f"± {score(stderr)}" if math.isfinite(stderr) else ""


def _figure(label: str, value: str, detail: str = "") -> Html:
    small = element("small", text(detail)) if detail else EMPTY
    return element("div", element("dt", text(label)), element("dd", text(value), small))
