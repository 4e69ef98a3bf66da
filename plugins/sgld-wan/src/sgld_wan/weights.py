"""Tensor names of the original Wan checkpoints and what they are called here.

"Here" means diffusers' and transformers' module names, which our own transformer keeps. Names go
through `rename` (None: nothing here uses the tensor); where one tensor becomes several or changes
shape, `convert` names the targets. Both are what `sgld.weights` loaders take.

    name_map("transformer").rename("blocks.0.self_attn.q.weight")    "blocks.0.attn1.to_q.weight"
    name_map("image_encoder").convert(names)       targets that cut query, key and value apart
    convert_state_dict("vae", tensors)             a whole file at once, for tests and tools
    original_dit(…)  original_vae(…)  original_text_encoder(…)       names, the way back

A name that no rule knows is returned unchanged, so that a strict loader reports it. Sources of the
original names: wan/modules/{model,vae,t5,clip}.py of Wan-Video/Wan2.1 and vae2_2.py of Wan2.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.weights.mapping import Target

PACK_PREFIX: Final = "model.diffusion_model."
"""Single-file packs put this in front of every transformer name."""
TRAINED_PREFIX: Final = "model."
"""Training checkpoints of Self-Forcing and LongLive put this there."""

# The first row that matches is used, both ways, so more specific rows come first on both sides.
_DIT: Final = {
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
    "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
    "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
    "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
    "img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed",
    "head.modulation": "scale_shift_table",
    "head.head": "proj_out",
}
_DIT_BLOCK: Final = {
    **{f"self_attn.{part}": f"attn1.to_{part}" for part in "qkv"},
    "self_attn.o": "attn1.to_out.0",
    "self_attn": "attn1",
    **{f"cross_attn.{part}": f"attn2.to_{part}" for part in "qkv"},
    "cross_attn.o": "attn2.to_out.0",
    "cross_attn.k_img": "attn2.add_k_proj",
    "cross_attn.v_img": "attn2.add_v_proj",
    "cross_attn.norm_k_img": "attn2.norm_added_k",
    "cross_attn": "attn2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    # The original numbers norms by age, diffusers by position: the two are swapped.
    "norm3": "norm2",
    "norm2": "norm3",
    "modulation": "scale_shift_table",
}
_VAE: Final = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    **{
        f"{side}.{original}": f"{side}.{ours}"
        for side in ("encoder", "decoder")
        for original, ours in (
            ("conv1", "conv_in"),
            ("middle.0", "mid_block.resnets.0"),
            ("middle.1", "mid_block.attentions.0"),
            ("middle.2", "mid_block.resnets.1"),
            ("head.0", "norm_out"),
            ("head.2", "conv_out"),
        )
    },
}
_RESIDUAL: Final = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
_TEXT: Final = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
_TEXT_BLOCK: Final = {
    "norm1": "layer.0.layer_norm",
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "attn": "layer.0.SelfAttention",
    "norm2": "layer.1.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}
_IMAGE: Final = {
    "visual.patch_embedding": "embeddings.patch_embedding",
    "visual.cls_embedding": "embeddings.class_embedding",
    "visual.pos_embedding": "embeddings.position_embedding.weight",
    "visual.pre_norm": "pre_layrnorm",  # spelled so in transformers
    "visual.post_norm": "post_layernorm",
}
_IMAGE_BLOCK: Final = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.proj": "self_attn.out_proj",
    "attn.to_qkv": "self_attn.qkv",
    "mlp.0": "mlp.fc1",
    "mlp.2": "mlp.fc2",
}
VISION: Final = "vision_model."
_MARKS: Final = {
    "vae": "conv1.weight",
    "text_encoder": "token_embedding.weight",
    "image_encoder": "visual.patch_embedding.weight",
}
"""Per component, a tensor that only the original naming has."""
_UNUSED_IMAGE: Final = ("visual.head", "textual.", "log_scale")

RES_BLOCKS: Final = 2
"""Residual blocks per stage of every released VAE; a decoder stage has one more."""


class NameMap(NamedTuple):
    """How the names of one original file become ours.

    `rename` maps one stored name; `convert` maps the set of renamed names to the targets that are
    not simply a tensor of the same name.
    """

    rename: Callable[[str], str | None]
    convert: Callable[[frozenset[str]], Sequence[Target]]


def is_original(component: str, names: Collection[str]) -> bool:
    """Whether the tensor names of a component are those of the Wan repositories, told by names that
    every checkpoint has; packs put all their transformer's names behind a prefix."""
    mark = _MARKS.get(component, "time_embedding.0.weight")
    return any(prefix + mark in names for prefix in ("", PACK_PREFIX, TRAINED_PREFIX))


