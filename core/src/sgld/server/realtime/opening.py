"""What an init message asks for: everything checked before anything is reserved or fetched.

wanted = read_init(message, served)          raises one ParameterError with all problems
frame = await load_first_frame(wanted, ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sgld.api.errors import FeatureError, ParameterError, Problem
from sgld.params.merge import Built, Layer, build, distinct
from sgld.params.nearest import did_you_mean
from sgld.params.requests import Prepared, fit_to_images
from sgld.params.sampling import SamplingParams
from sgld.realtime.adapter import Opening, RealtimeAdapter
from sgld.realtime.messages import SessionOptions
from sgld.server.bodies import Limits
from sgld.server.parameters import ModelFacts, limited
from sgld.server.realtime.fields import (
    NEUTRAL,
    NO_EFFECT,
    NOT_HERE,
    OFF,
    OTHERS,
    SessionSettings,
)
from sgld.server.realtime.messages import id_problems
from sgld.server.sorting import brief, problem
from sgld.server.spelling import APPROXIMATE, EXACT

PROTOCOLS: Final = (1, 2)
UNSEEN: Final = frozenset({"seed", "num_outputs_per_prompt", "image_path", "preview_every"})
"""Parameters of every family that mean nothing in a session, or that the server takes."""
RESUMING: Final = frozenset({"type", "protocol", "event_id", "resume_token", "last_request_id"})


@dataclass(frozen=True)
class RealtimeModel:
    """What reading an init message needs to know of the served model.

    Args:
        id: of the adapter.
        adapter: its class.
    """

    id: str
    adapter: type[RealtimeAdapter]
    facts: ModelFacts
    limits: Limits

    @property
    def params_class(self) -> type[SamplingParams]:
        """The family's parameters within the server's limits."""
        return limited(self.facts.params_class, self.limits.max_pixels, self.limits.max_frames)


@dataclass(frozen=True)
class Resume:
    """A wish to go on with a session whose socket was lost."""

    token: str
    last_request_id: str | None


@dataclass(frozen=True)
class Wanted:
    """A session that can be opened once its first frame is there.

    Args:
        built: the family's parameters, and what was adjusted.
        first_frame: encoded bytes or a URL.
        snapshot: continue from these bytes.
        warnings: what was accepted without effect.
    """

    protocol: int
    settings: SessionSettings
    built: Built[SamplingParams]
    opening: Opening
    first_frame: bytes | str | None
    snapshot: bytes = b""
    warnings: tuple[str, ...] = field(default=())

    @property
    def options(self) -> SessionOptions:
        """How the engine is to run it."""
        settings = self.settings
        # What waits for the client is ahead of what it has seen, and has to be taken back too.
        ahead = settings.waiting + 1 if settings.rewind_chunks else 0
        return SessionOptions(
            max_chunks=settings.max_chunks or 0,
            queue_chunks=settings.waiting,
            on_full=settings.on_full,
            rewind_chunks=settings.rewind_chunks + ahead,
            ahead=ahead,
            free_running=settings.free_running,
        )


def protocol_of(message: Mapping[str, Any]) -> int:
    """The protocol that a first message asks for; 1 when it says nothing that is a protocol."""
    value = message.get("protocol")
    return value if value in PROTOCOLS and not isinstance(value, bool) else 1


def read_resume(message: Mapping[str, Any]) -> Resume | None:
    """The wish to resume, if the init message is one. Raises `ParameterError`."""
    if message.get("resume_token") is None:
        return None
    problems = [
        problem(name[:80], _short(value), "is not taken with resume_token.", "", _UNSUPPORTED)
        for name, value in message.items()
        if name not in RESUMING and value is not None
    ]
    problems += id_problems(message)
    token, last = message["resume_token"], message.get("last_request_id")
    if message.get("protocol") != 2:
        problems.append(
            problem("protocol", _short(message.get("protocol")), "must be 2 to resume.")
        )
    if not isinstance(token, str):
        problems.append(Problem("resume_token", None, "must be text."))
    if last is not None and not isinstance(last, str):
        problems.append(problem("last_request_id", _short(last), "must be text or null."))
    if problems:
        raise ParameterError(problems)
    return Resume(token, last)


def read_init(message: Mapping[str, Any], model: RealtimeModel) -> Wanted:
    """Read an init message.

    Raises:
        ParameterError: everything that is wrong with it, each with field and remedy.
    """
    sorting = _Sorting(message, model)
    problems = sorting.problems
    settings = _settings(sorting, problems)
    try:
        opening = model.adapter.read_init(sorting.rest)
    except ParameterError as error:
        problems += error.problems
        # What else is wrong is to be said in the same answer.
        opening = Opening(sorting.parameters, sorting.rest.get("first_frame"))
    built = _params(opening, model, problems)
    first_frame = None
    if opening.first_frame is not None or not sorting.snapshot:  # which has its own
        first_frame = _first_frame(opening.first_frame, model, problems)
    if problems or settings is None or built is None:
        raise ParameterError(distinct(problems))
    return Wanted(
        protocol=sorting.protocol,
        settings=settings.params,
        built=built,
        opening=opening,
        first_frame=first_frame,
        snapshot=sorting.snapshot,
        warnings=tuple(dict.fromkeys([*sorting.warnings, *settings.notes, *built.notes])),
    )


def fit_first_frame(wanted: Wanted, frame: npt.NDArray[np.uint8] | None) -> SamplingParams:
    """The parameters once the first frame is known. Raises `ParameterError` for a frame that the
    model does not take."""
    if frame is None:
        return wanted.built.params
    try:
        prepared = fit_to_images(Prepared(wanted.built, (), ()), [(frame.shape[1], frame.shape[0])])
    except ParameterError as error:
        raise ParameterError([p._replace(field="first_frame") for p in error.problems]) from None
    return prepared.params


class _Sorting:
    """The fields of an init message by whom they concern."""

    def __init__(self, message: Mapping[str, Any], model: RealtimeModel) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.settings: dict[str, Any] = {}
        self.rest: dict[str, Any] = {}
        self.snapshot = b""
        self._cls, self._model = model.params_class, model
        self.protocol = protocol_of(message)
        given = message.get("protocol")
        if given is not None and (given not in PROTOCOLS or isinstance(given, bool)):
            self._refuse("protocol", given, "must be 1 or 2.")
        for name, value in message.items():
            if value is not None and name not in ("type", "protocol"):
                self._take(name, value)

    def _take(self, name: str, value: Any) -> None:
        if name in SessionSettings.model_fields:
            self._setting(name, value)
        elif name == "snapshot":
            self._take_snapshot(value)
        elif name == "event_id":
            self._take_id(value)
        elif name == "model":
            self._model_name(value)
        elif name == "quality":
            self._quality(value)
        elif name in NO_EFFECT:
            self.warnings.append(f"{name} has no effect: {NO_EFFECT[name]}.")
        elif name in OFF:
            if value is not False:
                self._refuse(name, value, "is not supported.", "Leave it out.", _UNSUPPORTED)
        elif name in NEUTRAL and name not in self._cls.accepted() - UNSEEN and _is(name, value):
            self.warnings.append(f"{name} has no effect: this model has no such setting.")
        elif name == "num_frames" and name not in self._model.adapter.init_fields:
            self.warnings.append(f"{name} has no effect: a session goes on; max_chunks ends it.")
        elif name in NOT_HERE:
            self._refuse(name, value, "is not taken here.", NOT_HERE[name], _UNSUPPORTED)
        elif name in self._taken():
            self.rest[name] = value
        else:
            remedy = did_you_mean(name, self._names())
            self._refuse(name[:80], value, "is unknown.", remedy, "unknown_parameter")

    @property
    def parameters(self) -> dict[str, Any]:
        """What goes to the family's parameters as it is."""
        apart = {"first_frame", *self._model.adapter.init_fields}
        return {name: value for name, value in self.rest.items() if name not in apart}

    def _taken(self) -> frozenset[str]:
        """Names that the adapter and the parameters know, if only to refuse them."""
        cls = self._cls
        known = (cls.accepted() | frozenset(cls.refused)) - UNSEEN
        return known | {"first_frame", *self._model.adapter.init_fields}

    def _names(self) -> list[str]:
        names = {*(self._cls.accepted() - UNSEEN), *self._model.adapter.init_fields}
        return sorted({*names, *SessionSettings.model_fields, *OTHERS})

    def _setting(self, name: str, value: Any) -> None:
        if name in SessionSettings.needs_protocol_2 and self.protocol != 2:
            self._refuse(name, value, "needs protocol 2.", 'Send "protocol": 2.', _UNSUPPORTED)
        else:
            self.settings[name] = value

    def _take_id(self, value: Any) -> None:
        if self.protocol != 2:
            self._refuse(
                "event_id", value, "needs protocol 2.", 'Send "protocol": 2.', _UNSUPPORTED
            )
        else:
            self.problems += id_problems({"event_id": value})

    def _take_snapshot(self, value: Any) -> None:
        if self.protocol != 2:
            self._refuse("snapshot", None, "needs protocol 2.", 'Send "protocol": 2.', _UNSUPPORTED)
        elif not isinstance(value, bytes) or not value:
            self._refuse("snapshot", None, "must be the bytes of a snapshot message.")
        else:
            self.snapshot = value

    def _model_name(self, value: Any) -> None:
        name = self._model.facts.name
        if value != name:
            remedy = f"This server serves {name!r}."
            self._refuse("model", value, "is not served here.", remedy, "model_not_found")

    def _quality(self, value: Any) -> None:
        if value in APPROXIMATE:
            self.warnings.append(
                f"quality={value} has no effect: results are always computed exactly."
            )
        elif value not in EXACT:
            words = ", ".join((*EXACT, *APPROXIMATE))
            self._refuse("quality", value, f"must be one of {words}.")

    def _refuse(
        self, name: str, value: Any, message: str, remedy: str = "", code: str = "invalid_value"
    ) -> None:
        self.problems.append(problem(name, _short(value), message, remedy, code))


