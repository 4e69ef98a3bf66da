"""The supervisor against engine processes that misbehave in every way; these fakes start fast."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sgld.api.errors import SgldError
from sgld.engine.executors import child, process
from sgld.engine.executors.child import ChildExecutor
from sgld.engine.executors.folder import PREFIX, OwnedFolder
from sgld.engine.executors.process import describe_exit
from sgld.engine.executors.state import EngineState
from sgld.messages import Event, Request
from sgld.params.serving import ServingOptions

pytestmark = pytest.mark.multi_process

WORKER = """
import json, os, pathlib, socket, sys, time
import numpy as np
from sgld.engine.executors.wire import Wire
from sgld.messages import Event, Output

MEMORY = {"total": 8, "free": 4, "allocated": 2, "peak": 3}
raw = socket.socket(fileno=int(sys.argv[1]))
wire = Wire(raw)

def tell(kind, id, **fields):
    wire.send({"kind": "event", "event": Event(kind, id, **fields)})

def obey(request):
    word, id = request.params["do"], request.id
    if word == "die on arrival":
        os._exit(5)
    tell("started", id)
    if word == "done" or (word == "die once" and pathlib.Path(request.params["mark"]).exists()):
        frames = np.full((1, 64, 128, 3), request.seeds[0], np.uint8)
        tell("output", id, output=Output(0, request.seeds[0], "image", frames, 0, {}))
        tell("done", id)
    elif word == "die once":
        pathlib.Path(request.params["mark"]).touch()
        os._exit(6)
    elif word == "die":
        os._exit(7)
    elif word == "send garbage":
        raw.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        time.sleep(60)
    elif word == "send nonsense":
        wire.send(request.params["message"])
        time.sleep(60)
    elif word == "give up":
        wire.send({"kind": "lost", "reason": "the device fell off"})
        os._exit(4)
    elif word == "leave a child":
        if os.fork() == 0:
            time.sleep(4)  # holds the socket open after its parent's death
        os._exit(8)

start = wire.receive()
mode = json.loads(start["options"])["model_path"]
(pathlib.Path(start["folder"]) / "checkpoint").mkdir()
marks = pathlib.Path(os.environ["MARKS"])
count = len(list(marks.iterdir()))
(marks / str(count)).touch()
if mode == "die loading":
    os._exit(1)
if mode == "cannot" or (mode == "cannot again" and count):
    wire.send({"kind": "unusable", "reason": "model 'x' is not there."})
    sys.exit(3)
wire.send({"kind": "loading", "component": "vae", "done": 5, "total": 10})
if mode == "load for ever":
    time.sleep(60)
wire.send({"kind": "ready", "memory": MEMORY, "capabilities": {"device": "fake"}})
try:
    while (message := wire.receive())["kind"] != "close":
        if message["kind"] == "submit":
            obey(message["request"])
        elif message["kind"] == "cancel":
            tell("cancelled", message["id"], code="cancelled")
    if mode == "ignore close":
        time.sleep(60)
except EOFError:
    pass
"""


class Scene:
    """A supervised fake and what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: list[EngineState] = []
        self.executor: ChildExecutor
        (folder / "fake_worker.py").write_text(WORKER)

    def start(self, mode: str = "fine", **settings: Any) -> ChildExecutor:
        (self.folder / "marks").mkdir(exist_ok=True)
        self.executor = ChildExecutor(
            ServingOptions.model_validate({"model_path": mode}),
            environ={
                **os.environ,
                "PYTHONPATH": str(self.folder),
                "MARKS": str(self.folder / "marks"),
            },
            on_state=self.states.append,
            **{"first_delay": 0.05, **settings},
        )
        return self.executor

    def submit(self, *words: str, **params: Any) -> None:
        """Requests named after what they do."""
        mark = str(self.folder / "mark")
        self.executor.submit(
            [Request(word, {"do": word, "mark": mark, **params}, (5,)) for word in words]
        )

    def events(self, *last: str, seconds: float = 10.0) -> list[Event]:
        """Events until each of the requests in `last` has ended."""
        found: list[Event] = []
        waiting, until = set(last), time.monotonic() + seconds
        while waiting:
            assert time.monotonic() < until, (waiting, found, self.executor.state)
            event = self.executor.next_event(0.1)
            if event is not None:
                found.append(event)
                if event.kind in ("done", "failed", "cancelled"):
                    waiting.discard(event.request_id)
        return found

    def until(self, true: Callable[[], bool], seconds: float = 10.0) -> None:
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until, self.executor.state
            time.sleep(0.01)

    @property
    def statuses(self) -> list[str]:
        """Statuses in order, without repetitions."""
        words = [state.status for state in self.states]
        return [word for place, word in enumerate(words) if words[place - 1 : place] != [word]]


