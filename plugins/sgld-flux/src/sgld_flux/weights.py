"""Tensor names of the original FLUX.1 files and what they are called here.

"Here" means diffusers' module names, which our own transformer keeps. Names go through `rename`;
where one tensor becomes several or changes shape, `convert` names the targets. Both are what
`sgld.weights` loaders take.

    is_original("transformer", names)       whether a file has the original naming
    name_map("vae", names)                  the rename and convert for such a file
    original_transformer(…)  original_vae(…)     whole state dicts the way back, for tests and tools

A name that no rule knows is returned unchanged, so that a strict loader reports it. Source of the
original names: src/flux/model.py and src/flux/modules of the repository black-forest-labs/flux.
Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.weights.mapping import Target

PACK_PREFIX: Final = "model.diffusion_model."
"""Single-file packs put this in front of every transformer name."""
MARKS: Final = {
    "transformer": "double_blocks.0.img_attn.qkv.weight",
    "vae": "decoder.mid.block_1.conv1.weight",
}
"""Per component, a tensor that only the original naming has."""
FLUX1_MARK: Final = "vector_in.in_layer.weight"
GUIDANCE_MARK: Final = "guidance_in.in_layer.weight"
FUSED_WIDTHS: Final = 7
"""Rows of a single block's first linear, in model widths: q, k, v and four of feed-forward."""

_TOP: Final = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
_DOUBLE: Final = {
    "img_mod.lin": "norm1.linear",
    "txt_mod.lin": "norm1_context.linear",
    "img_attn.norm.query_norm.scale": "attn.norm_q.weight",
    "img_attn.norm.key_norm.scale": "attn.norm_k.weight",
    "txt_attn.norm.query_norm.scale": "attn.norm_added_q.weight",
    "txt_attn.norm.key_norm.scale": "attn.norm_added_k.weight",
    "img_attn.proj": "attn.to_out.0",
    "txt_attn.proj": "attn.to_add_out",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
}
_SINGLE: Final = {
    "modulation.lin": "norm.linear",
    "norm.query_norm.scale": "attn.norm_q.weight",
    "norm.key_norm.scale": "attn.norm_k.weight",
    "linear2": "proj_out",
}
_DOUBLE_FUSED: Final = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
_SINGLE_FUSED: Final = ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")
_FINAL: Final = ("final_layer.adaLN_modulation.1", "norm_out.linear")
_VAE: Final = {
    "nin_shortcut": "conv_shortcut",
    "downsample.conv": "downsamplers.0.conv",
    "upsample.conv": "upsamplers.0.conv",
    "mid.block_1": "mid_block.resnets.0",
    "mid.block_2": "mid_block.resnets.1",
    "mid.attn_1.norm": "mid_block.attentions.0.group_norm",
    "mid.attn_1.q": "mid_block.attentions.0.to_q",
    "mid.attn_1.k": "mid_block.attentions.0.to_k",
    "mid.attn_1.v": "mid_block.attentions.0.to_v",
    "mid.attn_1.proj_out": "mid_block.attentions.0.to_out.0",
    "norm_out": "conv_norm_out",
}
_VAE_LINEAR: Final = re.compile(r"(?:encoder|decoder)\.mid_block\.attentions\.0\.to_.+\.weight")


class NameMap(NamedTuple):
    """How the names of one original file become ours.

    `rename` maps one stored name; `convert` maps the set of renamed names to the targets that are
    not simply a tensor of the same name.
    """

    rename: Callable[[str], str | None]
    convert: Callable[[frozenset[str]], Sequence[Target]]


def is_original(component: str, names: Collection[str]) -> bool:
    """Whether the tensor names of a component are those of the original files."""
    mark = MARKS.get(component)
    return mark is not None and (mark in names or PACK_PREFIX + mark in names)


def name_map(component: str, names: Collection[str]) -> NameMap:
    """The name map of component `transformer` or `vae` for a file with these names."""
    if component == "vae":
        levels = vae_levels(names)
        return NameMap(lambda name: rename_vae(name, levels), convert_vae)
    packed = any(name.startswith(PACK_PREFIX) for name in names)
    return NameMap(lambda name: rename_transformer(name, packed=packed), convert_transformer)


def rename_transformer(name: str, *, packed: bool = False) -> str | None:
    """Original transformer name → ours; fused ones stay for `convert_transformer`.

    In a pack (`packed`), which may hold other components too, only prefixed names count.
    """
    if packed:
        if not name.startswith(PACK_PREFIX):
            return None
        name = name.removeprefix(PACK_PREFIX)
    block = re.fullmatch(r"(double|single)_blocks\.(\d+)\.(.+)", name)
    if block is None:
        return _swap(name, _TOP)
    kind, index, rest = block.groups()
    new = _swap(rest, _DOUBLE if kind == "double" else _SINGLE)
    if new == rest:
        return name
    return f"{'' if kind == 'double' else 'single_'}transformer_blocks.{index}.{new}"


