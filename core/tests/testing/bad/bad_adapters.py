"""Realtime adapters, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from sgld.api import Plugin, RealtimeSpec, hookimpl
from sgld.causal.blocks import Chunk
from sgld.realtime.adapter import Opening, Sampled
from sgld.testing import toy_plugin
from sgld.testing.toy_world_params import TOKENS, ToyWorldAdapter

WORLD = next(spec for spec in toy_plugin.sgld_pipelines() if spec.id == "toy-world")
KNOWN = {"prompt", "width", "height", "num_frames", "num_inference_steps"}


class Bad(NamedTuple):
    """What finds a fault, the adapter, and what its record says."""

    found_by: set[str]
    target: Any
    record: dict[str, Any] = {}  # noqa: RUF012

    @property
    def attributes(self) -> dict[str, Any]:
        """What the test class has beside the id."""
        return {"samples": {"prompt": "it rains", "camera_actions": [["w"], ["w", "a"], ["d"]]}}


class More(ToyWorldAdapter):
    """Gives chunks something beside the toy's controls."""

    def more(self) -> Any:
        return None

    def sample(self, chunk: Chunk) -> Sampled:
        sampled = super().sample(chunk)
        return sampled._replace(controls={**sampled.controls, "more": self.more()})


class Demanding(ToyWorldAdapter):
    @classmethod
    def read_init(cls, init: Mapping[str, Any]) -> Opening:
        return super().read_init({**init, "num_inference_steps": 0})


class Forgetful(ToyWorldAdapter):
    @classmethod
    def read_init(cls, init: Mapping[str, Any]) -> Opening:
        return super().read_init({name: init[name] for name in init if name in KNOWN})


class Tuples(ToyWorldAdapter):
    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        return {**super().read_event(kind, payload), "size": (1, 2)}


class Swallows(ToyWorldAdapter):
    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        if kind == "prompt" and not isinstance(payload, str):
            payload = f"{payload!r}"
        return super().read_event(kind, payload)


class Crashes(ToyWorldAdapter):
    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        return {"prompt": str, "camera_actions": list}[kind] and super().read_event(kind, payload)


class Filters(ToyWorldAdapter):
    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        if kind == "camera_actions" and isinstance(payload, list) and payload:
            levels = [level for level in payload if isinstance(level, list)]
            if len(levels) == len(payload):
                payload = [[token for token in level if _may(token)] for level in levels]
        return super().read_event(kind, payload)


def _may(token: Any) -> bool:
    return not isinstance(token, str) or token in TOKENS.allowed


class Leaves(ToyWorldAdapter):
    newest: ClassVar[Any] = None

    @classmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        cls.newest = payload
        return super().read_event(kind, payload)


class Deaf(ToyWorldAdapter):
    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        if kind != "prompt":
            super().apply(kind, control, event_id)


class Early(ToyWorldAdapter):
    def first_chunk(self, kind: str, control: Mapping[str, Any], next: int) -> int:
        return max(next - 1, 0)


class Odd(More):
    def more(self) -> Any:
        return (1, 2)


class Resets(ToyWorldAdapter):
    def sample(self, chunk: Chunk) -> Sampled:
        before = self._newest
        sampled = super().sample(chunk)
        return sampled if self._newest != before else sampled._replace(event_id=None)


class Talks(More):
    count: ClassVar[int] = 0

    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        super().apply(kind, control, event_id)
        Talks.count += 1

    def more(self) -> Any:
        return self.count


class Omits(ToyWorldAdapter):
    def dump(self) -> Mapping[str, Any]:
        return {**super().dump(), "prompt": self.params.prompt}

    def load(self, values: Mapping[str, Any]) -> None:
        prompt = self._prompt
        super().load(values)
        self._prompt = prompt


class Aliases(More):
    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.log: list[Any] = []

    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        super().apply(kind, control, event_id)
        self.log.append(kind)

    def more(self) -> Any:
        return list(self.log)

    def dump(self) -> Mapping[str, Any]:
        return {**super().dump(), "log": self.log}

    def load(self, values: Mapping[str, Any]) -> None:
        super().load(values)
        self.log = list(values["log"])


class Ratchet(More):
    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.count = 0

    def more(self) -> Any:
        self.count += 1
        return self.count

    def dump(self) -> Mapping[str, Any]:
        return {**super().dump(), "count": self.count}

    def load(self, values: Mapping[str, Any]) -> None:
        super().load(values)
        self.count = max(self.count, values["count"])


class Twice(ToyWorldAdapter):
    inside = False

    def sample(self, chunk: Chunk) -> Sampled:
        if chunk.index == 1 and not self.inside:
            self.inside = True
            self.sample(chunk)
            self.inside = False
        return super().sample(chunk)


class Heavy(ToyWorldAdapter):
    """The same, in a module that imports torch."""


# Without parameters there is no session: whatever opens one finds this fault as well.
SESSIONS = {
    "test_init_is_read", "test_bad_event_is_refused_and_the_session_lives",
    "test_events_take_effect", "test_first_chunk_is_not_over", "test_controls_are_json",
    "test_event_ids_only_grow", "test_sessions_are_isolated", "test_dump_and_load_give_the_same",
    "test_dump_is_a_copy", "test_rewind_takes_controls_back", "test_session_runs",
}  # fmt: skip
BAD: dict[str, Bad] = {
    "other-events": Bad({"test_record_fits_the_adapter"}, ToyWorldAdapter, {"events": ("prompt",)}),
    "heavy": Bad({"test_needs_no_torch"}, "bad_heavy:Heavy"),
    "demanding": Bad(SESSIONS, Demanding),
    "forgetful": Bad({"test_unknown_init_field_is_refused"}, Forgetful),
    "tuples": Bad({"test_events_are_read"}, Tuples),
    "swallows": Bad({"test_bad_event_is_refused_and_the_session_lives"}, Swallows),
    "crashes": Bad({"test_unknown_kind_is_refused"}, Crashes),
    "filters": Bad({"test_unknown_action_is_refused"}, Filters),
    "leaves": Bad({"test_reading_leaves_no_trace"}, Leaves),
    "deaf": Bad({"test_events_take_effect"}, Deaf),
    "early": Bad({"test_first_chunk_is_not_over"}, Early),
    "odd": Bad({"test_controls_are_json"}, Odd),
    "resets": Bad({"test_event_ids_only_grow"}, Resets),
    "talks": Bad({"test_sessions_are_isolated"}, Talks),
    "omits": Bad({"test_dump_and_load_give_the_same"}, Omits),
    "aliases": Bad({"test_dump_is_a_copy"}, Aliases),
    "ratchet": Bad({"test_rewind_takes_controls_back"}, Ratchet),
    "twice": Bad({"test_session_runs"}, Twice),
}
GOOD = {"good": Bad(set(), ToyWorldAdapter)}


@hookimpl
def sgld_plugin() -> Plugin:
    contracts = {"pipeline": 1, "realtime": 1}
    return Plugin("bad-adapters", contracts=contracts, summary="One fault each")


@hookimpl
def sgld_pipelines() -> Any:
    yield WORLD


@hookimpl
def sgld_realtime() -> Any:
    for name, bad in {**BAD, **GOOD}.items():
        target = bad.target
        if not isinstance(target, str):
            globals()[f"adapter_{name}".replace("-", "_")] = target
            target = f"{__name__}:adapter_{name}".replace("-", "_")
        said = {"events": ("camera_actions", "prompt"), **bad.record}
        yield RealtimeSpec(id=name, pipeline="toy-world", target=target, **said)
