"""Guessing what a mistyped name meant: the hint in "unknown option, did you mean …".

`nearest(word, choices)` is torch-free and also knows the names that other tools use.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

ELSEWHERE: Final[dict[str, str]] = {
    "cfg": "guidance_scale",
    "cfg_scale": "guidance_scale",
    "cfg_scale_2": "guidance_scale_2",
    "duration": "seconds",
    "frame_rate": "fps",
    "frames": "num_frames",
    "image": "image_path",
    "image_paths": "image_path",
    "input_reference": "image_path",
    "length": "num_frames",
    "model": "model_path",
    "n": "num_outputs_per_prompt",
    "neg_prompt": "negative_prompt",
    "num_images_per_prompt": "num_outputs_per_prompt",
    "num_steps": "num_inference_steps",
    "num_videos_per_prompt": "num_outputs_per_prompt",
    "out": "output_path",
    "output": "output_path",
    "outdir": "output_path",
    "pipeline": "pipeline_class_name",
    "precision": "dtype",
    "resolution": "size",
    "sampling_steps": "num_inference_steps",
    "shift": "flow_shift",
    "steps": "num_inference_steps",
    "video_length": "num_frames",
}
"""Names that other tools use for the same thing."""
LONGEST: Final = 100
"""Characters of a word that is still compared: none of ours comes near, and it takes long."""


def canonical(name: str) -> str:
    """A name with dashes as underscores, the spelling used inside."""
    return name.strip().lstrip("-").replace("-", "_")


def nearest(word: str, choices: Iterable[str]) -> str:
    """The choice that `word` most likely meant, or an empty string when nothing is close."""
    by_key = {canonical(choice).lower(): choice for choice in choices}
    key = canonical(word).lower()
    if key in by_key:
        return by_key[key]
    if ELSEWHERE.get(key) in by_key:
        return by_key[ELSEWHERE[key]]
    if len(key) > LONGEST:
        return ""
    close = difflib.get_close_matches(key, by_key, n=1, cutoff=0.65)
    return by_key[close[0]] if close else ""


def did_you_mean(word: str, choices: Iterable[str], *, limit: int = 12) -> str:
    """A remedy sentence: the nearest choice, or all of them when they are few, or nothing."""
    names = sorted(choices)
    guess = nearest(word, names)
    if guess:
        return f"Did you mean {guess}?"
    return f"Valid names: {', '.join(names)}." if 0 < len(names) <= limit else ""
