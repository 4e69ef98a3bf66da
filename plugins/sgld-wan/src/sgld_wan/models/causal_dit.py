"""The Wan denoiser that generates a clip chunk by chunk, remembering what it has made.

    CausalWanTransformer(config, ops).forward(hidden_states, timestep, encoder_hidden_states,
                                              cache, text_cache, camera=None) -> velocity
    .remember(... the same ...)    leaves keys and values in the caches and computes nothing else

The weights are those of `WanTransformer`. What differs (Self-Forcing, arXiv 2506.08009, and its
public code, `wan/modules/causal_model.py`): time is per latent frame, queries of a chunk attend to
the keys of earlier frames that `cache` kept and to all of their own chunk, and temporal positions
are absolute. A forward overwrites what an earlier forward of the same chunk wrote; the last one is
over clean latents, and the owner of the cache commits then.

A subclass may change the residual stream between self- and cross-attention: it sets `block_type`
to a subclass of `CausalBlock` with its own `inject`, and makes what that gets in `conditions`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from sgld.api.errors import ModelError, ParameterError, Problem
from sgld.causal.kv import KvCache, attend
from sgld.causal.positions import AtRead
from sgld.ops import Ops, rope
from sgld_wan.models.config import WanConfig
from sgld_wan.models.dit import BlockParts, WanParts

ROTARY_TABLES: Final = 24
"""Rotary tables that are kept: one per chunk and session that take turns; 2.4 MB at 480p."""

Rotary = tuple[Tensor, Tensor]


class TextCache(Protocol):
    """Keys and values of one text per layer, as `sgld.causal` keeps them."""

    def read(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """What `write` left for this text, both [1, L, heads, head_dim]; None: nothing yet."""
        ...

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keep a layer's keys and values until the text changes."""
        ...


@dataclass(slots=True)
class Pass:
    """What all blocks of one forward share.

    Args:
        cache: keys and values of earlier frames; the chunk is open.
        text_cache: keys and values of the text.
        text: text states [B, L, width], computed when a block asks.
        rotary: makes cos and sin [F·n, D/2] of frames at these temporal positions.
        camera: what `CausalWanTransformer.conditions` returned; None: nothing is injected.
        stop: the layer of which only keys and values are wanted; -1: every layer runs.
    """

    cache: KvCache
    text_cache: TextCache
    text: Callable[[], Tensor]
    rotary: Callable[[Sequence[float]], Rotary]
    camera: Any = None
    stop: int = -1

    def turn(self, k: Tensor, places: Sequence[float]) -> Tensor:
        """Keys [B, F·n, heads, head_dim] of frames at these positions, rotated."""
        return rope.rotate(k, *self.rotary(places))