def unpacked(names: Collection[str]) -> Callable[[str], str | None]:
    """Rename the transformer's tensors of a single-file pack, which may hold other components too,
    or of a training checkpoint, to original names; any other file's names stay as they are."""
    if any(name.startswith(PACK_PREFIX) for name in names):
        return lambda name: name.removeprefix(PACK_PREFIX) if name.startswith(PACK_PREFIX) else None
    if names and all(name.startswith(TRAINED_PREFIX) for name in names):
        return lambda name: name.removeprefix(TRAINED_PREFIX)
    return lambda name: name


def rename_dit(name: str) -> str | None:
    """Original transformer name → ours; `norm_added_q` of some exports is unused."""
    name = name.removeprefix(PACK_PREFIX)
    if ".norm_added_q." in name:
        return None
    return _rename(name, "blocks", _DIT, "blocks", _DIT_BLOCK)


def original_dit(name: str) -> str:
    """Our transformer name → the original one, without the prefix of packs."""
    return _rename(name, "blocks", _inverse(_DIT), "blocks", _inverse(_DIT_BLOCK))


def rename_vae(name: str) -> str | None:
    """Original VAE name → ours, for Wan 2.1 (flat stages) and 2.2 (nested, residual stages)."""
    match = re.fullmatch(r"(encoder\.down|decoder\.up)samples\.(\d+)\.(.+)", name)
    if match is None:
        return _swap_middle(_swap(name, _VAE), _RESIDUAL)
    side, stage, rest = match[1], int(match[2]), match[3]
    nested = re.fullmatch(r"(?:down|up)samples\.(\d+)\.(.+)", rest)
    inner, rest = (nested[1], nested[2]) if nested else ("", rest)
    sampler = rest.startswith(("resample.", "time_conv."))
    rest = _swap(rest, _RESIDUAL)
    if nested:
        where = side.rpartition(".")[2] + "sampler" if sampler else f"resnets.{inner}"
        return f"{side}_blocks.{stage}.{where}.{rest}"
    if side == "encoder.down":
        return f"{side}_blocks.{stage}.{rest}"
    block, index = divmod(stage, RES_BLOCKS + 2)
    where = "upsamplers.0" if sampler else f"resnets.{index}"
    return f"{side}_blocks.{block}.{where}.{rest}"


def original_vae(name: str, *, residual: bool) -> str:
    """Our VAE name → the original one; `residual` tells Wan 2.2's VAE from 2.1's."""
    match = re.fullmatch(r"(encoder\.down|decoder\.up)_blocks\.(\d+)\.(.+)", name)
    if match is None:
        return _swap(_swap_middle(name, _inverse(_RESIDUAL)), _inverse(_VAE))
    side, stage, rest = match[1], int(match[2]), match[3]
    depth = RES_BLOCKS if side == "encoder.down" else RES_BLOCKS + 1
    inner = re.fullmatch(r"(?:resnets\.(\d+)|upsamplers\.0|(?:up|down)sampler)\.(.+)", rest)
    tail = _swap(inner[2] if inner else rest, _inverse(_RESIDUAL))
    if inner is None:
        return f"{side}samples.{stage}.{tail}"
    index = depth if inner[1] is None else int(inner[1])
    if residual:
        return f"{side}samples.{stage}.{side.rpartition('.')[2]}samples.{index}.{tail}"
    return f"{side}samples.{stage * (RES_BLOCKS + 2) + index}.{tail}"


def rename_text_encoder(name: str) -> str | None:
    """Original T5 encoder name → transformers' `UMT5EncoderModel`."""
    return _rename(name, "blocks", _TEXT, "encoder.block", _TEXT_BLOCK)


def original_text_encoder(name: str) -> str:
    """`UMT5EncoderModel` name → the original T5 encoder's."""
    return _rename(name, "encoder.block", _inverse(_TEXT), "blocks", _inverse(_TEXT_BLOCK))


