"""Errors for the user: one clear sentence that says what to do, shown without a traceback."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class FlowalignError(Exception):
    """Base of all errors whose message is meant for the user."""


class ConfigError(FlowalignError):
    """The recipe, an option or an input file is wrong."""


class CheckpointError(FlowalignError):
    """A checkpoint or a model folder cannot be used."""


class RewardError(FlowalignError):
    """A reward failed too often to go on."""


class PreflightError(FlowalignError):
    """Training would compute a wrong gradient or none."""


def unknown(kind: str, name: str, choices: Sequence[str]) -> str:
    """``unknown sampler 'flow_sdee'; did you mean 'flow_sde'? (available: flow_sde, ode)``."""
    near = get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint} (available: {', '.join(sorted(choices)) or 'none'})"
