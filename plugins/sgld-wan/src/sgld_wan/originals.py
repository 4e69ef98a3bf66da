"""The layout of the Wan repositories, read as if it were a diffusers folder. No torch here.

    layout = read_layout(files)          None when `files` is not in the original layout
    layout.index                         what model_index.json would say
    layout.weights["vae"]                file to open; names go through `weights.name_map("vae")`
    component_config("vae", layout, shapes)      what vae/config.json would say

Original checkpoints carry a configuration for the transformer only, so the sizes of everything are
read off tensor shapes; constants (strides, latent statistics, norms) are those of the public code.
`shapes` maps the original tensor names to their shapes, as file headers give them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from sgld.api.errors import ModelError
from sgld_wan import configs
from sgld_wan.weights import PACK_PREFIX, RES_BLOCKS

Shapes = Mapping[str, Sequence[int]]

TEXT_ENCODER_FILE: Final = "models_t5_umt5-xxl-enc-bf16.pth"
IMAGE_ENCODER_FILE: Final = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"
VAE_FILES: Final = ("Wan2.1_VAE.pth", "Wan2.2_VAE.pth")
TOKENIZER_FOLDER: Final = "google/umt5-xxl"
EXPERT_FOLDERS: Final = ("high_noise_model", "low_noise_model")
TRANSFORMER_FILE: Final = "diffusion_pytorch_model.safetensors"

MODEL_TYPES: Final = ("t2v", "i2v", "flf2v", "ti2v")
CLIP_HEAD_WIDTH: Final = 80
"""ViT-H/14 has 16 heads on 1280 channels; shapes do not show the number of heads."""


class Files(Protocol):
    """The part of `sgld.weights.files.ModelFiles` that is needed here."""

    def exists(self, relative: str) -> bool:
        """Whether the file is there."""
        ...

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """The JSON object in a file, None when it is missing."""
        ...


class OriginalLayout(NamedTuple):
    """A checkpoint in the original layout.

    Args:
        index: what `model_index.json` would say.
        scheduler: what `scheduler/scheduler_config.json` would say.
        weights: component → its weight file or index, relative to the root.
        transformers: component → its own `config.json`, as stored.
        tokenizer: folder of the tokenizer, relative to the root.
    """

    index: configs.Config
    scheduler: configs.Config
    weights: Mapping[str, str]
    transformers: Mapping[str, configs.Config]
    tokenizer: str = TOKENIZER_FOLDER


def read_layout(files: Files) -> OriginalLayout | None:
    """Read the layout of `files`; None unless a Wan `config.json` and the text encoder are there.

    Raises:
        ModelError: a Wan transformer of a kind that is not supported (`model_type`), or no VAE.
    """
    experts = [name for name in EXPERT_FOLDERS if files.exists(f"{name}/config.json")]
    folders = experts if len(experts) == len(EXPERT_FOLDERS) else [""]
    stored = [files.read_json(_join(folder, "config.json")) for folder in folders]
    if not files.exists(TEXT_ENCODER_FILE) or not all(map(_is_wan, stored)):
        return None
    found = [config for config in stored if config is not None]
    names = ("transformer", "transformer_2")[: len(found)]
    weights = {
        name: _transformer_file(files, folder) for name, folder in zip(names, folders, strict=True)
    }
    weights["text_encoder"] = TEXT_ENCODER_FILE
    weights["vae"] = _vae_file(files)
    if clip := files.exists(IMAGE_ENCODER_FILE):
        weights["image_encoder"] = IMAGE_ENCODER_FILE
    kind = _model_type(found[0])
    return OriginalLayout(
        index=_index(kind, len(found), clip),
        scheduler=configs.scheduler_config(_flow_shift(kind, len(found))),
        weights=weights,
        transformers=dict(zip(names, found, strict=True)),
    )


def component_config(component: str, layout: OriginalLayout, shapes: Shapes) -> configs.Config:
    """What `<component>/config.json` would say, from the shapes of the component's file."""
    if component == "vae":
        return original_vae_config(shapes)
    if component == "text_encoder":
        return original_text_encoder_config(shapes)
    if component == "image_encoder":
        return original_image_encoder_config(shapes)
    return original_config(layout.transformers[component], shapes)


def original_config(config: Mapping[str, Any], shapes: Shapes) -> configs.Config:
    """`transformer/config.json` from an original `config.json` and the tensor shapes."""
    shapes = {name.removeprefix(PACK_PREFIX): shape for name, shape in shapes.items()}
    image = shapes.get("img_emb.proj.0.weight")
    positions = shapes.get("img_emb.emb_pos")
    width = int(config["dim"])
    return configs.transformer_config(
        added_kv_proj_dim=width if image else None,
        attention_head_dim=width // int(config["num_heads"]),
        cross_attn_norm="blocks.0.norm3.weight" in shapes,
        eps=config.get("eps", 1e-6),
        ffn_dim=config["ffn_dim"],
        freq_dim=config.get("freq_dim", 256),
        image_dim=image[0] if image else None,
        in_channels=config["in_dim"],
        num_attention_heads=config["num_heads"],
        num_layers=config["num_layers"],
        out_channels=config["out_dim"],
        patch_size=list(shapes["patch_embedding.weight"][2:]),
        pos_embed_seq_len=positions[1] if positions else None,
        text_dim=shapes["text_embedding.0.weight"][1],
    )


