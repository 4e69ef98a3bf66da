"""The arithmetic of `sgld bench`, and what it refuses before it starts anything."""

from __future__ import annotations

import io
import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sgld.api.errors import ParameterError, SgldError
from sgld.bench import figures, report
from sgld.bench.figures import Arrival, Key
from sgld.bench.machine import Memory, children_of, memory_of
from sgld.bench.model_facts import init_of, place_of
from sgld.bench.own_server import TAKEN, _port
from sgld.bench.realtime import Run, Wishes, free_running
from sgld.cli.main import main


def chunk(index: int, event_id: int | None, first: float, last: float, frames: int = 4) -> Arrival:
    stats = {"chunk_total_ms": 10 * index, "scheduler_forward_ms": index}
    return Arrival(index, event_id, frames, first, last, 100 * frames, stats)


CHUNKS = (
    chunk(1, None, 1.0, 1.1),
    chunk(2, 1, 2.0, 2.2),
    chunk(3, 1, 3.0, 3.1),
    chunk(4, 3, 4.0, 4.5),
)


def test_a_key_is_answered_by_the_first_chunk_that_has_seen_it() -> None:
    assert figures.answer(Key(1, 0.5), CHUNKS) is CHUNKS[1]
    # The chunk carries a later event's id: it has seen this one too.
    assert figures.answer(Key(2, 2.5), CHUNKS) is CHUNKS[3]
    assert figures.answer(Key(4, 2.5), CHUNKS) is None
    # What had come before the key was sent cannot be its answer.
    assert figures.answer(Key(1, 2.1), CHUNKS) is CHUNKS[2]
    keys = [Key(1, 0.5), Key(2, 2.5), Key(4, 3.0)]
    assert figures.latencies(keys, CHUNKS) == [1.5, 1.5]


def test_rates_and_gaps_count_from_the_end_of_the_last_warm_chunk() -> None:
    assert figures.gaps(0.5, CHUNKS) == pytest.approx([0.6, 1.1, 0.9, 1.4])
    assert figures.rate(0.5, CHUNKS) == pytest.approx(16 / 4.0)
    with pytest.raises(ValueError, match="took time"):
        figures.rate(0.5, [])
    with pytest.raises(ValueError, match="took time"):
        figures.rate(4.5, CHUNKS)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_spread_is_that_of_numpy(values: list[float]) -> None:
    row = figures.spread(values)
    assert row is not None
    assert (row.count, row.least, row.most) == (len(values), min(values), max(values))
    assert row.median == pytest.approx(float(np.median(values)))
    assert row.least <= row.median <= row.p90 <= row.most or row.p90 == pytest.approx(row.most)


def test_percentiles_lie_between_ranks() -> None:
    row = figures.spread([0.0, 10.0, 20.0])
    assert row == (3, 10.0, pytest.approx(18.0), 0.0, 20.0)
    assert figures.spread([]) is None


def test_keys_fall_evenly_on_a_chunk() -> None:
    times = sorted(figures.press_times(turn, 2.0) for turn in range(100))
    assert times[0] >= 0
    assert times[-1] < 2
    between = np.diff([*times, 2.0 + times[0]])
    assert between.max() < 2 * 2.0 / 100


def test_sessions_are_added_up() -> None:
    facts = {"width": 64, "chunk_frames": 4}
    one = Run(facts, 0.5, CHUNKS, (Key(1, 0.5),))
    other = Run(facts, 0.0, CHUNKS[:2], (Key(1, 1.5), Key(9, 1.5)))
    figure = report.throughput([one, other])
    assert figure["frames"] == [16, 8]
    assert figure["chunks"] == [4, 2]
    assert figure["session_fps"] == pytest.approx([4.0, 8 / 2.2])
    assert figure["all_fps"] == pytest.approx(sum(figure["session_fps"]))
    assert figure["seconds"] == pytest.approx(4.0)
    assert figure["chunk_ms"]["count"] == 6
    assert figure["key_to_frame_ms"]["count"] == 2
    assert figure["key_to_frame_ms"]["most"] == pytest.approx(1500)
    assert figure["key_to_frame_ms"]["least"] == pytest.approx(500)
    assert figure["payload_bytes_per_frame"] == 100
    assert figure["parts"]["scheduler_forward_ms"]["median"] == 2
    assert "pace_wait_ms" not in figure["parts"]


