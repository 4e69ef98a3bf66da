"""Strips of frames as PNG files: the truth above what was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def strip(path: Path, rows: Sequence[Tensor]) -> None:
    """Write rows of frames, each [N, 3, H, W] in -1..1, below each other."""
    lines = [
        np.concatenate(list(to_bytes(row)), axis=1) for row in rows
    ]  # every row is as wide as its frames
    wide = max(line.shape[1] for line in lines)
    lines = [np.pad(line, ((0, 2), (0, wide - line.shape[1]), (0, 0))) for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(lines, axis=0)).save(path, optimize=True)


def to_bytes(frames: Tensor) -> np.ndarray:
    """[N, H, W, 3] bytes of frames [N, 3, H, W] in -1..1."""
    scaled = (frames.detach().float().clamp(-1, 1) + 1) * 127.5
    return scaled.round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
