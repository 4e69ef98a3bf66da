"""What the Wan VAE remembers between chunks, computed from its configuration alone. No torch here.

Every convolution over time sees the last frames of the chunk before; what it must remember is one
*slot*. The slots stand in the order in which diffusers' encoder and decoder visit them
(`models/autoencoders/autoencoder_kl_wan.py`, the same order as in `wan/modules/vae2_1.py` and
`vae2_2.py` of Wan-Video).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TAIL = 2
"""Frames that a kernel of three frames needs from before."""


class Slot(NamedTuple):
    """One slot in its lasting state, which it has after two latent frames.

    Args:
        channels: channels of what is remembered.
        frames: frames remembered.
        height: rows, in the resolution of the layer.
        width: columns, likewise.
        doubles: whether it belongs to a layer that turns one frame into two, which it does not do
            with the very first frame; the slot then holds a mark and no frames.
    """

    channels: int
    frames: int
    height: int
    width: int
    doubles: bool = False

    @property
    def values(self) -> int:
        """Numbers held."""
        return self.channels * self.frames * self.height * self.width


def decoder_slots(config: Mapping[str, Any], height: int, width: int) -> tuple[Slot, ...]:
    """Slots of the decoder for frames of `height` × `width` pixels.

    Raises ValueError when the size is no multiple of the VAE's spatial stride.
    """
    return tuple(_decoder(config, *_latent_size(config, height, width)))


def encoder_slots(config: Mapping[str, Any], height: int, width: int) -> tuple[Slot, ...]:
    """Slots of the encoder for frames of `height` × `width` pixels; see `decoder_slots`."""
    _latent_size(config, height, width)
    patch = config.get("patch_size") or 1
    return tuple(_encoder(config, height // patch, width // patch))


def slot_bytes(slots: tuple[Slot, ...], itemsize: int) -> int:
    """Bytes of all slots in their lasting state, in a precision of `itemsize` bytes."""
    return itemsize * sum(slot.values for slot in slots)


def decoder_history_bytes(config: Mapping[str, Any], height: int, width: int, dtype: Any) -> int:
    """Bytes that the decoder remembers from the second latent frame on; before, it is less.

    Args:
        config: `vae/config.json`.
        height: of the frames, in pixels.
        width: likewise.
        dtype: precision of the VAE: a torch.dtype, or anything with an `itemsize`.
    """
    return slot_bytes(decoder_slots(config, height, width), dtype.itemsize)


def settled_latents(config: Mapping[str, Any]) -> int:
    """How many latent frames of a picture followed by frames that are all the same differ from
    each other; every later one equals the last of these.

    A kernel of three frames carries a change two frames on, and a layer that halves the rate looks
    one frame back. 30 for the released 2.1 and 2.2 VAEs.
    """
    differing = 1 + TAIL
    convolutions = 2 * config.get("num_res_blocks", 2)
    for downsample in (*_halves_time(config), False):
        differing += TAIL * convolutions
        if downsample:
            differing = -(-differing // 2) + 1
    differing += TAIL * 4  # the two residual blocks in the middle
    differing += TAIL  # the last convolution
    return differing + 1


def _latent_size(config: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    stride = (config.get("patch_size") or 1) << (len(_multipliers(config)) - 1)
    for name, value in (("height", height), ("width", width)):
        if value <= 0 or value % stride:
            raise ValueError(f"{name}={value}: must be a positive multiple of {stride}")
    return height // stride, width // stride


def _multipliers(config: Mapping[str, Any]) -> list[int]:
    return list(config.get("dim_mult", (1, 2, 4, 4)))


def _halves_time(config: Mapping[str, Any]) -> list[bool]:
    """For every level but the last, whether the encoder halves the frame rate after it."""
    return list(config.get("temperal_downsample", (False, True, True)))


def _decoder(config: Mapping[str, Any], height: int, width: int) -> Iterator[Slot]:
    base = config.get("decoder_base_dim") or config.get("base_dim", 96)
    multipliers = _multipliers(config)[::-1]
    widths = [base * multiplier for multiplier in (multipliers[0], *multipliers)]
    doubles_time = [*_halves_time(config)[::-1], False]
    convolutions = 2 * (config.get("num_res_blocks", 2) + 1)
    yield Slot(config.get("z_dim", 16), TAIL, height, width)
    yield from [Slot(widths[0], TAIL, height, width)] * 4
    for level, out in enumerate(widths[1:]):
        # Upsampling halves the channels, except in the residual VAE.
        entering = widths[level] // (1 if level == 0 or config.get("is_residual") else 2)
        yield Slot(entering, TAIL, height, width)
        yield from [Slot(out, TAIL, height, width)] * (convolutions - 1)
        if doubles_time[level]:
            yield Slot(out, TAIL, height, width, doubles=True)
        if level < len(multipliers) - 1:
            height, width = 2 * height, 2 * width
    yield Slot(widths[-1], TAIL, height, width)


def _encoder(config: Mapping[str, Any], height: int, width: int) -> Iterator[Slot]:
    base = config.get("base_dim", 96)
    widths = [base * multiplier for multiplier in (1, *_multipliers(config))]
    halves_time = [*_halves_time(config), False]
    convolutions = 2 * config.get("num_res_blocks", 2)
    yield Slot(config.get("in_channels", 3), TAIL, height, width)
    for level, out in enumerate(widths[1:]):
        yield Slot(widths[level], TAIL, height, width)
        yield from [Slot(out, TAIL, height, width)] * (convolutions - 1)
        if level < len(widths) - 2:
            height, width = height // 2, width // 2
        if halves_time[level]:
            # A stride of two frames: only one of the frames before is looked at.
            yield Slot(out, 1, height, width)
    yield from [Slot(widths[-1], TAIL, height, width)] * 5
