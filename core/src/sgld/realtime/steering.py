"""An adapter for worlds that are steered by keys and text: what most need, and the page speaks.

class MyAdapter(KeysAdapter):
    tokens = Tokens(("w", "a", "s", "d"))

Events: `camera_actions`, a script or a held state (`sgld.realtime.controls`), and `prompt`. A chunk
finds in its controls `actions`, a list of tokens per latent frame, and `prompt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sgld.api.errors import ParameterError, Problem
from sgld.causal.blocks import Chunk
from sgld.realtime.adapter import Opening, RealtimeAdapter, Sampled
from sgld.realtime.controls import ActionQueue, Tokens, read_actions, read_prompt

CAMERA: Final = "camera_actions"
PROMPT: Final = "prompt"
CONDITIONS: Final = "condition_inputs"

Numbered = list[Any]
"""`[number, id]` of an event: numbered as they came, since a client may choose any ids."""


class KeysAdapter(RealtimeAdapter):
    """Keys and prompt of one session. Either holds from the next chunk on, until it changes.

    Args:
        params: of the family, with a `prompt`.
    """

    tokens: ClassVar[Tokens]
    """The keys, and how much one event may hold."""
    events: ClassVar[tuple[str, ...]] = (CAMERA, PROMPT)

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._actions = ActionQueue(self.tokens)
        self._prompt: str = params.prompt
        self._count = 0
        self._prompt_from: Numbered | None = None
        self._newest: Numbered | None = None

    @classmethod
    def read_init(cls, init: Mapping[str, Any]) -> Opening:
        """Everything is a parameter but the first frame and `condition_inputs`, a map that may hold
        `camera_actions` for chunk 0."""
        params = dict(init)
        first, given = params.pop("first_frame", None), params.pop(CONDITIONS, None)
        if given is None:
            return Opening(params, first)
        if not isinstance(given, Mapping) or set(given) != {CAMERA}:
            raise ParameterError([Problem(CONDITIONS, given, f"must be a map with {CAMERA}.")])
        actions = read_actions(given[CAMERA], cls.tokens, field=f"{CONDITIONS}.{CAMERA}")
        return Opening(params, first, ((CAMERA, {"actions": actions}, None),))

    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        """`camera_actions`: a script or a state; `prompt`: text."""
        if kind == CAMERA:
            return {"actions": read_actions(payload, cls.tokens)}
        if kind == PROMPT:
            return {"prompt": read_prompt(payload)}
        raise ParameterError([Problem("kind", kind, f"must be one of {', '.join(cls.events)}.")])

    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        """Take what `read_event` gave."""
        self._count += 1
        numbered: Numbered = [self._count, event_id]
        if kind == PROMPT:
            self._prompt, self._prompt_from = control["prompt"], numbered
        else:
            self._actions.apply(control["actions"], numbered)

    def sample(self, chunk: Chunk) -> Sampled:
        """One list of keys per latent frame, and the prompt as it is now."""
        levels = self._actions.sample(chunk.frames)
        events = (levels.event_id, self._prompt_from, self._newest)
        with_id = [event for event in events if event is not None and event[1] is not None]
        self._newest = max(with_id, key=lambda event: event[0], default=None)
        actions = [list(level) for level in levels.actions or [()] * chunk.frames]
        id = self._newest[1] if self._newest else None
        return Sampled({"actions": actions, "prompt": self._prompt}, id)

    def dump(self) -> Mapping[str, Any]:
        """All of it."""
        return {
            "actions": self._actions.dump(),
            "prompt": self._prompt,
            "count": self._count,
            "prompt_from": self._prompt_from,
            "newest": self._newest,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Become what `dump` wrote."""
        self._actions.load(values["actions"])
        self._prompt, self._prompt_from = values["prompt"], values["prompt_from"]
        self._count, self._newest = values["count"], values["newest"]
