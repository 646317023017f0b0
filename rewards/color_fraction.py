"""How much of the picture has a colour: a differentiable reward in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from PIL import ImageColor
from torch import Tensor

from flowalign.rewards.base import RewardBase
from flowalign.types import Metadata


class ColorFraction(RewardBase):
    """Mean over the pixels of ``exp(-|pixel - color|^2 / (2 width^2))``, in [0, 1].

    Args:
        color: a CSS name or ``#rrggbb``.
        width: how far a pixel may be from the colour, in units of the RGB cube's side, > 0.

    Raises:
        ValueError: for an unknown colour or a width <= 0.
    """

    name: ClassVar[str] = "color_fraction"
    differentiable: ClassVar[bool] = True

    def __init__(self, color: str = "red", width: float = 0.2) -> None:
        if width <= 0:
            raise ValueError(f"width must be > 0, got {width}")
        self.color = torch.tensor(ImageColor.getrgb(color)[:3]) / 255
        self.width = width

    def score(self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Tensor:
        """Scores ``(B,)`` of media ``(B, 3, H, W)`` or ``(B, F, 3, H, W)`` in [0, 1]."""
        color = self.color.to(media)[:, None, None]
        squared = (media - color).square().sum(-3)
        return torch.exp(-squared / (2 * self.width**2)).flatten(1).mean(1)
