"""Rewards: one file each, ``(media, prompts, metadata) -> (values (B,), valid (B,))``.

The same reward object serves training, test-time guidance and benchmarks. To add one, subclass
``RewardBase`` (see ``color_fraction.py``) and name it in ``flowalign/registry.py``, or use
``"module:attr"`` in the recipe.
"""

from typing import Any, cast

from flowalign.rewards.base import Cause, RewardBase, Scorer, check_metadata
from flowalign.types import Reward

__all__ = ["Cause", "RewardBase", "Scorer", "build", "check_metadata"]


def build(name: str, **options: Any) -> Reward:
    """The reward of that registry name or ``"module:attr"`` string, with its options.

    Raises:
        ConfigError: for an unknown name or option.
    """
    from flowalign.registry import REWARDS  # the registry names this package's modules

    return cast(Reward, REWARDS.build(name, **options))
