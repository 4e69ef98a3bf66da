"""The camera's action tokens, and what a request says with them. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sgld.api.errors import ParameterError
from sgld.realtime.controls import Tokens, read_actions

TOKENS: Final = Tokens(("w", "a", "s", "d", "i", "j", "k", "l"), steps=512, min_pulse=1)
"""Walk forward, left, back, right; look up, left, down, right."""
FIELD: Final = "camera_actions"
RULE: Final = (
    'a list with one list of action tokens per latent frame, such as [["w"], ["w", "l"], []]; '
    f"tokens are {', '.join(TOKENS.allowed)}; at most {TOKENS.steps} frames"
)

Script = tuple[tuple[str, ...], ...]


def read_script(value: Any) -> Script | None:
    """The script of a request, None for none; raises `ValueError` with what is wrong."""
    if value is None:
        return None
    try:
        levels = read_actions(value, TOKENS, field=FIELD, state=False)
    except ParameterError as error:
        raise ValueError(f"must be {RULE}; {error}") from error
    return tuple(map(tuple, levels))


def script_text(text: Any) -> Any:
    """The list that a flag holds as JSON; anything else stays as it is and is refused."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def levels_of(script: Script, first: int, frames: int) -> list[list[str]]:
    """The levels of the latent frames from `first` on; nothing is pressed after the script."""
    played = [list(level) for level in script[first : first + frames]]
    return played + [[] for _ in range(frames - len(played))]


def controls_of(script: Script | None, first: int, frames: int) -> Mapping[str, Any]:
    """The `controls` slot of a chunk that follows a script; without one the camera is not told."""
    return {} if script is None else {"actions": levels_of(script, first, frames)}