def convert_transformer(names: Collection[str]) -> list[Target]:
    """Targets of the renamed tensors that are cut into parts or whose halves change places."""
    targets: list[Target] = []
    for name in sorted(names):
        stem, _, leaf = name.rpartition(".")
        block = re.fullmatch(r"(double|single)_blocks\.(\d+)\.(.+)", stem)
        if stem == _FINAL[0]:
            targets.append(Target(f"{_FINAL[1]}.{leaf}", (name,), swap_halves))
        elif block is not None and block[1] == "double" and block[3] in _DOUBLE_FUSED:
            for index, part in enumerate(_DOUBLE_FUSED[block[3]]):
                new = f"transformer_blocks.{block[2]}.{part}.{leaf}"
                targets.append(Target(new, (name,), rows(3, index, index + 1)))
        elif block is not None and block[1] == "single" and block[3] == "linear1":
            for index, part in enumerate(_SINGLE_FUSED):
                new = f"single_transformer_blocks.{block[2]}.{part}.{leaf}"
                end = FUSED_WIDTHS if part == "proj_mlp" else index + 1
                targets.append(Target(new, (name,), rows(FUSED_WIDTHS, index, end)))
    return targets


def rows(parts: int, begin: int, end: int) -> Callable[[list[Any]], Any]:
    """A combining function: rows `begin` to `end` of a tensor counted in `parts` equal parts."""

    def cut(sources: list[Any]) -> Any:
        size, rest = divmod(sources[0].shape[0], parts)
        if rest:
            raise ValueError(f"{sources[0].shape[0]} rows are not {parts} equal parts")
        return sources[0][begin * size : end * size]

    return cut


def swap_halves(sources: list[Any]) -> Any:
    """(shift, scale) rows to (scale, shift): the original's last modulation has them so."""
    half = sources[0].shape[0] // 2
    return sources[0].roll(half, 0)


def vae_levels(names: Collection[str]) -> int:
    """How many resolutions an original VAE file has."""
    found = {match[1] for name in names if (match := re.match(r"encoder\.down\.(\d+)\.", name))}
    return len(found)


def rename_vae(name: str, levels: int) -> str:
    """Original VAE name → diffusers' `AutoencoderKL`; the decoder's levels count backwards."""
    match = re.fullmatch(r"(encoder\.down|decoder\.up)\.(\d+)\.(?:block\.(\d+)\.)?(.+)", name)
    if match is None:
        side, _, rest = name.partition(".")
        return f"{side}.{_swap(rest, _VAE)}" if side in ("encoder", "decoder") else name
    side, level, inner, rest = match[1], int(match[2]), match[3], match[4]
    place = level if side == "encoder.down" else levels - 1 - level
    middle = "" if inner is None else f"resnets.{inner}."
    return f"{side}_blocks.{place}.{middle}{_swap(rest, _VAE)}"


def convert_vae(names: Collection[str]) -> list[Target]:
    """Targets of the attention's 1×1 convolutions, which are linears here."""
    return [
        Target(name, (name,), _without_kernel)
        for name in sorted(names)
        if _VAE_LINEAR.fullmatch(name)
    ]


def _without_kernel(sources: list[Any]) -> Any:
    return sources[0].reshape(sources[0].shape[:2])


def original_transformer(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Our transformer's state dict under the original names, fused and swapped back."""
    import torch  # noqa: PLC0415

    result: dict[str, Any] = {}
    for name, tensor in tensors.items():
        stem, _, leaf = name.rpartition(".")
        block = re.fullmatch(r"(single_)?transformer_blocks\.(\d+)\.(.+)", name)
        if stem == _FINAL[1]:
            result[f"{_FINAL[0]}.{leaf}"] = swap_halves([tensor]).contiguous()
            continue
        if block is None:
            result[_swap(name, _inverse(_TOP))] = tensor
            continue
        kind = "single_blocks" if block[1] else "double_blocks"
        fused = {"linear1": _SINGLE_FUSED} if block[1] else _DOUBLE_FUSED
        inner = block[3].rpartition(".")[0]
        owner = next((key for key, parts in fused.items() if inner in parts), None)
        if owner is None:
            table = _inverse(_SINGLE if block[1] else _DOUBLE)
            result[f"{kind}.{block[2]}.{_swap(block[3], table)}"] = tensor
        elif inner == fused[owner][0]:
            base = name.removesuffix(f"{inner}.{leaf}")
            whole = torch.cat([tensors[f"{base}{part}.{leaf}"] for part in fused[owner]])
            result[f"{kind}.{block[2]}.{owner}.{leaf}"] = whole
    return result


def original_vae(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """`AutoencoderKL`'s state dict under the original names."""
    blocks = {m[1] for name in tensors if (m := re.match(r"encoder\.down_blocks\.(\d+)\.", name))}
    table, result = _inverse(_VAE), dict[str, Any]()
    for name, tensor in tensors.items():
        match = re.fullmatch(
            r"(encoder\.down|decoder\.up)_blocks\.(\d+)\.(?:resnets\.(\d+)\.)?(.+)", name
        )
        if match is None:
            side, _, rest = name.partition(".")
            new = f"{side}.{_swap(rest, table)}" if side in ("encoder", "decoder") else name
        else:
            place = int(match[2])
            level = place if match[1] == "encoder.down" else len(blocks) - 1 - place
            middle = "" if match[3] is None else f"block.{match[3]}."
            new = f"{match[1]}.{level}.{middle}{_swap(match[4], table)}"
        result[new] = tensor[..., None, None] if _VAE_LINEAR.fullmatch(name) else tensor
    return result


def _swap(name: str, table: Mapping[str, str]) -> str:
    """Replace the longest beginning of `name` that the table knows, at a dot or as a whole."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        head = ".".join(parts[:count])
        if head in table:
            return ".".join((table[head], *parts[count:]))
    return name


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}
