"""Full-size Wan checkpoints as configuration only, for `--load-format dummy`.

Each function `(folder: Path) -> None` writes `model_index.json`, a `config.json` per component, the
scheduler, and a small character tokenizer; no weights and no network, well under a second. Sizes
are those of the released models, so memory and speed are real. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sgld.testing.encoders import write_character_tokenizer, write_image_processor
from sgld_wan import configs

_14B: configs.Config = {"ffn_dim": 13824, "num_attention_heads": 40, "num_layers": 40}
_5B: configs.Config = {
    "ffn_dim": 14336,
    "in_channels": 48,
    "num_attention_heads": 24,
    "num_layers": 30,
    "out_channels": 48,
}
CLIP_IMAGE_SIZE = 224


def wan21_t2v_1_3b(folder: Path) -> None:
    """Wan2.1-T2V-1.3B: 30 layers of width 1536."""
    _write(folder, "WanPipeline", configs.transformer_config(), flow_shift=3.0)


def wan21_t2v_14b(folder: Path) -> None:
    """Wan2.1-T2V-14B: 40 layers of width 5120."""
    _write(folder, "WanPipeline", configs.transformer_config(**_14B), flow_shift=5.0)


def wan21_i2v_14b_480p(folder: Path) -> None:
    """Wan2.1-I2V-14B-480P: 36 input channels and CLIP ViT-H/14."""
    transformer = configs.transformer_config(
        **_14B, added_kv_proj_dim=5120, image_dim=1280, in_channels=36
    )
    _write(folder, "WanImageToVideoPipeline", transformer, flow_shift=3.0, clip=True)


def wan22_t2v_a14b(folder: Path) -> None:
    """Wan2.2-T2V-A14B: two experts of 14B, boundary 0.875."""
    transformer = configs.transformer_config(**_14B)
    scalars = {"boundary_ratio": 0.875}
    _write(folder, "WanPipeline", transformer, flow_shift=12.0, experts=2, scalars=scalars)


def wan22_i2v_a14b(folder: Path) -> None:
    """Wan2.2-I2V-A14B: two experts of 14B with 36 input channels, boundary 0.9, no CLIP."""
    transformer = configs.transformer_config(**_14B, in_channels=36)
    scalars = {"boundary_ratio": 0.9}
    _write(
        folder, "WanImageToVideoPipeline", transformer, flow_shift=5.0, experts=2, scalars=scalars
    )


def wan22_ti2v_5b(folder: Path) -> None:
    """Wan2.2-TI2V-5B: 48 channels, per-token timesteps, residual VAE with stride 16."""
    _write(
        folder,
        "WanPipeline",
        configs.transformer_config(**_5B),
        flow_shift=5.0,
        vae=configs.vae_22_config(),
        scalars={"boundary_ratio": None, "expand_timesteps": True},
    )


def wan21_causal_t2v_1_3b(folder: Path) -> None:
    """Causal Wan 2.1, 1.3B (Self-Forcing): chunks of 3 latent frames that see all before them."""
    transformer = configs.causal_config(chunk=3, window=-1, sink=0)
    _write(folder, "WanCausalDMDPipeline", transformer, flow_shift=5.0)


def longlive2_5b(folder: Path) -> None:
    """LongLive 2.0: the network and VAE of TI2V-5B, chunks of 8, a window of 32, a sink of 8."""
    transformer = configs.causal_config(chunk=8, window=32, sink=8, **_5B)
    vae = configs.vae_22_config()
    _write(folder, "LongLive2Pipeline", transformer, flow_shift=5.0, vae=vae)


def _write(
    folder: Path,
    class_name: str,
    transformer: configs.Config,
    *,
    flow_shift: float,
    experts: int = 1,
    clip: bool = False,
    vae: configs.Config | None = None,
    scalars: dict[str, Any] | None = None,
) -> None:
    index = configs.model_index(class_name, experts=experts, image_encoder=clip, **(scalars or {}))
    files = {
        "model_index.json": index,
        "scheduler/scheduler_config.json": configs.scheduler_config(flow_shift),
        "text_encoder/config.json": configs.text_encoder_config(),
        "transformer/config.json": transformer,
        "vae/config.json": vae or configs.vae_21_config(),
    }
    if experts == 2:
        files["transformer_2/config.json"] = transformer
    if clip:
        files["image_encoder/config.json"] = configs.image_encoder_config()
        write_image_processor(folder / "image_processor", CLIP_IMAGE_SIZE)
    write_character_tokenizer(folder / "tokenizer")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


BLUEPRINTS = {
    "wan2.1-t2v-1.3b": wan21_t2v_1_3b,
    "wan2.1-t2v-14b": wan21_t2v_14b,
    "wan2.1-i2v-14b-480p": wan21_i2v_14b_480p,
    "wan2.2-t2v-a14b": wan22_t2v_a14b,
    "wan2.2-i2v-a14b": wan22_i2v_a14b,
    "wan2.2-ti2v-5b": wan22_ti2v_5b,
    "wan2.1-causal-t2v-1.3b": wan21_causal_t2v_1_3b,
    "longlive2-5b": longlive2_5b,
}
"""Public name → function; the plugin's `PipelineSpec.blueprints` names them as targets."""
