"""JPEG size: the simplest reward that needs no model, and a good first smoke test of a loop."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import ClassVar

import torch
from PIL import Image
from torch import Tensor

from flowalign.rewards.base import RewardBase
from flowalign.types import Metadata


class Compressibility(RewardBase):
    """Minus the picture's JPEG size in kilobytes (DDPO, arXiv 2305.13301, section 5.1).

    Args:
        quality: JPEG quality, 1 to 95.
        sign: -1 rewards pictures that compress well, 1 ("incompressibility") those that do not.

    Raises:
        ValueError: for another sign or a quality out of range.
    """

    name: ClassVar[str] = "compressibility"

    def __init__(self, quality: int = 95, sign: int = -1) -> None:
        if not 1 <= quality <= 95 or sign not in (-1, 1):
            raise ValueError(f"quality must be 1...95 and sign -1 or 1, got {quality} and {sign}")
        self.quality, self.sign = quality, sign

    def score(self, media: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Tensor:
        """Scores ``(B,)`` in kB (1000 bytes) of pictures ``(B, 3, H, W)`` in [0, 1]."""
        pixels = (media.detach().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu()
        sizes = [self._size(Image.fromarray(picture.numpy())) for picture in pixels]
        return torch.tensor(sizes, device=media.device) * self.sign

    def _size(self, picture: Image.Image) -> float:
        file = io.BytesIO()
        picture.save(file, format="JPEG", quality=self.quality)
        return file.tell() / 1000
