"""The family's network, run over many chunks of many clips at once, with gradients.

`LingBotTransformer` generates chunk by chunk with a cache. Training wants the same numbers for all
chunks in one go: beside the noisy latents run the clean ones, which leave behind what the commit
pass would. Noisy chunk i sees the clean chunks of its window and itself, clean chunk i likewise.
The weights are those of the class; a test compares the result with its cached path.

The camera of a latent frame comes in as the twelve numbers of its pose [R | t]: the family's rays
are linear in them, so that their embedding is, too (`camera_basis`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_world import looks, scene
from sgld.ops import Ops, rope
from sgld_lingbot.configs import transformer_config
from sgld_lingbot.models.camera import CHANNELS, plucker
from sgld_lingbot.models.config import LingBotConfig
from sgld_lingbot.models.dit import LingBotTransformer
from sgld_wan.configs import text_encoder_config
from sgld_wan.models.text import TextEncoder

CHUNK: Final = 3
TEXT_WIDTH: Final = 64


class Sizes(NamedTuple):
    """Args:
    heads: of 64 numbers each; the width is their sum.
    layers: blocks.
    inner: width of the feed-forward.
    window: latent frames that are seen, sink and chunk included.
    sink: first latent frames that are always seen.
    """

    heads: int = 5
    layers: int = 7
    inner: int = 1024
    window: int = 18
    sink: int = 3


def config(sizes: Sizes) -> dict[str, Any]:
    """`transformer/config.json`."""
    return transformer_config(
        attention_head_dim=64, ffn_dim=sizes.inner, freq_dim=128, text_dim=TEXT_WIDTH,
        num_attention_heads=sizes.heads, num_layers=sizes.layers,
        local_attn_size=sizes.window, sink_size=sizes.sink, num_frames_per_block=CHUNK,
        text_len=looks.TEXT_LENGTH,
    )  # fmt: skip


def text_config() -> dict[str, Any]:
    """`text_encoder/config.json`: two small layers over the words of `looks`."""
    return text_encoder_config(
        d_model=TEXT_WIDTH, d_kv=16, d_ff=128, num_heads=4, num_layers=2, num_decoder_layers=2,
        vocab_size=len(looks.VOCABULARY), dropout_rate=0.0, relative_attention_num_buckets=16,
        relative_attention_max_distance=32,
    )  # fmt: skip


class World(nn.Module):
    """Denoiser and text encoder together, as they are trained.

    Args:
        sizes: of the denoiser.
        size: (height, width) of the frames.
    """

    def __init__(
        self, sizes: Sizes, *, size: tuple[int, int] = (scene.HEIGHT, scene.WIDTH)
    ) -> None:
        super().__init__()
        self.config = LingBotConfig.from_json(config(sizes))
        self.transformer = LingBotTransformer(self.config.wan, Ops.torch())
        self.transformer.requires_grad_(True)
        self.text_encoder = TextEncoder(text_config(), torch.float32)
        self.sink, self.recent = sizes.sink // CHUNK, (sizes.window - sizes.sink) // CHUNK - 1
        self.rows, self.columns = size[0] // 16, size[1] // 16
        self.block: Callable[..., Tensor] = run_block
        self.compiled = False
        self.register_buffer("basis", camera_basis(*size), persistent=False)

    def compile_block(self, on: bool) -> None:
        """Compile what all layers share: one graph, since weights are arguments."""
        self.compiled = on
        self.block = torch.compile(run_block, dynamic=False) if on else run_block

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over saved parameters; the embedding of words is there once and used twice."""
        missing, unknown = self.load_state_dict(tensors, strict=False)
        known = {name for name, _ in self.named_parameters()}
        if unknown or known.intersection(missing):
            raise ValueError(f"not the weights of this network: {[*missing, *unknown][:5]}")

    def texts(self, ids: Tensor) -> Tensor:
        """Text states [.., L, text width] of token ids [.., L]."""
        flat = ids.flatten(0, -2)
        states = self.text_encoder(flat, (flat != looks.IDS[looks.PAD]).long())
        return states.unflatten(0, ids.shape[:-1])

    def forward(
        self, noisy: Tensor, clean: Tensor, shown: Tensor, times: Tensor, clean_times: Tensor,
        ids: Tensor, moves: Tensor, known: Tensor, begin: int,
    ) -> Tensor:  # fmt: skip
        """Velocity [B, C, 16, 3, h, w] of the noisy chunks.

        Args:
            noisy: [B, C, 16, 3, h, w]; chunk 0 is the first of a session.
            clean: what stands in memory, likewise.
            shown: mask and first frame, [B, C, 20, 3, h, w].
            times: 1000·sigma of each noisy chunk, [B, C]; `clean_times` of each clean one.
            ids: caption of each chunk, [B, C, L].
            moves: [B, C, 3, 3, 4], poses [R | t] of latent frames.
            known: whether there is a camera, [B, C].
            begin: temporal position of chunk 1 (chunk 0 has 0); 3 when nothing is left out.
        """
        net = self.transformer
        batch, chunks = noisy.shape[:2]
        both = torch.stack([noisy, clean])  # 2 b c ch 3 h w
        both = torch.cat([both, shown.to(both.dtype).expand(2, *shown.shape)], 3)
        x = net.patch_embedding(both.flatten(0, 2)).unflatten(0, (2, batch, chunks))
        x = x.float()  # so that all blocks are one graph when compiled
        embedding = net.condition_embedder.time_embedder(torch.stack([times, clean_times]))
        modulation = net.condition_embedder.time_proj(F.silu(embedding)).unflatten(-1, (6, -1))
        text = net.condition_embedder.text_embedder(self.texts(ids))
        camera = self._camera(moves)
        places = [float(n) for n in range(CHUNK)]
        places += [float(begin + n) for n in range(CHUNK * (chunks - 1))]
        cos, sin = rope.at(64, places, self.rows, self.columns, device=x.device)
        cos, sin = (table.unflatten(0, (chunks, -1)) for table in (cos, sin))
        for block in net.blocks:
            weights = dict(block.named_parameters())
            x = self.block(weights, x, modulation, text, camera, known, cos, sin,
                           self.sink, self.recent, self.config.wan.eps)  # fmt: skip
        return self._velocity(x[0], embedding[0])

    def _camera(self, moves: Tensor) -> Tensor:
        """Tokens [B, C, N, width] of the camera."""
        net = self.transformer
        with torch.autocast(moves.device.type, enabled=False):
            table = F.linear(self.basis, net.patch_embedding_wancamctrl.weight)  # 12 n width
            tokens = torch.einsum("bcfm,mnd->bcfnd", moves.flatten(-2), table)
            tokens = (tokens + net.patch_embedding_wancamctrl.bias).flatten(2, 3)
        first, second = net.c2ws_hidden_states_layer1, net.c2ws_hidden_states_layer2
        return second(F.silu(first(tokens))) + tokens

    def _velocity(self, x: Tensor, embedding: Tensor) -> Tensor:
        net = self.transformer
        shift, scale = (net.scale_shift_table + embedding.unsqueeze(-2)).unbind(-2)
        y = _modulated(x, scale, shift, self.config.wan.eps)
        batch, chunks = x.shape[:2]
        y = net.proj_out(y)
        y = y.view(batch, chunks, CHUNK, self.rows, self.columns, 2, 2, -1)
        return y.permute(0, 1, 7, 2, 3, 5, 4, 6).flatten(6).flatten(4, 5)


