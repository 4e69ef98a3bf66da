"""Tensor names of the original FLUX.2 transformer file and what they are called here.

"Here" means diffusers' module names, which our own transformer keeps.

    is_original(names)              whether a file has the original naming
    rename(name), convert(names)    what `sgld.weights` loaders take
    original_name(name)             the way back for tensors that are not fused
    original_transformer(tensors)   a whole state dict the way back, for tests and tools

Fused queries, keys and values of the double blocks are cut in three; single blocks stay fused in
both namings; the halves of the last modulation change places. A name that no rule knows is returned
unchanged, so that a strict loader reports it. Source of the original names: src/flux2/model.py of
the repository black-forest-labs/flux2. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from sgld.weights.mapping import Target
from sgld_flux.weights import PACK_PREFIX, rows, swap_halves

MARK: Final = "single_stream_modulation.lin.weight"
"""A tensor that only the original naming has."""
FINAL: Final = ("final_layer.adaLN_modulation.1.weight", "norm_out.linear.weight")

_TOP: Final = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "guidance_in.in_layer": "time_guidance_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_guidance_embed.guidance_embedder.linear_2",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    "final_layer.linear": "proj_out",
}
_DOUBLE: Final = {
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "img_attn.proj": "attn.to_out.0",
    "img_mlp.0": "ff.linear_in",
    "img_mlp.2": "ff.linear_out",
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
    "txt_attn.proj": "attn.to_add_out",
    "txt_mlp.0": "ff_context.linear_in",
    "txt_mlp.2": "ff_context.linear_out",
}
_SINGLE: Final = {
    "linear1": "attn.to_qkv_mlp_proj",
    "linear2": "attn.to_out",
    "norm.query_norm": "attn.norm_q",
    "norm.key_norm": "attn.norm_k",
}
_FUSED: Final = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
_BLOCK: Final = re.compile(r"(double|single)_blocks\.(\d+)\.(.+)\.(weight|scale)")
_OUR_BLOCK: Final = re.compile(r"(single_)?transformer_blocks\.(\d+)\.(.+)\.weight")


def is_original(names: Collection[str]) -> bool:
    """Whether these are the tensor names of the original file, with or without a pack's prefix."""
    return MARK in names or PACK_PREFIX + MARK in names


def rename(name: str) -> str | None:
    """Original name → ours; the fused ones and the last modulation stay for `convert`."""
    name = name.removeprefix(PACK_PREFIX)
    block = _BLOCK.fullmatch(name)
    if block is None:
        stem, _, leaf = name.rpartition(".")
        return f"{_TOP[stem]}.{leaf}" if stem in _TOP else name
    kind, index, inner, _ = block.groups()
    new = (_DOUBLE if kind == "double" else _SINGLE).get(inner)
    if new is None:
        return name
    return f"{'' if kind == 'double' else 'single_'}transformer_blocks.{index}.{new}.weight"


def convert(names: Collection[str]) -> list[Target]:
    """Targets of the renamed tensors that are cut into parts or whose halves change places."""
    targets: list[Target] = []
    for name in sorted(names):
        block = _BLOCK.fullmatch(name)
        if name == FINAL[0]:
            targets.append(Target(FINAL[1], (name,), swap_halves))
        elif block is not None and block[3] in _FUSED:
            targets += [
                Target(
                    f"transformer_blocks.{block[2]}.{part}.weight",
                    (name,),
                    rows(3, place, place + 1),
                )
                for place, part in enumerate(_FUSED[block[3]])
            ]
    return targets


def original_name(name: str) -> str | None:
    """Our name → the original one; None for tensors that `convert` makes."""
    block = _OUR_BLOCK.fullmatch(name)
    if block is None:
        stem, _, leaf = name.rpartition(".")
        old = _inverse(_TOP).get(stem)
        return None if old is None else f"{old}.{leaf}"
    single, index, inner = block.groups()
    old = _inverse(_SINGLE if single else _DOUBLE).get(inner)
    if old is None:
        return None
    leaf = "scale" if old.endswith("_norm") else "weight"
    return f"{'single' if single else 'double'}_blocks.{index}.{old}.{leaf}"


def original_transformer(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Our transformer's state dict under the original names, fused and swapped back."""
    import torch  # noqa: PLC0415

    result: dict[str, Any] = {}
    for name, tensor in tensors.items():
        old = original_name(name)
        block = _OUR_BLOCK.fullmatch(name)
        if old is not None:
            result[old] = tensor
        elif name == FINAL[1]:
            result[FINAL[0]] = swap_halves([tensor]).contiguous()
        elif block is not None:
            fused, parts = next(pair for pair in _FUSED.items() if block[3] in pair[1])
            if block[3] == parts[0]:
                whole = [tensors[f"transformer_blocks.{block[2]}.{part}.weight"] for part in parts]
                result[f"double_blocks.{block[2]}.{fused}.weight"] = torch.cat(whole)
    return result


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}
