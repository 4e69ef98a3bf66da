"""How requests spell things: other names, fields without effect here, and fields refused.

Four tables, used by `sgld.server.parameters` and shown in docs/server.md. Every field that OpenAI
documents for images and videos is either a parameter, an output setting, or in one of them, so
that its own client never meets "unknown field".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "n": "num_outputs_per_prompt",
}
"""Name in the API → name of the parameter."""

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "user": "it is not stored",
    "safety_identifier": "it is not stored",
    "moderation": "this server does not filter",
    "style": "describe the style in the prompt",
    "input_fidelity": "this model has no such setting",
    "complexity": "use num_inference_steps",
    "frame_count": "it is a setting of animated pictures, which /v1/videos makes",
    "frame_duration_ms": "it is a setting of animated pictures, which /v1/videos makes",
    "svg": "this server makes no vector graphics",
    "prompt_rewriter": "prompts are used as they are",
    "generator_device": "noise is always drawn on the CPU, so that a seed means one result",
}
"""Documented elsewhere, accepted, and without effect here; the reason goes into `warnings`."""

EXACT: Final = ("auto", "standard", "exact", "lossless")
"""Values of `quality` that ask for what this server always does."""
APPROXIMATE: Final = ("low", "medium", "high", "xhigh", "max", "hd", "extra-high")
"""Values of `quality` that ask for another effort; accepted with a warning."""

OFF_ONLY: Final = frozenset(
    {
        "enhance_prompt",
        "enable_teacache",
        "enable_cache_dit",
        "enable_upscaling",
        "enable_frame_interpolation",
        "profile_all_stages",
    }
)
"""Switches of other servers: `false` changes nothing and is accepted, `true` is refused."""

_NO_PATHS = "The server takes no paths from requests."
_UPLOAD = "Send the picture itself: a file, an http(s) URL or a data: URL."

REFUSED: Final[Mapping[str, str]] = {
    "output_path": _NO_PATHS,
    "output_file_name": _NO_PATHS,
    "output_file_path": _NO_PATHS,
    "file_path": _NO_PATHS,
    "perf_dump_path": _NO_PATHS,
    "upscaling_model_path": _NO_PATHS,
    "frame_interpolation_model_path": _NO_PATHS,
    "lora_path": _NO_PATHS,
    "model_path": _NO_PATHS,
    "image_path": _UPLOAD,
    "image_paths": _UPLOAD,
    "video_path": "This server takes no input videos.",
    "video_url": "This server takes no input videos.",
    "video_reference": "This server takes no input videos.",
    "save_output": "Results are always kept; DELETE removes them.",
    "overwrite": "Results never replace each other.",
    "save_latents": "The server keeps no latents.",
    "diffusers_kwargs": "Write the parameters themselves.",
}
"""Names that mean something elsewhere and are refused here, with what to do instead."""

ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "image": dict.fromkeys(
        ("image", "images", "url", "mask", "input_reference", "reference_url"),
        "Send pictures to /v1/images/edits.",
    ),
    "edit": {
        "input_reference": "Use image.",
        "reference_url": "Use image or url.",
    },
    "video": {
        "image": "Use input_reference.",
        "images": "Use input_reference.",
        "url": "Use reference_url.",
        "mask": "Videos take no mask.",
        "response_format": "A video is fetched from /v1/videos/{id}/content.",
        "stream": "Follow /v1/videos/{id}/events.",
    },
}
"""Kind of request → names that belong to another route, with what to do here."""
