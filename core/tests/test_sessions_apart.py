"""Sessions in an engine of another process, and from Python."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sgld
from sgld.api.errors import FeatureError, ParameterError, RequestError, SgldError
from sgld.engine.executors.child import ChildExecutor
from sgld.engine.executors.session_ledger import SessionLedger, refused_without_engine
from sgld.engine.executors.tended import TendedEngine
from sgld.model import Model
from sgld.params.serving import ServingOptions
from sgld.platforms.cpu import CpuPlatform
from sgld.realtime.messages import SessionCommand, SessionOptions, SessionReport, SessionRequest
from sgld.testing.toy_checkpoint import write_image, write_world
from sgld.testing.toy_world_params import ToyWorldParams

PLUGIN = "SGLD_EXTERNAL_MODEL_PACKAGE"
TOY = "sgld.testing.toy_plugin"
WALK = [["w"], ["d"], ["s"]]
SMALL = {"prompt": "a hill", "num_inference_steps": 2}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "world"
    write_world(folder)
    return folder


@pytest.fixture(scope="module")
def model(world: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGIN, TOY)
        with sgld.load(str(world), device="cpu") as made:
            yield made


class Apart:
    """A child engine and what it told."""

    def __init__(self, world: Path) -> None:
        options = ServingOptions.model_validate({"model_path": str(world), "device": "cpu"})
        environ = {**os.environ, PLUGIN: TOY, "OMP_NUM_THREADS": "1"}
        self.executor = ChildExecutor(options, environ=environ, first_delay=0.05)
        self.numbers = itertools.count(1)
        self.reports: list[SessionReport] = []

    def ready(self) -> None:
        end = time.monotonic() + 60
        while self.executor.state.status != "ready":
            assert time.monotonic() < end, self.executor.state
            self.read(0.05)

    def read(self, timeout: float) -> None:
        told = self.executor.next_event(timeout)
        if isinstance(told, SessionReport):
            self.reports.append(told)

    def send(self, id: str, kind: Any, /, **values: Any) -> int:
        number = next(self.numbers)
        self.executor.command(SessionCommand(id, kind, number, values))
        return number

    def until(self, true: Callable[[SessionReport], bool], seconds: float = 60) -> SessionReport:
        """The first report for which this holds, of those to come and those that came."""
        end, place = time.monotonic() + seconds, 0
        while True:
            for report in self.reports[place:]:
                if true(report):
                    return report
            place = len(self.reports)
            assert time.monotonic() < end, self.reports[-3:]
            self.read(1.0)

    def ask(self, id: str, kind: Any, /, **values: Any) -> SessionReport:
        number = self.send(id, kind, **values)
        wanted = (id, number, "opened" if kind == "open" else "answer")
        return self.until(lambda row: (row.session_id, row.number, row.kind) == wanted)

    def open(self, id: str, **more: Any) -> SessionReport:
        options = SessionOptions(free_running=False, rewind_chunks=2)
        params = ToyWorldParams(**SMALL).model_dump(mode="json")
        request = SessionRequest(id, "toy-world", params, 7, options=options)
        return self.ask(id, "open", request=replace(request, **more))

    def step(self, id: str) -> SessionReport:
        wanted = self.ask(id, "step").values["chunk"]
        before = len(self.reports)
        chunk = self.until(
            lambda row: row.session_id == id and row.kind == "chunk" and row.chunk == wanted
        )
        self.send(id, "taken", chunk=wanted)
        del self.reports[:before]
        self.reports = [row for row in self.reports if row is not chunk]
        return chunk


@pytest.fixture(scope="module")
def apart(world: Path) -> Iterator[Apart]:
    made = Apart(world)
    refused = made.open("early")
    assert (refused.code, refused.kind) == ("not_ready", "opened")
    made.ready()
    yield made
    assert not made.open("last").code
    made.executor.close()
    closed = made.until(lambda row: row.session_id == "last" and row.kind == "closed")
    assert closed.code in ("cancelled", "engine_lost")
    with pytest.raises(SgldError, match="closed"):
        made.send("last", "step")


@pytest.mark.multi_process
def test_an_engine_apart_makes_the_same_chunks(apart: Apart, model: Model) -> None:
    facts = apart.open("a").values
    with model.session(**SMALL, seed=7, free_running=False) as here:
        assert here.facts["bytes"] == facts["bytes"]
        for number in range(3):
            if number == 1:
                control = {"actions": WALK}
                apart.ask("a", "event", kind="camera_actions", control=control, event_id=4)
                here.send("camera_actions", WALK, 4)
            there, chunk = apart.step("a"), here.step()
            assert (there.chunk, there.event_id) == (chunk.index, chunk.event_id)
            assert np.array_equal(there.frames, chunk.frames)
        data = apart.ask("a", "snapshot").values["snapshot"]
        assert isinstance(data, bytes)
        assert len(data) > 16 * 1024
        with model.session(snapshot=data) as later:
            assert np.array_equal(later.step().frames, here.step().frames)
        saved = here.snapshot()
    assert not apart.open("b", snapshot=saved).code
    apart.step("a")
    assert np.array_equal(apart.step("b").frames, apart.step("a").frames)
    assert apart.ask("a", "rewind", to=4).values["chunk"] == 4
    assert apart.ask("a", "fork", id="c").values == {"id": "c", "chunk": 4}
    for id in "abc":
        apart.ask(id, "close")
        assert apart.until(lambda r, id=id: r.session_id == id and r.kind == "closed").code == ""
    assert apart.ask("a", "step").code == "session_not_found"


@pytest.mark.multi_process
def test_sessions_end_with_a_lost_engine(apart: Apart) -> None:
    assert not apart.open("d").code
    request = SessionRequest(
        "e", "toy-world", ToyWorldParams(**SMALL, exit_at_step=2).model_dump(mode="json"), 1
    )
    apart.ask("e", "open", request=request)
    for id in "de":
        closed = apart.until(lambda row, id=id: row.session_id == id and row.kind == "closed")
        assert (closed.code, closed.values["reason"]) == ("engine_lost", "failed")
    apart.ready()
    assert apart.ask("d", "step").code == "session_not_found"
    assert not apart.open("d").code


def test_a_session_from_python(model: Model) -> None:
    with model.session(**SMALL, seed=3, rewind_chunks=3, max_chunks=6) as session:
        first = [session.step() for _ in range(3)]
        assert [chunk.index for chunk in first] == [0, 1, 2]
        assert first[1].bytes <= session.facts["bytes"]
        session.rewind(2)
        again = [session.step() for _ in range(2)]
        assert all(
            np.array_equal(a.frames, b.frames) for a, b in zip(first[1:], again, strict=True)
        )
        other = session.fork()
        assert np.array_equal(other.step().frames, session.step().frames)
        other.close()
        other.close()
        with pytest.raises(RequestError, match="ended"):
            other.step()
        session.reset()
        rest = [chunk.index for chunk in session]
        assert rest == list(range(6))
        assert session.closed
        with pytest.raises(RequestError, match="ended"):
            session.step()


def test_a_session_that_runs_on_its_own(model: Model) -> None:
    options: Any = {"free_running": True, "max_chunks": 6, "rewind_chunks": 6, "queue_chunks": 4}
    with model.session(**SMALL, seed=3, **options) as session:
        first = [session.step(), session.step()]
        session.pause()
        session.rewind(1)
        session.resume()
        rest = list(session)
        assert [chunk.index for chunk in rest] == [1, 2, 3, 4, 5]
        assert np.array_equal(rest[0].frames, first[1].frames)


def test_what_python_asks_wrongly_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="prompt"):
        model.session(seed=1)
    with pytest.raises(ParameterError, match="realtime_causal_sink_size"):
        model.session(**SMALL, realtime_causal_sink_size=6)
    with pytest.raises(SgldError) as damaged:
        model.session(snapshot=b"nonsense")
    assert damaged.value.code == "snapshot_damaged"
    with model.session(**SMALL) as session:
        with pytest.raises(ParameterError, match="camera_actions"):
            session.send("camera_actions", [["W"]])
        with pytest.raises(ParameterError, match="chunks=1"):
            session.rewind(1)
        assert session.step().index == 0
    write_image(tmp_path / "image")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGIN, TOY)
        other = sgld.load(str(tmp_path / "image"), device="cpu")
    with other, pytest.raises(FeatureError, match="no realtime sessions"):
        other.session(prompt="x")


def test_a_failing_session_raises_its_code(model: Model) -> None:
    with model.session(**SMALL, fail_at_chunk=2) as session:
        session.step()
        with pytest.raises(RequestError, match="told to fail") as failed:
            session.step()
        assert failed.value.code == "stage_failed"


def test_busy_is_an_error_of_its_own(world: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGIN, TOY)
        with sgld.load(str(world), device="cpu", max_sessions=1) as model:
            with model.session(**SMALL), pytest.raises(RequestError, match="max-sessions") as busy:
                model.session(**SMALL)
            assert busy.value.code == "busy"
            with model.session(**SMALL) as again:
                again.step()


def test_several_threads_have_sessions_of_one_model(model: Model) -> None:
    frames: dict[int, bytes] = {}

    def run(seed: int) -> None:
        with model.session(**SMALL, seed=seed % 2) as session:
            frames[seed] = b"".join(session.step().frames.tobytes() for _ in range(3))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    made = model.generate(prompt="a hill", num_frames=3, seed=1)
    for thread in threads:
        thread.join(60)
    assert not isinstance(made, list)
    assert frames[0] == frames[2] != frames[1] == frames[3]


def test_the_ledger_of_sessions() -> None:
    ledger = SessionLedger()
    for number, id in enumerate("abc", 1):
        ledger.ask(SessionCommand(id, "open", number))
    ledger.ask(SessionCommand("x", "step", 9))
    assert ledger.note(SessionReport("a", "opened", 1)) is not None
    assert ledger.note(SessionReport("b", "opened", 2, code="busy")) is not None
    assert ledger.note(SessionReport("a", "opened", 5, code="session_exists")) is not None
    assert ledger.note(SessionReport("f", "opened", 6)) is not None
    assert ledger.note(SessionReport("f", "closed")) is not None
    assert ledger.note(SessionReport("f", "closed")) is None
    assert len(ledger) == 2
    lost = {row.session_id: (row.kind, row.number, row.code) for row in ledger.lose("it fell")}
    assert lost == {"a": ("closed", 0, "engine_lost"), "c": ("opened", 3, "engine_lost")}
    assert len(ledger) == 0
    assert ledger.lose("again") == []


@pytest.mark.parametrize(
    ("kind", "number", "status", "code"),
    [
        ("open", 1, "loading", "not_ready"),
        ("open", 1, "failed", "engine_lost"),
        ("step", 1, "loading", "session_not_found"),
        ("close", 1, "restarting", "session_not_found"),
        ("event", 1, "loading", "session_not_found"),
        ("event", 0, "loading", None),
        ("taken", 1, "loading", None),
    ],
)
def test_without_an_engine_commands_are_refused(
    kind: Any, number: int, status: str, code: str | None
) -> None:
    report = refused_without_engine(SessionCommand("a", kind, number), status)
    assert (report and report.code) == code


class FullWire:
    """Takes no frames, as when there is no memory for them."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: dict[str, Any]) -> None:
        report = message["report"]
        if report.frames is not None or "snapshot" in report.values:
            raise OSError("no memory left")
        self.sent.append(report)


