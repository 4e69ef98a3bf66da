"""Tiny random SANA checkpoints: the real folder layout and every code path, under 5 MB each.

- `tiny_sana`, `tiny_sana15`, `tiny_sana_2k`, `tiny_sprint`, `tiny_video`, `tiny_video_i2v`
  `(folder: Path) -> None` write a complete checkpoint in the diffusers layout.
- `small_sana(folder)` is a larger one, for measuring batches: 12 layers of width 384.

The widths are small but nothing else is: the real strides, 300 text tokens, an instruction in
front, and no tensor at zero, so that an error anywhere changes the frames. The bytes do not depend
on the machine or the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sgld.testing.encoders import save
from sgld.testing.randomness import reinitialise
from sgld_sana import blueprints, configs

TEXT_WIDTH = 16
CHANNELS = 8
SOFT_CAP = 2.0
"""Gemma-2 caps attention scores at 50; random ones are small and would never feel that."""


def tiny_sana(folder: Path) -> None:
    """SANA 1.0: no norms of queries and keys, DPM-Solver++ with shift 3."""
    write(folder, "SanaPipeline", _picture(), configs.flow_scheduler_config(3.0), seed=1)


def tiny_sana15(folder: Path) -> None:
    """SANA 1.5: queries and keys are normalised."""
    transformer = _picture(qk_norm=configs.RMS)
    write(folder, "SanaPipeline", transformer, configs.flow_scheduler_config(3.0), seed=2)


def tiny_sana_2k(folder: Path) -> None:
    """SANA at 2K: positions are added to the tokens; Euler steps."""
    transformer = _picture(interpolation_scale=1.0, sample_size=64)
    write(folder, "SanaPipeline", transformer, configs.euler_scheduler_config(3.0), seed=3)


def tiny_sprint(folder: Path) -> None:
    """SANA-Sprint: the guidance scale as an input, TrigFlow."""
    transformer = _picture(guidance_embeds=True, qk_norm=configs.RMS)
    write(folder, "SanaSprintPipeline", transformer, configs.trigflow_scheduler_config(), seed=4)


def tiny_video(folder: Path) -> None:
    """SANA-Video from text: the Wan VAE, DPM-Solver++ with shift 8."""
    write(folder, "SanaVideoPipeline", _video(), configs.flow_scheduler_config(8.0), seed=5)


def tiny_video_i2v(folder: Path) -> None:
    """SANA-Video from a picture: Euler steps with shift 8."""
    scheduler = configs.euler_scheduler_config(8.0)
    write(folder, "SanaImageToVideoPipeline", _video(), scheduler, seed=6)


def small_sana(folder: Path) -> None:
    """SANA 1.5 with 12 layers of width 384 (33 million parameters): large enough to be measured."""
    transformer = configs.transformer_config(
        attention_head_dim=32,
        caption_channels=TEXT_WIDTH,
        cross_attention_dim=384,
        cross_attention_head_dim=64,
        in_channels=CHANNELS,
        num_attention_heads=12,
        num_cross_attention_heads=6,
        num_layers=12,
        out_channels=CHANNELS,
        qk_norm=configs.RMS,
    )
    write(folder, "SanaPipeline", transformer, configs.flow_scheduler_config(3.0), seed=7)


def write(
    folder: Path,
    class_name: str,
    transformer: configs.Config,
    scheduler: configs.Config,
    *,
    seed: int,
) -> None:
    """Write a checkpoint with random weights of `seed` into `folder`, created if missing."""
    video = "patch_size" in transformer and not isinstance(transformer["patch_size"], int)
    vae = configs.video_vae_config(base_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1)
    components = {
        "text_encoder": _text(),
        "transformer": transformer,
        "vae": vae if video else _vae(),
    }
    blueprints.write_folder(folder, class_name, scheduler, components)
    save(_text_encoder(seed=10 + seed), folder / "text_encoder")
    save(_transformer(transformer, seed=20 + seed), folder / "transformer")
    save(_autoencoder(components["vae"], seed=40 + seed), folder / "vae")


def _picture(**fields: Any) -> configs.Config:
    sizes = {
        "attention_head_dim": 8,
        "caption_channels": TEXT_WIDTH,
        "cross_attention_dim": 32,
        "cross_attention_head_dim": 16,
        "in_channels": CHANNELS,
        "num_attention_heads": 4,
        "num_cross_attention_heads": 2,
        "num_layers": 2,
        "out_channels": CHANNELS,
    }
    return configs.transformer_config(**{**sizes, **fields})


def _video() -> configs.Config:
    return configs.video_transformer_config(
        attention_head_dim=16,
        caption_channels=TEXT_WIDTH,
        cross_attention_dim=32,
        cross_attention_head_dim=16,
        num_attention_heads=2,
        num_cross_attention_heads=2,
        num_layers=2,
    )


def _vae() -> configs.Config:
    return configs.vae_config(
        attention_head_dim=4,
        decoder_block_out_channels=[8] * 6,
        decoder_layers_per_block=[1] * 6,
        encoder_block_out_channels=[8] * 6,
        encoder_layers_per_block=[1] * 6,
        latent_channels=CHANNELS,
    )


def _text() -> configs.Config:
    return configs.text_encoder_config(
        attn_logit_softcapping=SOFT_CAP,
        head_dim=8,
        hidden_size=TEXT_WIDTH,
        intermediate_size=40,
        num_attention_heads=2,
        num_hidden_layers=2,
        num_key_value_heads=1,
        query_pre_attn_scalar=8,
        vocab_size=360,
    )


def _text_encoder(seed: int) -> Any:
    from transformers import Gemma2Config, Gemma2Model  # noqa: PLC0415

    return reinitialise(Gemma2Model(Gemma2Config.from_dict(_text())), seed)


def _transformer(config: configs.Config, seed: int) -> Any:
    from diffusers.models.transformers.sana_transformer import (  # noqa: PLC0415
        SanaTransformer2DModel,
    )
    from diffusers.models.transformers.transformer_sana_video import (  # noqa: PLC0415
        SanaVideoTransformer3DModel,
    )

    video = config["_class_name"] == "SanaVideoTransformer3DModel"
    made: Any = (SanaVideoTransformer3DModel if video else SanaTransformer2DModel)(**_own(config))
    reinitialise(made, seed)
    for name, parameter in made.named_parameters():
        if "table" in name:  # rows of a table are not a matrix's: they need their own deviation
            parameter.mul_(0.25 * parameter.shape[1] ** 0.5)
        elif name.endswith("attn2.norm_k.weight"):
            parameter.mul_(2)  # sharper attention lets a short prompt move the result
    return made


def _autoencoder(config: configs.Config, seed: int) -> Any:
    from diffusers.models.autoencoders.autoencoder_dc import AutoencoderDC  # noqa: PLC0415
    from diffusers.models.autoencoders.autoencoder_kl_wan import (  # noqa: PLC0415
        AutoencoderKLWan,
    )

    made: Any
    if config["_class_name"] == "AutoencoderKLWan":
        made = reinitialise(AutoencoderKLWan(**_own(config)), seed)
    else:
        made = reinitialise(AutoencoderDC(**_own(config)), seed)
    # The last convolution follows a norm: half weights keep pixels well inside [-1, 1].
    made.decoder.conv_out.weight.mul_(0.5)
    return made


def _own(config: configs.Config) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not name.startswith("_")}
