"""Samplers: one file each, one Gaussian transition kernel each.

``simulate`` is the only loop over time. To add a sampler, write a frozen dataclass with a
``kernel`` method (see ``flow_sde.py``) and one line in ``flowalign/registry.py``.
"""

from flowalign.samplers.flow_sde import FlowSDE
from flowalign.samplers.ode import ODE
from flowalign.samplers.simulate import simulate
from flowalign.samplers.steps import StepSelection

__all__ = ["ODE", "FlowSDE", "StepSelection", "simulate"]
