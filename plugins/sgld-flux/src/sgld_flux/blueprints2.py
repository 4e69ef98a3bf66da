"""Full-size FLUX.2 checkpoints as configuration only, for `--load-format dummy`.

Each function `(folder: Path) -> None` writes `model_index.json`, a `config.json` per component, the
scheduler and a byte tokenizer with the model's chat template; no weights and no network. Sizes are
those of the released models, so memory and speed are real. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sgld_flux import configs2, tokenizers2

_4B: Final[configs2.Config] = {
    "guidance_embeds": False,
    "joint_attention_dim": 7680,
    "num_attention_heads": 24,
    "num_layers": 5,
    "num_single_layers": 20,
}
_9B: Final[configs2.Config] = {
    "guidance_embeds": False,
    "joint_attention_dim": 12288,
    "num_attention_heads": 32,
    "num_layers": 8,
    "num_single_layers": 24,
}
_QWEN_8B: Final[configs2.Config] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "tie_word_embeddings": False,
}


def flux2_dev(folder: Path) -> None:
    """FLUX.2-dev: 8 and 48 blocks of width 6144, Mistral-Small-3.2-24B."""
    text = ("Mistral3ForConditionalGeneration", "PreTrainedTokenizerFast")
    files = {
        "model_index.json": configs2.index("Flux2Pipeline", *text),
        "text_encoder/config.json": configs2.mistral3(),
        "transformer/config.json": configs2.transformer(),
    }
    tokenizers2.write_mistral(folder / "tokenizer")
    _write(folder, files)


def flux2_klein_4b(folder: Path) -> None:
    """FLUX.2-klein-4B: 5 and 20 blocks of width 3072, Qwen3-4B."""
    _klein(folder, _4B, {}, is_distilled=True)


def flux2_klein_9b(folder: Path) -> None:
    """FLUX.2-klein-9B: 8 and 24 blocks of width 4096, Qwen3-8B."""
    _klein(folder, _9B, _QWEN_8B, is_distilled=True)


def flux2_klein_base_4b(folder: Path) -> None:
    """FLUX.2-klein-base-4B: as klein, not distilled."""
    _klein(folder, _4B, {}, is_distilled=False)


def flux2_klein_base_9b(folder: Path) -> None:
    """FLUX.2-klein-base-9B: as klein, not distilled."""
    _klein(folder, _9B, _QWEN_8B, is_distilled=False)


def flux2_klein_kv_9b(folder: Path) -> None:
    """FLUX.2-klein-9b-kv: klein 9B, tuned to remember its references."""
    _klein(folder, _9B, _QWEN_8B, class_name="Flux2KleinKVPipeline")


def _klein(
    folder: Path,
    transformer: configs2.Config,
    text: configs2.Config,
    class_name: str = "Flux2KleinPipeline",
    **settings: Any,
) -> None:
    files = {
        "model_index.json": configs2.index(
            class_name, "Qwen3ForCausalLM", "Qwen2TokenizerFast", **settings
        ),
        "text_encoder/config.json": configs2.qwen3(**text),
        "transformer/config.json": configs2.transformer(**transformer),
    }
    tokenizers2.write_qwen(folder / "tokenizer")
    _write(folder, files)


def _write(folder: Path, files: dict[str, configs2.Config]) -> None:
    files = {
        **files,
        "scheduler/scheduler_config.json": configs2.scheduler(),
        "vae/config.json": configs2.vae(),
    }
    for name, content in files.items():
        write_json(folder / name, content)


def write_json(path: Path, content: configs2.Config) -> None:
    """Write indented UTF-8 JSON, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