def run_block(
    w: Mapping[str, Tensor], x: Tensor, modulation: Tensor, text: Tensor, camera: Tensor,
    known: Tensor, cos: Tensor, sin: Tensor, sink: int, recent: int, eps: float,
) -> Tensor:  # fmt: skip
    """One block over both streams.

    Args:
        w: the block's weights by name.
        x: tokens [2, B, C, N, width]: noisy, clean.
        modulation: [2, B, C, 6, width].
        text: [B, C, L, width].
        camera: [B, C, N, width].
        known: [B, C].
        cos: [C, N, 32], and `sin`.
        sink: first chunks that are always seen.
        recent: chunks before its own that a chunk sees beside them.
        eps: of all norms.
    """
    parts = (w["scale_shift_table"] + modulation).unbind(-2)
    y = _modulated(x, parts[1], parts[0], eps)
    heads = x.shape[-1] // 64

    def linear(name: str, value: Tensor) -> Tensor:
        return F.linear(value, w[name + ".weight"], w[name + ".bias"])

    def split(value: Tensor) -> Tensor:
        return value.unflatten(-1, (heads, 64))

    def normed(name: str, value: Tensor) -> Tensor:
        kind = value.dtype
        wide = F.rms_norm(value.float(), (value.shape[-1],), w[name + ".weight"].float(), eps)
        return wide.to(kind)

    q = _rotated(split(normed("attn1.norm_q", linear("attn1.to_q", y))), cos, sin)
    k = _rotated(split(normed("attn1.norm_k", linear("attn1.to_k", y))), cos, sin)
    v = split(linear("attn1.to_v", y))
    y = linear("attn1.to_out.0", _windowed(q, k, v, sink, recent))
    x = x + parts[2].unsqueeze(-2) * y
    inner = linear("cam_injector_layer2", F.silu(linear("cam_injector_layer1", camera))) + camera
    told = known[..., None, None].to(x.dtype)
    x = x * (1 + told * linear("cam_scale_layer", inner)) + told * linear("cam_shift_layer", inner)
    y = F.layer_norm(x.float(), (x.shape[-1],), w["norm2.weight"], w["norm2.bias"], eps)
    q = split(normed("attn2.norm_q", linear("attn2.to_q", y)))  # 2 b c n h 64
    k = split(normed("attn2.norm_k", linear("attn2.to_k", text)))  # b c l h 64
    v = split(linear("attn2.to_v", text))
    # Both streams ask the same text.
    q = q.permute(1, 2, 0, 3, 4, 5).flatten(2, 3).flatten(0, 1)
    k, v = k.flatten(0, 1).to(q.dtype), v.flatten(0, 1).to(q.dtype)
    y = _attend(q, k, v).reshape(*x.shape[1:3], 2, x.shape[3], -1).permute(2, 0, 1, 3, 4)
    x = x + linear("attn2.to_out.0", y)
    y = _modulated(x, parts[4], parts[3], eps)
    y = linear("ffn.net.2", F.gelu(linear("ffn.net.0.proj", y), approximate="tanh"))
    return x + parts[5].unsqueeze(-2) * y


