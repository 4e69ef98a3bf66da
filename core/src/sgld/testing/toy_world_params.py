"""Parameters and realtime adapter of the toy world; torch-free."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sgld.causal.blocks import BlockPlan
from sgld.params.options import Finding, Settled, option
from sgld.params.sampling import TakesImage, VideoParams
from sgld.realtime.controls import Tokens
from sgld.realtime.steering import KeysAdapter
from sgld.testing.toy_params import Hooks

CHUNK: Final = 2
"""Latent frames of a chunk."""
STRIDE: Final = 2
"""Frames that a latent frame decodes to; the first one gives one."""
TOKENS: Final = Tokens(("w", "a", "s", "d"))


class ToyWorldParams(Hooks, TakesImage, VideoParams):
    """A world of few pixels, made in chunks of two latent frames."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video", "image-to-video")
    temporal_stride: ClassVar[int] = STRIDE
    shows_previews: ClassVar[bool] = False

    width: int = option(64, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(48, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_frames: int = option(7, "Frames of the clip.", unit="frames", ge=1, le=100_000)
    num_inference_steps: int = option(2, "Denoising steps.", unit="steps", ge=1, le=1000)
    realtime_causal_kv_cache_num_frames: int = option(
        6, "Latent frames that a chunk sees, its own included.", unit="latent frames", ge=2, le=64
    )
    realtime_causal_sink_size: int = option(
        1, "First latent frames that are never forgotten.", unit="latent frames", ge=0, le=62
    )
    decode_delay: float = option(
        0.0, "Sleep before each chunk is decoded.", unit="seconds", ge=0.0, le=600.0
    )
    fail_at_chunk: int = option(0, "Raise an error in this chunk, from 1.", ge=0)
    fail_in: str = option("chunk", "Where: open, chunk, frames or commit.")

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """The window has room for the sink and a chunk."""
        settled = super().settle(values, given)
        window = values.get("realtime_causal_kv_cache_num_frames")
        sink = values.get("realtime_causal_sink_size")
        if not isinstance(window, int) or not isinstance(sink, int) or sink + CHUNK <= window:
            return settled
        message = f"leaves no room for a chunk of {CHUNK} in {window} latent frames."
        finding = Finding("realtime_causal_sink_size", message, f"At most {window - CHUNK}.")
        return settled._replace(findings=(*settled.findings, finding))

    @property
    def blocks(self) -> BlockPlan:
        """The chunks of a clip."""
        return BlockPlan(CHUNK, total=1 + (self.num_frames - 1) // STRIDE)


class ToyWorldAdapter(KeysAdapter):
    """Walks with w, a, s and d; the prompt may change."""

    tokens: ClassVar[Tokens] = TOKENS
