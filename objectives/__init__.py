"""Objectives: losses on replayed rollouts, with credit, penalties and balancers beside them.

An objective is a class with ``needs`` (what the loop must provide) and ``loss(batch) ->
LossOutput``.
"""

from flowalign.objectives.base import Objective, Penalty
from flowalign.objectives.flow_grpo import FlowGRPO

__all__ = ["FlowGRPO", "Objective", "Penalty"]