_UNSUPPORTED: Final = "unsupported_parameter"


def _is(name: str, value: Any) -> bool:
    """Whether a value is the one that asks for nothing."""
    neutral = NEUTRAL[name]
    return not isinstance(value, bool) and value == neutral


def _short(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return brief(value)


def _settings(sorting: _Sorting, problems: list[Problem]) -> Built[SessionSettings] | None:
    try:
        return build(SessionSettings, [Layer("call", sorting.settings)])
    except ParameterError as error:
        problems += [found._replace(value=_short(found.value)) for found in error.problems]
        return None


def _params(
    opening: Opening, model: RealtimeModel, problems: list[Problem]
) -> Built[SamplingParams] | None:
    given, limit = opening.params, model.limits.max_prompt
    prompt = given.get("prompt")
    if isinstance(prompt, str) and len(prompt) > limit:
        message = f"has {len(prompt)} characters; the limit is {limit}."
        problems.append(problem("prompt", prompt, message))
    layers = [Layer("call", given, spelled=opening.spelled), model.facts.preset_layer]
    try:
        return build(model.params_class, layers)
    except ParameterError as error:
        problems += [found._replace(value=_short(found.value)) for found in error.problems]
        return None


def _first_frame(value: Any, model: RealtimeModel, problems: list[Problem]) -> bytes | str | None:
    name = "first_frame"
    adapter = model.adapter
    if value is None and (own := model.facts.picture or model.facts.blank):
        return Path(own).read_bytes()
    if value is None:
        if adapter.needs_first_frame:
            remedy = "Send the bytes of a picture, an http(s) URL or a data: URL."
            problems.append(Problem(name, None, "is required.", remedy, "missing_parameter"))
        return None
    if not model.params_class.takes_image and not adapter.needs_first_frame:
        message, remedy = "is not taken by this model.", "Leave it out."
        problems.append(Problem(name, None, message, remedy, _UNSUPPORTED))
        return None
    if isinstance(value, bytes) and value:
        return value
    if isinstance(value, str) and value.lower().startswith(("http://", "https://", "data:image")):
        return value
    message = "must be the bytes of a picture, an http(s) URL or a data:image URL."
    problems.append(problem(name, _short(value), message, "Paths of the server are not read."))
    return None


def check_adapter(model: RealtimeModel | None, name: str) -> RealtimeModel:
    """Raise `FeatureError` when the served model has no realtime sessions."""
    if model is None:
        raise FeatureError(
            f"the model {name!r} has no realtime sessions.",
            remedy="GET /v1/models tells what it can do.",
        )
    return model
