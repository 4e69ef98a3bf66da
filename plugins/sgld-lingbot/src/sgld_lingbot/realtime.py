"""How a LingBot World session is opened and steered. No torch here.

    camera_actions     a script of keys per latent frame, or transitions of held keys
    prompt             another text; what has been made stays in memory, so the world flows on
    composite_input    several of these at once, all of them or none

All take effect with the next chunk; a prompt never with the first one, which has the init's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sgld.api.errors import ParameterError, Problem
from sgld.causal.blocks import Chunk
from sgld.realtime.adapter import Opening, RealtimeAdapter, Sampled
from sgld.realtime.controls import ActionQueue, read_actions, read_prompt
from sgld_lingbot.actions import TOKENS
from sgld_lingbot.schedules import FALLBACK, RECIPES

CAMERA: Final = "camera_actions"
PROMPT: Final = "prompt"
COMPOSITE: Final = "composite_input"
INPUT_TYPES: Final = (PROMPT, CAMERA)
MOST_INPUTS: Final = 16
"""Entries of `input_types`: the same one may stand there again, but not without end."""

Seen = list[Any]
"""`[number, event id]` of an event, numbered as they came."""


class LingBotAdapter(RealtimeAdapter):
    """Keys and prompt of one session."""

    events: ClassVar[tuple[str, ...]] = (CAMERA, PROMPT, COMPOSITE)
    needs_first_frame: ClassVar[bool] = True
    init_fields: ClassVar[tuple[str, ...]] = ("condition_inputs", "num_frames")

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._queue = ActionQueue(TOKENS)
        self._prompt: str = params.prompt
        self._next_prompt: list[Any] | None = None
        self._count = 0
        self._newest: Seen | None = None

    @classmethod
    def read_init(cls, init: Mapping[str, Any]) -> Opening:
        """Read an init message: the first frame, keys, and parameters."""
        params = dict(init)
        first = params.pop("first_frame", None)
        problems: list[Problem] = []
        events = _read_keys(params, problems)
        frames = params.get("num_frames", 1)
        if isinstance(frames, int) and not isinstance(frames, bool) and frames > 0:
            params["num_frames"] = max(frames, _still_frames(params))
        if problems:
            raise ParameterError(problems)
        return Opening(params, first, events)

    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        """`actions`, `prompt` or both, as JSON values."""
        if kind == CAMERA:
            return {"actions": read_actions(payload, TOKENS)}
        if kind == PROMPT:
            return {"prompt": read_prompt(payload)}
        if kind == COMPOSITE:
            return _read_composite(payload)
        wanted = f"is not taken by this model; it takes {', '.join(cls.events)}."
        raise ParameterError([Problem("kind", kind, wanted)])

    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        self._count += 1
        seen: Seen = [self._count, event_id]
        if "actions" in control:
            self._queue.apply(control["actions"], seen)
        if "prompt" in control:
            self._next_prompt = [control["prompt"], seen]

    def first_chunk(self, kind: str, control: Mapping[str, Any], next: int) -> int:
        """A prompt alone is not seen by chunk 0, which has the init's."""
        return next if "actions" in control else max(next, 1)

    def sample(self, chunk: Chunk) -> Sampled:
        if self._next_prompt is not None and chunk.index > 0:
            self._prompt, seen = self._next_prompt
            self._next_prompt = None
            self._note(seen)
        levels = self._queue.sample(chunk.frames)
        self._note(levels.event_id)
        controls: dict[str, Any] = {"prompt": self._prompt}
        if levels.actions is not None:
            controls["actions"] = [list(level) for level in levels.actions]
        return Sampled(controls, self._newest[1] if self._newest else None)

    def dump(self) -> Mapping[str, Any]:
        return {
            "queue": self._queue.dump(),
            "prompt": self._prompt,
            "next_prompt": self._next_prompt,
            "count": self._count,
            "newest": self._newest,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        self._queue.load(values["queue"])
        self._prompt, self._next_prompt = values["prompt"], values["next_prompt"]
        self._count, self._newest = values["count"], values["newest"]

    def _note(self, seen: Seen | None) -> None:
        """A chunk sees this event; one without an id leaves the last id standing."""
        if seen is None or seen[1] is None:
            return
        if self._newest is None or seen[0] > self._newest[0]:
            self._newest = seen


def _read_keys(
    params: dict[str, Any], problems: list[Problem]
) -> tuple[tuple[str, Mapping[str, Any], int | None], ...]:
    """Take the keys out of an init message, as events; only a script of keys is taken there."""
    inputs = params.pop("condition_inputs", None)
    given = {CAMERA: params.pop(CAMERA, None)}
    if isinstance(inputs, Mapping):
        given |= {f"condition_inputs.{key}": value for key, value in inputs.items()}
    elif inputs is not None:
        problems.append(Problem("condition_inputs", inputs, f"must be a map with {CAMERA!r}."))
    events: list[tuple[str, Mapping[str, Any], int | None]] = []
    for field, value in given.items():
        if field not in (CAMERA, f"condition_inputs.{CAMERA}"):
            wanted = f"is not taken by this model; it takes condition_inputs.{CAMERA}."
            problems.append(Problem(field, value, wanted))
        elif value is not None and events:
            problems.append(Problem(field, None, f"is given twice, as {CAMERA} too."))
        elif value is not None:
            try:
                actions = read_actions(value, TOKENS, field=field, state=False)
            except ParameterError as error:
                problems += error.problems
            else:
                events.append((CAMERA, {"actions": actions}, None))
    return tuple(events)


def _still_frames(params: Mapping[str, Any]) -> int:
    """Frames of the still picture that are encoded at least: two chunks of them, so that the second
    can be shown to all that follow."""
    recipe, chunk = params.get("recipe"), params.get("chunk_latents")
    named = RECIPES.get(recipe, FALLBACK) if isinstance(recipe, str) else FALLBACK
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        chunk = named.chunk
    return 4 * (2 * chunk - 1) + 1


def _read_composite(payload: Any) -> Mapping[str, Any]:
    """All parts of a composite event; ParameterError naming everything that is wrong with any."""
    if not isinstance(payload, Mapping):
        raise ParameterError([Problem(COMPOSITE, payload, f"must be a map with {_FORM}.")])
    kinds = payload.get("input_types")
    if not isinstance(kinds, list | tuple) or not kinds:
        wanted = f"must be a list that is not empty, of {', '.join(INPUT_TYPES)}."
        raise ParameterError([Problem("input_types", kinds, wanted)])
    if len(kinds) > MOST_INPUTS:
        wanted = f"has {len(kinds)} entries; at most {MOST_INPUTS} are taken."
        raise ParameterError([Problem("input_types", None, wanted)])
    problems: list[Problem] = []
    control: dict[str, Any] = {}
    for place, kind in enumerate(kinds):
        if kind not in INPUT_TYPES:
            wanted = f"is not taken here; allowed are {', '.join(INPUT_TYPES)}."
            problems.append(Problem(f"input_types[{place}]", kind, wanted))
    for key in payload:
        if key != "input_types" and key not in kinds:
            wanted = "is not named in input_types."
            problems.append(Problem(str(key), payload[key], wanted))
    for kind in INPUT_TYPES:
        if kind not in kinds:
            continue
        try:
            if kind == PROMPT:
                control["prompt"] = read_prompt(payload.get(kind))
            else:
                control["actions"] = read_actions(payload.get(kind), TOKENS)
        except ParameterError as error:
            problems += error.problems
    if problems:
        raise ParameterError(problems)
    return control


_FORM: Final = '"input_types" and one entry for each of them'
