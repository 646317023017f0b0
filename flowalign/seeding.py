"""Random streams by purpose, so that a draw depends on the run and the sample, not on batching."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream is for; part of its key, so that no two purposes share one."""

    START = 0  # initial noise of a rollout
    PATH = 1  # noise along it
    SHUFFLE = 2  # order of the rows in the updates
    PROMPTS = 3  # order of the training prompts
    EVALUATION = 4  # initial noise of an evaluation


def generator(purpose: Purpose, *key: int) -> torch.Generator:
    """A CPU generator for a purpose and a key >= 0, e.g. ``(seed, iteration, row)``."""
    # The length comes first: SeedSequence takes (1, 2) and (1, 2, 0) for the same.
    seed = np.random.SeedSequence((len(key), int(purpose), *key)).generate_state(2)
    return torch.Generator().manual_seed(int(seed[0]) << 31 ^ int(seed[1]))
