"""Random streams by purpose, so that a draw depends on the run and the sample, not on batching."""

from __future__ import annotations

import numpy as np
import torch


def generator(*key: int) -> torch.Generator:
    """A CPU generator for a key of non-negative integers, e.g. ``(seed, iteration, row)``."""
    seed = np.random.SeedSequence(key).generate_state(2)
    return torch.Generator().manual_seed(int(seed[0]) << 31 ^ int(seed[1]))
