"""Align a model by a recipe, on one or many processes.

    python scripts/train.py embedded/flow_grpo
    accelerate launch --num_processes 8 scripts/train.py RECIPE.yaml rollout.group_size=24
    accelerate launch --cpu --num_processes 2 scripts/train.py embedded/flow_grpo_short

The same as ``flowalign train``; every option of it works here.
"""

from __future__ import annotations

import sys

from flowalign.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
