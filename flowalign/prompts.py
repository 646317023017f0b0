"""Prompt sets: the embedded worlds, a text file, or JSONL with metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flowalign.config import PromptConfig
from flowalign.embedded.grammar import GENEVAL_TASKS, TASKS, Split, prompt_set
from flowalign.errors import ConfigError, unknown
from flowalign.seeding import Purpose, generator

EMBEDDED = {"embedded:geneval": GENEVAL_TASKS, "embedded:ocr": ("ocr",), "embedded:all": TASKS}


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts with their metadata, in a fixed order."""

    prompts: Sequence[str]
    metadata: Sequence[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def sha256(self) -> str:
        """Checksum of the prompts and their metadata; names the set in results."""
        rows = zip(self.prompts, self.metadata, strict=True)
        text = "\n".join(json.dumps(row, sort_keys=True) for row in rows)
        return hashlib.sha256(text.encode()).hexdigest()

    def draw(self, iteration: int, n: int, seed: int) -> list[int]:
        """Indices of the ``n`` prompts of an iteration from an endless chain of shuffled passes.

        It depends on nothing but its arguments, so a resumed run meets the same prompts.
        """
        size, first = len(self), iteration * n
        epochs = range(first // size, (first + n - 1) // size + 1)
        passes = [
            torch.randperm(size, generator=generator(Purpose.PROMPTS, seed, epoch))
            for epoch in epochs
        ]
        start = first - epochs[0] * size
        return [int(i) for i in torch.cat(passes)[start : start + n]]


def embedded_prompts(
    source: str, n: int, split: Split, seed: int, tasks: Sequence[str] | None = None
) -> PromptSet:
    """A set from one of the embedded worlds.

    Raises:
        ConfigError: for an unknown world or task.
    """
    if source not in EMBEDDED:
        raise ConfigError(unknown("prompt source", source, list(EMBEDDED)))
    for task in tasks or ():
        if task not in EMBEDDED[source]:
            raise ConfigError(unknown("task", task, list(EMBEDDED[source])))
    specs = prompt_set(n, tasks or EMBEDDED[source], split, seed)
    return PromptSet(prompts=[spec["prompt"] for spec in specs], metadata=specs)


def read_prompts(path: Path) -> PromptSet:
    """A ``.txt`` file (one prompt a line) or ``.jsonl`` (objects with ``prompt`` and metadata).

    Raises:
        ConfigError: for a missing or empty file, or naming the first bad line.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(
            f"prompts.source={path} must be embedded:geneval, embedded:ocr, a .txt file (one "
            "prompt a line) or a .jsonl file (objects with prompt and metadata)"
        )
    if not path.is_file():
        raise ConfigError(f"the prompt file {path} does not exist")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompt file {path} is not UTF-8 text; convert it") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):  # a prompt may hold a U+2028
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            rows.append({"prompt": line.strip()})
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}, line {number} is not valid JSON: {error.msg}") from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise ConfigError(f'{path}, line {number} must be an object with a "prompt" string')
        rows.append(row)
    if not rows:
        raise ConfigError(f"the prompt file {path} has no prompts; write one a line")
    return PromptSet(prompts=[row["prompt"] for row in rows], metadata=rows)


def load_prompts(config: PromptConfig) -> PromptSet:
    """The training prompts of a recipe; embedded worlds give their training split."""
    if config.source.startswith("embedded:"):
        return embedded_prompts(config.source, config.count, "train", config.seed, config.tasks)
    if config.tasks:
        raise ConfigError(
            "prompts.tasks selects tasks of an embedded world; it has no meaning for a file"
        )
    return read_prompts(Path(config.source))
