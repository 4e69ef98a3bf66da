"""Generates with the family's own classes: cached chunks, its schedule, its commit pass.

What training looks at is what a server would make: `LingBotTransformer` with `KvCache`, one
`ChunkCamera` per chunk, the renoising sampler, and the streamed decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from demo_world.network import CHUNK, World
from sgld.causal.cross import CrossCache, CrossShape
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Rolling
from sgld_lingbot.models.camera import plucker
from sgld_lingbot.models.dit import ChunkCamera
from sgld_lingbot.schedules import make_schedule
from sgld_lingbot.stages.renoise import ScheduledRenoise

STEPS: Final = (1000, 750, 500, 250)
SHIFT: Final = 2.5


class Script(NamedTuple):
    """What one clip is generated from.

    Args:
        shown: mask and first frame, [C, 20, 3, h, w].
        ids: captions, [C, L].
        moves: [C, 3, 3, 4].
        known: [C].
    """

    shown: Tensor
    ids: Tensor
    moves: Tensor
    known: Tensor


@torch.no_grad()
def generate(
    world: World, script: Script, seed: int, *, steps: Sequence[int] = STEPS, shift: float = SHIFT,
    size: tuple[int, int],
) -> Tensor:  # fmt: skip
    """Normalised latents [16, 3·C, h, w] of one clip."""
    net, device = world.transformer, script.shown.device
    wan = world.config.wan
    draw = torch.Generator(device).manual_seed(seed)
    tokens = world.rows * world.columns
    dtype = net.dtype
    shape = KvShape(
        wan.num_layers, wan.num_attention_heads, wan.attention_head_dim, tokens, dtype, device
    )
    cache = KvCache(shape, Rolling(window=world.config.window or 0, sink=world.config.sink or 0))
    text = CrossCache(CrossShape(wan.num_layers, wan.num_attention_heads, wan.attention_head_dim,
                                 script.ids.shape[-1], dtype, device))  # fmt: skip
    schedule = make_schedule(tuple(steps), shift, "self-forcing")
    made: list[Tensor] = []
    for chunk in range(len(script.ids)):
        caption = str(script.ids[chunk].tolist())
        text.use(caption)
        states = world.texts(script.ids[chunk][None])
        camera = chunk_camera(script, chunk, size)
        cache.begin(CHUNK)

        def noise(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=draw, device=device)

        sampler = ScheduledRenoise(schedule, noise, device)
        shown = script.shown[chunk][None]
        latents = noise((1, wan.out_channels, CHUNK, *shown.shape[3:]))
        for index in range(len(schedule.times)):
            times = sampler.time(index).expand(1, CHUNK)
            velocity = net(torch.cat([latents, shown], 1), times, states, cache, text, camera)
            latents = sampler.step(velocity, index, latents)
        cache.clean()
        net.remember(torch.cat([latents, shown], 1), torch.zeros(1, CHUNK, device=device),
                     states, cache, text, camera)  # fmt: skip
        cache.commit()
        text.commit()
        made.append(latents[0])
    return torch.cat(made, 1)


def chunk_camera(script: Script, chunk: int, size: tuple[int, int]) -> ChunkCamera | None:
    """The family's camera condition of a chunk; None where none is told."""
    if not bool(script.known[chunk]):
        return None
    moves = torch.eye(4, device=script.moves.device).repeat(CHUNK, 1, 1)
    moves[:, :3] = script.moves[chunk]
    return ChunkCamera(plucker(moves, *size))


@torch.no_grad()
def decoded(model: Any, latents: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Frames [T, 3, H, W] of normalised latents [16, F, h, w], by the streamed decoder."""
    from sgld_wan.models.vae_stream import decode_chunk, new_history  # noqa: PLC0415

    history = new_history(model.decoder)
    frames: list[Tensor] = []
    for part in (latents[None] * std + mean).float().split(CHUNK, 2):
        made, history = decode_chunk(model, part, history)
        frames.append(made[0].transpose(0, 1))
    return torch.cat(frames)
