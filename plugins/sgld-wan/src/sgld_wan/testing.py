"""Tiny random Wan checkpoints: the real folder layout and every code path, under 5 MB each.

- `tiny_t2v`, `tiny_i2v`, `tiny_t2v_a14b`, `tiny_i2v_a14b`, `tiny_ti2v_5b`, `tiny_dmd`,
  `tiny_dmd_ti2v_5b`, `tiny_dmd_i2v_a14b`, `tiny_causal_t2v`, `tiny_longlive2`
  `(folder: Path) -> None` write a complete checkpoint in diffusers layout.
- `original_layout(source, target)` rewrites one of them in the layout of the Wan repositories.

The widths are small but nothing else is: 512 text tokens, the real latent statistics, strides and
channel counts, and no tensor at zero, so that an error anywhere changes the frames. The bytes do
not depend on the machine or the run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from sgld.testing.encoders import (
    save,
    tiny_text_encoder,
    tiny_vision_encoder,
    write_character_tokenizer,
    write_image_processor,
)
from sgld.testing.randomness import reinitialise
from sgld_wan import configs, originals, weights

IMAGE_SIZE = 32
IMAGE_WIDTH = 160
TEXT_WIDTH = 32
WIDTH = 64


class Recipe(NamedTuple):
    """What one tiny checkpoint has: pipeline class, transformer channels, parts and scalars."""

    class_name: str
    in_channels: int = 16
    out_channels: int = 16
    flow_shift: float = 3.0
    experts: int = 1
    clip: bool = False
    residual_vae: bool = False
    scalars: tuple[tuple[str, Any], ...] = ()
    seed: int = 0
    causal: tuple[tuple[str, Any], ...] = ()
    """Further entries of `transformer/config.json`."""
    original_names: bool = False
    """Whether the transformer's tensors have the names of the Wan repositories."""


T2V = Recipe("WanPipeline", seed=1)
I2V = Recipe("WanImageToVideoPipeline", in_channels=36, clip=True, seed=2)
T2V_A14B = Recipe(
    "WanPipeline", experts=2, flow_shift=12.0, scalars=(("boundary_ratio", 0.875),), seed=3
)
I2V_A14B = Recipe(
    "WanImageToVideoPipeline",
    in_channels=36,
    experts=2,
    flow_shift=5.0,
    scalars=(("boundary_ratio", 0.9),),
    seed=4,
)
TI2V_5B = Recipe(
    "WanPipeline",
    in_channels=48,
    out_channels=48,
    flow_shift=5.0,
    residual_vae=True,
    scalars=(("boundary_ratio", None), ("expand_timesteps", True)),
    seed=5,
)
DMD = Recipe("WanDMDPipeline", flow_shift=8.0, seed=1)
DMD_TI2V_5B = TI2V_5B._replace(class_name="WanDMDPipeline")
DMD_I2V_A14B = I2V_A14B._replace(class_name="WanDMDPipeline")

CAUSAL_T2V = Recipe(
    "WanCausalDMDPipeline",
    flow_shift=5.0,
    seed=6,
    causal=(("num_frames_per_block", 3), ("local_attn_size", 6), ("sink_size", 1)),
)
LONGLIVE2 = Recipe(
    "LongLive2Pipeline",
    in_channels=48,
    out_channels=48,
    flow_shift=5.0,
    residual_vae=True,
    seed=7,
    causal=(("num_frames_per_block", 2), ("local_attn_size", 6), ("sink_size", 2)),
    original_names=True,
)


def tiny_t2v(folder: Path) -> None:
    """Wan 2.1 text to video: one transformer with 16 channels, VAE 2.1, shift 3."""
    write(folder, T2V)


def tiny_i2v(folder: Path) -> None:
    """Wan 2.1 image to video: 36 input channels and a CLIP image stream of 17 tokens."""
    write(folder, I2V)


def tiny_t2v_a14b(folder: Path) -> None:
    """Wan 2.2 text to video with two experts, boundary 0.875, shift 12."""
    write(folder, T2V_A14B)


def tiny_i2v_a14b(folder: Path) -> None:
    """Wan 2.2 image to video with two experts, boundary 0.9, shift 5, no CLIP."""
    write(folder, I2V_A14B)


