"""An independent LingBot World network and loop in float64: no cache object, no shared code.

The history is a plain list of frames per layer, and the rule of the window is written as the
fixtures' description states it. `state` holds tensors under their original names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


class Sizes(NamedTuple):
    """Heads, layers, sinusoid width and text rows of a network."""

    heads: int
    layers: int
    freq_dim: int
    text_rows: int


class Oracle:
    """Generates chunk after chunk; remembers clean keys and values frame by frame."""

    def __init__(self, state: State, sizes: Sizes, window: int, sink: int) -> None:
        self.p = {name: value.double() for name, value in state.items()}
        self.sizes, self.window, self.sink = sizes, window, sink
        self.past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(sizes.layers)]
        self.seen = 0

    def chunk(
        self,
        noise: Sequence[Tensor],
        shown: Tensor,
        text: Tensor,
        plucker: Tensor | None,
        times: Sequence[float],
        clean: Sequence[float],
        noisy: Sequence[float],
    ) -> Tensor:
        """Clean latents [C, f, h, w] of the next chunk; `noise` is what is drawn, in order."""
        x, frames = noise[0].double(), noise[0].shape[1]
        self.past = [self._room(layer, frames) for layer in self.past]
        for step, time in enumerate(times):
            flow, _ = self.forward(torch.cat([x, shown.double()]), time, text, plucker)
            x = x - clean[step] * flow
            if step + 1 < len(times):
                level = noisy[step + 1]
                x = (1 - level) * x + level * noise[step + 1].double()
        _, fresh = self.forward(torch.cat([x, shown.double()]), 0.0, text, plucker)
        self.past = [old + new for old, new in zip(self.past, fresh, strict=True)]
        self.seen += frames
        return x

    def _room(self, layer: list[tuple[Tensor, Tensor]], frames: int) -> list[tuple[Tensor, Tensor]]:
        extra = max(0, len(layer) + frames - self.window)
        return layer[: self.sink] + layer[self.sink + extra :]

    def forward(
        self, x: Tensor, time: float, text: Tensor, plucker: Tensor | None
    ) -> tuple[Tensor, list[list[tuple[Tensor, Tensor]]]]:
        """Flow [C, f, h, w], and per layer the chunk's keys and values frame by frame."""
        p, sizes = self.p, self.sizes
        frames, rows, columns = x.shape[1], x.shape[2] // 2, x.shape[3] // 2
        per_frame, width = rows * columns, p["patch_embedding.bias"].shape[0]
        patches = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(1, 2, 3, 0, 4, 5)
        h = patches.reshape(frames * per_frame, -1) @ p["patch_embedding.weight"].flatten(1).T
        h = h + p["patch_embedding.bias"]
        half = sizes.freq_dim // 2
        angles = time * 10000.0 ** -(torch.arange(half).double() / half)
        sinusoid = torch.cat([angles.cos(), angles.sin()])
        e = self.linear("time_embedding.2", F.silu(self.linear("time_embedding.0", sinusoid)))
        e0 = self.linear("time_projection.1", F.silu(e)).reshape(6, width)
        rows_of_text = torch.zeros(sizes.text_rows, text.shape[1]).double()
        rows_of_text[: len(text)] = text.double()
        context = F.gelu(self.linear("text_embedding.0", rows_of_text), approximate="tanh")
        context = self.linear("text_embedding.2", context)
        camera = None if plucker is None else self.camera(plucker.double())
        turn = self.rotation(frames, rows, columns, width // sizes.heads)
        fresh: list[list[tuple[Tensor, Tensor]]] = []
        for layer in range(sizes.layers):
            h, kv = self.block(f"blocks.{layer}.", h, e0, context, camera, turn, layer, per_frame)
            fresh.append(kv)
        shift, scale = (p["head.modulation"][0] + e).unbind(0)
        out = self.linear("head.head", self.norm(h) * (1 + scale) + shift)
        out = out.reshape(frames, rows, columns, 2, 2, -1).permute(5, 0, 1, 3, 2, 4)
        return out.reshape(-1, frames, 2 * rows, 2 * columns), fresh

    def block(self, at, h, e0, context, camera, turn, layer, per_frame):
        m = self.p[at + "modulation"][0] + e0
        y = self.norm(h) * (1 + m[1]) + m[0]
        q = self.turned(self.rms(at + "self_attn.norm_q", self.linear(at + "self_attn.q", y)), turn)
        k = self.turned(self.rms(at + "self_attn.norm_k", self.linear(at + "self_attn.k", y)), turn)
        v = self.heads(self.linear(at + "self_attn.v", y))
        own = list(zip(k.split(per_frame), v.split(per_frame), strict=True))
        keys = torch.cat([pair[0] for pair in self.past[layer] + own])
        values = torch.cat([pair[1] for pair in self.past[layer] + own])
        h = h + m[2] * self.linear(at + "self_attn.o", self.attend(q, keys, values))
        if camera is not None:
            inner = F.silu(self.linear(at + "cam_injector_layer1", camera))
            inner = camera + self.linear(at + "cam_injector_layer2", inner)
            h = (1 + self.linear(at + "cam_scale_layer", inner)) * h
            h = h + self.linear(at + "cam_shift_layer", inner)
        y = self.norm(h) * self.p[at + "norm3.weight"] + self.p[at + "norm3.bias"]
        cross = at + "cross_attn."
        q = self.heads(self.rms(cross + "norm_q", self.linear(cross + "q", y)))
        k = self.heads(self.rms(cross + "norm_k", self.linear(cross + "k", context)))
        v = self.heads(self.linear(cross + "v", context))
        h = h + self.linear(cross + "o", self.attend(q, k, v))
        y = self.norm(h) * (1 + m[4]) + m[3]
        y = F.gelu(self.linear(at + "ffn.0", y), approximate="tanh")
        return h + m[5] * self.linear(at + "ffn.2", y), own

    def camera(self, plucker: Tensor) -> Tensor:
        """Camera tokens of rays [384, f, h, w]."""
        patches = plucker.unfold(2, 2, 2).unfold(3, 2, 2).permute(1, 2, 3, 0, 4, 5)
        c = self.linear("patch_embedding_wancamctrl", patches.flatten(3).flatten(0, 2))
        inner = F.silu(self.linear("c2ws_hidden_states_layer1", c))
        return c + self.linear("c2ws_hidden_states_layer2", inner)

    def rotation(self, frames: int, rows: int, columns: int, dim: int) -> Tensor:
        """exp(i·angle) [tokens, dim / 2]."""
        wide = 2 * (dim // 6)
        table = []
        for f in range(self.seen, self.seen + frames):
            for y in range(rows):
                for x in range(columns):
                    table.append(
                        [
                            place * 10000.0 ** (-2 * j / part)
                            for place, part in ((f, dim - 2 * wide), (y, wide), (x, wide))
                            for j in range(part // 2)
                        ]
                    )
        angles = torch.tensor(table, dtype=torch.float64)
        return torch.polar(torch.ones_like(angles), angles)

    def turned(self, x: Tensor, turn: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.heads(x).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn[:, None]).flatten(-2)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.sizes.heads, -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.p[name + ".weight"].T + self.p[name + ".bias"]

    def rms(self, name: str, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.p[name + ".weight"]

    def norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=1e-6)
