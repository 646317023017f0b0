"""The end of the page: how it was measured, how to repeat it, what could not be read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from flowalign.report.markup import EMPTY, Html, element, number, plural, text
from flowalign.report.records import Evaluation, Run

_PROTOCOL = {
    "prompts": "Prompts",
    "distinct_prompts": "Distinct prompts",
    "split": "Split",
    "images_per_prompt": "Pictures per prompt",
    "sampler": "Sampler",
    "num_inference_steps": "Sampling steps",
    "guidance_scale": "Guidance scale (1 = off)",
    "seed": "Seed of prompts and noise",
    "prompts_sha256": "SHA-256 of the prompts",
}
_FLAGS = {
    "prompts": "--prompts",
    "images_per_prompt": "--images",
    "num_inference_steps": "--steps",
    "guidance_scale": "--guidance",
    "seed": "--seed",
}


def protocol(run: Run) -> Html:
    """How the scores were measured; where the evaluations differ, both values."""
    if run.before is None:
        return EMPTY
    first, last = run.before, run.after or run.before
    said = [
        ("Benchmark", _both(first.benchmark, last.benchmark)),
        ("Judge", _both(first.judge, last.judge)),
    ]
    known = first.protocol.keys() | last.protocol.keys()
    for key in [*(key for key in _PROTOCOL if key in known), *sorted(known - _PROTOCOL.keys())]:
        values = _both(first.protocol.get(key), last.protocol.get(key))
        said.append((_PROTOCOL.get(key, key), values))
    rows = (
        element("tr", element("th", text(label), scope="row"), element("td", text(values)))
        for label, values in said
    )
    return element(
        "section",
        element("h2", text("How it was measured"), id="protocol"),
        element("table", element("tbody", *rows), class_="plain"),
        aria_labelledby="protocol",
    )


def _both(first: object, last: object) -> str:
    before, after = (number(v, 6) if isinstance(v, float) else str(v) for v in (first, last))
    return before if first == last else f"{before} before, {after} after"


def repeat(run: Run) -> Html:
    """Commands that repeat the run, and the evaluation of the weights that it left."""
    if run.config is None:
        return EMPTY
    commands = [["flowalign", "train", f"{run.folder}/config.yaml", "--out", "runs/again"]]
    last = run.after or run.before
    if last:
        commands += [[*_bench(last), *weights] for weights in _weights(run)]
    lines = "\n".join(shlex.join(words) for words in commands)
    return element(
        "section",
        element("h2", text("Repeat it"), id="repeat"),
        element("pre", element("code", text(lines)), tabindex=0),
        aria_labelledby="repeat",
    )


def _weights(run: Run) -> list[list[str]]:
    if (run.folder / "model").is_dir():
        return [["--model", f"{run.folder}/model"]]
    if (run.folder / "lora").is_dir() and run.base_model:
        return [["--model", run.base_model, "--lora", f"{run.folder}/lora"]]
    return []


def _bench(evaluation: Evaluation) -> list[str]:
    words = ["flowalign", "bench", evaluation.benchmark]
    for key, flag in _FLAGS.items():
        if key in evaluation.protocol:
            words += [flag, str(evaluation.protocol[key])]
    return words


def notes(run: Run, lost: Sequence[str]) -> Html:
    """What could not be read; ``lost`` are the pictures among it."""
    said = list(run.notes)
    if lost:
        verb = "is" if len(lost) == 1 else "are"
        said.append(
            f"{plural(len(lost), 'picture')} {verb} missing or cannot be read: "
            f"{', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}."
        )
    if not said:
        return EMPTY
    return element(
        "section",
        element("h2", text("What could not be read"), id="notes"),
        element("ul", *(element("li", text(note)) for note in said)),
        aria_labelledby="notes",
    )


def config(run: Run) -> Html:
    """The resolved recipe, folded."""
    if run.config is None:
        return EMPTY
    return element(
        "section",
        element(
            "details",
            element("summary", text("The resolved recipe (config.yaml)")),
            element("pre", element("code", text(run.config)), tabindex=0),
        ),
        aria_label="Recipe",
    )
