"""Named copies of the trainable parameters: ``reference``, ``old``, ``ema``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Snapshots:
    """Copies of parameters that can stand in for them.

    One mechanism for every frozen view of a policy. With a fresh LoRA the copy taken at the start is
    the base model itself, since its second factor is zero.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """``parameters`` are the trainable ones, by stable name."""
        self._parameters = dict(parameters)
        self._copies: dict[str, dict[str, Tensor]] = {}
        self._in_use: str | None = None

    @property
    def names(self) -> list[str]:
        """The snapshots taken so far."""
        return sorted(self._copies)

    def take(self, name: str) -> None:
        """Copy the parameters as they are now."""
        self._outside("take")
        self._copies[name] = {key: p.detach().clone() for key, p in self._parameters.items()}

    @torch.no_grad()
    def blend(self, name: str, decay: float) -> None:
        """Exponential moving average: ``copy = decay * copy + (1 - decay) * parameter``."""
        self._outside("blend")
        copies = self._get(name)
        for key, parameter in self._parameters.items():
            copies[key].lerp_(parameter.detach(), 1 - decay)

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Within it the parameters hold the snapshot; they come back even if the body raises.

        Raises:
            RuntimeError: if another snapshot is already in use.
            KeyError: for an unknown name.
        """
        self._outside("use")
        copies = self._get(name)
        self._swap(copies)
        self._in_use = name
        try:
            yield
        finally:
            self._swap(copies)
            self._in_use = None

    def _swap(self, copies: dict[str, Tensor]) -> None:
        for key, parameter in self._parameters.items():
            parameter.data, copies[key] = copies[key], parameter.data

    def _outside(self, action: str) -> None:
        if self._in_use is not None:
            raise RuntimeError(f"cannot {action} a snapshot while {self._in_use!r} is in use")

    def _get(self, name: str) -> dict[str, Tensor]:
        if name not in self._copies:
            raise KeyError(f"no snapshot {name!r} was taken (there are: {self.names or 'none'})")
        return self._copies[name]

    def state_dict(self) -> dict[str, Tensor]:
        """All copies as ``snapshot/parameter`` -> tensor."""
        self._outside("save")
        return {
            f"{name}/{key}": value
            for name, copies in self._copies.items()
            for key, value in copies.items()
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore copies in place of all present ones.

        Raises:
            KeyError: if a snapshot lacks a parameter.
        """
        self._outside("load")
        names = {key.split("/", 1)[0] for key in state}
        self._copies = {
            name: {
                key: state[f"{name}/{key}"].to(parameter.device, copy=True)
                for key, parameter in self._parameters.items()
            }
            for name in names
        }