def test_what_cannot_be_handed_over_is_told() -> None:
    wire = FullWire()
    tended = TendedEngine(wire, CpuPlatform(), "")  # pyright: ignore[reportArgumentType]
    tended.emit(SessionReport("a", "answer", 3, values={"snapshot": b"x"}))
    assert [(row.kind, row.number, row.code) for row in wire.sent] == [
        ("answer", 3, "internal_error")
    ]
    with pytest.raises(SgldError, match="no memory left"):
        tended.emit(SessionReport("a", "chunk", frames=np.zeros((1, 2, 2, 3), np.uint8)))


@pytest.mark.parametrize(
    ("field", "value"),
    [("rewind_chunks", -1), ("rewind_chunks", True), ("max_chunks", 0), ("queue_chunks", 0),
     ("on_full", "wait"), ("first_frame", np.zeros((4, 4), np.uint8)), ("camera", 3)],
)  # fmt: skip
def test_a_wrong_session_is_refused_by_field(model: Model, field: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        model.session(**SMALL, **{field: value})


def test_going_back_too_far_is_refused(model: Model) -> None:
    with model.session(**SMALL, seed=3, rewind_chunks=3) as session:
        with pytest.raises(ParameterError, match="chunks"):
            session.rewind(1)
        session.step()
        for chunks in (0, -1, 2):
            with pytest.raises(ParameterError, match="from 1 to 1"):
                session.rewind(chunks)


def test_a_session_may_be_closed_after_its_model(world: Path) -> None:
    with sgld.load(str(world), device="cpu") as model:
        session = model.session(**SMALL, seed=3)
        session.step()
    session.close()
    session.close()
