"""Control signals over time: what a user pressed, as one level per control step.

A *level* is the set of action tokens that are active at once, as a tuple; the empty one is neutral.
Events come in two forms, and either takes the place of the other:

    script    a list of levels, one per control step, played once in order
    state     transitions of a held level: what was pressed or let go since the last event

`read_actions` checks such an event and gives it as JSON values; `ActionQueue` holds what has come
and hands out the levels of one chunk. A model family chooses the tokens, the limits and how many
steps a chunk has. `read_prompt` checks the text of a prompt event. Never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.api.errors import ParameterError, Problem

Level = tuple[str, ...]
NEUTRAL: Final[Level] = ()
MAX_PROMPT: Final = 32_000
"""Characters of a prompt, in an init, an event and every other request to a server."""
STATE_KEYS: Final = ("mode", "transitions")
TRANSITION_KEYS: Final = ("actions", "client_ts_ms")


class Tokens(NamedTuple):
    """Which actions a family knows, and how much one event may hold.

    Args:
        allowed: the action tokens, in the order in which errors list them.
        steps: most control steps of one script, and most transitions of one event.
        min_pulse: control steps for which a press that was let go again before a chunk saw it is
            still played.
    """

    allowed: tuple[str, ...]
    steps: int = 512
    min_pulse: int = 1


class Levels(NamedTuple):
    """The levels of one chunk.

    Args:
        actions: one per control step; None: no control was ever received.
        event_id: of the event that decided the chunk; None: none did.
    """

    actions: list[Level] | None
    event_id: Any


def read_prompt(value: Any, *, field: str = "prompt") -> str:
    """Check the text of a prompt event.

    Raises:
        ParameterError: it is no text, empty, or longer than `MAX_PROMPT` characters.
    """
    if isinstance(value, str) and len(value) > MAX_PROMPT:
        text = f"has {len(value)} characters; the limit is {MAX_PROMPT}."
        raise ParameterError([Problem(field, None, text, "Send a shorter text.")])
    if not isinstance(value, str) or not value.strip():
        raise ParameterError([Problem(field, value, "must be text that is not empty.")])
    return value


def read_actions(
    value: Any, tokens: Tokens, *, field: str = "camera_actions", state: bool = True
) -> Any:
    """Check one control event and give it as JSON values, without duplicates of a token.

    A script is a list of lists of tokens; a state is
    `{"mode": "state", "transitions": [{"actions": [token, …], "client_ts_ms": int}, …]}`.
    `client_ts_ms` is a client's own note and has no effect.

    Args:
        field: what errors call the value.
        state: whether the state form is taken, too.

    Raises:
        ParameterError: with every place that is wrong, and what is allowed there.
    """
    problems: list[Problem] = []
    if isinstance(value, Mapping) and state:
        read: Any = _read_state(value, tokens, field, problems)
    elif isinstance(value, list | tuple):
        read = _read_script(value, tokens, field, problems)
    else:
        forms = "a list with one list of action tokens per control step"
        if state:
            forms += ', or {"mode": "state", "transitions": [{"actions": [...]}, ...]}'
        raise ParameterError([Problem(field, value, f"must be {forms}.")])
    if problems:
        raise ParameterError(problems)
    return read


def _read_script(
    value: Sequence[Any], tokens: Tokens, field: str, problems: list[Problem]
) -> list[list[str]]:
    if len(value) > tokens.steps:
        problems.append(_too_long(field, len(value), "control steps", tokens.steps))
        return []
    return [
        list(_read_level(level, tokens, f"{field}[{step}]", problems))
        for step, level in enumerate(value)
    ]


def _read_state(
    value: Mapping[Any, Any], tokens: Tokens, field: str, problems: list[Problem]
) -> dict[str, Any]:
    _no_others(value, STATE_KEYS, field, problems)
    if value.get("mode") != "state":
        problems.append(Problem(f"{field}.mode", value.get("mode"), "must be 'state'."))
    transitions = value.get("transitions")
    if not isinstance(transitions, list | tuple) or not transitions:
        wanted = 'must be a list that is not empty, of {"actions": [...]}.'
        problems.append(Problem(f"{field}.transitions", transitions, wanted))
        return {}
    if len(transitions) > tokens.steps:
        where = f"{field}.transitions"
        problems.append(_too_long(where, len(transitions), "transitions", tokens.steps))
        return {}
    read: list[dict[str, Any]] = []
    for place, transition in enumerate(transitions):
        where = f"{field}.transitions[{place}]"
        if not isinstance(transition, Mapping) or "actions" not in transition:
            problems.append(Problem(where, transition, 'must be {"actions": [...]}.'))
            continue
        _no_others(transition, TRANSITION_KEYS, where, problems)
        stamp = transition.get("client_ts_ms")
        number = isinstance(stamp, int | float) and not isinstance(stamp, bool)
        if stamp is not None and not (number and math.isfinite(stamp)):
            problems.append(Problem(f"{where}.client_ts_ms", stamp, "must be a number."))
        level = _read_level(transition["actions"], tokens, f"{where}.actions", problems)
        read.append({"actions": list(level)})
    return {"mode": "state", "transitions": read}


def _read_level(value: Any, tokens: Tokens, field: str, problems: list[Problem]) -> Level:
    if not isinstance(value, list | tuple):
        problems.append(Problem(field, value, "must be a list of action tokens."))
        return NEUTRAL
    if len(value) > len(tokens.allowed):
        problems.append(_too_long(field, len(value), "action tokens", len(tokens.allowed)))
        return NEUTRAL
    for place, token in enumerate(value):
        if token not in tokens.allowed:
            problems.append(_unknown(f"{field}[{place}]", token, tokens.allowed))
    return tuple(dict.fromkeys(token for token in value if token in tokens.allowed))


def _unknown(field: str, token: Any, allowed: Collection[str]) -> Problem:
    remedy = f"Allowed are {', '.join(allowed)}."
    if isinstance(token, str) and token.lower() in allowed:
        remedy = f"Write {token.lower()!r}: tokens are lower case. {remedy}"
    return Problem(field, token, "is no action of this model.", remedy)


def _too_long(field: str, count: int, what: str, limit: int) -> Problem:
    return Problem(field, None, f"{count} {what} are too many; at most {limit} are taken at once.")


def _no_others(
    value: Mapping[Any, Any], known: Sequence[str], field: str, problems: list[Problem]
) -> None:
    for key in value:
        if key not in known:
            wanted = f"is not known here; known are {', '.join(known)}."
            problems.append(Problem(f"{field}.{key}", value[key], wanted))


class ActionQueue:
    """What has been pressed and not been seen by a chunk yet, and what is held.

    Holds at most one script and two transitions, however many events come between two chunks: of
    several transitions only the last one and the last press before it can be seen.

    Args:
        tokens: the family's actions and limits.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._pulse_steps = tokens.min_pulse
        self._script: list[Level] = []
        self._script_id: Any = None
        self._unseen = False  # an empty script has taken effect in no chunk yet
        self._pulse: tuple[Level, Any] | None = None
        self._pending = False
        self._held: Level | None = None
        self._held_id: Any = None

    def apply(self, actions: Any, event_id: Any) -> None:
        """Take what `read_actions` gave; it is seen from the next chunk on.

        `event_id` is any JSON value; `sample` gives it back.
        """
        if isinstance(actions, Mapping):
            self._apply_state(actions["transitions"], event_id)
            return
        self._script = [tuple(level) for level in actions]
        self._script_id, self._unseen = event_id, True
        # After its last step everything is let go.
        self._held, self._held_id = NEUTRAL, None
        self._pulse, self._pending = None, False

    def _apply_state(self, transitions: Sequence[Mapping[str, Any]], event_id: Any) -> None:
        self._script, self._script_id, self._unseen = [], None, False
        for transition in transitions:
            if self._pending and self._held:
                self._pulse = (self._held, self._held_id)
            self._held, self._held_id = tuple(transition["actions"]), event_id
            self._pending = True

    def sample(self, steps: int) -> Levels:
        """The levels of a chunk of `steps` control steps; what they came from is used up.

        A script wins over a held level; where it ends within the chunk, neutral steps follow. A
        press that was let go again is played first, for the family's `min_pulse` steps. The event
        is that of the script, of the last transition, or of the press if it fills the chunk.
        """
        if self._script or self._unseen:
            played = self._script[:steps]
            del self._script[:steps]
            self._unseen = False
            return Levels(played + [NEUTRAL] * (steps - len(played)), self._script_id)
        if self._held is None:
            return Levels(None, None)
        levels, event_id = [self._held] * steps, self._held_id
        if self._pulse is not None and not self._held:
            level, pulse_id = self._pulse
            count = min(self._pulse_steps, steps)
            levels[:count] = [level] * count
            event_id = pulse_id if count == steps else event_id
        self._pulse, self._pending = None, False
        return Levels(levels, event_id)

    def dump(self) -> dict[str, Any]:
        """All of it as JSON values."""
        pulse = self._pulse
        return {
            "script": [list(level) for level in self._script],
            "script_id": self._script_id,
            "unseen": self._unseen,
            "pulse": None if pulse is None else [list(pulse[0]), pulse[1]],
            "pending": self._pending,
            "held": None if self._held is None else list(self._held),
            "held_id": self._held_id,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Become what `dump` wrote."""
        pulse, held = values["pulse"], values["held"]
        self._script = [tuple(level) for level in values["script"]]
        self._script_id, self._unseen = values["script_id"], values["unseen"]
        self._pulse = None if pulse is None else (tuple(pulse[0]), pulse[1])
        self._pending = values["pending"]
        self._held = None if held is None else tuple(held)
        self._held_id = values["held_id"]
