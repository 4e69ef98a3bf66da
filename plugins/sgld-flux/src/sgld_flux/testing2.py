"""Tiny random FLUX.2 checkpoints: the real folder layout and every code path, under 5 MB each.

- `tiny_klein`, `tiny_klein_base`, `tiny_klein_kv`, `tiny_dev` `(folder: Path) -> None` write a
  complete checkpoint in diffusers layout.
- `original_transformer_file(source, path)` writes a checkpoint's transformer as the single file of
  the original repository.

The widths are small but nothing else is: 512 text tokens, 28 or 31 language layers of which three
are read, statistics of the latents, and no tensor at zero, so that an error anywhere changes the
picture. The bytes do not depend on the machine or the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sgld.testing.encoders import save
from sgld.testing.randomness import reinitialise
from sgld_flux import configs2, tokenizers2, weights2
from sgld_flux.blueprints2 import write_json

TEXT_WIDTH: Final = 16
LATENT_CHANNELS: Final = 4
WEIGHTS: Final = "diffusion_pytorch_model.safetensors"

_TEXT: Final[configs2.Config] = {
    "head_dim": 8,
    "hidden_size": TEXT_WIDTH,
    "intermediate_size": 32,
    "max_position_embeddings": 1024,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 320,
}
_VISION: Final[configs2.Config] = {
    "head_dim": 8,
    "hidden_size": 16,
    "image_size": 28,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}


def tiny_klein(folder: Path) -> None:
    """klein: no guidance input, Qwen3 with 28 layers, distilled."""
    _klein(folder, "Flux2KleinPipeline", seed=1, is_distilled=True)


def tiny_klein_base(folder: Path) -> None:
    """klein base: the same kind of checkpoint, not distilled."""
    _klein(folder, "Flux2KleinPipeline", seed=2, is_distilled=False)


def tiny_klein_kv(folder: Path) -> None:
    """klein KV: remembers its references."""
    _klein(folder, "Flux2KleinKVPipeline", seed=3)


def tiny_dev(folder: Path) -> None:
    """dev: reads its guidance scale; Mistral3 with 31 layers and an unused vision tower."""
    from transformers import (  # noqa: PLC0415
        Mistral3Config,
        Mistral3ForConditionalGeneration,
    )

    config = configs2.mistral3({**_TEXT, "num_hidden_layers": 31}, _VISION)
    text: Any = Mistral3ForConditionalGeneration(Mistral3Config.from_dict(config))
    tokenizers2.write_mistral(folder / "tokenizer")
    names = ("Mistral3ForConditionalGeneration", "PreTrainedTokenizerFast")
    _write(folder, configs2.index("Flux2Pipeline", *names), text, guided=True, seed=4)


def _klein(folder: Path, class_name: str, *, seed: int, **settings: Any) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    config = configs2.qwen3(**_TEXT, num_hidden_layers=28, bos_token_id=None, eos_token_id=2)
    text: Any = Qwen3ForCausalLM(Qwen3Config.from_dict(config))
    tokenizers2.write_qwen(folder / "tokenizer")
    names = ("Qwen3ForCausalLM", "Qwen2TokenizerFast")
    index = configs2.index(class_name, *names, **settings)
    _write(folder, index, text, guided=False, seed=seed)


def _write(folder: Path, index: configs2.Config, text: Any, *, guided: bool, seed: int) -> None:
    write_json(folder / "model_index.json", index)
    write_json(folder / "scheduler" / "scheduler_config.json", configs2.scheduler())
    save(reinitialise(text, seed=10 + seed), folder / "text_encoder")
    save(_transformer(guided, seed=20 + seed), folder / "transformer")
    save(_vae(seed=30 + seed), folder / "vae")


def _transformer(guided: bool, seed: int) -> Any:
    from diffusers.models.transformers.transformer_flux2 import (  # noqa: PLC0415
        Flux2Transformer2DModel,
    )

    config = configs2.transformer(
        attention_head_dim=32,
        axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=guided,
        in_channels=4 * LATENT_CHANNELS,
        joint_attention_dim=3 * TEXT_WIDTH,
        num_attention_heads=2,
        num_layers=2,
        num_single_layers=2,
    )
    return reinitialise(Flux2Transformer2DModel(**_fields(config)), seed)


def _vae(seed: int) -> Any:
    from diffusers.models.autoencoders.autoencoder_kl_flux2 import (  # noqa: PLC0415
        AutoencoderKLFlux2,
    )

    config = configs2.vae(
        block_out_channels=(8, 8, 16, 16),
        latent_channels=LATENT_CHANNELS,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
    )
    vae: Any = reinitialise(AutoencoderKLFlux2(**_fields(config)), seed)
    # The last convolution follows a norm: half weights keep pixels well inside [-1, 1].
    vae.decoder.conv_out.weight.mul_(0.5)
    return vae


def _fields(config: configs2.Config) -> configs2.Config:
    return {name: value for name, value in config.items() if not name.startswith("_")}


def original_transformer_file(source: Path, path: Path) -> None:
    """Write the transformer of the checkpoint `source` under the original names into one file."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    tensors = load_file(source / "transformer" / WEIGHTS)
    save_file(weights2.original_transformer(tensors), path)
