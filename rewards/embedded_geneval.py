"""GenEval on the embedded world: the procedural detector's eye, GenEval's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from flowalign.embedded.detector import detect
from flowalign.rewards.base import RewardBase
from flowalign.rewards.geneval_rules import partial
from flowalign.types import Metadata

Rule = Literal["strict", "partial", "mixed"]


class EmbeddedGenEval(RewardBase):
    """Score of coloured shapes against GenEval metadata, in [0, 1].

    Args:
        rule: ``strict`` = 1 for the right shapes, counts, colours and relation and nothing else
            visible, else 0; ``partial`` = share of the requirements met; ``mixed`` = their mean,
            the usual training reward. See ``geneval_rules``.

    Raises:
        ValueError: for another rule.
    """

    name: ClassVar[str] = "embedded_geneval"
    needs: ClassVar[frozenset[str]] = frozenset({"tag", "include"})

    def __init__(self, rule: Rule = "mixed") -> None:
        if rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
        self.rule = rule

    def score(self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Tensor:
        """Scores ``(B,)`` of pictures ``(B, 3, H, H)`` in [0, 1]."""
        credit = [partial(seen, known) for seen, known in zip(detect(media), metadata, strict=True)]
        values = torch.tensor(credit, dtype=torch.float32, device=media.device)
        exact = (values == 1).float()
        return {"strict": exact, "partial": values, "mixed": (values + exact) / 2}[self.rule]
