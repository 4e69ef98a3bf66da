"""Write the trained demo world as a checkpoint that `sgld serve --model-path FOLDER` loads.

    python examples/train_demo_world/export.py --vae DIR --world DIR --to FOLDER

The folder is in the ordinary diffusers layout of the LingBot World family; weights are float16.
Beside them lie `start.png`, a drawn frame to begin with, and `grey.png`, which leaves the first
frame to the model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from demo_world import data, exported, looks, network, rollout, scene, train_dit, train_vae, vae
from demo_world.network import Sizes
from demo_world.run import count, load_half
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from sgld_lingbot.configs import model_index
from sgld_wan.configs import scheduler_config

GREY = 128
START_CLIPS, START_SEED, START_CLIP = 400, 77, 355
"""A held-out world at dusk: clear, warm, tall pillars, and the sun."""


def export(source: Path, world: Path, target: Path, sizes: Sizes) -> int:
    """Write the checkpoint; the number of its parameters.

    Args:
        source: folder of the stages `vae` and `decoder`.
        world: folder of the stage `dit`.
        target: folder of the checkpoint.
        sizes: of the network.
    """
    tensors = load_half(source, train_vae.STEM) | load_half(source, train_vae.DECODER)
    stats = {name: tensors.pop(name).tolist() for name in (train_vae.MEAN, train_vae.STD)}
    base = tensors["encoder.conv_in.weight"].shape[0]
    decoder_base = tensors["decoder.conv_out.weight"].shape[1]
    trained = load_half(world, train_dit.STEM)
    network.World(sizes).fill(trained)  # or it says what does not fit
    _write(target / "vae", vae.config(base, decoder_base) | stats, exported.WEIGHTS, tensors)
    configs = {"transformer": network.config(sizes), "text_encoder": network.text_config()}
    for folder, (name, prefix) in exported.PARTS.items():
        part = {k.removeprefix(prefix): v for k, v in trained.items() if k.startswith(prefix)}
        _write(target / folder, configs[folder], name, part)
    _json(target / "model_index.json", model_index())
    _json(target / "scheduler" / "scheduler_config.json", scheduler_config(rollout.SHIFT))
    looks.write_tokenizer(target / "tokenizer")
    Image.fromarray(start_frame()).save(target / "start.png", optimize=True)
    grey = np.full((scene.HEIGHT, scene.WIDTH, 3), GREY, np.uint8)
    Image.fromarray(grey).save(target / "grey.png", optimize=True)
    return count(tensors.values()) + count(trained.values())


def start_frame() -> np.ndarray:
    """The frame that a session begins with when it brings none, uint8 [96, 160, 3]."""
    clips = data.sample(START_CLIPS, 1, START_SEED, torch.device("cpu"), switch=0.0, plain=True)
    one = clips.one(START_CLIP)
    frame = one.draw(torch.float32, slice(0, 1), (scene.HEIGHT, scene.WIDTH))[0, :, 0]
    return ((frame.permute(1, 2, 0) + 1) * 127.5).round().byte().numpy()


def _write(folder: Path, config: Mapping[str, Any], name: str, tensors: dict[str, Tensor]) -> None:
    _json(folder / "config.json", config)
    half = {key: value.half().contiguous() for key, value in tensors.items()}
    save_file(half, folder / name, {"format": "pt"})
    (folder / name).chmod(0o644)


def _json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--vae", type=Path, required=True, help="folder of the stages vae, decoder")
    parser.add_argument("--world", type=Path, required=True, help="folder of the stage dit")
    parser.add_argument("--to", type=Path, required=True, help="folder of the checkpoint")
    args = parser.parse_args()
    number = export(args.vae, args.world, args.to, train_dit.Settings().sizes)
    size = sum(file.stat().st_size for file in args.to.rglob("*") if file.is_file())
    print(f"{number / 1e6:.2f} million parameters, {size / 1e6:.1f} MB in {args.to}")


if __name__ == "__main__":
    main()
