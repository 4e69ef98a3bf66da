"""The Wan VAE chunk by chunk: functions of the weights and of a history that the caller owns.

diffusers' `AutoencoderKLWan.decode` and `encode` already work in small groups of frames with a list
of what each convolution over time must remember, but keep that list on the module. Its `decoder`
and `encoder` take the list as an argument, so here it comes from outside: any number of streams
may use one module, in turn or at once, and a chunked stream equals the whole clip to the bit.

    history = new_history(model.decoder)
    for latents in chunks:                       # [1, C, f, h, w], f of any size
        frames, history = decode_chunk(model, latents, history)

The first latent frame gives one frame, every later one four (the VAE's stride in time).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify
from torch import nn

Remembered = torch.Tensor | str | None
"""What one slot holds: frames; `FIRST_ONLY`; nothing yet."""

History = list[Remembered]
"""One entry per slot (`sgld_wan.models.vae_slots`). The tensors are replaced and never written
into, so that a copy of the list is a copy of the history."""

FIRST_ONLY = "Rep"
"""diffusers' mark in the slot of a layer that doubles frames: only the first frame has passed."""


def count_slots(half: nn.Module) -> int:
    """Slots of a Wan encoder or decoder: one for each convolution over more than one frame."""
    return sum(
        isinstance(module, WanCausalConv3d) and module.kernel_size[0] > 1
        for module in half.modules()
    )


def new_history(half: nn.Module) -> History:
    """The history of a stream that has not begun, for `model.decoder` or `model.encoder`."""
    return [None] * count_slots(half)


def decode_chunk(
    model: Any, latents: torch.Tensor, history: History
) -> tuple[torch.Tensor, History]:
    """Decode the next latent frames of a stream.

    Args:
        model: `AutoencoderKLWan`.
        latents: [B, C, f, h, w] in the VAE's own scale and precision.
        history: what the call before returned, or `new_history(model.decoder)`. The call takes it
            over: entries are replaced while the layers run, so that the old ones need no memory
            beside the new. Give `list(history)` to decode from the same place again.

    Returns:
        Frames [B, 3, F, H, W] clamped to -1..1, F = 4f, or 4f - 3 at the beginning of a stream;
        and the history.
    """
    first = _check(latents, history, model.decoder, model.config.z_dim, "latents")
    _check_size(latents, history, "latents")
    pieces: list[torch.Tensor] = []
    for index in range(latents.shape[2]):
        # Frame by frame: for another number of frames a convolution may round otherwise.
        x, place = model.post_quant_conv(latents[:, :, index : index + 1]), [0]
        begins = first and index == 0
        pieces.append(model.decoder(x, feat_cache=history, feat_idx=place, first_chunk=begins))
        _check_visited(place[0], history)
    frames = _joined(pieces)
    if model.config.patch_size is not None:
        frames = unpatchify(frames, patch_size=model.config.patch_size)
    return frames.clamp(min=-1.0, max=1.0), history


def encode_chunk(model: Any, video: torch.Tensor, history: History) -> tuple[torch.Tensor, History]:
    """Encode the next frames of a stream.

    Args:
        model: `AutoencoderKLWan`.
        video: [B, 3, F, H, W] in -1..1 in the VAE's precision; F is 4k + 1 at the beginning of a
            stream and a multiple of 4 (the VAE's stride in time) later.
        history: what the call before returned, or `new_history(model.encoder)`; taken over as by
            `decode_chunk`.

    Returns:
        Mode of the posterior [B, C, f, h, w], not normalised; and the history.
    """
    first = _check(video, history, model.encoder, 3, "video")
    stride, count = _time_stride(model), video.shape[2]
    if count % stride != (1 % stride if first else 0):
        wanted = f"{stride}k + 1" if first else f"a multiple of {stride}"
        raise ValueError(f"video has {count} frames; here the number must be {wanted}")
    if model.config.patch_size is not None:
        video = patchify(video, patch_size=model.config.patch_size)
    _check_size(video, history, "video")
    edges = [0, *range(1 if first else stride, count + 1, stride)]
    pieces: list[torch.Tensor] = []
    for begin, end in pairwise(edges):
        place = [0]
        x = model.encoder(video[:, :, begin:end], feat_cache=history, feat_idx=place)
        _check_visited(place[0], history)
        # Here and not for all frames at once: so that the cut does not change how it rounds.
        mean, _ = model.quant_conv(x).chunk(2, dim=1)
        pieces.append(mean)
    return _joined(pieces), history


def _time_stride(model: Any) -> int:
    return 1 << sum(model.config.temperal_downsample)


def _joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)


def _check(x: torch.Tensor, history: History, half: nn.Module, channels: int, name: str) -> bool:
    """Whether the stream begins here; ValueError when input and history do not belong together."""
    if x.ndim != 5 or x.shape[1] != channels or 0 in x.shape:
        raise ValueError(
            f"{name} is {list(x.shape)}; must be [batch, {channels}, frames, height, width], "
            "none of them 0"
        )
    if len(history) != count_slots(half):
        raise ValueError(f"the history has {len(history)} slots, the model {count_slots(half)}")
    before = history[0]
    return not isinstance(before, torch.Tensor)


def _check_size(x: torch.Tensor, history: History, name: str) -> None:
    """ValueError when the first layer would see another batch or size than before."""
    before = history[0]
    if isinstance(before, torch.Tensor) and (
        before.shape[0] != x.shape[0] or before.shape[3:] != x.shape[3:]
    ):
        raise ValueError(
            f"{name} of {x.shape[0]} × {x.shape[3]} × {x.shape[4]} (batch, height, width at the "
            f"first layer) in a stream of {before.shape[0]} × {before.shape[3]} × {before.shape[4]}"
        )


def _check_visited(visited: int, history: History) -> None:
    if visited != len(history):
        raise RuntimeError(f"the model visited {visited} of {len(history)} slots")
