"""Named copies of the trainable parameters, swapped in and always swapped back.

One mechanism for the frozen ``reference``, the ``old`` policy of ratio and NFT objectives, and the
``ema``. With LoRA only the adapter is copied, and a copy taken at its start (``B = 0``) is the base
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flowalign.errors import FlowalignError, unknown


class Snapshots:
    """Named copies of ``parameters``, each in its parameter's shape and dtype."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """``parameters``: by stable name; the mapping's order is that of the copies."""
        self._parameters = dict(parameters)
        self._copies: dict[str, list[Tensor]] = {}
        self._active: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The snapshots that have been taken."""
        return tuple(self._copies)

    def take(self, name: str, device: torch.device | str | None = None) -> None:
        """Copy the parameters as they are now, replacing an older snapshot of that name.

        Args:
            name: anything without a slash.
            device: where the copies live, such as ``"cpu"`` to save accelerator memory; default the
                parameter's own. ``use`` moves them in and drops the moved ones afterwards.

        Raises:
            RuntimeError: inside ``use``, where the parameters are not the live ones.
            ValueError: for a name with a slash.
        """
        self._refuse_inside_use(f"take({name!r})")
        if "/" in name:
            raise ValueError(f"a snapshot's name has no slash: {name!r}")
        self._copies[name] = [
            p.detach().to(device=device or p.device, copy=True) for p in self._parameters.values()
        ]

    @torch.no_grad()
    def blend(self, name: str, decay: float) -> None:
        """Exponential moving average, ``copy = decay * copy + (1 - decay) * parameter``.

        Args:
            name: a snapshot taken before.
            decay: in [0, 1]; 0 copies the parameters, 1 changes nothing.

        Raises:
            FlowalignError: for a snapshot that was never taken.
            RuntimeError: inside ``use``.
            ValueError: for a decay outside [0, 1].
        """
        self._refuse_inside_use(f"blend({name!r})")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay is in [0, 1], not {decay}")
        for copy, parameter in zip(self._get(name), self._parameters.values(), strict=True):
            copy.lerp_(parameter.to(copy.device), 1 - decay)

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Within the block the parameters hold the snapshot; the live values return in any case.

        Only ``.data`` pointers are exchanged. A graph recorded outside must not be backpropagated
        inside, nor one from inside afterwards: autograd would read the other weights. An update in
        place inside the block would change the snapshot.

        Raises:
            FlowalignError: for a snapshot that was never taken.
            RuntimeError: if any snapshot is in use already.
        """
        self._refuse_inside_use(f"use({name!r})")
        copies = self._get(name)
        parameters = list(self._parameters.values())
        live = [p.data for p in parameters]
        self._active = name
        try:
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.data = copy.to(parameter.device)
            torch.clear_autocast_cache()  # it is keyed by the parameter, not by its data
            yield
        finally:
            for parameter, data in zip(parameters, live, strict=True):
                parameter.data = data
            torch.clear_autocast_cache()
            self._active = None

    def state_dict(self) -> dict[str, Tensor]:
        """All copies as one flat dict ``name/parameter`` (not cloned), for a checkpoint."""
        return {
            f"{name}/{parameter}": copy
            for name, copies in self._copies.items()
            for parameter, copy in zip(self._parameters, copies, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace all snapshots by those of ``state_dict``; a known name keeps its device.

        Raises:
            RuntimeError: inside ``use``.
            ValueError: if a snapshot has other parameters or shapes than this model.
        """
        self._refuse_inside_use("load_state_dict")
        names = dict.fromkeys(key.partition("/")[0] for key in state)
        expected = {f"{name}/{parameter}" for name in names for parameter in self._parameters}
        different = sorted(expected.symmetric_difference(state))
        if different:
            raise ValueError(
                f"the snapshots are of another model: {different[0]} is on one side only"
            )
        loaded: dict[str, list[Tensor]] = {}
        for name in names:
            places = self._copies.get(name) or list(self._parameters.values())
            loaded[name] = [
                _like(state[f"{name}/{parameter}"], place, f"{name}/{parameter}")
                for parameter, place in zip(self._parameters, places, strict=True)
            ]
        self._copies = loaded

    def _get(self, name: str) -> list[Tensor]:
        if name not in self._copies:
            raise FlowalignError(unknown("snapshot", name, self.names))
        return self._copies[name]

    def _refuse_inside_use(self, action: str) -> None:
        if self._active is not None:
            raise RuntimeError(
                f"{action} inside use({self._active!r}): the parameters are not the live ones there"
            )


def _like(value: Tensor, place: Tensor, name: str) -> Tensor:
    """A copy of ``value`` with the device and dtype of ``place``."""
    if value.shape != place.shape:
        raise ValueError(
            f"the snapshots are of another model: {name} is {tuple(value.shape)}, not "
            f"{tuple(place.shape)}"
        )
    return value.detach().to(device=place.device, dtype=place.dtype, copy=True)