def rename_image_encoder(name: str) -> str | None:
    """Original CLIP name → transformers' `CLIPVisionModel`; the text tower is unused.

    The fused projection becomes `….self_attn.qkv.weight`, which `convert_image_encoder` cuts.
    """
    if name.startswith(_UNUSED_IMAGE):
        return None
    return _rename(name, "visual.transformer", _IMAGE, "encoder.layers", _IMAGE_BLOCK)


def original_image_encoder(name: str) -> str:
    """`CLIPVisionModel` name (or `….self_attn.qkv.…`) → the original CLIP's."""
    inner = _inverse(_IMAGE_BLOCK)
    return _rename(name, "encoder.layers", _inverse(_IMAGE), "visual.transformer", inner)


def convert_image_encoder(names: Collection[str]) -> list[Target]:
    """Targets of the renamed CLIP tensors that are cut in three or lose axes of length 1.

    `names` may have `vision_model.` in front.
    """
    targets: list[Target] = []
    for name in sorted(names):
        if name.endswith("embeddings.class_embedding"):
            targets.append(Target(name, (name,), _without_two_axes))
        elif name.endswith("embeddings.position_embedding.weight"):
            targets.append(Target(name, (name,), _without_one_axis))
        match = re.fullmatch(r"(.+\.self_attn)\.qkv\.(weight|bias)", name)
        if match is not None:
            targets += [
                Target(f"{match[1]}.{part}_proj.{match[2]}", (name,), third)
                for part, third in (("q", _first), ("k", _second), ("v", _third))
            ]
    return targets


def rename_saved_image_encoder(module_names: Collection[str]) -> Callable[[str], str | None]:
    """Rename tensors of an `image_encoder/` folder to fit a `CLIPVisionModel`'s own names.

    transformers writes them with or without `vision_model.` in front, depending on its version.
    Old files also hold the position ids, which are not a weight.
    """
    prefix = VISION if any(name.startswith(VISION) for name in module_names) else ""

    def rename(name: str) -> str | None:
        if name.endswith("position_ids"):
            return None
        return prefix + name.removeprefix(VISION)

    return rename


def name_map(component: str) -> NameMap:
    """The name map of a component, by its name in `model_index.json`.

    Names other than `vae`, `text_encoder` and `image_encoder` are transformers.
    """
    return _MAPS.get(component, NameMap(rename_dit, _nothing))


def convert_state_dict(component: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """All tensors of an original file under our names; for a loader use `name_map`."""
    names = name_map(component)
    renamed = {names.rename(name): tensor for name, tensor in tensors.items()}
    known = {name: tensor for name, tensor in renamed.items() if name is not None}
    targets = names.convert(frozenset(known))
    sources = {source for target in targets for source in target.sources}
    converted = {name: tensor for name, tensor in known.items() if name not in sources}
    for target in targets:
        tensors_in = [known[source] for source in target.sources]
        converted[target.name] = target.combine(tensors_in) if target.combine else tensors_in[0]
    return converted


def _nothing(names: frozenset[str]) -> Sequence[Target]:
    return ()


_MAPS: Final = {
    "vae": NameMap(rename_vae, _nothing),
    "text_encoder": NameMap(rename_text_encoder, _nothing),
    "image_encoder": NameMap(rename_image_encoder, convert_image_encoder),
}


def _first(sources: Sequence[Any]) -> Any:
    return sources[0].chunk(3, 0)[0]


def _second(sources: Sequence[Any]) -> Any:
    return sources[0].chunk(3, 0)[1]


def _third(sources: Sequence[Any]) -> Any:
    return sources[0].chunk(3, 0)[2]


def _without_one_axis(sources: Sequence[Any]) -> Any:
    return sources[0].flatten(0, 1)


def _without_two_axes(sources: Sequence[Any]) -> Any:
    return sources[0].flatten()


def _rename(
    name: str, old_list: str, outer: Mapping[str, str], new_list: str, inner: Mapping[str, str]
) -> str:
    match = re.fullmatch(rf"{re.escape(old_list)}\.(\d+)\.(.+)", name)
    if match is None:
        return _swap(name, outer)
    return f"{new_list}.{match[1]}.{_swap(match[2], inner)}"


def _swap(name: str, table: Mapping[str, str]) -> str:
    for old, new in table.items():
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    return name


def _swap_middle(name: str, table: Mapping[str, str]) -> str:
    head, middle, rest = name.partition(".mid_block.resnets.")
    index, _, tail = rest.partition(".")
    return f"{head}{middle}{index}.{_swap(tail, table)}" if middle else name


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}
