"""LingBot World's denoiser: causal Wan, and in every block a change that the camera asks for.

    LingBotTransformer(config, ops).forward(…, camera=ChunkCamera(plucker)) -> velocity

Names of the camera's weights are the published ones, in checkpoints of either naming
(lingbot-world `wan/modules/model.py`). What a block makes of the camera depends on nothing else, so
it is computed in the first forward of a chunk and kept in the `ChunkCamera` for the others.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgld.api.errors import ParameterError, Problem
from sgld.ops import Ops
from sgld_lingbot.models.camera import CHANNELS
from sgld_wan.models.causal_dit import CausalBlock, CausalWanTransformer
from sgld_wan.models.config import WanConfig
from sgld_wan.models.dit import BlockParts


class ChunkCamera:
    """The camera condition of one chunk, and what the network has made of it.

    Args:
        plucker: rays [1, 384, F, H, W] on the latent grid, `sgld_lingbot.models.camera.plucker`;
            dropped as soon as `tokens` are there.
    """

    def __init__(self, plucker: Tensor) -> None:
        self.plucker: Tensor | None = plucker
        self.tokens: Tensor | None = None
        """[1, F·n, width]"""
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        """Layer → factor and shift of the residual stream, both [1, F·n, width]."""

    def nbytes(self) -> int:
        """Bytes held on the device."""
        held = [self.plucker, self.tokens]
        for pair in list(self.layers.values()):
            held += pair
        return sum(tensor.untyped_storage().nbytes() for tensor in held if tensor is not None)


def camera_bytes(config: WanConfig, tokens: int, itemsize: int) -> int:
    """What a `ChunkCamera` of a chunk with so many tokens holds after its first forward."""
    return (2 * config.num_layers + 1) * tokens * config.width * itemsize


class LingBotBlock(CausalBlock):
    """A causal block that scales and shifts its residual stream by the camera."""

    layer: int = -1
    """Its place in the network."""

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        width = config.width
        self.cam_injector_layer1 = nn.Linear(width, width)
        self.cam_injector_layer2 = nn.Linear(width, width)
        self.cam_scale_layer = nn.Linear(width, width)
        self.cam_shift_layer = nn.Linear(width, width)

    def inject(self, x: Tensor, camera: ChunkCamera) -> Tensor:
        kept = camera.layers.get(self.layer)
        if kept is None:
            kept = camera.layers[self.layer] = self._changes(camera)
        factor, shift = kept
        return torch.addcmul(shift, x, factor)

    def _changes(self, camera: ChunkCamera) -> tuple[Tensor, Tensor]:
        tokens = camera.tokens
        assert tokens is not None  # `conditions` made them
        inner = self.cam_injector_layer2(F.silu(self.cam_injector_layer1(tokens))).add_(tokens)
        return self.cam_scale_layer(inner).add_(1), self.cam_shift_layer(inner)


class LingBotTransformer(CausalWanTransformer):
    """Predicts the flow velocity of one chunk; without a camera it is causal Wan."""

    block_type: ClassVar[type[BlockParts]] = LingBotBlock

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        width = config.width
        patch = CHANNELS * math.prod(config.patch_size)
        self.patch_embedding_wancamctrl = nn.Linear(patch, width)
        self.c2ws_hidden_states_layer1 = nn.Linear(width, width)
        self.c2ws_hidden_states_layer2 = nn.Linear(width, width)
        for layer, block in enumerate(self.blocks):
            block.layer = layer  # pyright: ignore[reportArgumentType]
        self.requires_grad_(False)

    def conditions(self, camera: Any, grid: tuple[int, int, int]) -> ChunkCamera | None:
        """`camera` with its tokens made, or None."""
        if camera is None:
            return None
        if not isinstance(camera, ChunkCamera):
            raise ParameterError([Problem("camera", type(camera).__name__, "is no ChunkCamera.")])
        if camera.tokens is None:
            camera.tokens = self._embed(camera.plucker, grid)
            camera.plucker = None
        elif camera.tokens.shape[1] != math.prod(grid):
            wanted = f"is of a chunk of {camera.tokens.shape[1]} tokens, not {math.prod(grid)}."
            raise ParameterError([Problem("camera", None, wanted)])
        return camera

    def _embed(self, plucker: Tensor | None, grid: tuple[int, int, int]) -> Tensor:
        frames, rows, columns = grid
        _, high, wide = self.config.patch_size
        shape = (1, CHANNELS, frames, rows * high, columns * wide)
        if plucker is None or tuple(plucker.shape) != shape:
            given = None if plucker is None else tuple(plucker.shape)
            raise ParameterError([Problem("camera", given, f"must be {shape} for this chunk.")])
        patches = plucker[0].to(self.dtype).unflatten(3, (-1, wide)).unflatten(2, (-1, high))
        tokens = patches.permute(1, 2, 4, 0, 3, 5).reshape(1, math.prod(grid), -1)
        tokens = self.patch_embedding_wancamctrl(tokens)
        return self.c2ws_hidden_states_layer2(F.silu(self.c2ws_hidden_states_layer1(tokens))).add_(
            tokens
        )