def test_memory_of_this_process_and_of_none() -> None:
    mine = memory_of(os.getpid())
    assert mine is not None
    assert mine.rss is not None
    assert mine.rss > 2**20
    if mine.pss is not None:
        assert mine.private is not None
        assert mine.peak is not None
        assert mine.private <= mine.pss <= mine.rss <= mine.peak
    assert memory_of(2**22 + 1) is None
    assert os.getpid() in children_of(os.getppid())
    assert report.memory({"http": Memory(5)})["http"]["rss_bytes"] == 5


@pytest.mark.parametrize(
    ("url", "http", "far"),
    [
        ("ws://127.0.0.1:30000", "http://127.0.0.1:30000", False),
        ("http://localhost:30000/", "http://localhost:30000", False),
        ("wss://world.example", "https://world.example", True),
        ("ws://[::1]:8/v1/realtime_video/generate", "http://[::1]:8", False),
    ],
)
def test_addresses(url: str, http: str, far: bool) -> None:
    place = place_of(url)
    assert (place.http, place.far) == (http, far)
    assert place.ws == http.replace("http", "ws", 1)


@pytest.mark.parametrize("url", ["", "localhost:30000", "ftp://x", "ws://", "ws://a:0", "ws://a:b",
                                 "ws://a/other", "ws://a?x=1", "ws://a:1#x", "ws://[::1",
                                 "ws://a b:1", "ws://me@a"])  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ParameterError, match=r"such as ws://127\.0\.0\.1:30000"):
        place_of(url)