class CausalBlock(BlockParts):
    """One block over a chunk; it reads and writes layer `layer` of the caches."""

    def forward(self, x: Tensor, modulation: Tensor, shared: Pass, layer: int) -> Tensor:
        """Tokens [B, F·n, width] after this block; `modulation` is [B, F, 6, width]."""
        part = self._modulate(modulation)
        y = self.layer_modulate(x, part(1), part(0), self.eps)
        self._write(y, shared, layer)
        if layer == shared.stop:
            self._text(shared, layer)  # so that one pass fills the text cache, whichever it is
            return x
        y = self._self_attention(y, shared, layer)
        norm = self.norm2
        if norm is None or shared.camera is not None:
            x = y = self.gate(x, y, part(2))
            if shared.camera is not None:
                x = y = self.inject(x, shared.camera)
            if norm is not None:
                y = self.layer_norm(x, norm.weight, norm.bias, self.eps)
        else:
            x, y = self.gate_layer(x, y, part(2), norm.weight, norm.bias, self.eps)
        y = self._cross_attention(y, shared, layer)
        x, y = self.gate_layer_modulate(x, y, None, part(4), part(3), self.eps)
        y = self.ffn(y)
        return self.gate(x, y, part(5))

    def inject(self, x: Tensor, camera: Any) -> Tensor:
        """The residual stream [B, F·n, width] after the gated self-attention and before the norm of
        cross-attention, changed by a condition; asked only when there is one."""
        raise NotImplementedError(f"{type(self).__name__} takes no camera")

    def _write(self, y: Tensor, shared: Pass, layer: int) -> None:
        cache = shared.cache
        if isinstance(cache.position_rule, AtRead):
            cache.write(layer, *self.attn1.plain_keys(y))
        else:
            cache.write(layer, *self.attn1.keys(y, *shared.rotary(cache.positions)))

    def _self_attention(self, y: Tensor, shared: Pass, layer: int) -> Tensor:
        attn, cache = self.attn1, shared.cache
        view = cache.read(layer)
        q = attn.queries(y, *shared.rotary(view.query))
        rotate = shared.turn if isinstance(cache.position_rule, AtRead) else None
        return attn.to_out[0](attend(q, view, attn.attend, rotate=rotate).flatten(2))

    def _cross_attention(self, y: Tensor, shared: Pass, layer: int) -> Tensor:
        attn, kept = self.attn2, self._text(shared, layer)
        return attn.to_out[0](attn.attend(attn.queries(y), *kept).flatten(2))

    def _text(self, shared: Pass, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the text, computed for the first forward that asks."""
        kept = shared.text_cache.read(layer)
        if kept is None:
            kept = self.attn2.keys(shared.text())
            shared.text_cache.write(layer, *kept)
        return kept


class CausalWanTransformer(WanParts):
    """Predicts the flow velocity of one chunk; see the module's head."""

    block_type: ClassVar[type[BlockParts]] = CausalBlock

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        if config.image_dim is not None or config.patch_size[0] != 1:
            raise ModelError(
                f"image_dim={config.image_dim}, patch_size={config.patch_size}: a causal denoiser "
                "takes no image states and has patches of one latent frame.",
                remedy="Use a checkpoint of a causal Wan model.",
            )
        super().__init__(config, ops)
        self._tables: OrderedDict[tuple[Any, ...], Rotary] = OrderedDict()

    @torch.no_grad()
    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor | None,
        cache: KvCache,
        text_cache: TextCache,
        camera: Any = None,
    ) -> Tensor:
        """Velocity [1, C_out, F, H, W] of the open chunk, in the model's dtype.

        Args:
            hidden_states: the chunk's noisy latents with their conditions, [1, C_in, F, H, W].
            timestep: 1000·sigma of each latent frame, [1, F], on the same device.
            encoder_hidden_states: text states [1, L, text_dim]; needed only while `text_cache` does
                not hold the keys and values of every layer, else None will do.
            cache: where `begin` was called for this chunk's F frames; its rows are overwritten.
            text_cache: keys and values of this text; filled as far as it is empty.
            camera: what `conditions` of a subclass takes.

        Raises:
            ParameterError: an input does not fit the config or the open chunk.
        """
        x, embedding, grid = self._run(
            hidden_states, timestep, encoder_hidden_states, cache, text_cache, camera, stop=-1
        )
        return self._velocity(x, embedding, grid)

    @torch.no_grad()
    def remember(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor | None,
        cache: KvCache,
        text_cache: TextCache,
        camera: Any = None,
    ) -> None:
        """Run over clean latents for what it leaves in `cache`; arguments as for `forward`.

        Of the last block only keys and values are computed, and no head: nobody reads them.
        """
        last = len(self.blocks) - 1
        self._run(
            hidden_states, timestep, encoder_hidden_states, cache, text_cache, camera, stop=last
        )

    def conditions(self, camera: Any, grid: tuple[int, int, int]) -> Any:
        """What every block's `inject` gets, made once per forward; None: no injection.

        `grid` is the chunk in tokens (frames, rows, columns).
        """
        if camera is not None:
            raise ParameterError([Problem("camera", type(camera).__name__, "is not taken.")])
        return None

    def rotary(
        self, positions: Sequence[float], rows: int, columns: int, device: torch.device
    ) -> Rotary:
        """cos and sin float32 [F·rows·columns, D/2] of frames at these temporal positions."""
        key = (tuple(positions), rows, columns, device)
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        table = rope.at(self.config.attention_head_dim, positions, rows, columns, device=device)
        self._tables[key] = table
        if len(self._tables) > ROTARY_TABLES:
            self._tables.popitem(last=False)
        return table

    def _run(
        self,
        latents: Tensor,
        timestep: Tensor,
        text: Tensor | None,
        cache: KvCache,
        text_cache: TextCache,
        camera: Any,
        *,
        stop: int,
    ) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
        grid = self._check(latents, timestep, None)
        self._check_chunk(timestep, grid, cache)
        dtype, embed = self.dtype, self.condition_embedder
        device, (_, rows, columns) = latents.device, grid
        projected: list[Tensor] = []

        def states() -> Tensor:
            if text is None:
                message = "must be given: the text cache is not filled."
                raise ParameterError([Problem("encoder_hidden_states", None, message)])
            if not projected:
                projected.append(embed.text_embedder(text.to(dtype)))
            return projected[0]

        shared = Pass(
            cache,
            text_cache,
            states,
            lambda places: self.rotary(places, rows, columns, device),
            self.conditions(camera, grid),
            stop,
        )
        x = self.patch_embedding(latents.to(dtype))
        embedding, modulation = embed.time(timestep, dtype)
        for layer, block in enumerate(self.blocks):
            x = block(x, modulation, shared, layer)
        return x, embedding, grid

    def _check_chunk(self, timestep: Tensor, grid: tuple[int, int, int], cache: KvCache) -> None:
        frames, given = grid[0], tuple(timestep.shape)
        problems: list[Problem] = []
        if given != (1, frames):
            problems.append(Problem("timestep", given, f"must be [1, {frames}]: one per frame."))
        if len(cache.positions) != frames:
            wanted = f"the open chunk has {len(cache.positions)} frames, the latents {frames}."
            problems.append(Problem("cache", frames, wanted))
        if problems:
            raise ParameterError(problems)
