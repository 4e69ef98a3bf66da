"""Full-size LingBot World checkpoints as configuration only, for `--load-format dummy`.

Each function `(folder: Path) -> None` writes `model_index.json`, a `config.json` per component, the
scheduler, and a small character tokenizer; no weights and no network. Sizes are those of the
released models, so memory and speed are real. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from sgld.testing.encoders import write_character_tokenizer
from sgld_lingbot.configs import model_index, transformer_config
from sgld_wan import configs

_14B: Final[configs.Config] = {"ffn_dim": 13824, "num_attention_heads": 40, "num_layers": 40}


def world_fast(folder: Path) -> None:
    """LingBot World v1 fast: 40 layers of width 5120, shift 10."""
    write(folder, transformer_config(**_14B), flow_shift=10.0)


def world_v2_14b(folder: Path) -> None:
    """LingBot World v2 14B causal-fast: 40 layers of width 5120, shift 5."""
    write(folder, transformer_config(**_14B), flow_shift=5.0)


def world_v2_1_3b(folder: Path) -> None:
    """LingBot World v2 1.3B causal-fast: 30 layers of width 1536, shift 5."""
    write(folder, transformer_config(), flow_shift=5.0)


def write(
    folder: Path,
    transformer: configs.Config,
    *,
    flow_shift: float,
    text_encoder: configs.Config | None = None,
    vae: configs.Config | None = None,
) -> None:
    """Write every configuration file and the tokenizer of a checkpoint into `folder`."""
    write_character_tokenizer(folder / "tokenizer")
    files = {
        "model_index.json": model_index(),
        "scheduler/scheduler_config.json": configs.scheduler_config(flow_shift),
        "text_encoder/config.json": text_encoder or configs.text_encoder_config(),
        "transformer/config.json": transformer,
        "vae/config.json": vae or configs.vae_21_config(),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
