"""The denoiser's data: whole clips as latents on the device, and the pieces that a step takes."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from demo_world import data, motion, vae
from demo_world.rollout import Script

SHOWN: Final = 6
"""Latent frames of the still clip that differ for the network: two chunks (see `shown_pieces`)."""
GREY_FRAMES: Final = 61
"""Frames of grey after which the encoder says nothing new."""
MASK: Final = 4
NO_PICTURE: Final = 0.12
"""How often the world begins with a grey picture, which means: make one up."""
CONTIGUOUS: Final = 0.45
FARTHEST: Final = 30_000
"""Temporal positions that the memory of the first chunk may lie back: hours of a session."""


class Pool(NamedTuple):
    """Normalised latents and conditions of clips of `chunks` chunks.

    Args:
        latents: [clips, chunks, 16, 3, h, w].
        still: the first frame as the network is shown it, [clips, 2, 16, 3, h, w].
        empty: the same for a grey picture, [2, 16, 3, h, w].
        settled: what all later chunks are shown in a long clip, [16, 3, h, w].
        ids: captions [clips, chunks, L].
        moves: [clips, chunks, 3, 3, 4].
        known: [clips, chunks].
    """

    latents: Tensor
    still: Tensor
    empty: Tensor
    settled: Tensor
    ids: Tensor
    moves: Tensor
    known: Tensor


class Batch(NamedTuple):
    """Args:
    clean: [B, C, 16, 3, h, w].
    shown: [B, C, 20, 3, h, w].
    ids: [B, C, L].
    moves: [B, C, 3, 3, 4].
    known: [B, C].
    begin: temporal position of chunk 1.
    gap: whether chunks are missing between 0 and 1.
    sure: whether a chunk follows from what is before it, [B, C]: not so where a picture or what
        leads up to it is missing.
    """

    clean: Tensor
    shown: Tensor
    ids: Tensor
    moves: Tensor
    known: Tensor
    begin: int
    gap: bool
    sure: Tensor


@torch.no_grad()
def encode(
    clips: data.Clips, clip: vae.ClipVae, mean: Tensor, std: Tensor, device: torch.device,
    size: tuple[int, int], group: int = 8, keep: torch.dtype = torch.float32,
) -> Pool:  # fmt: skip
    """Draw and encode clips, a few at a time."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    count, chunks = clips.looks.shape

    def latents_of(video: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found, _ = clip.encode(video.float().contiguous(memory_format=torch.channels_last_3d))
        return ((found.float() - mean) / std).to(keep)

    def chunked(latents: Tensor) -> Tensor:
        return latents.unflatten(2, (-1, motion.CHUNK)).transpose(1, 2)

    latents, still = [], []
    for first in range(0, count, group):
        part = slice(first, first + group)
        video = data.Clips(*(_part(value, part) for value in clips)).draw(dtype, size=size)
        latents.append(chunked(latents_of(video)))
        grey = video.new_zeros(*video.shape[:2], 4 * (SHOWN - 1), *video.shape[3:])
        still.append(chunked(latents_of(torch.cat([video[:, :, :1], grey], 2))))
    grey = latents_of(torch.zeros(1, 3, GREY_FRAMES, *size, device=device))
    told = clips.told
    return Pool(
        torch.cat(latents), torch.cat(still), chunked(grey[:, :, :SHOWN])[0],
        grey[0, :, -1:].expand(-1, motion.CHUNK, -1, -1), clips.captions.to(device),
        told.moves.unflatten(1, (chunks, -1)).to(device),
        told.known.unflatten(1, (chunks, -1))[:, :, 0].to(device),
    )  # fmt: skip


def _part(value: Any, part: slice) -> Any:
    if isinstance(value, Tensor):
        return value[part]
    return type(value)(*(_part(inner, part) for inner in value))


def with_mask(still: Tensor, first: Tensor) -> Tensor:
    """Mask and picture [.., 20, 3, h, w]; the mask is 1 at the first frame where `first` is."""
    mask = still.new_zeros(*still.shape[:-4], MASK, *still.shape[-3:])
    mask[..., 0, :, :] = first[..., None, None, None].to(mask.dtype)
    return torch.cat([mask, still], -4)


def shown_pieces(still: Tensor, settled: Tensor | None, chunks: Tensor) -> Tensor:
    """What chunks of these numbers [B, C] are shown, [B, C, 20, 3, h, w].

    A session shows the second piece of the still clip over and over; a long clip goes on to where
    nothing changes any more, which is about `settled`.
    """
    rows = torch.arange(len(chunks), device=still.device)[:, None]
    pieces = still[rows, chunks.clamp(max=1)]
    if settled is not None:
        late = (chunks > 1)[..., None, None, None, None]
        pieces = torch.where(late, settled.to(pieces.dtype), pieces)
    return with_mask(pieces, chunks == 0)


def take(pool: Pool, batch: int, length: int, draw: torch.Generator) -> Batch:
    """A random step's data: chunk 0 of random clips, and `length - 1` successive later chunks.

    They follow chunk 0 directly or begin anywhere; then chunk 0 lies back by an even wider gap in
    temporal position, as it does in a long session.
    """
    device = pool.latents.device
    clips, chunks = pool.latents.shape[:2]
    which = torch.randint(0, clips, (batch,), generator=draw)
    last = chunks - length + 1
    lots = torch.rand(3, generator=draw).tolist()
    gap = last > 1 and lots[0] > CONTIGUOUS
    first = torch.ones(batch, dtype=torch.long)
    begin = motion.CHUNK
    if gap:
        first = torch.randint(2, last + 1, (batch,), generator=draw)
        begin = motion.CHUNK + int(math.exp(lots[1] * math.log(FARTHEST)))
    numbers = torch.cat([torch.zeros(batch, 1, dtype=torch.long),
                         first[:, None] + torch.arange(length - 1)], 1)  # fmt: skip
    which, numbers = which.to(device), numbers.to(device)
    rows = which[:, None]
    still = pool.still[which]
    invent = (torch.rand(batch, generator=draw) < NO_PICTURE).to(device)
    still = torch.where(invent[:, None, None, None, None, None], pool.empty, still)
    shown = shown_pieces(still, pool.settled if lots[2] < 0.5 else None, numbers)
    sure = torch.ones(batch, length, dtype=torch.bool, device=device)
    sure[:, 0] = ~invent
    sure[:, 1] = not gap
    return Batch(
        pool.latents[rows, numbers].float(), shown.float(), pool.ids[rows, numbers],
        pool.moves[rows, numbers], pool.known[rows, numbers], begin, gap, sure,
    )  # fmt: skip


def script(pool: Pool, clip: int, chunks: int, *, long: bool = False) -> Script:
    """What one clip of a pool is generated from."""
    numbers = torch.arange(chunks, device=pool.latents.device)[None]
    settled = pool.settled if long else None
    shown = shown_pieces(pool.still[clip : clip + 1], settled, numbers)[0]
    return Script(shown.float(), pool.ids[clip, :chunks], pool.moves[clip, :chunks],
                  pool.known[clip, :chunks])  # fmt: skip
