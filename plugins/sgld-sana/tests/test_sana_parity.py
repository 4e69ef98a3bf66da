"""Whole pipelines against diffusers on the same tiny checkpoint, the same noise and picture.

`pytest -m parity -rA` prints one row per comparison: relative L2 of final latents and of frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sana_oracle
import torch

import sgld
from sgld.testing.parity import ParityTable

pytestmark = pytest.mark.parity

LATENTS, FRAMES = 1e-4, 1e-3
TABLE = ParityTable("sana")
PROMPT = "a red kite over the sea"
THEIRS = {
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "complex_human_instruction": "instruction",
}
LONG = "A bird and a wave, then another one; " * 40


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> Iterator[Callable[[str], sgld.Model]]:
    """One loaded model per variant."""
    held: dict[str, sgld.Model] = {}

    def get(variant: str) -> sgld.Model:
        if variant not in held:
            held[variant] = sgld.load(str(tiny(variant)), device="cpu", dtype="float32")
        return held[variant]

    yield get
    for loaded in held.values():
        loaded.close()


def reference(folder: Path, image: Any = None, **params: Any) -> sana_oracle.Reference:
    """The diffusers run of parameters that are named as ours are."""
    theirs = {THEIRS.get(key, key): value for key, value in params.items()}
    score = theirs.pop("motion_score", 30)
    if sana_oracle.is_video(folder) and score:
        theirs["prompt"] += f" motion score: {score}."
    return sana_oracle.run(folder, image=image, **theirs)


def compare(name: str, ours: sgld.Model, folder: Path, *, image: Any = None, **params: Any) -> None:
    """Run both and check latents and frames."""
    wanted = reference(folder, image, **params)
    images = [np.asarray(image)] if image is not None else []
    if "intermediate_timesteps" in params and params["intermediate_timesteps"] is None:
        params = {k: v for k, v in params.items() if k != "intermediate_timesteps"}
    result = ours.generate(images=images, want_latents=True, **params)
    assert isinstance(result, sgld.Result)
    TABLE.check(f"{name}, latents", result.outputs[0].latents, wanted.latents, LATENTS)
    # Ours leave the engine as 8-bit pixels, so the reference is rounded in the same way.
    TABLE.check(f"{name}, frames", result.frames, np.round(wanted.frames * 255), FRAMES)


def base(**changes: Any) -> dict[str, Any]:
    """Parameters that every run states, so that no preset takes part."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "Blurry",
        "width": 128,
        "height": 96,
        "num_inference_steps": 6,
        "guidance_scale": 4.5,
        "seed": 3,
        **changes,
    }


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("sana", "20 steps, CFG 4.5", {"num_inference_steps": 20}),
    ("sana", "no guidance", {"guidance_scale": 1.0}),
    ("sana", "empty negative prompt", {"negative_prompt": ""}),
    ("sana", "wide 416x64", {"width": 416, "height": 64}),
    ("sana", "tall 32x224", {"width": 32, "height": 224}),
    ("sana", "one token 32x32", {"width": 32, "height": 32}),
    ("sana", "shift 6", {"flow_shift": 6.0}),
    ("sana", "one step", {"num_inference_steps": 1}),
    ("sana", "long prompts", {"prompt": LONG, "negative_prompt": LONG}),
    ("sana", "messy prompt", {"prompt": "  CAFÉ \n\t l’Été — ½ ß  "}),
    ("sana", "blank negative prompt", {"negative_prompt": " \n "}),
    ("sana", "no instruction", {"complex_human_instruction": ""}),
    ("sana", "own instruction", {"complex_human_instruction": "Draw\nwell: "}),
    ("sana", "40 text tokens", {"max_sequence_length": 40}),
    ("sana15", "20 steps, CFG 4.5", {"num_inference_steps": 20}),
    ("sana15", "wide 160x32", {"width": 160, "height": 32}),
    ("sana_2k", "Euler, CFG 4.5", {}),
    ("sana_2k", "Euler, tall, shift 1.5", {"width": 64, "height": 160, "flow_shift": 1.5}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_text_to_image(
    variant: str, name: str, changes: dict[str, Any], model: Any, tiny: Any
) -> None:
    compare(f"{variant} {name}", model(variant), tiny(variant), **base(**changes))


SPRINT_CASES: list[tuple[str, dict[str, Any]]] = [
    ("2 steps", {}),
    ("2 steps, guidance 1", {"guidance_scale": 1.0}),
    ("2 steps, wide, middle 0.9", {"width": 256, "height": 32, "intermediate_timesteps": 0.9}),
    ("1 step", {"num_inference_steps": 1, "intermediate_timesteps": None}),
    ("4 steps from 1.5", {"num_inference_steps": 4, "intermediate_timesteps": None,
                          "max_timesteps": 1.5}),
    ("no instruction", {"complex_human_instruction": ""}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes"), SPRINT_CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_sprint(name: str, changes: dict[str, Any], model: Any, tiny: Any) -> None:
    params = base(**{"num_inference_steps": 2, **changes})
    del params["negative_prompt"]
    compare(f"sprint {name}", model("sprint"), tiny("sprint"), **params)


VIDEO_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("video", "20 steps, CFG 6", {"num_inference_steps": 20, "guidance_scale": 6.0}),
    ("video", "no guidance, 5 frames", {"guidance_scale": 1.0, "num_frames": 5}),
    ("video", "one frame, tall", {"num_frames": 1, "width": 32, "height": 128}),
    ("video", "no motion score", {"motion_score": 0}),
    ("video", "long prompt, motion 5", {"prompt": LONG, "motion_score": 5}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), VIDEO_CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_text_to_video(
    variant: str, name: str, changes: dict[str, Any], model: Any, tiny: Any
) -> None:
    params = base(**{"width": 96, "height": 64, "num_frames": 9, **changes})
    compare(f"{variant} {name}", model(variant), tiny(variant), **params)


IMAGE_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("video_i2v", "Euler, 20 steps, CFG 6", {"num_inference_steps": 20, "guidance_scale": 6.0}),
    ("video_i2v", "Euler, no guidance, wide", {"guidance_scale": 1.0, "width": 192, "height": 32}),
    ("video", "DPM-Solver++, CFG 6", {"guidance_scale": 6.0}),
    ("video", "DPM-Solver++, 5 frames, shift 3", {"num_frames": 5, "flow_shift": 3.0}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), IMAGE_CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_image_to_video(
    variant: str, name: str, changes: dict[str, Any], model: Any, tiny: Any
) -> None:
    params = base(**{"width": 96, "height": 64, "num_frames": 9, **changes})
    picture = sana_oracle.picture(params["width"], params["height"])
    name = f"{variant} from a picture, {name}"
    compare(name, model(variant), tiny(variant), image=picture, **params)


def test_several_outputs_are_their_own_seeds(model: Any, tiny: Any) -> None:
    params = base(num_inference_steps=4)
    result = model("sana").generate(num_outputs_per_prompt=3, want_latents=True, **params)
    for index, output in enumerate(result.outputs):
        wanted = reference(tiny("sana"), **{**params, "seed": 3 + index})
        TABLE.check(f"sana output {index} of 3", output.latents, wanted.latents, LATENTS)


@pytest.mark.parametrize("variant", ["sana", "video"])
def test_trained_sizes(variant: str, tiny: Any, model: Any) -> None:
    """Generated in the nearest trained size, then scaled and cropped to the one asked for."""
    size = {"sana": (640, 352), "video": (320, 192)}[variant]
    params = base(width=size[0], height=size[1], num_inference_steps=1, guidance_scale=1.0)
    if variant == "video":
        params["num_frames"] = 1
    ours, folder = model(variant), tiny(variant)
    compare(f"{variant} binned", ours, folder, use_resolution_binning=True, **params)


@pytest.mark.parametrize("variant", ["sana", "sprint", "video"])
@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_offload_gives_the_same(variant: str, mode: str, model: Any, tiny: Any) -> None:
    params = base(num_inference_steps=2)
    if variant == "sprint":
        del params["negative_prompt"]
    images: list[Any] = []
    if variant == "video":
        params |= {"width": 96, "height": 64, "num_frames": 5}
        images = [np.asarray(sana_oracle.picture())]
    selectors = {"dit": mode, "text_encoder": mode, "vae": "component-offload"}
    with sgld.load(str(tiny(variant)), device="cpu", dtype="float32", residency=selectors) as held:
        ours = held.generate(images=images, want_latents=True, **params)
    same = model(variant).generate(images=images, want_latents=True, **params)
    assert torch.equal(
        torch.from_numpy(ours.outputs[0].latents), torch.from_numpy(same.outputs[0].latents)
    )
