"""Full-size SANA checkpoints as configuration only, for `--load-format dummy`.

Each function `(folder: Path) -> None` writes `model_index.json`, a `config.json` per component, the
scheduler, and a small character tokenizer; no weights and no network, well under a second. Sizes
are those of the released models, so memory and speed are real. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sgld_sana import configs
from sgld_sana.tokenizer import write_gemma_tokenizer

_0_6B: Final[configs.Config] = {
    "cross_attention_dim": 1152,
    "cross_attention_head_dim": 72,
    "num_attention_heads": 36,
    "num_cross_attention_heads": 16,
    "num_layers": 28,
}


def sana_0_6b(folder: Path) -> None:
    """SANA 1.0 0.6B at 1024 pixels: 28 layers of width 1152."""
    _write(folder, "SanaPipeline", configs.transformer_config(**_0_6B))


def sana_1_6b(folder: Path) -> None:
    """SANA 1.0 1.6B at 1024 pixels: 20 layers of width 2240."""
    _write(folder, "SanaPipeline", configs.transformer_config())


def sana15_4_8b(folder: Path) -> None:
    """SANA 1.5 4.8B at 1024 pixels: 60 layers of width 2240, normalised queries and keys."""
    config = configs.transformer_config(num_layers=60, qk_norm=configs.RMS)
    _write(folder, "SanaPipeline", config)


def sana_sprint_1_6b(folder: Path) -> None:
    """SANA-Sprint 1.6B: 20 layers of width 2240, guidance as an input."""
    config = configs.transformer_config(guidance_embeds=True, qk_norm=configs.RMS)
    _write(folder, "SanaSprintPipeline", config, configs.trigflow_scheduler_config())


def sana_video_2b(folder: Path) -> None:
    """SANA-Video 2B at 480p: 20 layers of width 2240 on the Wan 2.1 VAE."""
    _write(
        folder,
        "SanaVideoPipeline",
        configs.video_transformer_config(),
        configs.flow_scheduler_config(8.0),
        configs.video_vae_config(),
    )


def _write(
    folder: Path,
    class_name: str,
    transformer: configs.Config,
    scheduler: configs.Config | None = None,
    vae: configs.Config | None = None,
) -> None:
    write_folder(
        folder,
        class_name,
        scheduler or configs.flow_scheduler_config(3.0),
        {
            "text_encoder": configs.text_encoder_config(),
            "transformer": transformer,
            "vae": vae or configs.vae_config(),
        },
    )


def write_folder(
    folder: Path,
    class_name: str,
    scheduler: configs.Config,
    components: dict[str, configs.Config],
) -> None:
    """Write index, scheduler, tokenizer and one `config.json` per component into `folder`."""
    index = configs.model_index(
        class_name,
        scheduler=scheduler["_class_name"],
        transformer=components["transformer"]["_class_name"],
        vae=components["vae"]["_class_name"],
    )
    write_gemma_tokenizer(folder / "tokenizer")
    _json(folder / "model_index.json", index)
    _json(folder / "scheduler" / "scheduler_config.json", scheduler)
    for name, content in components.items():
        _json(folder / name / "config.json", content)


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


BLUEPRINTS: Final = {
    "sana-0.6b": sana_0_6b,
    "sana-1.6b": sana_1_6b,
    "sana1.5-4.8b": sana15_4_8b,
    "sana-sprint-1.6b": sana_sprint_1_6b,
    "sana-video-2b": sana_video_2b,
}
"""Public name → function; the plugin's `PipelineSpec.blueprints` names them as targets."""
