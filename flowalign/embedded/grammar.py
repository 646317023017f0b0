"""The prompts of the embedded world: GenEval's six tasks on coloured shapes, and short signs.

A spec is GenEval's own metadata record (``tag``, ``include``, ``exclude``, ``prompt``; a sign has
``text`` instead of ``include``), so one scorer serves the embedded and the real benchmark. Position
follows GenEval: object 1 stands ``position[0]`` of object ``position[1]``.

Prompts are split by *combination* (what is drawn, whatever the wording): a fifth of them, chosen by
a checksum, is never shown in pre-training or RL and makes up the held-out benchmark. A held-out
sign is a word that was never spelled before.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from flowalign.embedded.shapes import COLORS, SHAPES, SIGN_COLORS

Spec = dict[str, Any]
_T = TypeVar("_T")
Split = Literal["train", "heldout", "all"]

GENEVAL_TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
TASKS = (*GENEVAL_TASKS, "ocr")
RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = {2: "two", 3: "three", 4: "four"}
MEDIUMS = ("photo", "picture", "image", "drawing")
WORDS = tuple(
    (
        "GO UP ON NO OK HI IT ME WE BE SO BY MY US IF IN IS HE DO AX OX AM AS OH HA BAG BIG BOX "
        "BOY BUD BUG BUS BUY CAB CAP COD COG CUB CUP DAY DIG DIM DIP DOG DOT DRY DUG EGG ELF FAX "
        "FIG FIN FIX FLY FOG FOX FUN GAP GAS GUM GYM HAM HID HIP HIT HOP HUB HUG HUT ICY INK JAB "
        "JAM JET JOB JOG JOY JUG KEY KID KIT LAB LAP LEG LID LIP LOG LUG MAP MAX MIX MOB MOP MUD "
        "MUG NAP NET NUT OAK PAD PIG PIN PIT POD POP POT PUB PUG PUP RAY RIB RIM ROB ROD RUB RUG "
        "RUN SAD SIP SIX SKI SKY SOB SPY SUM SUN TAB TAG TAP TAX TEA TIP TOP TOY TUB TUG WAX WEB "
        "WIG WIN WIT YAK ZIP ZOO"
    ).split()
)
_SPLIT_SALT = 867  # with it every task holds out between a sixth and a quarter of its combinations
VOCABULARY = (
    *"a an of and that says sign left right above below".split(),
    *MEDIUMS,
    *NUMBERS.values(),
    *COLORS,
    *SHAPES,
    *(f"{shape}es" if shape == "cross" else f"{shape}s" for shape in SHAPES),
)


def plural(shape: str) -> str:
    """``circle -> circles``, ``cross -> crosses``."""
    return f"{shape}es" if shape == "cross" else f"{shape}s"


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _object(shape: str, color: str | None = None, count: int = 1) -> dict[str, Any]:
    return {"class": shape, "count": count} | ({} if color is None else {"color": color})


def _named(item: dict[str, Any]) -> str:
    return f"{item['color']} {item['class']}" if "color" in item else str(item["class"])


def combination(spec: Spec) -> str:
    """What is drawn, without the wording; the unit by which prompts are held out."""
    if spec["tag"] == "ocr":
        return f"sign {spec['text']}"
    items = [f"{item['count']} {_named(item)}" for item in spec["include"]]
    if spec["tag"] == "position":
        return f"{items[1]} {spec['include'][1]['position'][0]} {items[0]}"
    if spec["tag"] == "single_object":  # only six shapes exist: hold out shape x wording instead
        return f"{spec['prompt'].split()[1]} {items[0]}"
    return " and ".join(sorted(items))


def is_held_out(spec: Spec) -> bool:
    """Whether this combination is kept from all training; of the signs, whole words are."""
    return zlib.crc32(f"{_SPLIT_SALT} {combination(spec)}".encode()) % 5 == 0


def _pick(rng: np.random.Generator, options: Sequence[_T]) -> _T:
    return options[int(rng.integers(len(options)))]


def _draw(rng: np.random.Generator, task: str) -> Spec:
    """One spec of ``task``, held out or not."""
    shapes, colors = list(rng.permutation(list(SHAPES))), list(rng.permutation(list(COLORS)))
    a, b, k, m = str(shapes[0]), str(shapes[1]), str(colors[0]), str(colors[1])
    if task == "ocr":
        word, color = _pick(rng, WORDS), _pick(rng, SIGN_COLORS)
        if rng.random() < 0.25:
            return {"tag": task, "text": word, "prompt": f'a sign that says "{word}"'}
        prompt = f'{_article(color)} sign that says "{word}"'
        return {"tag": task, "text": word, "color": color, "prompt": prompt}
    spec: Spec = {"tag": task}
    if task == "single_object":
        spec["include"], text = [_object(a)], _article(a)
    elif task == "colors":
        spec["include"], text = [_object(a, k)], _article(f"{k} {a}")
    elif task == "two_object":
        spec["include"], text = [_object(a), _object(b)], f"{_article(a)} and {_article(b)}"
    elif task == "color_attr":
        spec["include"] = [_object(a, k), _object(b, m)]
        text = f"{_article(f'{k} {a}')} and {_article(f'{m} {b}')}"
    elif task == "counting":
        n = _pick(rng, list(NUMBERS))
        item = _object(a, k if rng.random() < 0.5 else None, n)
        spec["include"], spec["exclude"] = [item], [item | {"count": n + 1}]
        text = f"{NUMBERS[n]} {item['color'] + ' ' if 'color' in item else ''}{plural(a)}"
    elif task == "position":
        colored = rng.random() < 0.5
        here, there = _object(a, k if colored else None), _object(b, m if colored else None)
        relation = _pick(rng, RELATIONS)
        spec["include"] = [there, here | {"position": [relation, 0]}]
        text = f"{_article(_named(here))} {relation} {_article(_named(there))}"
    else:
        raise ValueError(f"unknown task {task!r}; the tasks are {', '.join(TASKS)}")
    return spec | {"prompt": f"{_article(_pick(rng, MEDIUMS))} of {text}"}


def sample_spec(rng: np.random.Generator, task: str, split: Split = "train") -> Spec:
    """A random spec of ``task`` from one side of the split."""
    while True:
        spec = _draw(rng, task)
        if split == "all" or is_held_out(spec) == (split == "heldout"):
            return spec


def prompt_set(
    n: int, tasks: Sequence[str] = GENEVAL_TASKS, split: Split = "train", seed: int = 0
) -> list[Spec]:
    """``n`` specs, tasks in turn; a prompt repeats only when its task has no new ones."""
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    specs: list[Spec] = []
    for i in range(n):
        for _ in range(50):
            spec = sample_spec(rng, tasks[i % len(tasks)], split)
            if spec["prompt"] not in seen:
                break
        seen.add(spec["prompt"])
        specs.append(spec)
    return specs
