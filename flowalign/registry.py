"""Names of recipes to classes, imported only when used.

Three things can stand for a plug-in: a name of the tables below, a name that an installed package
offers through an entry-point group (``flowalign.samplers``, ``.rewards``, ...), or ``module:attr``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from flowalign.errors import ConfigError, unknown


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One plug-in: where it is and what to say of it."""

    name: str
    target: str  # module:attr
    summary: str
    paper: str = ""  # arXiv id
    reconstruction: bool = False  # rebuilt from an abstract; not the paper's own algorithm
    aliases: tuple[str, ...] = ()


class Registry:
    """The plug-ins of one kind."""

    def __init__(self, kind: str, group: str, entries: Sequence[Entry]) -> None:
        """``group`` is the entry-point group of third-party plug-ins."""
        self.kind, self.group = kind, group
        self._entries = {entry.name: entry for entry in entries}
        self._aliases = {alias: entry.name for entry in entries for alias in entry.aliases}

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """All names, third-party ones included."""
        return sorted({*self._entries, *self._plugins})

    def entries(self) -> list[Entry]:
        """Built-in entries, then third-party ones."""
        others = [
            Entry(name=name, target=point.value, summary=f"from {_source(point)}")
            for name, point in self._plugins.items()
            if name not in self._entries
        ]
        return [*self._entries.values(), *others]

    def get(self, name: str) -> Any:
        """The class of a name or of ``module:attr``.

        Raises:
            ConfigError: for an unknown name (with the nearest one) or a failing import.
        """
        name = self._aliases.get(name, name)
        if name in self._entries:
            return _load(self._entries[name].target)
        if name in self._plugins:
            try:
                return self._plugins[name].load()
            except Exception as error:
                source = _source(self._plugins[name])
                raise ConfigError(
                    f"{self.kind} {name!r} of {source} cannot be imported: {error}"
                ) from error
        if ":" in name:
            try:
                return _load(name)
            except (ImportError, AttributeError, ValueError) as error:
                raise ConfigError(f"{self.kind} {name!r} cannot be imported: {error}") from error
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
                    raise ConfigError(
                        unknown(f"option of {self.kind} {name}", option, [*parameters])
                    )
        try:
            return factory(**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.kind} {name}: {error}") from error


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _source(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.module


SAMPLERS = Registry(
    "sampler",
    "flowalign.samplers",
    [
        Entry(
            name="ode",
            target="flowalign.samplers.ode:ODE",
            summary="Euler steps of the probability-flow ODE",
        ),
        Entry(
            name="flow_sde",
            target="flowalign.samplers.flow_sde:FlowSDE",
            summary="the reverse SDE with the ODE's marginals",
            paper="2505.05470",
        ),
    ],
)
OBJECTIVES = Registry(
    "objective",
    "flowalign.objectives",
    [
        Entry(
            name="flow_grpo",
            target="flowalign.objectives.flow_grpo:FlowGRPO",
            summary="clipped policy gradient over denoising steps",
            paper="2505.05470",
        ),
    ],
)
CREDITS = Registry(
    "credit",
    "flowalign.credits",
    [
        Entry(
            name="group",
            target="flowalign.objectives.credit.group:GroupCredit",
            summary="reward relative to its prompt's group",
            paper="2402.03300",
        ),
    ],
)
PENALTIES = Registry(
    "penalty",
    "flowalign.penalties",
    [
        Entry(
            name="kl",
            target="flowalign.objectives.penalties.kl:KL",
            summary="divergence of the transitions from the frozen reference",
            paper="2505.05470",
        ),
    ],
)
BALANCERS = Registry(
    "balancer",
    "flowalign.balancers",
    [
        Entry(
            name="weighted_sum",
            target="flowalign.objectives.balancers.weighted_sum:WeightedSum",
            summary="weights on normalised advantages",
        ),
    ],
)
REWARDS = Registry(
    "reward",
    "flowalign.rewards",
    [
        Entry(
            name="embedded_geneval",
            target="flowalign.rewards.embedded_geneval:EmbeddedGenEval",
            summary="GenEval's rules on the embedded world's shapes",
        ),
        Entry(
            name="embedded_ocr",
            target="flowalign.rewards.embedded_ocr:EmbeddedOCR",
            summary="does the embedded world's sign read as asked",
        ),
        Entry(
            name="compressibility",
            target="flowalign.rewards.compressibility:Compressibility",
            summary="JPEG size in kilobytes",
            paper="2305.13301",
        ),
        Entry(
            name="color_fraction",
            target="flowalign.rewards.color_fraction:ColorFraction",
            summary="share of the picture near a colour",
        ),
        Entry(
            name="sharpness",
            target="flowalign.rewards.sharpness:Sharpness",
            summary="variance of the Laplacian",
        ),
    ],
)
MODELS = Registry(
    "model",
    "flowalign.models",
    [
        Entry(
            name="sd3",
            target="flowalign.models.sd3:SD3Policy",
            summary="Stable Diffusion 3 and 3.5, and the embedded model",
            aliases=("StableDiffusion3Pipeline",),
        ),
    ],
)
