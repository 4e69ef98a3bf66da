"""Sizes of FLUX.1 components: read from `transformer/config.json`, or off the shapes of an original
file, which has no configuration. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sgld.api.errors import ModelError
from sgld.weights.mapping import Shape
from sgld_flux import weights

SAYS_NOTHING: Final = frozenset({"patch_size"})
"""Keys of `config.json` beside the sizes."""


@dataclass(frozen=True, slots=True)
class FluxConfig:
    """Sizes of a FLUX.1 transformer, under the names of its `config.json`; see `from_json`."""

    in_channels: int = 64
    out_channels: int | None = None
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)

    @property
    def width(self) -> int:
        """Width of the residual streams."""
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> FluxConfig:
        """The sizes in a `config.json`; keys that say nothing about the network are passed over.

        Raises:
            ModelError: sizes that this network does not have.
        """
        known = {field.name for field in fields(cls)}
        wrong: list[str] = []
        if config.get("patch_size", 1) != 1:
            wrong.append(f"patch_size={config['patch_size']}, only 1 is known")
        wrong += [
            f"{key}={value!r}: unknown key"
            for key, value in config.items()
            if key not in known and key not in SAYS_NOTHING and not key.startswith("_")
        ]
        values = {key: value for key, value in config.items() if key in known}
        if "axes_dims_rope" in values:
            values["axes_dims_rope"] = tuple(values["axes_dims_rope"])
        made = cls(**values)
        wrong += made._conflicts()
        if wrong:
            raise ModelError(
                f"transformer/config.json: {'; '.join(wrong)}.",
                remedy="Use a FLUX.1 text-to-image checkpoint.",
            )
        return made

    def _conflicts(self) -> list[str]:
        wrong: list[str] = []
        if len(self.axes_dims_rope) != 3 or sum(self.axes_dims_rope) != self.attention_head_dim:
            wrong.append(
                f"axes_dims_rope={list(self.axes_dims_rope)} must be three numbers that add up to "
                f"attention_head_dim={self.attention_head_dim}"
            )
        if self.out_channels not in (None, self.in_channels):
            wrong.append(
                f"in_channels={self.in_channels} and out_channels={self.out_channels} differ: the "
                "model is one for filling, depth or edges, which sgld-flux does not serve"
            )
        return wrong


def transformer_config(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """A `transformer/config.json` for the shapes of an original file.

    The heads' share of the three axes is not stored; it is in the proportion of the released
    models, 16:56:56 of 128.
    """
    bare = {name.removeprefix(weights.PACK_PREFIX): shape for name, shape in shapes.items()}
    head = bare["double_blocks.0.img_attn.norm.query_norm.scale"][0]
    blocks = [re.match(r"(double|single)_blocks\.(\d+)\.", name) for name in bare]
    counts = {(match[1], match[2]) for match in blocks if match}
    return {
        "_class_name": "FluxTransformer2DModel",
        "attention_head_dim": head,
        "axes_dims_rope": [head // 8, 7 * head // 16, 7 * head // 16],
        "guidance_embeds": weights.GUIDANCE_MARK in bare,
        "in_channels": bare["img_in.weight"][1],
        "joint_attention_dim": bare["txt_in.weight"][1],
        "num_attention_heads": bare["img_in.weight"][0] // head,
        "num_layers": sum(kind == "double" for kind, _ in counts),
        "num_single_layers": sum(kind == "single" for kind, _ in counts),
        "out_channels": bare["final_layer.linear.weight"][0],
        "patch_size": 1,
        "pooled_projection_dim": bare["vector_in.in_layer.weight"][1],
    }


def vae_config(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """A `vae/config.json` for the shapes of an original `ae.safetensors`; the latent statistics are
    those of the released one."""
    levels = range(weights.vae_levels(shapes))
    return {
        "_class_name": "AutoencoderKL",
        "act_fn": "silu",
        "block_out_channels": [shapes[f"encoder.down.{i}.block.0.conv2.weight"][0] for i in levels],
        "down_block_types": ["DownEncoderBlock2D" for _ in levels],
        "in_channels": 3,
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "layers_per_block": sum(
            bool(re.fullmatch(r"encoder\.down\.0\.block\.\d+\.conv1\.weight", name))
            for name in shapes
        ),
        "mid_block_add_attention": True,
        "norm_num_groups": 32,
        "out_channels": 3,
        "sample_size": 1024,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "up_block_types": ["UpDecoderBlock2D" for _ in levels],
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
        "use_quant_conv": "quant_conv.weight" in shapes,
    }