def traces() -> tuple[set[str], set[str], set[str], int]:
    """What a process may leave behind: descriptors, segments, folders, children."""
    gc.collect()
    fds: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            fds.add(name + os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    folders = set(os.listdir(tempfile.gettempdir()))
    children = sum(
        len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children")
    )
    segments = {name for name in os.listdir("/dev/shm") if name.startswith(("sgld", "psm_"))}
    return fds, segments, folders, children


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(process, "WORKER", "fake_worker")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = traces()
    scene = Scene(tmp_path)
    yield scene
    begin = time.monotonic()
    scene.executor.close()
    assert time.monotonic() - begin < 5
    assert scene.executor.state.status == "stopped"
    assert scene.executor.state.pid is None
    while scene.executor.next_event(0) is not None:
        pass
    assert traces() == before


def kinds(events: list[Event], id: str) -> list[str]:
    return [event.kind for event in events if event.request_id == id]


def test_the_constructor_returns_at_once_and_requests_wait(scene: Scene) -> None:
    begin = time.monotonic()
    scene.start()
    scene.submit("done")
    assert time.monotonic() - begin < 0.1
    assert scene.executor.state.status == "starting"
    events = scene.events("done")
    assert kinds(events, "done") == ["queued", "started", "output", "done"]
    assert events[2].output is not None
    assert events[2].output.frames.shape == (1, 64, 128, 3)
    assert (events[2].output.frames == 5).all()
    assert scene.statuses == ["starting", "loading", "ready"]
    state = scene.executor.state
    assert (state.loading, state.restarts, state.reason) == ({"vae": (5, 10)}, 0, "")
    assert state.device_memory == {"total": 8, "free": 4, "allocated": 2, "peak": 3}
    assert state.capabilities == {"device": "fake"}
    assert state.pid is not None


def test_a_lost_engine_is_started_again_and_its_request_completes(scene: Scene) -> None:
    executor = scene.start()
    scene.submit("die once", "wait")
    events = scene.events("die once")
    assert kinds(events, "die once") == ["queued", "started", "queued", "started", "output", "done"]
    lives = ["starting", "loading", "ready"]
    assert scene.statuses == [*lives, "restarting", *lives]
    restarting = next(state for state in scene.states if state.status == "restarting")
    assert (restarting.pid, restarting.reason) == (None, "it ended with status 6")
    assert executor.state.restarts == 1
    assert len({state.pid for state in scene.states if state.pid}) == 2
    executor.cancel("wait")
    assert kinds(scene.events("wait"), "wait")[-1] == "cancelled"


def test_a_request_that_kills_twice_fails_and_the_others_complete(scene: Scene) -> None:
    scene.start()
    scene.submit("die", "wait", "done")
    events = scene.events("die", "done")
    assert kinds(events, "die") == ["queued", "started", "queued", "started", "failed"]
    failed = next(event for event in events if event.kind == "failed")
    assert failed.code == "engine_lost"
    assert "lost twice" in failed.message
    assert "status 7" in failed.message
    assert kinds(events, "done")[-2:] == ["output", "done"]


def test_a_request_that_kills_on_arrival_is_given_up(scene: Scene) -> None:
    scene.start()
    scene.submit("die on arrival")
    events = scene.events("die on arrival")
    assert kinds(events, "die on arrival") == ["queued", "failed"]
    assert events[-1].code == "engine_lost"
    assert scene.executor.state.restarts <= 4


@pytest.mark.parametrize(
    ("word", "message", "reason"),
    [
        ("send garbage", {}, "what is no message"),
        ("send nonsense", {"kind": "hello"}, "unknown message 'hello'"),
        ("send nonsense", {"kind": "event", "event": 3}, "an event that is none"),
        ("send nonsense", {"kind": "memory"}, "'memory' lacks something"),
        ("send nonsense", {"kind": "memory", "memory": {"free": "x"}}, "'memory' lacks something"),
        ("give up", {}, "the device fell off"),
        ("leave a child", {}, "status 8"),
    ],
)
def test_any_misbehaviour_is_a_lost_engine(
    scene: Scene, word: str, message: dict[str, Any], reason: str
) -> None:
    scene.start()
    scene.submit(word, message=message)
    failed = scene.events(word)[-1]
    assert (failed.kind, failed.code) == ("failed", "engine_lost")
    assert reason in failed.message
    scene.submit("done")
    assert scene.events("done")[-1].kind == "done"


def test_a_kill_is_named(scene: Scene) -> None:
    executor = scene.start()
    scene.submit("wait")
    scene.until(lambda: executor.state.status == "ready")
    assert executor.state.pid is not None
    os.kill(executor.state.pid, signal.SIGKILL)
    scene.until(lambda: executor.state.restarts == 1 and executor.state.status == "ready")
    assert any("SIGKILL, perhaps because" in state.reason for state in scene.states)


def test_a_model_that_cannot_be_loaded_is_not_tried_again(scene: Scene) -> None:
    executor = scene.start("cannot")
    scene.submit("done")
    event = scene.events("done")[-1]
    assert (event.kind, event.code) == ("failed", "engine_lost")
    assert event.message == "The engine is not available: model 'x' is not there."
    assert (executor.state.status, executor.state.reason) == ("failed", "model 'x' is not there.")
    scene.submit("done")
    assert kinds(scene.events("done"), "done") == ["queued", "failed"]
    time.sleep(0.3)
    assert len(list((scene.folder / "marks").iterdir())) == 1


def test_a_restart_that_cannot_load_is_tried_again_up_to_the_limit(scene: Scene) -> None:
    executor = scene.start("cannot again", restart_limit=2)
    scene.submit("die")
    assert scene.events("die")[-1].code == "engine_lost"
    assert executor.state.status == "failed"
    assert len(list((scene.folder / "marks").iterdir())) == 4  # a life, then three attempts


def test_an_engine_that_dies_while_loading_is_given_up_at_the_limit(scene: Scene) -> None:
    executor = scene.start("die loading", restart_limit=2)
    scene.submit("done")
    event = scene.events("done")[-1]
    assert "status 1" in event.message
    assert executor.state.status == "failed"
    assert len(list((scene.folder / "marks").iterdir())) == 3


def test_back_off_doubles_and_health_resets_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = scene.start(first_delay=0.1)

    def die(name: str) -> float:
        executor.submit([Request(name, {"do": "die once", "mark": f"{scene.folder}/{name}"}, (1,))])
        scene.events(name)
        lost = [s for s in scene.states if s.status == "restarting"]
        return gap(scene.states.index(lost[-1]))

    moments: list[float] = []
    scene.executor._on_state = lambda state: (  # pyright: ignore[reportPrivateUsage]
        scene.states.append(state),
        moments.append(time.monotonic()),
    )[0]
    offset = len(scene.states)

    def gap(place: int) -> float:
        return moments[place + 1 - offset] - moments[place - offset]

    delays = [die("a"), die("b"), die("c")]
    assert [round(delay / 0.1) for delay in delays] == [1, 2, 4]
    monkeypatch.setattr(child, "HEALTHY_SECONDS", 0.0)
    assert round(die("d") / 0.1) == 1
    monkeypatch.setattr(child, "HEALTHY_SECONDS", 60.0)
    monkeypatch.setattr(child, "LAST_DELAY", 0.3)
    assert [round(die(name) / 0.1) for name in "efg"] == [2, 3, 3]


def test_a_process_that_cannot_be_started_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(scene.folder / "nothing"))
    executor = scene.start(restart_limit=1)
    scene.until(lambda: executor.state.status == "failed")
    assert "could not be started" in executor.state.reason
    assert scene.statuses == ["restarting", "failed"]