REFUSED: list[tuple[list[str], str]] = [
    (["tiny:toy-world", "--chunks", "0"], "--chunks='0': must be a whole number from 1"),
    (["tiny:toy-world", "--format", "gif"], "--format='gif': must be one of raw, webp, jpeg, h264"),
    (["tiny:toy-world", "--sessions", "17"], "--sessions=17: is more than --max-sessions 16"),
    (["tiny:toy-world", "--size", "64*48"], "--size='64*48': must be WIDTHxHEIGHT"),
    (["tiny:toy-world", "--size", "64x0"], "--size='64x0'"),
    (["tiny:toy-world", "--param", "steps=3"], "--param steps=3: is unknown. Did you mean"),
    (["tiny:toy-world", "--param", "type=x"], "--param type='x': is decided by the benchmark"),
    (["tiny:toy-world", "--param", "seed"], "--param='seed': must be NAME=VALUE"),
    (["tiny:toy-world", "--param", f"seed={10**30}"], "cannot be sent in a message"),
    (["tiny:toy-world", "--first-frame", "no.png"], "--first-frame='no.png': cannot be read"),
    (["tiny:toy-world", "--output", "no/x.json"], "--output='no/x.json': is in a folder that"),
    (["tiny:toy-world", "--bogus", "1"], "--bogus='1': is unknown"),
    (["tiny:toy-image"], "pipeline toy-image has no realtime sessions"),
    (["--url", "here"], "--url='here': must be a server's address"),
    (["tiny:toy-world", "--url", "ws://127.0.0.1:9"], "MODEL='tiny:toy-world': has no effect"),
    (["--device", "cpu", "--url", "ws://127.0.0.1:9"], "--device='cpu': has no effect"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_before_a_server_is_started(
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("sgld.bench.own_server.OwnServer.__init__", started)
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "sgld.testing.toy_plugin")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "realtime", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_settings_file_is_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is handed on, and a server knows nothing of what is measured."""
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "sgld.testing.toy_plugin")
    file = tmp_path / "settings.yaml"
    file.write_text("sessions: 2\nmax-sessions: 3\n")
    said = ["bench", "realtime", "tiny:toy-world", "--config", str(file), "--sessions", "4"]
    assert main(said) == 2
    told = capsys.readouterr().err
    assert "sessions=2: is no setting. It is a flag: --sessions." in told
    assert "max-sessions" not in told
    file.write_text("max-sessions: 3\n")
    assert main(said) == 2
    assert "--sessions=4: is more than --max-sessions 3" in capsys.readouterr().err


@pytest.mark.parametrize("name", TAKEN)
def test_options_that_the_benchmark_chooses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--" + name.replace("_", "-")
    value = "true" if name == "open" else "1"
    assert main(["bench", "realtime", "tiny:toy-world", flag, value]) == 2
    assert f"{flag}='{value}': is chosen by the benchmark" in capsys.readouterr().err


def test_without_a_model_it_says_what_serve_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLD_PLUGINS", "builtin")
    said: list[tuple[int, str]] = []
    for command in (["serve"], ["bench", "realtime"]):
        code = main(command)
        said.append((code, capsys.readouterr().err))
    assert said[0] == said[1]
    assert said[0][0] == 2
    assert "--model-path: is required" in said[0][1]


def test_a_server_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "realtime", "--url", "ws://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


class Foreign(BaseHTTPRequestHandler):
    """A server that has models too, and is none of ours."""

    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        body = json.dumps(self.answers.get(self.path, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


@pytest.fixture
def foreign() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "listed", [{}, {"data": []}, {"data": {}}, {"data": [{"id": "a/b"}]}, {"data": ["a"]}]
)
def test_a_server_of_another_kind(
    listed: Any, foreign: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    details = {"id": "a/b", "root": "a/b"}
    answers = {"/v1/models": listed, "/v1/models/a/b": details}
    monkeypatch.setattr(Foreign, "answers", answers)
    assert main(["bench", "realtime", "--url", foreign]) == 1
    assert f"{foreign} answers, but is no server of sgld" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "size"),
    [
        ({}, (160, 96)),
        ({"size": "64x48"}, (64, 48)),
        ({"width": 32}, (32, 96)),
        ({"size": "auto"}, (160, 96)),
        ({"width": "wide", "height": -1}, (160, 96)),
        ({"width": 10**9, "height": None}, (160, 96)),
    ],
)
def test_a_picture_is_made_up_whatever_is_asked(
    wanted: dict[str, Any], size: tuple[int, int]
) -> None:
    """What is wrong with a size, the server says in its own words."""
    rows = [{"name": "width", "default": 160}, {"name": "height", "default": 96}]
    model = {"realtime": {"parameters": rows, "needs_first_frame": True}}
    init = init_of(model, wanted)
    with Image.open(io.BytesIO(init["first_frame"])) as picture:
        assert picture.size == size
    assert {name: init[name] for name in wanted} == wanted


class Scripted:
    """A session that fails when its script ends."""

    facts: ClassVar[dict[str, Any]] = {}

    def __init__(self, chunks: float, opened: list[Any]) -> None:
        self._chunks, self._count, self._opened = chunks, 0, opened

    def open(self, init: dict[str, Any]) -> None:
        self._opened.append(init["seed"])

    def press(self) -> Key:
        return Key(1, 0.0)

    def chunk(self, until: float | None = None) -> Arrival:
        if self._count >= self._chunks:
            raise SgldError("the script is at its end", code="connection_lost")
        self._count += 1
        return chunk(self._count, None, self._count, self._count + 0.5)


@pytest.mark.parametrize(("warm", "ends"), [(10**9, 0), (10**9, 5), (1, 5)])
def test_one_session_that_fails_ends_the_others_at_once(warm: int, ends: int) -> None:
    """Also where they are still to make very many chunks, and nobody looks at their memory."""
    opened: list[Any] = []
    scripts = iter([math.inf, ends])

    @contextmanager
    def open_client() -> Iterator[Any]:
        yield Scripted(next(scripts), opened)

    looked: list[bool] = []
    with pytest.raises(SgldError, match="the script is at its end"):
        free_running(
            open_client,
            {"seed": 7},
            Wishes(sessions=2, warm=warm, chunks=10**9, steps=0),
            lambda *_: None,
            lambda: looked.append(True),
        )
    assert sorted(opened) == [7, 8]
    assert not looked


@pytest.mark.parametrize(("seed", "sent"), [("odd", "odd"), (None, 1), (True, True), (4, 4)])
def test_a_seed_that_is_none_is_sent_as_it_is(seed: Any, sent: Any) -> None:
    opened: list[Any] = []

    @contextmanager
    def open_client() -> Iterator[Any]:
        yield Scripted(0, opened)

    with pytest.raises(SgldError):
        free_running(open_client, {"seed": seed}, Wishes(1, 1, 1, 0), lambda *_: None)
    assert opened == [sent]


def test_a_log_line_that_only_looks_like_the_right_one() -> None:
    assert _port('{"event": "listening", "port": 5}') == 5
    for line in ('["listening"]', 'a "listening" b', '{"event": "x", "to": "listening"}', ""):
        assert _port(line) == 0


def test_the_report_is_json() -> None:
    run = Run({"width": 64}, 0.5, CHUNKS, (Key(1, 0.5),))
    figures_of_it = {"free": report.throughput([run]), "step": report.stepped(run)}
    assert json.loads(json.dumps(figures_of_it)) == figures_of_it
