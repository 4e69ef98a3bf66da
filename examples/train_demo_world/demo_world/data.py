"""Clips of the world, drawn when they are needed: keys, looks and captions, a camera, frames."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from demo_world import looks, motion, scene, world

NEVER: Final = 10_000
"""`told_from` of a clip whose camera is never told of."""


class Clips(NamedTuple):
    """Args:
    numbers: `scene.blend`, [B, T, SIZE] on the drawing device.
    path: the camera of every frame.
    seed: [B].
    told: what the network is told of the camera.
    axes: the keys.
    told_from: [B].
    looks: [B, chunks], places in `looks.ALL`.
    captions: token ids, [B, chunks, TEXT_LENGTH].
    begin: the look of the first frame, [B].
    """

    numbers: Tensor
    path: motion.Path
    seed: Tensor
    told: motion.Told
    axes: motion.Axes
    told_from: Tensor
    looks: Tensor
    captions: Tensor
    begin: Tensor

    @property
    def frames(self) -> int:
        """Video frames of a clip."""
        return self.path.x.shape[1]

    def one(self, clip: int) -> Clips:
        """One of the clips, as a batch of one."""
        return _one(self, clip)

    def draw(
        self,
        dtype: torch.dtype = torch.float32,
        part: slice = slice(None),
        size: tuple[int, int] = (scene.HEIGHT, scene.WIDTH),
    ) -> Tensor:
        """The frames [B, 3, T, H, W] of the frames `part` of every clip, in -1..1; `size` is
        (height, width)."""
        numbers = self.numbers[:, part]
        batch, frames = numbers.shape[:2]
        path = motion.Path(*(value[:, part].flatten() for value in self.path))
        seed = self.seed[:, None].expand(-1, frames).flatten()
        height, width = size
        drawn = world.draw(
            numbers.flatten(0, 1), path, seed, height=height, width=width, dtype=dtype
        )
        return drawn.unflatten(0, (batch, frames)).transpose(1, 2)


def _one(value: Any, clip: int) -> Any:
    if isinstance(value, Tensor):
        return value[clip : clip + 1]
    return type(value)(*(_one(inner, clip) for inner in value))


def sample(
    count: int, chunks: int, seed: int, device: torch.device, *, switch: float = 0.1,
    plain: bool = False,
) -> Clips:  # fmt: skip
    """Random clips of whole chunks.

    Args:
        count: of clips.
        chunks: of each.
        seed: of everything that is drawn by lot, the worlds included.
        device: that draws.
        switch: how often a chunk begins with another look.
        plain: as in a judged walk: the camera is told of from the first chunk on, and the caption
            is the plain one of the first frame's look.
    """
    draw, lots = torch.Generator().manual_seed(seed), random.Random(seed)
    frames = chunks * motion.CHUNK
    axes = motion.random_axes(count, frames, draw)
    told_from = torch.zeros(count, dtype=torch.long)
    pitch = torch.zeros(count)
    if not plain:
        late = torch.rand(count, generator=draw)
        told_from = torch.where(late < 0.15, torch.randint(1, 5, (count,), generator=draw), 0)
        told_from = torch.where(late > 0.96, NEVER, told_from)
        away = torch.rand(count, generator=draw) < 0.3
        pitch = (torch.rand(count, generator=draw) * 2 - 1) * 80 * away
    start = motion.Start(
        *(torch.rand(count, generator=draw) * 400 - 200 for _ in range(2)),
        torch.rand(count, generator=draw) * 360,
        (torch.rand(count, generator=draw) * 2 - 1) * (0 if plain else 6),
    )
    kinds = torch.empty(count, chunks, dtype=torch.long)
    begin = torch.empty(count, dtype=torch.long)
    tokens: list[list[list[int]]] = []
    for clip in range(count):
        look = first = looks.random_look(lots)
        if not plain and lots.random() < 0.12:
            first = looks.changed(look, lots)
        begin[clip] = looks.ALL.index(first)
        caption = looks.plain_caption(look) if plain else looks.random_caption(look, lots)
        said: list[list[int]] = []
        for chunk in range(chunks):
            if chunk and lots.random() < switch:
                look = looks.changed(look, lots)
                caption = looks.random_caption(look, lots)
            kinds[clip, chunk] = looks.ALL.index(look)
            said.append(looks.token_ids(caption))
        tokens.append(said)
    worlds = torch.randint(0, 1 << 20, (count,), generator=draw)
    numbers = scene.blend(kinds, begin, worlds, scene.table().to(device), motion.CHUNK)
    return Clips(
        numbers, motion.follow(axes, told_from, start), worlds,
        motion.tell(axes, told_from, pitch), axes, told_from, kinds, torch.tensor(tokens), begin,
    )  # fmt: skip


def short_clips(
    count: int, frames: int, seed: int, device: torch.device, size: tuple[int, int]
) -> Tensor:
    """Short clips [B, 3, frames, H, W] for the VAE, which needs no captions: walks as in `sample`,
    cut at random places so that every frame of a chunk is seen in every place."""
    chunks = (frames + 3 + 11) // 12 + 1
    clips = sample(count, chunks, seed, device, switch=0.2)
    first = random.Random(seed).randint(0, clips.frames - frames)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    return clips.draw(dtype, slice(first, first + frames), size)
