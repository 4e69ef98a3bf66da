"""Parameters and realtime adapter of the toy world; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sgld.api.errors import ParameterError, Problem
from sgld.causal.blocks import BlockPlan, Chunk
from sgld.params.options import Finding, Settled, option
from sgld.params.sampling import TakesImage, VideoParams
from sgld.realtime.adapter import Opening, RealtimeAdapter, Sampled
from sgld.realtime.controls import ActionQueue, Tokens, read_actions, read_prompt
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


class ToyWorldAdapter(RealtimeAdapter):
    """Walks with w, a, s and d; the prompt may change."""

    events: ClassVar[tuple[str, ...]] = ("camera_actions", "prompt")

    def __init__(self, params: ToyWorldParams) -> None:
        super().__init__(params)
        self._actions = ActionQueue(TOKENS)
        self._prompt: str = params.prompt
        self._prompt_id: int | None = None
        self._seen: int | None = None

    @classmethod
    def read_init(cls, init: Mapping[str, Any]) -> Opening:
        """Everything is a parameter but the first frame and `condition_inputs`, which may hold
        `camera_actions` for chunk 0."""
        apart = ("first_frame", "condition_inputs")
        params = {name: value for name, value in init.items() if name not in apart}
        given, events = init.get("condition_inputs"), ()
        if given is not None:
            if not isinstance(given, Mapping) or set(given) != {"camera_actions"}:
                message = "must be a map with camera_actions."
                raise ParameterError([Problem("condition_inputs", given, message)])
            field = "condition_inputs.camera_actions"
            actions = read_actions(given["camera_actions"], TOKENS, field=field)
            events = (("camera_actions", {"actions": actions}, None),)
        return Opening(params, init.get("first_frame"), events)

    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        """`camera_actions`: a script or a state; `prompt`: text."""
        if kind == "camera_actions":
            return {"actions": read_actions(payload, TOKENS)}
        if kind != "prompt":
            known = ", ".join(cls.events)
            raise ParameterError([Problem("kind", kind, f"must be one of {known}.")])
        return {"prompt": read_prompt(payload)}

    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        """Take a control."""
        if kind == "prompt":
            self._prompt, self._prompt_id = control["prompt"], event_id
        else:
            self._actions.apply(control["actions"], event_id)

    def sample(self, chunk: Chunk) -> Sampled:
        """One action per latent frame, and the prompt as it is now."""
        levels = self._actions.sample(chunk.frames)
        ids = (levels.event_id, self._prompt_id, self._seen)
        self._seen = max((id for id in ids if id is not None), default=None)
        actions = [list(level) for level in levels.actions or [()] * chunk.frames]
        return Sampled({"actions": actions, "prompt": self._prompt}, self._seen)

    def dump(self) -> Mapping[str, Any]:
        """All of it."""
        return {
            "actions": self._actions.dump(),
            "prompt": self._prompt,
            "prompt_id": self._prompt_id,
            "seen": self._seen,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Become what `dump` wrote."""
        self._actions.load(values["actions"])
        self._prompt, self._prompt_id = values["prompt"], values["prompt_id"]
        self._seen = values["seen"]
