"""The original T5 and CLIP encoders as short functions on original tensor names.

They prove that the name maps mean the right thing: written from the formulas of
wan/modules/{t5,clip}.py, they must agree with transformers' classes on mapped weights.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

Tensors = dict[str, torch.Tensor]


def t5_forward(w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Token ids [B, L] → hidden states [B, L, D]; every block has its own position bias."""
    heads = w["blocks.0.pos_embedding.embedding.weight"].shape[1]
    x = w["token_embedding.weight"][ids]
    for block in range(1 + max(int(n.split(".")[1]) for n in w if n.startswith("blocks."))):
        b = {
            name.removeprefix(f"blocks.{block}."): tensor
            for name, tensor in w.items()
            if name.startswith(f"blocks.{block}.")
        }
        h = t5_norm(x, b["norm1.weight"])
        q, k, v = (
            F.linear(h, b[f"attn.{part}.weight"]).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in "qkv"
        )
        bias = b["pos_embedding.embedding.weight"][t5_buckets(ids.shape[1], 8)].permute(2, 0, 1)
        mixed = ((q @ k.mT + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + F.linear(mixed, b["attn.o.weight"])
        h = t5_norm(x, b["norm2.weight"])
        gate = F.gelu(F.linear(h, b["ffn.gate.0.weight"]), approximate="tanh")
        x = x + F.linear(F.linear(h, b["ffn.fc1.weight"]) * gate, b["ffn.fc2.weight"])
    return t5_norm(x, w["norm.weight"])


def t5_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def t5_buckets(length: int, buckets: int, distance: int = 128) -> torch.Tensor:
    half = buckets // 2
    exact = half // 2
    table = torch.zeros(length, length, dtype=torch.long)
    for i in range(length):
        for j in range(length):
            far = abs(j - i)
            if far >= exact:
                growth = math.log(far / exact) / math.log(distance / exact) * (half - exact)
                far = min(exact + int(growth), half - 1)
            table[i, j] = far + (half if j > i else 0)
    return table


def clip_forward(w: Tensors, pixels: torch.Tensor, layers: int, heads: int) -> torch.Tensor:
    """Pixels [B, 3, S, S] → hidden states [B, 1 + patches, D] after `layers` blocks."""
    patch = w["visual.patch_embedding.weight"].shape[-1]
    x = F.conv2d(pixels, w["visual.patch_embedding.weight"], stride=patch).flatten(2).mT
    x = torch.cat([w["visual.cls_embedding"].expand(len(x), -1, -1), x], 1)
    x = layer_norm(x + w["visual.pos_embedding"], w, "visual.pre_norm")
    for layer in range(layers):
        at = f"visual.transformer.{layer}"
        h = layer_norm(x, w, f"{at}.norm1")
        fused = F.linear(h, w[f"{at}.attn.to_qkv.weight"], w[f"{at}.attn.to_qkv.bias"])
        q, k, v = fused.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + F.linear(mixed, w[f"{at}.attn.proj.weight"], w[f"{at}.attn.proj.bias"])
        h = layer_norm(x, w, f"{at}.norm2")
        h = F.gelu(F.linear(h, w[f"{at}.mlp.0.weight"], w[f"{at}.mlp.0.bias"]))
        x = x + F.linear(h, w[f"{at}.mlp.2.weight"], w[f"{at}.mlp.2.bias"])
    return x


def layer_norm(x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)
