"""Sharpness: the variance of the Laplacian, as used to find pictures that are in focus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from flowalign.rewards.base import RewardBase
from flowalign.types import Metadata

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


class Sharpness(RewardBase):
    """Variance of the 5-point Laplacian of the luma (Pech-Pacheco et al., ICPR 2000), >= 0.

    Pixels are in [0, 1], so a pattern of black and white at every pixel reaches 16 and a photo in
    focus about 0.01.
    """

    name: ClassVar[str] = "sharpness"
    differentiable: ClassVar[bool] = True

    def score(self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Tensor:
        """Scores ``(B,)`` of media ``(B, 3, H, W)`` or ``(B, F, 3, H, W)`` in [0, 1].

        Raises:
            ValueError: for pictures under 3 x 3 pixels.
        """
        if min(media.shape[-2:]) < 3:
            raise ValueError(f"sharpness needs 3 x 3 pixels or more, got {tuple(media.shape[-2:])}")
        luma = torch.einsum("...chw,c->...hw", media, media.new_tensor(LUMA))
        middle = luma[..., 1:-1, 1:-1]
        across = luma[..., 1:-1, :-2] + luma[..., 1:-1, 2:]
        along = luma[..., :-2, 1:-1] + luma[..., 2:, 1:-1]
        laplacian = across + along - 4 * middle
        frames = laplacian.var((-2, -1), correction=0)
        return frames.reshape(len(media), -1).mean(1)
