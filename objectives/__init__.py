"""Objectives: losses on replayed rollouts, with credit, penalties and balancers beside them.

An objective is a class with ``needs`` (what the loop must provide) and ``loss(batch) ->
LossOutput``.
"""

from flowalign.objectives.balancers.weighted_sum import WeightedSum
from flowalign.objectives.base import Objective, Penalty
from flowalign.objectives.credit.group import GroupCredit
from flowalign.objectives.flow_grpo import FlowGRPO
from flowalign.objectives.penalties.kl import KL

__all__ = ["KL", "FlowGRPO", "GroupCredit", "Objective", "Penalty", "WeightedSum"]
