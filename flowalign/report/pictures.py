"""Pictures as data URIs, small enough for one page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from PIL import Image

LARGEST = 256  # pixels on the longer side; larger pictures are embedded as thumbnails


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An embedded picture."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Album:
    """The pictures of a run folder; ``lost`` names those that were asked for and cannot be read."""

    folder: Path
    lost: list[str] = field(default_factory=list)

    def __call__(self, name: str | None) -> Picture | None:
        """The picture ``name``; None if it was not kept, or is not there, not whole, not inside."""
        if name is None:
            return None
        try:
            return _embed(_inside(self.folder, name))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            self.lost.append(name)
            return None


def _inside(folder: Path, name: str) -> Path:
    pure = PurePath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{name} is outside of the run folder")
    return folder / pure


def _embed(path: Path) -> Picture:
    data = path.read_bytes()
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        kind, size = "png", image.size
        if image.format != "PNG" or max(size) > LARGEST:
            kind, data, size = "jpeg", *_thumbnail(image)
    encoded = base64.b64encode(data).decode("ascii")
    return Picture(uri=f"data:image/{kind};base64,{encoded}", width=size[0], height=size[1])


def _thumbnail(image: Image.Image) -> tuple[bytes, tuple[int, int]]:
    small = image.convert("RGB")
    small.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue(), small.size
