"""Start the processes that ``accelerate launch --cpu --num_processes N`` asks for.

Without MPI accelerate starts a single one there, whatever N is, and says nothing.
"""

from __future__ import annotations

import os
import sys

from flowalign.errors import FlowalignError

_STARTED = ("WORLD_SIZE", "RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def start_missing_processes() -> None:
    """Replace this process by torchrun's if accelerate left others of a CPU launch unstarted.

    Raises:
        FlowalignError: if it cannot tell how many, or they are spread over machines.
    """
    environment = os.environ
    by_accelerate = environment.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")
    # accelerate's launcher for one process sets an address only if more were asked for
    if not by_accelerate or "MASTER_ADDR" not in environment:
        return
    if any(name in environment for name in _STARTED):
        return
    import psutil

    words = psutil.Process(os.getppid()).cmdline()
    count, machines = _option(words, "num_processes"), _option(words, "num_machines") or 1
    if count is None or machines > 1:
        raise FlowalignError(
            "`accelerate launch --cpu` starts only one process here: start them by "
            "`torchrun --nproc_per_node N scripts/train.py ...` instead"
        )
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(count)]
    run += ["--master_addr", environment["MASTER_ADDR"]]
    run += ["--master_port", environment.get("MASTER_PORT", "29500")]
    os.execv(sys.executable, [*run, *sys.argv])


def _option(words: list[str], name: str) -> int | None:
    """An integer option of a command line, ``--name 2`` or ``--name=2``, with _ or -."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        key, _, value = word.partition("=")
        if key.startswith("--") and key[2:].replace("-", "_") == name:
            value = value or following
            return int(value) if value.isdigit() else None
    return None
