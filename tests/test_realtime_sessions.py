"""Protocol 2 of the realtime socket against real servers: commands, going back, snapshots, forks,
dropped connections, slow clients, ends."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from realtime_client_spec import Chunk, Client, Closed
from websockets.exceptions import ConnectionClosed

from sgld.engine.executors.state import EngineState
from sgld.realtime.messages import SessionCommand, SessionReport
from sgld.testing.served import HereExecutor, Served, served_apart, served_here, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("world")
    with served_here("tiny:toy-world", folder, {"max_sessions": 8}) as served:
        yield served


class World(Client):
    """A client of protocol 2 with an open session."""

    def __init__(self, server: Served, narrow: bool = False, **init: Any) -> None:
        """`narrow`: little fits between the server and this client."""
        options: dict[str, Any] = {}
        if narrow:
            options = {"sock": small_socket(server), "max_queue": 1, "close_timeout": 0.1}
        super().__init__(server.url, **options)
        self.init(protocol=2, **init)
        self.session = self.until("session")

    def ask(self, type: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, which is the next message that is no frame."""
        number = random.randrange(10**9)
        self.say(type=type, event_id=number, **fields)
        while (message := self.receive()).get("event_id") != number:
            pass
        return message

    def step(self, count: int = 1) -> list[Chunk]:
        """Have chunks made, one by one."""
        made = []
        for _ in range(count):
            answer = self.ask("step")
            assert answer["type"] == "ack", answer
            made.append(self.chunk())
            assert made[-1].index == answer["chunk_index"]
        return made


@pytest.fixture
def world(server: Served) -> Iterator[World]:
    with World(server, free_running=False, rewind_chunks=4) as world:
        yield world