def test_a_request_that_cannot_be_sent_fails_alone(scene: Scene) -> None:
    executor = scene.start()
    executor.submit([Request("odd", {"do": object()}, (1,))])
    scene.submit("done")
    events = scene.events("odd", "done")
    odd = next(event for event in events if event.kind == "failed")
    assert (odd.request_id, odd.code) == ("odd", "internal_error")
    assert executor.state.restarts == 0


def test_an_open_id_is_refused(scene: Scene) -> None:
    scene.start()
    scene.submit("wait")
    with pytest.raises(ValueError, match="already open"):
        scene.submit("wait")


def test_closing_cancels_everything_and_refuses_more(scene: Scene) -> None:
    executor = scene.start("ignore close")
    scene.submit("wait", "wait too")
    scene.until(lambda: executor.state.status == "ready")
    begin = time.monotonic()
    executor.close(timeout=0.3)
    assert 0.2 < time.monotonic() - begin < 2
    events = scene.events("wait", "wait too")
    assert {event.kind for event in events[-2:]} == {"cancelled"}
    with pytest.raises(SgldError, match="closed"):
        scene.submit("done")
    executor.cancel("wait")
    assert executor.next_event(0) is None


@pytest.mark.parametrize("moment", ["starting", "loading", "restarting"])
def test_closing_at_any_moment(scene: Scene, moment: str) -> None:
    executor = scene.start(
        "die loading" if moment == "restarting" else "load for ever", first_delay=30.0
    )
    scene.submit("wait")
    scene.until(lambda: executor.state.status == moment)
    begin = time.monotonic()
    executor.close()
    assert time.monotonic() - begin < 1.5
    assert kinds(scene.events("wait"), "wait") == ["queued", "cancelled"]


