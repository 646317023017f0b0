"""What a reward is, and how a batch is scored so that a failure never looks like a low score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowalign.errors import ConfigError, RewardError
from flowalign.types import Metadata, Reward, Rewards


class RewardBase(ABC):
    """Base class of the rewards here; a plug-in may also just follow ``flowalign.types.Reward``.

    A subclass names itself and implements ``score``. NaN from ``score`` means "could not be
    judged".
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # keys that each prompt's metadata must have
    differentiable: ClassVar[bool] = False  # whether gradients reach the media
    groupwise: ClassVar[bool] = False  # whether a score depends on the rest of the batch

    @abstractmethod
    def score(self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Tensor:
        """Scores ``(B,)`` of media ``(B, C, H, W)`` or ``(B, F, C, H, W)`` in [0, 1]."""

    def __call__(
        self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> tuple[Tensor, Tensor]:
        """``(values (B,) fp32, valid (B,) bool)``; a value that is not finite is not valid."""
        values = self.score(media, prompts, metadata).float()
        return values, torch.isfinite(values.detach())


@dataclass(frozen=True)
class Cause:
    """The first failure of a reward in one call."""

    prompt: str
    message: str


class Scorer:
    """Scores a batch with several rewards, and keeps failures apart from scores.

    A reward that raises, or returns another number of values, or values that are not finite, marks
    the samples concerned invalid: value NaN, never 0. When a call of several samples raises, they
    are scored one by one (unless the reward is ``groupwise``), so that one bad sample costs only
    itself.

    Args:
        rewards: each with a name of its own.
        max_invalid_fraction: share in [0, 1] of one call that may be invalid for one reward.
    """

    def __init__(self, rewards: Sequence[Reward], max_invalid_fraction: float = 0.5) -> None:
        names = [reward.name for reward in rewards]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"give one or more rewards with different names, got {names}")
        if not 0 <= max_invalid_fraction <= 1:
            raise ConfigError(f"max_invalid_fraction must be in [0, 1], got {max_invalid_fraction}")
        self.rewards = tuple(rewards)
        self.names = tuple(names)
        self.max_invalid_fraction = max_invalid_fraction
        self.causes: dict[str, Cause] = {}  # of the last call, by reward name

    def __call__(
        self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> Rewards:
        """Scores of media ``(B, C, H, W)`` or ``(B, F, C, H, W)``; gradients are kept.

        Raises:
            RewardError: when more than ``max_invalid_fraction`` of the samples are invalid for one
                reward.
        """
        self.causes = {}
        columns = [self._column(reward, media, prompts, metadata) for reward in self.rewards]
        return Rewards(
            names=self.names,
            values=torch.stack([values for values, _ in columns], 1),
            valid=torch.stack([valid for _, valid in columns], 1),
        )

    def _column(
        self, reward: Reward, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> tuple[Tensor, Tensor]:
        """Values and validity ``(B,)`` of one reward."""
        try:
            values, valid = _checked(reward, media, prompts, metadata)
        except Exception as error:
            self._note(reward, prompts[0], error)
            if reward.groupwise or len(prompts) == 1:
                values, valid = _failed(len(prompts), media)
            else:
                values, valid = self._one_by_one(reward, media, prompts, metadata)
        bad = (~valid).nonzero().flatten().tolist()
        if bad and reward.name not in self.causes:
            self._note(reward, prompts[bad[0]], ValueError("it gave no finite value"))
        self._limit(reward, len(bad), len(prompts))
        return torch.where(valid, values, torch.nan), valid

    def _one_by_one(
        self, reward: Reward, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> tuple[Tensor, Tensor]:
        del self.causes[reward.name]  # find the sample that is to blame
        rows, failures = [], 0
        for i, prompt in enumerate(prompts):
            part = slice(i, i + 1)
            try:
                rows.append(_checked(reward, media[part], prompts[part], metadata[part]))
            except Exception as error:
                self._note(reward, prompt, error)
                rows.append(_failed(1, media))
                failures += 1
                self._limit(reward, failures, len(prompts))  # do not wait for a dead server B times
        return torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])

    def _note(self, reward: Reward, prompt: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        message = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
        self.causes.setdefault(reward.name, Cause(prompt, message))

    def _limit(self, reward: Reward, invalid: int, total: int) -> None:
        if invalid > self.max_invalid_fraction * total:
            cause = self.causes[reward.name]
            raise RewardError(
                f"the reward {reward.name} failed on {invalid} or more of {total} samples, first "
                f"for the prompt {cause.prompt!r} ({cause.message}); repair the reward or its "
                "service, or raise training.max_invalid_fraction (now "
                f"{self.max_invalid_fraction:g})"
            )


def _checked(
    reward: Reward, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
) -> tuple[Tensor, Tensor]:
    """Call ``reward`` and hold it to its contract; invalid where it says so or is not finite."""
    answer: Any = reward(media, prompts, metadata)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ValueError("it must return (values, valid)")
    values = torch.as_tensor(answer[0]).to(device=media.device, dtype=torch.float32)
    valid = torch.as_tensor(answer[1]).to(device=media.device, dtype=torch.bool)
    for name, column in (("values", values), ("valid", valid)):
        if column.shape != (len(prompts),):
            shape = tuple(column.shape)
            raise ValueError(f"its {name} have the shape {shape} for {len(prompts)} samples")
    return values, valid & torch.isfinite(values.detach())


def _failed(n: int, media: Tensor) -> tuple[Tensor, Tensor]:
    nothing = torch.full((n,), torch.nan, device=media.device)
    return nothing, torch.zeros(n, dtype=torch.bool, device=media.device)


def check_metadata(
    rewards: Sequence[Reward], prompts: Sequence[str], metadata: Sequence[Metadata]
) -> None:
    """Refuse, before training, prompts that a reward cannot judge.

    Raises:
        ConfigError: naming the reward, the prompt and the keys its metadata lacks.
    """
    for reward in rewards:
        for prompt, known in zip(prompts, metadata, strict=True):
            missing = sorted(reward.needs - set(known))
            if missing:
                raise ConfigError(
                    f"the reward {reward.name} needs {', '.join(missing)} for each prompt, but "
                    f"{prompt!r} has none; use prompts with this metadata or another reward"
                )