def tiny_ti2v_5b(folder: Path) -> None:
    """Wan 2.2 TI2V: 48 channels, residual VAE with stride 16, per-token timesteps, shift 5."""
    write(folder, TI2V_5B)


def tiny_dmd(folder: Path) -> None:
    """FastWan: the weights of `tiny_t2v` under pipeline class `WanDMDPipeline`, shift 8."""
    write(folder, DMD)


def tiny_dmd_ti2v_5b(folder: Path) -> None:
    """FastWan 2.2: the weights of `tiny_ti2v_5b` under pipeline class `WanDMDPipeline`."""
    write(folder, DMD_TI2V_5B)


def tiny_dmd_i2v_a14b(folder: Path) -> None:
    """TurboWan 2.2: the weights of `tiny_i2v_a14b` under pipeline class `WanDMDPipeline`."""
    write(folder, DMD_I2V_A14B)


def tiny_causal_t2v(folder: Path) -> None:
    """Causal Wan 2.1: chunks of 3 latent frames, a window of 6, a sink of 1, VAE 2.1, shift 5."""
    write(folder, CAUSAL_T2V)


def tiny_longlive2(folder: Path) -> None:
    """LongLive 2.0: chunks of 2 latent frames, a window of 6 and a sink of 2, residual VAE, and the
    transformer's tensors under the names of the Wan repositories."""
    write(folder, LONGLIVE2)


