"""Who is given another chance when an engine is lost: pure bookkeeping."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgld.engine.executors.ledger import LAST, LIVES, WAITS, Ledger
from sgld.messages import Event, Request


def requests(*ids: str) -> list[Request]:
    return [Request(id, {}, (1,)) for id in ids]


def taken(ledger: Ledger) -> list[str]:
    return [request.id for request in ledger.take()]


def story(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.request_id) for event in events]


def started(ledger: Ledger, *ids: str) -> None:
    for id in ids:
        assert ledger.note(Event("started", id)) is not None


def test_requests_go_out_once_in_order() -> None:
    ledger = Ledger()
    assert story(ledger.add(requests("a", "b"))) == [("queued", "a"), ("queued", "b")]
    assert taken(ledger) == ["a", "b"]
    ledger.add(requests("c"))
    assert taken(ledger) == ["c"]
    assert taken(ledger) == []


def test_an_open_id_is_refused_and_nothing_is_taken_in() -> None:
    ledger = Ledger()
    ledger.add(requests("a"))
    for batch in (("b", "a"), ("c", "d", "c")):
        with pytest.raises(ValueError, match=batch[-1]):
            ledger.add(requests(*batch))
    assert len(ledger) == 1
    ledger.note(Event("done", "a"))
    assert story(ledger.add(requests("a"))) == [("queued", "a")]


def test_the_engines_own_queued_and_strangers_are_not_passed_on() -> None:
    ledger = Ledger()
    ledger.add(requests("a"))
    assert ledger.note(Event("queued", "a")) is None
    assert ledger.note(Event("step", "stranger")) is None
    assert ledger.note(Event("failed", "a")) is not None
    assert ledger.note(Event("done", "a")) is None


def test_a_running_request_is_queued_again_and_a_waiting_one_just_waits() -> None:
    ledger = Ledger()
    ledger.add(requests("runs", "waits", "later"))
    ledger.take()
    started(ledger, "runs")
    assert story(ledger.lose("x")) == [("queued", "runs")]
    assert taken(ledger) == ["runs", "waits", "later"]


def test_the_second_loss_while_running_is_the_end() -> None:
    ledger = Ledger()
    ledger.add(requests("a"))
    for loss in range(1, LIVES + 1):
        assert taken(ledger) == ["a"]
        started(ledger, "a")
        events = ledger.lose("it was ended by SIGSEGV")
        assert story(events) == [("queued" if loss < LIVES else "failed", "a")]
    assert events[0].code == "engine_lost"
    assert "SIGSEGV" in events[0].message
    assert len(ledger) == 0


def test_suspects_go_out_one_at_a_time_beside_new_requests() -> None:
    ledger = Ledger()
    ledger.add(requests("a", "b", "c"))
    ledger.take()
    started(ledger, "a", "b", "c")
    ledger.lose("x")
    ledger.add(requests("new"))
    assert taken(ledger) == ["a", "new"]
    started(ledger, "a", "new")
    assert story(ledger.lose("x")) == [("failed", "a"), ("queued", "new")]
    assert taken(ledger) == ["b"]
    assert taken(ledger) == []
    ledger.note(Event("done", "b"))
    assert taken(ledger) == ["c"]


def test_a_request_that_kills_before_it_starts_is_not_tried_for_ever() -> None:
    ledger = Ledger()
    ledger.add(requests("a"))
    for _ in range(WAITS - 1):
        assert taken(ledger) == ["a"]
        assert ledger.lose("x") == []
    ledger.take()
    assert story(ledger.lose("x")) == [("failed", "a")]


def test_no_output_comes_twice() -> None:
    ledger = Ledger()
    ledger.add(requests("a"))
    ledger.take()
    started(ledger, "a")
    assert ledger.note(Event("output", "a", 0)) is not None
    ledger.lose("x")
    ledger.take()
    assert ledger.note(Event("output", "a", 0)) is None
    assert ledger.note(Event("output", "a", 1)) is not None


def test_cancelling() -> None:
    ledger = Ledger()
    ledger.add(requests("here", "there"))
    event, tell = ledger.cancel("here")
    assert (event and event.kind, tell) == ("cancelled", False)
    assert taken(ledger) == ["there"]
    assert ledger.cancel("there") == (None, True)
    assert ledger.cancel("nobody") == (None, False)
    started(ledger, "there")
    assert story(ledger.lose("x")) == [("cancelled", "there")]


def test_the_end_for_all() -> None:
    ledger = Ledger()
    ledger.add(requests("a", "b"))
    events = ledger.end("no device")
    assert [(e.kind, e.code, e.message) for e in events] == [
        ("failed", "engine_lost", "no device")
    ] * 2
    ledger.add(requests("c"))
    assert story(ledger.end()) == [("cancelled", "c")]
    assert len(ledger) == 0


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "start", "done", "output", "cancel", "lose"]),
        st.sampled_from("abcdef"),
    ),
    max_size=80,
)


@given(ACTIONS)
@settings(max_examples=300, deadline=None)
def test_every_request_ends_once_whatever_happens(actions: list[tuple[str, str]]) -> None:
    ledger, told = Ledger(), list[Event]()
    inside: set[str] = set()
    added: Counter[str] = Counter()
    for action, id in actions:
        if action == "add":
            try:
                told += ledger.add(requests(id))
                added[id] += 1
            except ValueError:
                pass
        elif action == "take":
            for name in taken(ledger):
                assert name not in inside
                inside.add(name)
        elif action == "lose":
            told += ledger.lose("x")
            inside.clear()
        elif action == "cancel":
            event, tell = ledger.cancel(id)
            told += [event] if event else []
            assert tell == (id in inside)
        elif id in inside:
            kind = {"start": "started"}.get(action, action)
            event = ledger.note(Event(kind, id))  # pyright: ignore[reportArgumentType]
            told += [event] if event else []
            if kind in LAST:
                inside.discard(id)
    told += ledger.end()
    ends = Counter(event.request_id for event in told if event.kind in LAST)
    assert ends == added