def small_socket(server: Served) -> socket.socket:
    """A connection whose client's side holds little."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    host, _, port = server.url.removeprefix("http://").partition(":")
    made.connect((host, int(port)))
    return made


def pixels(chunks: list[Chunk]) -> list[bytes]:
    return [chunk.frames.tobytes() for chunk in chunks]


def idle(server: Served) -> None:
    sessions = server.services.sessions
    wait_for(lambda: not sessions.live and not sessions.sockets, "the sessions' end")


# Opening.


def test_a_session_says_what_it_is(server: Served, world: World) -> None:
    told = world.session
    assert told["protocol"] == 2
    assert (told["width"], told["height"], told["fps"]) == (64, 48, 16)
    assert (told["first_frames"], told["chunk_frames"], told["chunk_latents"]) == (3, 4, 2)
    assert told["events"] == ["camera_actions", "prompt"]
    assert "rewind" in told["commands"]
    assert told["rewind_chunks"] == 4
    assert told["session_bytes"] > 0
    assert told["parameters"]["prompt"] == "a hill"
    assert "seed" not in told["parameters"]
    assert told["seed"] == 42
    assert told["chunk_index"] == 0
    assert told["resumed"] is False
    assert world.step()[0].stats["session_id"] == told["session_id"]


def test_contradicting_fields_are_refused(server: Served) -> None:
    with Client(server.url) as client:
        client.init(protocol=2, acknowledge=True, on_full="drop")
        assert client.receive()["field"] == "on_full"
        client.init(protocol=2, queue_chunks=17)
        assert client.receive()["field"] == "queue_chunks"
        client.init(protocol=2, snapshot="text")
        assert client.receive()["field"] == "snapshot"
        client.init(protocol=2, snapshot=b"no snapshot")
        assert client.receive()["code"].startswith("snapshot")
        client.init(protocol=2, realtime_output_format="webp", realtime_preview_max_width=32)
        assert client.until("session")["warnings"] == []


def test_a_client_that_comes_too_early_is_told_to_wait(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        state = EngineState("restarting", reason="for a test")
        patch.setattr(HereExecutor, "state", property(lambda _: state))
        wait_for(lambda: not server.services.readiness.ready, "the server to be not ready")
        client = Client(server.url)
        client.init(protocol=2, max_chunks=1)
        message = client.receive()
        assert message["type"] == "waiting"
        assert "for a test" in message["message"]
        assert message["retry_after"] > 0
    with client:
        client.until("session")
        assert client.chunk().index == 0


# Steering.


def test_an_ack_names_the_first_chunk_that_sees_the_event(world: World) -> None:
    plain = world.step(2)
    world.event("camera_actions", [["w"], ["w"], ["d"], ["d"]], 7)
    ack = world.receive()
    assert ack == {"type": "ack", "of": "event", "event_id": 7, "chunk_index": 2}
    seen = world.step()[0]
    assert seen.event_id == 7
    assert [chunk.event_id for chunk in plain] == [None, None]
    world.event("prompt", "a river", 8)
    assert world.receive()["chunk_index"] == 3
    assert world.step()[0].event_id == 8


def test_events_without_an_id_are_acknowledged_too(world: World) -> None:
    world.event("prompt", "a river")
    assert world.receive() == {"type": "ack", "of": "event", "event_id": None, "chunk_index": 0}


def test_a_refused_event_changes_nothing(server: Served, world: World) -> None:
    world.event("camera_actions", [["w"], ["fly"]], 3)
    error = world.receive()
    assert (error["content"], error["event_id"]) == ("invalid event", 3)
    assert error["field"].startswith("camera_actions")
    assert "w, a, s, d" in error["message"]
    with World(server, free_running=False) as other:
        assert pixels(world.step(2)) == pixels(other.step(2))


def test_pause_and_resume(server: Served) -> None:
    with World(server, realtime_output_format="webp") as world:
        world.chunks(2)
        number = world.ask("pause")["chunk_index"]
        last = 1
        world.say(type="ping", event_id=1)
        while (message := world.receive())["type"] != "pong":
            last = message.get("chunk_index", last)
        again = world.ask("pause")
        assert again["chunk_index"] == number, "said twice, it changes nothing"
        assert last < number
        assert world.ask("resume")["chunk_index"] == number
        while (chunk := world.chunk()).index < number:
            pass
        assert chunk.index == number


def test_reset_begins_anew(world: World) -> None:
    first = world.step(3)
    world.event("prompt", "a river", 5)
    world.step(1)
    assert world.ask("reset")["chunk_index"] == 0
    assert pixels(world.step(3)) == pixels(first)


# Going back.


def test_rewind_takes_chunks_back(world: World) -> None:
    first = world.step(4)
    assert world.ask("rewind", chunks=2)["chunk_index"] == 2
    assert pixels(world.step(2)) == pixels(first[2:])
    world.ask("rewind", chunks=3)
    world.event("camera_actions", [["w"], ["w"]], 3)
    changed = world.step(1)[0]
    assert changed.index == 1
    assert pixels([changed]) != pixels([first[1]])


@pytest.mark.parametrize(("sent", "chunks", "words"), [(2, 3, "only 2"), (6, 5, "4 chunks")])
def test_rewind_goes_only_so_far(world: World, sent: int, chunks: int, words: str) -> None:
    world.step(sent)
    error = world.ask("rewind", chunks=chunks)
    assert error["type"] == "error"
    assert error["field"] == "chunks"
    assert words in error["message"]
    assert world.step()[0].index == sent


def test_rewind_while_it_generates_on(server: Served) -> None:
    with World(server, rewind_chunks=3, queue_chunks=3) as world:
        line = world.chunks(3)
        for number in range(12):
            world.say(type="rewind", chunks=1 + number % 3, event_id=number)
            while (message := world.receive())["type"] != "ack":
                if message["type"] == "chunk_stats":
                    line.append(Chunk(message, []))
            back = message["chunk_index"]
            assert back == line[-1].index - number % 3, "counted from what has been sent"
            line = [chunk for chunk in line if chunk.index < back]
            line += world.chunks(3)
            assert [chunk.index for chunk in line] == list(range(len(line)))
    with World(server) as world:
        plain = world.chunks(len(line))
    for chunk, other in zip(line, plain, strict=True):
        if chunk.batches:
            assert np.array_equal(chunk.frames, other.frames)


# Snapshots and forks.


def test_a_session_continues_from_its_snapshot(server: Served, world: World) -> None:
    world.step(2)
    saved = world.ask("snapshot")
    assert saved["type"] == "snapshot"
    assert saved["chunk_index"] == 2
    rest = world.step(2)
    with World(server, free_running=False, snapshot=saved["payload"]) as other:
        assert other.session["chunk_index"] == 2
        assert pixels(other.step(2)) == pixels(rest)
    with Client(server.url) as client:
        client.init(protocol=2, snapshot=saved["payload"], size="48x48")
        assert client.receive()["code"] == "snapshot_mismatch"


def test_a_fork_goes_its_own_way(server: Served, world: World) -> None:
    world.step(2)
    fork = world.ask("fork")
    assert fork["type"] == "forked"
    assert fork["chunk_index"] == 2
    rest = world.step(5)
    with Client(server.url) as client:
        client.say(type="init", protocol=2, resume_token=fork["resume_token"])
        told = client.until("session")
        assert told["resumed"] is True
        assert told["chunk_index"] == 2
        assert told["session_id"] == fork["session_id"] != world.session["session_id"]
        same = []
        for _ in range(5):
            client.say(type="step")
            same.append(client.chunk())
        assert pixels(same) == pixels(rest)
        assert [chunk.index for chunk in same] == [2, 3, 4, 5, 6]
        client.say(type="close")
        assert client.closed().code == 1000


# Dropped connections.


def resume(server: Served, token: str, last: str | None) -> Client:
    client = Client(server.url)
    client.say(type="init", protocol=2, resume_token=token, last_request_id=last)
    return client


@pytest.mark.parametrize("format", ["raw", "webp"])
def test_nothing_is_lost_when_connections_drop(server: Served, format: str) -> None:
    """A session whose client is cut off again and again, between and within chunks, gives the same
    frames as one that is left alone."""
    fields = {"max_chunks": 24, "realtime_output_format": format, "size": "160x144"}
    with World(server, **fields) as world:
        whole = [chunk.frames.tobytes() for chunk in world.chunks(24)]
    rng = random.Random(5)
    client: Client = World(server, acknowledge=True, **fields)
    token = client.session["resume_token"]  # type: ignore[attr-defined]
    got: list[bytes] = []
    last = None
    while len(got) < 24:
        for _ in range(rng.randrange(4)):
            chunk = client.chunk()
            assert chunk.index == len(got)
            got.append(chunk.frames.tobytes())
            last = chunk.request_id
            if rng.random() < 0.7:
                client.say(type="received", request_id=last)
            if len(got) == 24:
                break
        else:
            if rng.random() < 0.5:
                client.receive()  # perhaps part of a chunk
            client.drop()
            client.socket.close()
            client = resume(server, token, last)
            told = client.until("session")
            assert told["resumed"] is True
            assert told["chunk_index"] in (len(got), None)
    with contextlib.suppress(ConnectionClosed):  # it may have been said already
        client.say(type="received", request_id=last)
    assert client.closed().code == 1000
    assert got == whole
    idle(server)


def test_a_resume_tells_what_comes_next_and_repeats_the_id(server: Served) -> None:
    world = World(server, free_running=False, max_chunks=3, rewind_chunks=2, event_id=5)
    assert world.session["event_id"] == 5
    token, last = world.session["resume_token"], world.step(2)[-1].request_id
    world.drop()
    world.socket.close()
    with Client(server.url) as client:
        fields = {"resume_token": token, "last_request_id": last, "event_id": 6}
        client.say(type="init", protocol=2, **fields)
        told = client.until("session")
        assert (told["chunk_index"], told["event_id"]) == (2, 6)
        client.say(type="rewind", chunks=1)
        assert client.until("ack")["chunk_index"] == 1
        with Client(server.url) as other:  # takes it over
            other.say(type="init", protocol=2, resume_token=token, last_request_id=last)
            assert other.until("session")["chunk_index"] == 1
            other.say(type="close")
            assert other.closed().code == 1000


def test_a_step_after_the_last_chunk_says_so(server: Served) -> None:
    fields = {"free_running": False, "acknowledge": True, "max_chunks": 1}
    with World(server, **fields) as world:
        (chunk,) = world.step()
        sessions = server.services.sessions._live
        live = sessions[world.session["session_id"]]
        wait_for(lambda: live.ended is not None, "the end of its chunks")
        assert world.ask("step")["code"] == "session_complete"
        assert world.ask("pause")["code"] == "session_ended"
        world.say(type="received", request_id=chunk.request_id)
        assert world.closed().code == 1000


def test_without_acknowledgements_a_gap_is_refused(server: Served) -> None:
    world = World(server, queue_chunks=1, realtime_output_format="webp")
    token = world.session["resume_token"]
    chunks = world.chunks(6)
    world.drop()
    world.socket.close()
    with resume(server, token, chunks[0].request_id) as client:
        error = client.error()
        assert error["code"] == "resume_gap"
        assert "null" in error["message"]
        client.say(type="init", protocol=2, resume_token=token, last_request_id=None)
        assert client.until("session")["resumed"] is True
        assert client.chunk().index >= 5


def test_a_session_can_be_taken_over(server: Served) -> None:
    # Unacknowledged chunks are kept, however many the first socket has swallowed already.
    with World(server, realtime_output_format="webp", acknowledge=True) as world:
        last = world.chunk()
        with resume(server, world.session["resume_token"], None) as client:
            client.until("session")
            index = client.chunk().index
            assert index == last.index
            assert client.chunk().index == index + 1
            error = world.error()
            assert error["code"] == "taken_over"
            assert world.closed().code == 1008


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"resume_token": "x"}, "session_not_found"),
        ({"resume_token": 5}, "resume_token"),
        ({"resume_token": "x", "prompt": "y"}, "prompt"),
        ({"resume_token": "x", "last_request_id": 5}, "last_request_id"),
        ({"resume_token": "x", "protocol": 1}, "protocol"),
    ],
)
def test_a_wrong_resume_is_refused(server: Served, message: dict[str, Any], field: str) -> None:
    with Client(server.url) as client:
        client.say(**{"type": "init", "protocol": 2, **message})
        error = client.receive()
        assert field in (error["field"], error["code"])


def test_received_is_checked(world: World) -> None:
    error = world.ask("received", request_id="other_1")
    assert error["field"] == "request_id"
    world.say(type="received", request_id=world.session["session_id"] + "_unknown")
    assert world.step()[0].index == 0


# Slow clients.


def test_a_client_that_does_not_read_costs_a_bounded_amount(server: Served) -> None:
    with World(server, size="128x128", queue_chunks=2, narrow=True) as world:
        sessions, most = server.services.sessions, 0
        metrics = server.services.metrics
        chunk = 4 * 128 * 128 * 3

        def made() -> float:
            return metrics.registry.get_sample_value("sgld_session_chunks_total") or 0.0

        before, still = made(), 0
        while still < 20:
            most = max(most, sessions.bytes_kept)
            assert most <= 5 * chunk
            now = made()
            still, before = (still + 1 if now == before else 0), now
            threading.Event().wait(0.02)
        assert world.chunk().index == 0, "nothing was left out"
        assert [one.index for one in world.chunks(5)] == [1, 2, 3, 4, 5]


def test_a_client_that_is_too_slow_can_have_chunks_left_out(server: Served) -> None:
    with World(server, size="128x128", on_full="drop", queue_chunks=1, narrow=True) as world:
        index, dropped = -1, 0
        while not dropped:
            chunk = world.chunk()
            dropped = chunk.stats["dropped_chunks"]
            assert chunk.index == index + 1 + dropped
            index = chunk.index
            threading.Event().wait(0.02)


def test_an_acknowledging_client_sets_the_pace(server: Served) -> None:
    with World(server, acknowledge=True, queue_chunks=2) as world:
        chunks = world.chunks(2)
        world.say(type="ping", event_id=1)
        assert world.receive()["type"] == "pong", "the third chunk waits"
        world.say(type="received", request_id=chunks[0].request_id)
        assert world.chunk().index == 2


# Ends.


def test_close_is_answered_and_frees_at_once(server: Served) -> None:
    with World(server) as world:
        world.chunk()
        world.say(type="close", event_id=9)
        assert world.until("closed")["event_id"] == 9
        assert server.services.sessions.live == 0
        with pytest.raises(Closed) as closed:
            world.receive()
        assert closed.value.code == 1000
    with World(server) as world:
        world.chunk()
    idle(server)  # a close with 1000 by the client, without a word


def test_clients_that_say_nothing_are_sent_away(tmp_path: Path) -> None:
    options = {
        "session_init_seconds": 1.0, "session_idle_seconds": 0.3, "session_grace_seconds": 0.1,
    }  # fmt: skip
    logged = {"log_requests": True, "log_requests_target": str(tmp_path / "log")}
    with served_here("tiny:toy-world", tmp_path, **options, **logged) as server:
        with Client(server.url) as client:
            client.say(type="ping")
            assert client.error()["code"] == "not_initialised"
            error = client.error()
            assert error["code"] == "init_timeout"
            assert client.closed().code == 1008
        with World(server, acknowledge=True) as world:
            error = world.error()
            assert error["code"] == "idle_timeout"
            assert world.closed().code == 1008
        world = World(server)
        world.drop()
        world.socket.close()
        idle(server)  # nobody came in the grace time
    (file,) = (tmp_path / "log").iterdir()
    lines = file.read_text().splitlines()
    assert sum("request.received" in line and "kind=session" in line for line in lines) == 2
    assert sum("request.finished" in line and "status=completed" in line for line in lines) == 2


def test_without_a_time_of_grace_a_session_goes_with_its_socket(tmp_path: Path) -> None:
    with served_here("tiny:toy-world", tmp_path, session_grace_seconds=0.0) as server:
        world = World(server)
        assert world.session["resume_token"] is None
        assert world.ask("fork")["code"] == "unsupported_feature"
        world.drop()
        world.socket.close()
        idle(server)


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    with served_apart("tiny:toy-world", tmp_path, "--drain-seconds", "60") as server:
        endless, finite, young = World(server), World(server, max_chunks=40), Client(server.url)
        with endless, finite, young:
            endless.chunk()
            first = finite.chunk()
            server.process.send_signal(signal.SIGTERM)
            for client in (endless, young):
                assert client.error()["code"] == "server_stopping"
                assert client.closed().code == 1012
            rest = finite.chunks(39)
            assert [one.index for one in (first, *rest)] == list(range(40))
            assert finite.closed().code == 1000
        assert server.process.wait(60) == 0


def test_an_engine_that_is_lost_ends_its_sessions(tmp_path: Path) -> None:
    with served_here("tiny:toy-world", tmp_path) as server, World(server) as world:
        engine = server.services.engine
        world.chunk()
        engine._call(engine._lose, "The engine was lost: for a test")
        error = world.error()
        assert error["content"] == "error during generate loop: The engine was lost: for a test"
        assert error["code"] == "engine_lost"
        assert world.closed().code == 1011
        with Client(server.url) as client:
            client.init()
            assert client.receive()["code"] == "engine_lost"


def test_an_engine_that_restarts_is_waited_for(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine says so before the server has seen it."""
    engine, refused = server.services.engine, []
    command = engine.command

    def first_refused(asked: SessionCommand) -> None:
        if asked.kind == "open" and not refused:
            refused.append(asked.session_id)
            report = SessionReport(asked.session_id, "opened", asked.number, code="not_ready")
            engine._call(engine._deliver, report)
        else:
            command(asked)

    monkeypatch.setattr(engine, "command", first_refused)
    with World(server) as world:
        assert world.chunk().index == 0
    assert refused
