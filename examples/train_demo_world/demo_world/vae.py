"""The small Wan VAE, and its whole-clip form for training.

The class is diffusers' `AutoencoderKLWan`: 8×8 pixels and four frames to a latent pixel of 16
channels; 2×2 pixels are folded into channels first, so that no convolution runs at full resolution.

diffusers works through a clip latent frame by latent frame with a memory in every convolution.
`ClipVae` does the whole clip at once, which a test compares with the stream: only the layers that
change the frame rate need another path, since they treat the first frame differently.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AutoencoderKLWan,
    WanResample,
    patchify,
    unpatchify,
)
from torch import Tensor, nn

CHANNELS: Final = 16
PATCH: Final = 2


def config(base: int = 32, decoder_base: int = 32) -> dict[str, Any]:
    """`vae/config.json` without the latents' statistics."""
    return {
        "_class_name": "AutoencoderKLWan",
        "attn_scales": [],
        "base_dim": base,
        "decoder_base_dim": decoder_base,
        "dim_mult": [1, 2, 3],
        "dropout": 0.0,
        "in_channels": 3 * PATCH * PATCH,
        "is_residual": False,
        "num_res_blocks": 1,
        "out_channels": 3 * PATCH * PATCH,
        "patch_size": PATCH,
        "scale_factor_spatial": 8,
        "scale_factor_temporal": 4,
        "temperal_downsample": [True, True],
        "z_dim": CHANNELS,
    }


def build(base: int = 32, decoder_base: int = 32) -> Any:
    """A new VAE with random weights."""
    fields = {k: v for k, v in config(base, decoder_base).items() if not k.startswith("_")}
    return AutoencoderKLWan(**fields)


def padded_activation(x: Tensor, gamma: Tensor, scale: float, frames: int) -> Tensor:
    """RMS norm over channels, SiLU, and so many empty frames in front: what every convolution over
    time wants. One kernel when compiled; the module's own chain is nine."""
    wide = x.float()
    wide = wide / wide.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
    y = F.silu(wide * scale * gamma.float()).to(x.dtype)
    return F.pad(y, (0, 0, 0, 0, frames, 0))


class ClipVae:
    """Whole clips through a VAE at once, with gradients.

    Args:
        model: `AutoencoderKLWan` as `build` makes it.
        compiled: fuse norms and activations with torch.compile.
    """

    def __init__(self, model: Any, *, compiled: bool = False) -> None:
        self.model, self.compiled = model, compiled
        self._activate = padded_activation
        if compiled:
            self._activate = torch.compile(padded_activation, dynamic=False)

    def encode(self, video: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance [B, 16, 1 + k, h, w] of a video [B, 3, 1 + 4k, H, W] in -1..1."""
        encoder = self.model.encoder
        folded = patchify(video, PATCH).contiguous(memory_format=torch.channels_last_3d)
        x = encoder.conv_in(folded)
        for layer in encoder.down_blocks:
            x = _down(layer, x) if isinstance(layer, WanResample) else self._residual(layer, x)
        x = self._middle(encoder.mid_block, x)
        x = self._convolve(encoder.norm_out, encoder.conv_out, x)
        mean, log_variance = self.model.quant_conv(x).chunk(2, 1)
        return mean, log_variance

    def decode(self, latents: Tensor) -> Tensor:
        """The video [B, 3, 1 + 4k, H, W] of latents [B, 16, 1 + k, h, w] in the VAE's own scale,
        not clamped."""
        decoder = self.model.decoder
        x = decoder.conv_in(self.model.post_quant_conv(latents))
        x = self._middle(decoder.mid_block, x)
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                x = self._residual(resnet, x)
            if block.upsamplers is not None:
                x = _up(block.upsamplers[0], x)
        return unpatchify(self._convolve(decoder.norm_out, decoder.conv_out, x), PATCH)

    def _middle(self, block: Any, x: Tensor) -> Tensor:
        x = self._residual(block.resnets[0], x)
        for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
            x = self._residual(resnet, attention(x))
        return x

    def _residual(self, block: Any, x: Tensor) -> Tensor:
        y = self._convolve(block.norm1, block.conv1, x)
        return self._convolve(block.norm2, block.conv2, y) + block.conv_shortcut(x)

    def _convolve(self, norm: Any, convolution: Any, x: Tensor) -> Tensor:
        y = self._activate(x, norm.gamma, norm.scale, 2)
        return F.conv3d(y, convolution.weight, convolution.bias, padding=(0, 1, 1))


def _frames(layer: nn.Module, x: Tensor) -> Tensor:
    batch, _, frames = x.shape[:3]
    x = layer(x.transpose(1, 2).flatten(0, 1))
    return x.unflatten(0, (batch, frames)).transpose(1, 2)


def _down(layer: WanResample, x: Tensor) -> Tensor:
    """Halve rows and columns; frames too: the first stays, then pairs with the frame before."""
    x = _frames(layer.resample, x)
    if layer.mode == "downsample3d" and x.shape[2] > 1:
        x = torch.cat([x[:, :, :1], layer.time_conv(x)], 2)
    return x


def _up(layer: WanResample, x: Tensor) -> Tensor:
    """Double rows and columns; frames too, but for the first, which later ones do not see."""
    if layer.mode == "upsample3d" and x.shape[2] > 1:
        first, rest = x[:, :, :1], x[:, :, 1:]
        # Two frames of C channels each; in the order of memory that fast convolutions keep.
        pair = layer.time_conv(rest).permute(0, 2, 3, 4, 1).unflatten(4, (2, -1))
        rest = pair.permute(0, 1, 4, 2, 3, 5).flatten(1, 2).permute(0, 4, 1, 2, 3)
        x = torch.cat([first, rest], 2)
    return _frames(layer.resample, x)


def gradient_loss(error: Tensor) -> Tensor:
    """Mean size of the error's differences across and down, at three scales; [N, 3, H, W]."""
    total = error.new_zeros(())
    for scale in range(3):
        if scale:
            error = F.avg_pool2d(error, 2)
        total = total + (error[..., 1:] - error[..., :-1]).abs().mean()
        total = total + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    return total


def reconstruction_loss(video: Tensor, made: Tensor) -> Tensor:
    """L1, its spatial gradients, its change in time, and L2."""
    error = (made - video).float()
    moving = (error[:, :, 1:] - error[:, :, :-1]).abs().mean()
    spatial = gradient_loss(error.transpose(1, 2).flatten(0, 1))
    return error.abs().mean() + 0.5 * spatial + 0.25 * moving + error.square().mean()


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL divergence from the standard normal distribution, mean over numbers."""
    mean, log_variance = mean.float(), log_variance.float().clamp(-30, 20)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
