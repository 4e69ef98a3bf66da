"""How a realtime adapter reads what clients send: all of it or nothing, and without a trace."""

from __future__ import annotations

import sys
from typing import Any, Final

from sgld.api.errors import ParameterError
from sgld.engine.causal import CausalPipeline
from sgld.plugins.catalog import load_target
from sgld.realtime.adapter import RealtimeAdapter
from sgld.testing.conformance.base import broken, expect
from sgld.testing.conformance.realtime_base import OfAdapter, is_json
from sgld.testing.describing import described_apart
from sgld.testing.isolated import found_plugin
from sgld.testing.live import Live

FIELD: Final = "sgld_no_such_field"
WORD: Final = "sgld-no-such-thing"
RUBBISH: Final = (
    None,
    17,
    "",
    [17],
    [[17]],
    {FIELD: 1},
    {"mode": FIELD},
    [{FIELD: []}],
    float("nan"),
)
"""Payloads of which no kind takes all; each is refused, or read, and nothing else happens."""


class Reading(OfAdapter):
    """Init messages and events, right and wrong."""

    def test_record_fits_the_adapter(self) -> None:
        """The record names an adapter, its events, and a pipeline that has a memory."""
        entry, catalog = self.entry(), self.catalog()
        adapter = self.target()
        expect(
            isinstance(adapter, type) and issubclass(adapter, RealtimeAdapter),
            expected=f"{entry.spec.target} is a RealtimeAdapter",
            got=repr(adapter),
            remedy="Derive it from sgld.realtime.adapter.RealtimeAdapter.",
        )
        expect(
            set(entry.spec.events) == set(adapter.events),
            expected=f"events of the record: {sorted(adapter.events)}",
            got=sorted(entry.spec.events),
            remedy="Make `events` of record and adapter equal.",
        )
        owner = catalog.pipelines.get(entry.spec.pipeline)
        pipeline = None if owner is None else load_target(owner.spec.target, owner)
        expect(
            isinstance(pipeline, type) and issubclass(pipeline, CausalPipeline),
            expected=f"pipeline {entry.spec.pipeline!r} is a CausalPipeline",
            got=repr(pipeline),
            remedy="Name the pipeline of this plugin, or of one that it `needs`.",
        )

    def test_needs_no_torch(self) -> None:
        """The HTTP process imports it."""
        entry = self.entry()
        found = found_plugin(self.plugin or entry.plugin)
        module = f"{entry.spec.target.partition(':')[0]}:adapter"
        seen = described_apart(tuple(found), (module,), tuple(sys.path))
        expect(
            not seen.heavy,
            expected=f"{entry.spec.target} is imported without torch",
            got=f"it imports {', '.join(seen.heavy.get(module, ()))}",
            remedy="Put the adapter into a module of its own.",
        )

    def test_init_is_read(self, live: Live) -> None:
        """The init message gives valid parameters of the family."""
        try:
            live.params()
        except ParameterError as error:
            broken(
                expected=f"an init message {dict(live.init)} is taken",
                got=str(error),
                remedy="Set `init` in the test class, or mend `read_init`.",
            )

    def test_unknown_init_field_is_refused(self, live: Live) -> None:
        """A field that nobody knows is named, not lost."""
        try:
            params = live.params(**{FIELD: 1})
        except ParameterError as error:
            expect(
                FIELD in str(error),
                expected=f"a refusal that names {FIELD!r}",
                got=str(error),
                remedy="Raise ParameterError with a Problem for each field.",
            )
            return
        broken(
            expected=f"init with {FIELD}=1 is refused",
            got=f"it is taken: {params!r:.80}",
            remedy="Hand on to `Opening.params` what `read_init` does not take itself.",
        )

    def test_events_are_read(self, live: Live) -> None:
        """Each kind of event has a sample here, and is read as JSON values."""
        missing = sorted(set(live.adapter.events) - set(self.samples))
        expect(
            not missing,
            expected="a sample of every kind of event",
            got=f"none of {', '.join(missing)}",
            remedy="Add a payload that takes effect to `samples` of the test class.",
        )
        for kind, payload in self.samples.items():
            control = live.adapter.read_event(kind, payload)
            expect(
                is_json(control),
                expected=f"{kind}: a control of JSON values",
                got=f"{control!r:.100}",
                remedy="Lists, not tuples; texts, numbers and maps with texts as keys.",
            )

    def test_bad_event_is_refused_and_the_session_lives(self, live: Live) -> None:
        """What is no event is refused by name; it changes nothing for the session."""
        untouched, name = live.open(), live.open()
        for kind in live.adapter.events:
            for payload in RUBBISH:
                reason = _reason(live, kind, payload)
                expect(
                    reason or payload != {FIELD: 1},
                    expected=f"{kind}: payload {payload!r} is refused",
                    got="it is read",
                    remedy="Take known fields only, and raise ParameterError for others.",
                )
        self._expect_same(
            live.steps(untouched, 1),
            live.steps(name, 1),
            "chunks after refused events",
            "`read_event` is all or nothing, and keeps nothing.",
        )

    def test_unknown_kind_is_refused(self, live: Live) -> None:
        """A kind of event that it does not know is refused, and it says which there are."""
        try:
            live.adapter.read_event(WORD, None)
        except ParameterError as error:
            expect(
                all(kind in str(error) for kind in live.adapter.events),
                expected=f"a refusal that names {', '.join(live.adapter.events)}",
                got=str(error),
                remedy='Problem("kind", kind, f"must be one of {known}.")',
            )
            return
        except Exception as error:
            broken(
                expected="ParameterError for an unknown kind of event",
                got=f"{type(error).__name__}: {error}",
                remedy="Check the kind before the payload.",
            )
        broken(
            expected="an unknown kind of event is refused",
            got="it is read",
            remedy="Raise ParameterError for kinds that are not in `events`.",
        )

    def test_unknown_action_is_refused(self, live: Live) -> None:
        """Where an event is a list of actions, one that does not exist is named."""
        for kind, payload in self.samples.items():
            if not _is_script(payload):
                continue
            reason = _reason(live, kind, [*payload, [WORD]])
            expect(
                WORD in reason,
                expected=f"{kind}: the action {WORD!r} is refused by its name",
                got=reason or "it is read",
                remedy="`sgld.realtime.controls.read_actions` does that.",
            )

    def test_reading_leaves_no_trace(self, live: Live) -> None:
        """Reading an init or an event changes nothing: these methods serve every session, before
        one is open and after it is closed."""
        before = _traces(live.adapter)
        live.opening()
        for kind, payload in self.samples.items():
            live.adapter.read_event(kind, payload)
        after = _traces(live.adapter)
        changed = sorted(name for name in before | after if before.get(name) != after.get(name))
        expect(
            not changed,
            expected="class attributes that reading leaves alone",
            got=f"changed: {', '.join(changed)}",
            remedy="Give what was read back; an instance takes it in `apply`.",
        )


def _is_script(payload: Any) -> bool:
    """Whether an event is a list with a list of actions per control step."""
    levels = isinstance(payload, list) and all(isinstance(level, list) for level in payload)
    return levels and all(isinstance(token, str) for level in payload for token in level)


def _reason(live: Live, kind: str, payload: Any) -> str:
    """Why an event is refused; empty when it is read. Fails for any other exception."""
    __tracebackhide__ = True
    try:
        live.adapter.read_event(kind, payload)
    except ParameterError as error:
        return str(error)
    except Exception as error:
        broken(
            expected=f"{kind}: payload {payload!r} is read, or refused with a ParameterError",
            got=f"{type(error).__name__}: {error}",
            remedy="Check the type of everything that a client sends.",
        )
    return ""


def _traces(adapter: type[RealtimeAdapter]) -> dict[str, str]:
    """The class attributes of an adapter and its bases, as text."""
    found: dict[str, str] = {}
    for cls in adapter.__mro__[:-1]:
        if cls is RealtimeAdapter or cls.__module__ == "abc":
            continue
        plain = {name: v for name, v in vars(cls).items() if not name.startswith("__")}
        found.update({f"{cls.__name__}.{name}": repr(v) for name, v in plain.items()})
    return found