def original_vae_config(shapes: Shapes) -> configs.Config:
    """`vae/config.json` from the tensor shapes; 16 latent channels are 2.1's VAE, 48 are 2.2's."""
    latent = shapes["conv2.weight"][0]
    if latent not in (16, 48):
        raise ModelError(
            f"vae: {latent} latent channels; their statistics are not known.",
            remedy="Wan 2.1 has 16 and Wan 2.2 TI2V has 48; use a folder with vae/config.json.",
        )
    base, channels = shapes["encoder.conv1.weight"][:2]
    out_channels, decoder_base = shapes["decoder.head.2.weight"][:2]
    residual = any(name.startswith("encoder.downsamples.0.downsamples.") for name in shapes)
    stages = _stages(shapes, residual)
    sizes: configs.Config = {
        "base_dim": base,
        "dim_mult": [shapes[f"{first}.residual.2.weight"][0] // base for first, _ in stages],
        "temperal_downsample": [f"{last}.time_conv.weight" in shapes for _, last in stages[:-1]],
    }
    if not residual:
        return configs.vae_21_config(**sizes)
    patch = math.isqrt(channels // 3)
    return configs.vae_22_config(
        **sizes,
        decoder_base_dim=decoder_base,
        in_channels=channels,
        out_channels=out_channels,
        patch_size=patch,
        scale_factor_spatial=8 * patch,
    )


def original_text_encoder_config(shapes: Shapes) -> configs.Config:
    """`text_encoder/config.json` from the tensor shapes."""
    vocabulary, width = shapes["token_embedding.weight"]
    buckets, heads = shapes["blocks.0.pos_embedding.embedding.weight"]
    layers = _count(shapes, r"blocks\.(\d+)\.")
    return configs.text_encoder_config(
        d_ff=shapes["blocks.0.ffn.fc1.weight"][0],
        d_kv=shapes["blocks.0.attn.q.weight"][0] // heads,
        d_model=width,
        num_decoder_layers=layers,
        num_heads=heads,
        num_layers=layers,
        relative_attention_num_buckets=buckets,
        vocab_size=vocabulary,
    )


def original_image_encoder_config(shapes: Shapes) -> configs.Config:
    """`image_encoder/config.json` from the tensor shapes; heads are 80 channels wide."""
    width, _, patch, _ = shapes["visual.patch_embedding.weight"]
    side = math.isqrt(shapes["visual.pos_embedding"][1] - 1)
    return configs.image_encoder_config(
        hidden_size=width,
        image_size=side * patch,
        intermediate_size=shapes["visual.transformer.0.mlp.0.weight"][0],
        num_attention_heads=max(width // CLIP_HEAD_WIDTH, 1),
        num_hidden_layers=_count(shapes, r"visual\.transformer\.(\d+)\."),
        patch_size=patch,
    )


def _is_wan(config: Mapping[str, Any] | None) -> bool:
    if config is None:
        return False
    return config.get("_class_name") == "WanModel" or {"dim", "in_dim", "model_type"} <= set(config)


def _model_type(config: Mapping[str, Any]) -> str:
    kind = str(config.get("model_type", "t2v"))
    if kind not in MODEL_TYPES:
        raise ModelError(
            f"config.json: model_type={kind!r} is not supported.",
            code="unsupported_feature",
            remedy=f"Supported are {', '.join(MODEL_TYPES)}.",
        )
    return kind


def _index(kind: str, experts: int, clip: bool) -> configs.Config:
    scalars: dict[str, Any] = {}
    if experts == 2:
        scalars["boundary_ratio"] = 0.9 if kind == "i2v" else 0.875
    if kind == "ti2v":
        scalars["expand_timesteps"] = True
    class_name = "WanImageToVideoPipeline" if kind in ("i2v", "flf2v") else "WanPipeline"
    return configs.model_index(class_name, experts=experts, image_encoder=clip, **scalars)


def _flow_shift(kind: str, experts: int) -> float:
    # The repositories' `sample_shift`. I2V at 480p is 3 there; the weights do not tell its size.
    return 12.0 if kind == "t2v" and experts == 2 else 16.0 if kind == "flf2v" else 5.0


def _vae_file(files: Files) -> str:
    for name in VAE_FILES:
        if files.exists(name):
            return name
    raise ModelError(
        f"None of {', '.join(VAE_FILES)} is in the checkpoint.",
        code="checkpoint_incomplete",
        remedy="Fetch the whole repository again.",
    )


def _transformer_file(files: Files, folder: str) -> str:
    index = _join(folder, f"{TRANSFORMER_FILE}.index.json")
    return index if files.exists(index) else _join(folder, TRANSFORMER_FILE)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _stages(shapes: Shapes, residual: bool) -> list[tuple[str, str]]:
    """Per encoder stage, the names of its first block and of its sampler."""
    count = _count(shapes, r"encoder\.downsamples\.(\d+)\.")
    root = "encoder.downsamples"
    if residual:
        stages = ((f"{root}.{i}.downsamples", 0) for i in range(count))
    else:
        stages = ((root, i) for i in range(0, count, RES_BLOCKS + 1))
    return [(f"{where}.{i}", f"{where}.{i + RES_BLOCKS}") for where, i in stages]


def _count(names: Iterable[str], pattern: str) -> int:
    found = (re.match(pattern, name) for name in names)
    return 1 + max(int(match[1]) for match in found if match is not None)