def test_a_stopped_process_neither_blocks_submit_nor_close(scene: Scene) -> None:
    executor = scene.start()
    scene.until(lambda: executor.state.status == "ready")
    assert executor.state.pid is not None
    os.kill(executor.state.pid, signal.SIGSTOP)
    begin = time.monotonic()
    executor.submit(
        [Request(str(n), {"do": "done", "text": "x" * 10_000}, (1,)) for n in range(99)]
    )
    executor.cancel("5")
    assert time.monotonic() - begin < 0.5
    executor.close(timeout=0.2)
    assert time.monotonic() - begin < 3


def test_a_watcher_that_fails_stops_nothing(scene: Scene) -> None:
    def fail(state: EngineState) -> None:
        raise RuntimeError(state.status)

    scene.start()
    scene.executor._on_state = fail  # pyright: ignore[reportPrivateUsage]
    scene.submit("done")
    assert scene.events("done")[-1].kind == "done"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "it ended with status 0"),
        (-9, "it was ended by SIGKILL, perhaps because the machine ran out of memory"),
        (-11, "it was ended by SIGSEGV"),
        (-99, "it was ended by 99"),
    ],
)
def test_ends_are_described(status: int, text: str) -> None:
    assert describe_exit(status) == text


def test_folders_of_the_dead_are_swept(tmp_path: Path) -> None:
    dead, other = tmp_path / f"{PREFIX}dead", tmp_path / "another"
    for path in (dead, other):
        path.mkdir()
        (path / "file").touch()
    alive = OwnedFolder(tmp_path)
    (alive.path / "file").touch()
    second = OwnedFolder(tmp_path)
    assert not dead.exists()
    assert other.exists()
    assert (alive.path / "file").exists()
    alive.empty()
    assert list(alive.path.iterdir()) == []
    for folder in (alive, second):
        folder.close()
        folder.close()
    assert list(tmp_path.iterdir()) == [other]
