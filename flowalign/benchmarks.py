"""The benchmarks: which prompts, which judge, which number is the headline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowalign.errors import ConfigError, unknown
from flowalign.prompts import PromptSet, embedded_prompts
from flowalign.registry import REWARDS
from flowalign.types import Reward


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark seen by one detector."""

    name: str
    detector: str
    source: str
    reward: str  # registry name of the judge
    rules: tuple[str, ...]  # its scorings; the first is the headline
    split: str = "heldout"

    @property
    def headline(self) -> str:
        """The rule that the score is quoted by."""
        return self.rules[0]

    def prompts(self, n: int, seed: int) -> PromptSet:
        """``n`` held-out prompts."""
        return embedded_prompts(self.source, n, "heldout", seed)

    def rewards(self) -> Mapping[str, Reward]:
        """The judge under each of its rules."""
        return {rule: REWARDS.build(self.reward, rule=rule) for rule in self.rules}


_BENCHMARKS = (
    Benchmark(
        name="geneval",
        detector="embedded",
        source="embedded:geneval",
        reward="embedded_geneval",
        rules=("strict", "partial"),
    ),
    Benchmark(
        name="ocr",
        detector="embedded",
        source="embedded:ocr",
        reward="embedded_ocr",
        rules=("exact", "edit"),
    ),
)


def get_benchmark(name: str, detector: str = "embedded") -> Benchmark:
    """Look a benchmark up.

    Raises:
        ConfigError: for an unknown benchmark or detector.
    """
    named = [bench for bench in _BENCHMARKS if bench.name == name]
    if not named:
        raise ConfigError(unknown("benchmark", name, sorted({b.name for b in _BENCHMARKS})))
    for bench in named:
        if bench.detector == detector:
            return bench
    raise ConfigError(unknown(f"detector for {name}", detector, [b.detector for b in named]))
