"""Names of recipes to classes, imported only when used.

Three things can stand for a plug-in: a name of the tables below, a name that an installed package
offers through an entry-point group (``flowalign.samplers``, ``.rewards``, ...), or ``module:attr``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any

from flowalign.errors import ConfigError, FlowalignError, unknown


@dataclass(frozen=True)
class Entry:
    """One plug-in: where it is and what to say of it."""

    name: str
    target: str  # module:attr
    _: KW_ONLY
    summary: str
    paper: str = ""  # arXiv id
    reconstruction: bool = False  # rebuilt from an abstract; not the paper's own algorithm
    aliases: tuple[str, ...] = ()


class Registry:
    """The plug-ins of one kind. A built-in name comes before a third party's."""

    def __init__(self, kind: str, group: str, entries: Sequence[Entry] = ()) -> None:
        """``group`` is the entry-point group of third-party plug-ins."""
        self.kind, self.group = kind, group
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}
        for entry in entries:
            self.register(entry)

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def register(self, entry: Entry) -> None:
        """Add a plug-in.

        Raises:
            ValueError: if its name or an alias is taken.
        """
        for name in (entry.name, *entry.aliases):
            if name in self._entries or name in self._aliases:
                raise ValueError(f"the {self.kind} name {name!r} is taken")
        self._entries[entry.name] = entry
        self._aliases |= dict.fromkeys(entry.aliases, entry.name)

    def names(self) -> list[str]:
        """All names, third-party ones included; without aliases."""
        return sorted({*self._entries, *self._plugins})

    def entries(self) -> list[Entry]:
        """Built-in entries, then third-party ones."""
        others = [
            Entry(name, point.value, summary=f"from {_source(point)}")
            for name, point in self._plugins.items()
            if name not in self._entries
        ]
        return [*self._entries.values(), *others]

    def get(self, name: str) -> Any:
        """The class of a name or of ``module:attr``.

        Raises:
            ConfigError: for an unknown name (with the nearest one) or a plug-in that does not
                import (with the distribution it is from).
        """
        name, origin = self._aliases.get(name, name), ""
        try:
            if name in self._entries:
                return _load(self._entries[name].target)
            if name in self._plugins:
                origin = f" of {_source(self._plugins[name])}"
                return self._plugins[name].load()
            if ":" in name:
                return _load(name)
        except FlowalignError:
            raise
        except Exception as error:  # a plug-in may fail in any way
            raise ConfigError(
                f"{self.kind} {name!r}{origin} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        raise ConfigError(unknown(self.kind, name, self.names()))

    def build(self, name: str, **options: Any) -> Any:
        """An instance.

        Raises:
            ConfigError: for an unknown option (with the nearest one) or a value it refuses.
        """
        factory = self.get(name)
        parameters = inspect.signature(factory).parameters
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            for option in options:
                if option not in parameters:
                    raise ConfigError(unknown(f"option of {name}:", option, [*parameters]))
        try:
            return factory(**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.kind} {name}: {error}") from error


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return attrgetter(attribute)(import_module(module))


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


# fmt: off
SAMPLERS = Registry("sampler", "flowalign.samplers", [
    Entry("ode", "flowalign.samplers.ode:ODE",
          summary="Euler steps of the probability-flow ODE"),
    Entry("flow_sde", "flowalign.samplers.flow_sde:FlowSDE", paper="2505.05470",
          summary="the reverse SDE with the ODE's marginals"),
])
OBJECTIVES = Registry("objective", "flowalign.objectives", [
    Entry("flow_grpo", "flowalign.objectives.flow_grpo:FlowGRPO", paper="2505.05470",
          summary="clipped policy gradient over denoising steps"),
])
CREDITS = Registry("credit", "flowalign.credits", [
    Entry("group", "flowalign.objectives.credit.group:GroupCredit", paper="2402.03300",
          summary="reward relative to its prompt's group"),
])
PENALTIES = Registry("penalty", "flowalign.penalties", [
    Entry("kl", "flowalign.objectives.penalties.kl:KL", paper="2505.05470",
          summary="divergence of the transitions from the frozen reference"),
])
BALANCERS = Registry("balancer", "flowalign.balancers", [
    Entry("weighted_sum", "flowalign.objectives.balancers.weighted_sum:WeightedSum",
          summary="weights on normalised advantages"),
])
REWARDS = Registry("reward", "flowalign.rewards", [
    Entry("embedded_geneval", "flowalign.rewards.embedded_geneval:EmbeddedGenEval",
          summary="GenEval's rules on the embedded world's shapes"),
    Entry("embedded_ocr", "flowalign.rewards.embedded_ocr:EmbeddedOCR",
          summary="does the embedded world's sign read as asked"),
    Entry("compressibility", "flowalign.rewards.compressibility:Compressibility",
          paper="2305.13301", summary="minus the JPEG size in kilobytes"),
    Entry("color_fraction", "flowalign.rewards.color_fraction:ColorFraction",
          summary="share of the picture near a colour"),
    Entry("sharpness", "flowalign.rewards.sharpness:Sharpness",
          summary="variance of the Laplacian"),
])
MODELS = Registry("model", "flowalign.models", [
    Entry("sd3", "flowalign.models.sd3:SD3Policy", aliases=("StableDiffusion3Pipeline",),
          summary="Stable Diffusion 3 and 3.5, and the embedded model"),
])
# fmt: on
