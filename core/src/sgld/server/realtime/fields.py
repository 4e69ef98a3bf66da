"""The fields of an init message that the server itself takes, and those that change nothing here.

Everything else belongs to the model: its parameters, and what its adapter reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from sgld.media.formats import QUALITY_WORDS
from sgld.params.options import Finding, Options, Settled, option
from sgld.params.seeds import MAX_SEED
from sgld.server.spelling import OFF_ONLY, REFUSED, WITHOUT_EFFECT

DEFAULT_QUALITY: Final = 50
OWN_QUALITY: Final[Mapping[str, int]] = {"webp": 90, "jpeg": 95, "h264": 90}
"""What `output_compression: 0` means."""
QUEUE: Final = 2
QUEUE_PACED: Final = 1
QUEUE_ACKNOWLEDGED: Final = 4
"""Chunks that may wait for the client where it does not say."""


class SessionSettings(Options):
    """How a session runs and how its frames are sent."""

    max_chunks: int | None = option(
        None, "The session ends by itself after so many; otherwise it is endless.",
        unit="chunks", ge=1, le=10**9,
    )  # fmt: skip
    seed: int = option(42, "Start of the noise of all chunks.", ge=0, le=MAX_SEED)
    realtime_output_format: Literal["raw", "webp", "jpeg", "h264"] = option(
        "raw", "How frames are sent."
    )
    output_compression: int | None = option(
        None,
        "Quality of the encoder, higher is better; 0 is the encoder's own (WebP 90, JPEG 95). "
        "Otherwise output_quality decides.",
        ge=0,
        le=100,
    )
    output_quality: Literal["default", "maximum", "high", "medium", "low"] = option(
        "default", "Quality in a word: default 50, maximum 100, high 90, medium 55, low 35."
    )
    realtime_preview_max_width: int | None = option(
        None, "Wider frames are made smaller before they are encoded.",
        unit="pixels", ge=2, le=16384,
    )  # fmt: skip
    realtime_output_pacing: bool = option(False, "Send frames no faster than fps.")
    queue_chunks: int | None = option(
        None,
        "Chunks that may wait for the client before generation rests; 2 by default, 1 with pacing, "
        "4 with acknowledge. Protocol 2.",
        unit="chunks",
        ge=1,
        le=16,
    )
    on_full: Literal["block", "drop"] = option(
        "block", "Whether generation then rests, or goes on and leaves chunks out. Protocol 2."
    )
    rewind_chunks: int = option(
        0, "How many chunks rewind can take back; each costs memory. Protocol 2.",
        unit="chunks", ge=0, le=64,
    )  # fmt: skip
    free_running: bool = option(
        True, "Generate on; otherwise only when step asks for a chunk. Protocol 2."
    )
    acknowledge: bool = option(
        False, "The client says received for every chunk, so that none can be lost. Protocol 2."
    )

    needs_protocol_2: ClassVar[frozenset[str]] = frozenset(
        {"queue_chunks", "on_full", "rewind_chunks", "free_running", "acknowledge"}
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Refuse what contradicts itself, and note what has no effect on raw frames."""
        findings: list[Finding] = []
        if values.get("acknowledge") is True and values.get("on_full") == "drop":
            message = "drop leaves chunks out, and acknowledge promises that none is lost."
            findings.append(Finding("on_full", message, "Use block, or leave acknowledge out."))
        notes = tuple(
            f"{name} has no effect on raw frames."
            for name in ("realtime_preview_max_width", "output_compression", "output_quality")
            if name in given and values.get("realtime_output_format") == "raw"
        )
        return Settled(values, notes, tuple(findings))

    @property
    def quality(self) -> int:
        """The encoder's quality, 0..100."""
        if self.output_compression == 0:
            return OWN_QUALITY.get(self.realtime_output_format, DEFAULT_QUALITY)
        if self.output_compression is not None:
            return self.output_compression
        return QUALITY_WORDS.get(self.output_quality, DEFAULT_QUALITY)

    @property
    def waiting(self) -> int:
        """How many finished chunks may wait for the client."""
        if self.queue_chunks is not None:
            return self.queue_chunks
        if self.acknowledge:
            return QUEUE_ACKNOWLEDGED
        return QUEUE_PACED if self.realtime_output_pacing else QUEUE


NO_EFFECT: Final[Mapping[str, str]] = {
    **{
        name: reason
        for name, reason in WITHOUT_EFFECT.items()
        if name in ("user", "safety_identifier", "moderation", "style", "generator_device")
    },
    "task_type": "the served model decides",
    "frame_interpolation_exp": "there is no frame interpolation",
    "frame_interpolation_scale": "there is no frame interpolation",
    "upscaling_scale": "there is no upscaling",
    "num_profiled_timesteps": "sessions are not profiled",
}
"""Documented elsewhere, accepted, without effect; the reason goes into `warnings`."""

OFF: Final[frozenset[str]] = OFF_ONLY | {"profile"}
"""Switches that may be false and nothing else."""

NEUTRAL: Final[Mapping[str, Any]] = {
    "guidance_scale": 1.0,
    "guidance_scale_2": 1.0,
    "true_cfg_scale": 1.0,
    "negative_prompt": "",
    "n": 1,
}
"""Fields that a model may not have, with the value that asks for nothing."""

NOT_HERE: Final[Mapping[str, str]] = {
    **{name: remedy for name, remedy in REFUSED.items() if "picture" not in remedy},
    "image_path": "Use first_frame.",
    "image_paths": "Use first_frame.",
    "input_reference": "Use first_frame.",
    "reference_url": "Use first_frame.",
    "seconds": "A session has no length; use max_chunks.",
    "num_outputs_per_prompt": "A session makes one world.",
    "preview_every": "Every chunk is sent.",
    "output_format": "Use realtime_output_format.",
    "response_format": "Use realtime_output_format.",
    "stream": "Sessions always stream.",
}
"""Refused by name, with what to do instead."""

OTHERS: Final = ("type", "protocol", "event_id", "model", "quality", "first_frame", "snapshot")
"""Fields that are read on their own."""