def write(folder: Path, recipe: Recipe) -> None:
    """Write the checkpoint of `recipe` into `folder`, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "model_index.json",
        configs.model_index(
            recipe.class_name,
            experts=recipe.experts,
            image_encoder=recipe.clip,
            **dict(recipe.scalars),
        ),
    )
    write_json(
        folder / "scheduler" / "scheduler_config.json", configs.scheduler_config(recipe.flow_shift)
    )
    write_character_tokenizer(folder / "tokenizer")
    save(tiny_text_encoder(seed=10 + recipe.seed), folder / "text_encoder")
    save(_vae(recipe), folder / "vae")
    for index in range(recipe.experts):
        name = "transformer" if index == 0 else f"transformer_{index + 1}"
        save(_transformer(recipe, seed=20 + recipe.seed + 100 * index), folder / name)
        if recipe.causal:
            config = {**_config(folder / name), **dict(recipe.causal)}
            write_json(folder / name / "config.json", config)
        if recipe.original_names:
            _rename_transformer(folder / name)
    if recipe.clip:
        save(
            tiny_vision_encoder(30 + recipe.seed, hidden_size=IMAGE_WIDTH), folder / "image_encoder"
        )
        write_image_processor(folder / "image_processor", IMAGE_SIZE)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _transformer(recipe: Recipe, seed: int) -> Any:
    from diffusers.models.transformers.transformer_wan import (  # noqa: PLC0415
        WanTransformer3DModel,
    )

    model: Any = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=WIDTH // 2,
        in_channels=recipe.in_channels,
        out_channels=recipe.out_channels,
        text_dim=TEXT_WIDTH,
        freq_dim=32,
        ffn_dim=48,
        num_layers=2,
        image_dim=IMAGE_WIDTH if recipe.clip else None,
        added_kv_proj_dim=WIDTH if recipe.clip else None,
    )
    reinitialise(model, seed)
    for block in model.blocks:
        # A prompt fills few of the 512 text rows; sharper attention lets it move the result.
        block.attn2.norm_k.weight.mul_(2)
    return model


def _vae(recipe: Recipe) -> Any:
    from diffusers.models.autoencoders.autoencoder_kl_wan import (  # noqa: PLC0415
        AutoencoderKLWan,
    )

    if recipe.residual_vae:
        config = configs.vae_22_config(base_dim=4, decoder_base_dim=6)
    else:
        config = configs.vae_21_config(base_dim=4)
    fields = {name: value for name, value in config.items() if not name.startswith("_")}
    vae: Any = reinitialise(AutoencoderKLWan(**fields), seed=40 + recipe.seed)
    # The last convolution follows a norm: half weights keep pixels well inside [-1, 1].
    vae.decoder.conv_out.weight.mul_(0.5)
    return vae


def original_layout(source: Path, target: Path) -> None:
    """Rewrite the checkpoint `source` (diffusers layout) in the layout of the Wan repositories.

    Image-to-video transformers are written in two shards with an index, the others as one file.
    The pickle files hold plain state dicts; the one for CLIP also has parts of a text tower, as the
    released file does.
    """
    target.mkdir(parents=True, exist_ok=True)
    index = json.loads((source / "model_index.json").read_text(encoding="utf-8"))
    experts = "transformer_2" in index
    for name, folder in zip(
        ("transformer", "transformer_2"), originals.EXPERT_FOLDERS, strict=True
    ):
        if (source / name).exists():
            _write_original_transformer(source / name, target / folder if experts else target)
    shutil.copytree(source / "tokenizer", target / originals.TOKENIZER_FOLDER, dirs_exist_ok=True)
    text = _load(source / "text_encoder")
    _save_pickle(
        {weights.original_text_encoder(name): tensor for name, tensor in text.items()},
        target / originals.TEXT_ENCODER_FILE,
    )
    residual = bool(_config(source / "vae").get("is_residual"))
    _save_pickle(
        {
            weights.original_vae(name, residual=residual): tensor
            for name, tensor in _load(source / "vae").items()
        },
        target / originals.VAE_FILES[residual],
    )
    if (source / "image_encoder").exists():
        image = _original_image_encoder(_load(source / "image_encoder"))
        _save_pickle(image, target / originals.IMAGE_ENCODER_FILE)


def _rename_transformer(folder: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    tensors = {weights.original_dit(name): tensor for name, tensor in _load(folder).items()}
    save_file(tensors, folder / originals.TRANSFORMER_FILE)


def _write_original_transformer(source: Path, target: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    config = _config(source)
    write_json(target / "config.json", _original_transformer_config(config))
    tensors = {weights.original_dit(name): tensor for name, tensor in _load(source).items()}
    if config["in_channels"] == config["out_channels"]:
        save_file(tensors, target / originals.TRANSFORMER_FILE)
        return
    names = sorted(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    files: dict[str, str] = {}
    for number, part in enumerate(halves, 1):
        file = f"diffusion_pytorch_model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, target / file)
        files.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(
        target / f"{originals.TRANSFORMER_FILE}.index.json",
        {"metadata": {"total_size": total}, "weight_map": files},
    )


def _original_transformer_config(config: dict[str, Any]) -> dict[str, Any]:
    kinds = {(16, 16): "t2v", (36, 16): "i2v", (48, 48): "ti2v"}
    return {
        "_class_name": "WanModel",
        "_diffusers_version": "0.33.0",
        "dim": config["num_attention_heads"] * config["attention_head_dim"],
        "eps": config["eps"],
        "ffn_dim": config["ffn_dim"],
        "freq_dim": config["freq_dim"],
        "in_dim": config["in_channels"],
        "model_type": kinds[config["in_channels"], config["out_channels"]],
        "num_heads": config["num_attention_heads"],
        "num_layers": config["num_layers"],
        "out_dim": config["out_channels"],
        "text_len": 512,
    }


def _original_image_encoder(tensors: dict[str, Any]) -> dict[str, Any]:
    import torch  # noqa: PLC0415

    tensors = {name.removeprefix(weights.VISION): tensor for name, tensor in tensors.items()}
    result = {
        "log_scale": torch.tensor(4.6),
        "textual.token_embedding.weight": torch.ones(4, 8),
        "visual.head": torch.ones(IMAGE_WIDTH, 8),
    }
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            fused = name.replace(".q_proj.", ".qkv.")
            result[weights.original_image_encoder(fused)] = torch.cat(parts)
        elif name == "embeddings.class_embedding":
            result["visual.cls_embedding"] = tensor[None, None]
        elif name == "embeddings.position_embedding.weight":
            result["visual.pos_embedding"] = tensor[None]
        elif ".k_proj." not in name and ".v_proj." not in name:
            result[weights.original_image_encoder(name)] = tensor
    return result


def _save_pickle(tensors: dict[str, Any], path: Path) -> None:
    import torch  # noqa: PLC0415

    torch.save(tensors, path)


def _load(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def _config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))
