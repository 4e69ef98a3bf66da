"""The engine's keeper inside the child: memory, recovery, what cannot be sent. No process here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sgld.api.errors import DeviceError, ParameterError, Problem
from sgld.engine.executors.tended import TendedEngine
from sgld.engine.faults import as_request_error
from sgld.messages import Event, Output, Request
from sgld.platforms.cpu import CpuPlatform

FRAMES = np.zeros((1, 2, 2, 3), np.uint8)


class FakeWire:
    """Keeps what is sent; may refuse."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.refuse: Callable[[dict[str, Any]], Exception | None] = lambda _: None

    def send(self, message: dict[str, Any]) -> None:
        error = self.refuse(message)
        if error is not None:
            raise error
        self.sent.append(message)

    @property
    def events(self) -> list[Event]:
        return [message["event"] for message in self.sent if message["kind"] == "event"]

    @property
    def memories(self) -> int:
        return sum(message["kind"] == "memory" for message in self.sent)


class FakeEngine:
    """Emits what it is told in its next turn."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self.emit = emit
        self.next: list[Event] = []
        self.refuses: Exception | None = None

    def submit(self, request: Request) -> None:
        if self.refuses is not None:
            raise self.refuses

    def cancel(self, request_id: str) -> bool:
        return True

    def turn(self) -> bool:
        events, self.next = self.next, []
        for event in events:
            self.emit(event)
        return bool(events)

    def close(self) -> None: ...


class CountingPlatform(CpuPlatform):
    """Counts what gives memory back; may be broken."""

    emptied = 0
    broken: Exception | None = None

    def synchronise(self) -> None:
        if self.broken is not None:
            raise self.broken

    def empty_cache(self) -> None:
        self.emptied += 1


Parts = tuple[TendedEngine, FakeWire, FakeEngine, CountingPlatform]


@pytest.fixture
def parts() -> Parts:
    wire, platform = FakeWire(), CountingPlatform()
    tended = TendedEngine(wire, platform, "")  # pyright: ignore[reportArgumentType]
    engine = FakeEngine(tended.emit)
    tended.engine = engine
    return tended, wire, engine, platform


def test_memory_is_told_after_each_end_and_now_and_then(parts: Parts) -> None:
    tended, wire, engine, _ = parts
    engine.next = [Event("started", "a"), Event("step", "a", step=1)]
    assert tended.turn()
    assert wire.memories == 0
    engine.next = [Event("done", "a")]
    tended.turn()
    assert wire.memories == 1
    assert not tended.turn()
    tended.report_memory(at_most_every=60)
    assert wire.memories == 1
    tended.report_memory(at_most_every=0)
    assert wire.memories == 2


def test_after_a_failure_memory_is_given_back_once(parts: Parts) -> None:
    tended, wire, engine, platform = parts
    engine.next = [Event("failed", "a", code="out_of_memory", message="Too much.")]
    tended.turn()
    tended.turn()
    assert platform.emptied == 1
    assert wire.events[0].message.startswith("Too much. Without this request ")
    assert wire.events[0].message.endswith("GiB are free.")
    engine.next = [Event("done", "b")]
    tended.turn()
    assert platform.emptied == 1


def test_a_broken_device_is_no_failure_of_one_request(parts: Parts) -> None:
    tended, wire, engine, platform = parts
    platform.broken = RuntimeError("CUDA error: device-side assert triggered\nFor debugging ...")
    engine.next = [Event("failed", "a", code="stage_failed")]
    with pytest.raises(DeviceError, match=r"assert triggered$"):
        tended.turn()
    assert [event.kind for event in wire.events] == ["failed"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ParameterError([Problem("width", 3, "is wrong.")]), "invalid_parameter"),
        (ValueError("odd"), "internal_error"),
    ],
)
def test_a_refused_request_fails_alone(parts: Parts, error: Exception, code: str) -> None:
    tended, wire, engine, _ = parts
    engine.refuses = error
    tended.submit(Request("a", {}, (1,)))
    assert [(e.kind, e.request_id, e.code) for e in wire.events] == [("failed", "a", code)]


def test_a_result_that_cannot_be_sent_fails_its_request(parts: Parts) -> None:
    tended, wire, engine, _ = parts
    wire.refuse = lambda message: (
        OSError("no memory") if message["kind"] == "event" and message["event"].output else None
    )
    output = Output(0, 1, "image", FRAMES, 0, {})
    engine.next = [Event("output", "a", output=output)]
    tended.turn()
    assert [(e.kind, e.code) for e in wire.events] == [("failed", "internal_error")]
    assert "no memory" in wire.events[0].message


def test_the_end_of_a_stage_rides_with_the_next_event_and_says_when_it_was(parts: Parts) -> None:
    tended, wire, engine, _ = parts
    before = time.time()
    engine.next = [Event("stage", "a", stage="prompt"), Event("stage", "b", stage="decode")]
    tended.turn()
    after = time.time()
    assert wire.sent == []
    engine.next = [Event("step", "a", step=1), Event("done", "a")]
    tended.turn()
    first, last = (message for message in wire.sent if message["kind"] == "event")
    assert [(e.kind, e.request_id, e.stage) for e in first["before"]] == [
        ("stage", "a", "prompt"),
        ("stage", "b", "decode"),
    ]
    assert all(before <= event.at <= after for event in first["before"])
    assert (first["event"].kind, last["event"].kind, last["before"]) == ("step", "done", [])


def test_stages_are_told_although_the_result_cannot_be_sent(parts: Parts) -> None:
    tended, wire, engine, _ = parts
    wire.refuse = lambda message: OSError("no memory") if message["event"].output else None
    output = Output(0, 1, "image", FRAMES, 0, {})
    engine.next = [Event("stage", "a", stage="decode"), Event("output", "a", output=output)]
    tended.turn()
    assert [(e.kind, e.code) for e in wire.events] == [("failed", "internal_error")]
    assert [e.stage for e in wire.sent[0]["before"]] == ["decode"]


def test_a_parent_that_is_gone_ends_the_drive(parts: Parts) -> None:
    tended, wire, engine, _ = parts
    wire.refuse = lambda _: BrokenPipeError()
    engine.next = [Event("started", "a")]
    with pytest.raises(BrokenPipeError):
        tended.turn()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 185.49 GiB. GPU 0 has a total capacity of "
                "139.80 GiB of which 123.57 GiB is free. Including non-PyTorch memory, this "
                "process has 16.22 GiB memory in use. If reserved but unallocated memory is large "
                "try setting PYTORCH_ALLOC_CONF"
            ),
            "stage decode needs more memory than there is. Tried to allocate 185.49 GiB. GPU 0 has "
            "a total capacity of 139.80 GiB of which 123.57 GiB is free. Try a smaller size",
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 4000000000000000 bytes. Error code 12"
            ),
            "needs more memory than there is. Tried to allocate 3725290.30 GiB of host memory. Try",
        ),
        (MemoryError("no room"), "needs more memory than there is. no room Try a smaller"),
    ],
)
def test_exhaustion_says_what_was_asked_and_what_was_free(error: Exception, text: str) -> None:
    cause = as_request_error(error, "decode")
    assert cause.code == "out_of_memory"
    assert text in str(cause)
    assert "CONF" not in str(cause)
    assert "--residency" in str(cause)