def _windowed(q: Tensor, k: Tensor, v: Tensor, sink: int, recent: int) -> Tensor:
    """Attention of every chunk to what it may see: [2, B, C, N, width]."""
    streams, batch, chunks = q.shape[:3]
    v = v.to(q.dtype)
    out: list[Tensor] = []
    for chunk in range(chunks):
        first = max(min(sink, chunk), chunk - recent)
        seen: list[tuple[Tensor, Tensor]] = []
        for part in (slice(0, min(sink, chunk)), slice(first, chunk)):
            if part.stop > part.start:
                seen.append(tuple(  # type: ignore
                    kept[1][:, part].flatten(1, 2).expand(streams, -1, -1, -1, -1)
                    for kept in (k, v)
                ))  # fmt: skip
        seen.append((k[:, :, chunk], v[:, :, chunk]))
        keys, values = (torch.cat(parts, 2).flatten(0, 1) for parts in zip(*seen, strict=True))
        y = _attend(q[:, :, chunk].flatten(0, 1), keys, values)
        out.append(y.flatten(2).unflatten(0, (streams, batch)))
    return torch.stack(out, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, S, H, D] each."""
    q, k, v = (value.transpose(1, 2) for value in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _modulated(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    normed = F.layer_norm(x.float(), (x.shape[-1],), None, None, eps)
    return normed * (1 + scale.unsqueeze(-2)) + shift.unsqueeze(-2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)  # c n 1 32
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x.dtype)


def camera_basis(height: int, width: int) -> Tensor:
    """What the camera embedding is given for each number of a pose alone, [12, N, 1536]."""
    moves = torch.zeros(12, 4, 4)
    moves[torch.arange(12), torch.arange(12) // 4, torch.arange(12) % 4] = 1
    rays = plucker(moves, height, width)[0]  # 384 12 h w
    patches = rays.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # ch 12 h 2 w 2
    return patches.permute(1, 2, 4, 0, 3, 5).reshape(12, -1, CHANNELS * 4)


@torch.no_grad()
def initialise(world: World, seed: int) -> None:
    """Fill all weights: matrices by their fan-in, branches that are added smaller, the head and
    what the camera changes at zero."""
    draw = torch.Generator().manual_seed(seed)
    layers = len(world.transformer.blocks)
    quiet = 1 / math.sqrt(2 * layers)
    for name, parameter in world.transformer.named_parameters():
        if name.endswith("scale_shift_table"):
            parameter.zero_()
            if parameter.shape[1] == 6:
                parameter[:, [2, 5]] = 0.5
        elif name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        elif name.startswith("proj_out") or "cam_scale" in name or "cam_shift" in name:
            parameter.zero_()
        else:
            fan = parameter[0].numel()
            scale = 1 / math.sqrt(fan)
            if "to_out" in name or "net.2" in name:
                scale *= quiet
            if "time_proj" in name:
                scale *= 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * scale)
    for name, parameter in world.text_encoder.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(1.0)
        elif "shared" in name or "embed_tokens" in name or "relative" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.5)
        else:
            scale = 1 / math.sqrt(parameter.shape[1])
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * scale)
