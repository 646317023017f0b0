"""flowalign: align diffusion and flow-matching generators with rewards.

>>> import flowalign
>>> policy = flowalign.load_policy("embedded")
>>> result = flowalign.evaluate(policy, "geneval")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowalign.evaluation import evaluate as evaluate
    from flowalign.models.load import load_policy as load_policy
    from flowalign.recipe import load_config as load_config
    from flowalign.trainer import train as train

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "load_config", "load_policy", "train"]

_HOMES = {
    "evaluate": "flowalign.evaluation",
    "load_config": "flowalign.recipe",
    "load_policy": "flowalign.models.load",
    "train": "flowalign.trainer",
}


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, so that ``import flowalign`` stays light."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'flowalign' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return __all__
