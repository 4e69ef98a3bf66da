"""How near frames are to the truth, and how sharp. Frames are [N, 3, H, W] in -1..1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def psnr(made: Tensor, truth: Tensor) -> float:
    """Mean over frames of the peak signal-to-noise ratio, dB."""
    error = (made.clamp(-1, 1) - truth).float().square().mean((1, 2, 3)) / 4
    return float((-10 * error.clamp(min=1e-10).log10()).mean())


def ssim(made: Tensor, truth: Tensor) -> float:
    """Mean structural similarity: Gaussian window of 11 pixels, sigma 1.5, every channel."""
    x = (made.clamp(-1, 1).float() + 1) / 2
    y = (truth.float() + 1) / 2
    place = torch.arange(11, device=x.device) - 5.0
    line = (-(place**2) / (2 * 1.5**2)).exp()
    line = line / line.sum()
    window = (line[:, None] * line[None])[None, None]

    def mean(values: Tensor) -> Tensor:
        flat = values.flatten(0, 1)[:, None]
        return F.conv2d(flat, window)

    mean_x, mean_y = mean(x), mean(y)
    var_x, var_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    both = mean(x * y) - mean_x * mean_y
    top = (2 * mean_x * mean_y + 0.01**2) * (2 * both + 0.03**2)
    below = (mean_x**2 + mean_y**2 + 0.01**2) * (var_x + var_y + 0.03**2)
    return float((top / below).mean())


def edge_energy(frames: Tensor) -> float:
    """Mean size of the differences between neighbouring pixels."""
    x = frames.clamp(-1, 1).float()
    across = (x[..., 1:] - x[..., :-1]).abs().mean()
    return float(across + (x[..., 1:, :] - x[..., :-1, :]).abs().mean())


def sharpness(frames: Tensor) -> float:
    """Mean size of the second differences: what blur takes away first."""
    x = frames.clamp(-1, 1).float()
    across = (x[..., 2:] - 2 * x[..., 1:-1] + x[..., :-2]).abs().mean()
    return float(across + (x[..., 2:, :] - 2 * x[..., 1:-1, :] + x[..., :-2, :]).abs().mean())


def table(made: Tensor, truth: Tensor) -> dict[str, float]:
    """PSNR, SSIM and edge energy over that of the truth, rounded; [N, 3, H, W]."""
    return {
        "psnr": round(psnr(made, truth), 2),
        "ssim": round(ssim(made, truth), 4),
        "edges": round(edge_energy(made) / max(edge_energy(truth), 1e-9), 3),
    }
