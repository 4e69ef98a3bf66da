"""Protocol 1 of the realtime socket against a real server, with a client that knows only its
description: formats, errors, events, first frames, ends, who is let in."""

from __future__ import annotations

import base64
import http.server
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import av
import httpx
import msgpack
import numpy as np
import pytest
from PIL import Image
from realtime_client_spec import Client, Closed
from websockets.exceptions import InvalidStatus

from sgld.testing.served import Served, served_here, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("world")
    options = {"allow_media_host": "127.0.0.1", "max_pixels": 512 * 512, "session_message_mib": 2}
    with served_here("tiny:toy-world", folder, **options) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def run(server: Served, chunks: int = 3, **init: Any) -> list[np.ndarray]:
    """The frames of a whole session, chunk by chunk."""
    with Client(server.url) as client:
        client.init(max_chunks=chunks, **init)
        found = [chunk.frames for chunk in client.chunks(chunks)]
        closed = client.closed()
        assert (closed.code, closed.reason) == (1000, "generation complete")
    return found


def idle(server: Served) -> None:
    """Wait until nothing is left of any session."""
    sessions = server.services.sessions
    wait_for(lambda: not sessions.live and not sessions.sockets, "the sessions' end")


# Frames.


@pytest.mark.parametrize("format", ["raw", "webp", "jpeg", "h264", None])
def test_a_session_in_every_format(server: Served, client: Client, format: str | None) -> None:
    client.init(max_chunks=3, realtime_output_format=format, output_quality="maximum")
    chunks = client.chunks(3)
    assert [chunk.index for chunk in chunks] == [0, 1, 2]
    assert [chunk.stats["num_frames"] for chunk in chunks] == [3, 4, 4]
    assert len({chunk.request_id for chunk in chunks}) == 3
    assert len({chunk.stats["session_id"] for chunk in chunks}) == 1
    assert all(chunk.event_id is None for chunk in chunks)
    closed = client.closed()
    assert (closed.code, closed.reason) == (1000, "generation complete")
    exact = np.concatenate(run(server))
    if format in (None, "raw"):
        assert all(chunk.batches[0]["format"] == "rgb24" for chunk in chunks)
        assert np.array_equal(np.concatenate([chunk.frames for chunk in chunks]), exact)
    elif format == "h264":
        decoder: Any = av.CodecContext.create("h264", "r")
        frames = []
        for chunk in chunks:
            assert chunk.batches[0]["content_type"] == "video/h264"
            assert chunk.batches[0]["codec"].startswith("avc1.42C0")
            keys = [key for batch in chunk.batches for key in batch["key_frames"]]
            assert keys == [True] + [False] * (len(keys) - 1)
            for unit in chunk.units:
                frames += decoder.decode(av.Packet(unit))
        frames += decoder.decode(None)
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        assert np.abs(shown.astype(int) - exact).mean() < 8
    else:
        shown = np.concatenate([chunk.frames for chunk in chunks])
        assert np.abs(shown.astype(int) - exact).mean() < 8


def test_a_large_payload_travels_alone(client: Client) -> None:
    client.init(max_chunks=2, size="192x160")
    first, second = client.chunks(2)
    headers = [m for m in client.seen if m["type"] == "frame_batch_header"]
    assert len(headers) == 2
    assert all("payload" not in header for header in headers)
    assert first.frames.shape == (3, 160, 192, 3)
    assert second.frames.shape == (4, 160, 192, 3)


def test_a_preview_is_smaller(client: Client) -> None:
    client.init(max_chunks=1, realtime_output_format="jpeg", realtime_preview_max_width=32)
    chunk = client.chunk()
    assert chunk.frames.shape == (3, 24, 32, 3)
    assert chunk.batches[0]["source_width"] == 64


def test_the_seed_decides(server: Served) -> None:
    first, second = np.concatenate(run(server)), np.concatenate(run(server, seed=42))
    assert np.array_equal(first, second), "42 is the default"
    assert not np.array_equal(first, np.concatenate(run(server, seed=43)))


def test_many_sessions_do_not_touch_each_other(server: Served) -> None:
    alone = [np.concatenate(run(server, seed=seed)) for seed in range(6)]
    with ThreadPoolExecutor(6) as threads:
        work = [threads.submit(run, server, seed=seed) for seed in range(6)]
        together = [np.concatenate(one.result()) for one in work]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)


def test_paced_frames_wait_and_an_event_does_not(client: Client) -> None:
    client.init(max_chunks=3, realtime_output_pacing=True, fps=24)
    first, second = client.chunks(2)
    assert first.stats["pace_wait_ms"] == 0
    assert second.stats["pace_wait_ms"] > 0


# Events.


def test_an_event_is_echoed_by_the_chunks_that_have_seen_it(server: Served, client: Client) -> None:
    client.init(realtime_output_format="webp")
    client.chunk()
    client.event("camera_actions", [["w"], ["d"]], 17)
    chunks = [client.chunk()]
    while chunks[-1].event_id is None:
        chunks.append(client.chunk())
    assert chunks[-1].event_id == 17
    assert client.chunk().event_id == 17, "later chunks repeat it"
    assert all("event_id" not in batch for batch in chunks[0].batches if chunks[0].event_id is None)


def test_controls_of_init_hold_from_the_first_chunk(server: Served) -> None:
    plain, steered = run(server), run(server, condition_inputs={"camera_actions": [["w"]]})
    assert not np.array_equal(plain[0], steered[0])
    again = run(server, condition_inputs={"camera_actions": [["w"]]})
    assert np.array_equal(np.concatenate(steered), np.concatenate(again))


# Errors before a session is open.

WRONG_INIT: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "invalid_parameter"),
    ({"prompt": None}, "prompt", "missing_parameter"),
    ({"prompt": ["a", "b"]}, "prompt", "invalid_parameter"),
    ({"size": "33x33"}, "size", "invalid_parameter"),
    ({"size": "9999999x9999999"}, "size", "invalid_parameter"),
    ({"size": "1024x1024"}, "size", "invalid_parameter"),
    ({"width": 64}, "width", "invalid_parameter"),
    ({"max_chunks": 0}, "max_chunks", "invalid_parameter"),
    ({"max_chunks": True}, "max_chunks", "invalid_parameter"),
    ({"seed": -1}, "seed", "invalid_parameter"),
    ({"seed": "x"}, "seed", "invalid_parameter"),
    ({"fps": 0}, "fps", "invalid_parameter"),
    ({"fps": float("nan")}, "fps", "invalid_parameter"),
    ({"realtime_output_format": "mp4"}, "realtime_output_format", "invalid_parameter"),
    ({"output_compression": 101}, "output_compression", "invalid_parameter"),
    ({"output_quality": "best"}, "output_quality", "invalid_parameter"),
    ({"realtime_preview_max_width": 0}, "realtime_preview_max_width", "invalid_parameter"),
    ({"realtime_output_pacing": 1}, "realtime_output_pacing", "invalid_parameter"),
    ({"realtime_causal_sink_size": -1}, "realtime_causal_sink_size", "invalid_parameter"),
    ({"realtime_causal_sink_size": 6}, "realtime_causal_sink_size", "invalid_parameter"),
    ({"realtime_causal_kv_cache_num_frames": 0}, "realtime_causal_kv_cache_num_frames",
     "invalid_parameter"),
    ({"guidance_scale": 5.0}, "guidance_scale", "unsupported_parameter"),
    ({"negative_prompt": "x"}, "negative_prompt", "unsupported_parameter"),
    ({"enable_upscaling": True}, "enable_upscaling", "unsupported_parameter"),
    ({"enhance_prompt": True}, "enhance_prompt", "unsupported_parameter"),
    ({"output_path": "/etc"}, "output_path", "unsupported_parameter"),
    ({"diffusers_kwargs": {}}, "diffusers_kwargs", "unsupported_parameter"),
    ({"input_reference": "x"}, "input_reference", "unsupported_parameter"),
    ({"model": "other"}, "model", "model_not_found"),
    ({"quality": "best"}, "quality", "invalid_parameter"),
    ({"protocol": 3}, "protocol", "invalid_parameter"),
    ({"promt": "x"}, "promt", "unknown_parameter"),
    ({"event_id": 3}, "event_id", "unsupported_parameter"),
    ({"event_id": "3", "protocol": 2}, "event_id", "invalid_parameter"),
    ({"queue_chunks": 3}, "queue_chunks", "unsupported_parameter"),
    ({"rewind_chunks": 3}, "rewind_chunks", "unsupported_parameter"),
    ({"condition_inputs": {"depth": 1}}, "condition_inputs", "invalid_parameter"),
    ({"condition_inputs": {"camera_actions": [["fly"]]}}, "condition_inputs.camera_actions", ""),
    ({"first_frame": "/etc/passwd"}, "first_frame", "invalid_parameter"),
    ({"first_frame": b""}, "first_frame", "invalid_parameter"),
    ({"first_frame": 5}, "first_frame", "invalid_parameter"),
    ({"first_frame": b"no picture"}, "first_frame", "invalid_parameter"),
    ({"first_frame": "data:image/png;base64,AAAA"}, "first_frame", "invalid_parameter"),
    ({"first_frame": "http://169.254.169.254/"}, "first_frame", "media_refused"),
]  # fmt: skip


def test_every_wrong_init_says_why_and_the_socket_goes_on(server: Served, client: Client) -> None:
    for fields, field, code in WRONG_INIT:
        client.init(**fields)
        error = client.receive()
        assert error["type"] == "error", fields
        assert error["content"] == "invalid generate request"
        assert error["field"].startswith(field), (fields, error)
        assert code in ("", error["code"]), (fields, error)
        assert len(error["message"]) > 10
    assert server.services.sessions.live == 0
    client.init(max_chunks=1)
    assert client.chunk().index == 0


def test_all_that_is_wrong_is_said_at_once(client: Client) -> None:
    client.init(
        prompt="", size="33x33", promt="x", output_compression=-1,
        condition_inputs={"camera_actions": [["fly"]]},
    )  # fmt: skip
    message = client.receive()["message"]
    for name in ("prompt", "size", "Did you mean prompt?", "output_compression", "fly"):
        assert name in message


def test_what_has_no_effect_is_told(client: Client) -> None:
    client.init(
        max_chunks=2, user="u", generator_device="cuda", guidance_scale=1.0, num_frames=49,
        enable_teacache=False, task_type="T2V", quality="high", realtime_preview_max_width=320,
        first_frame=None, num_inference_steps=2, model="toy-world",
    )  # fmt: skip
    first, second = client.chunks(2)
    told = " ".join(first.stats["warnings"])
    names = ("user", "generator_device", "guidance_scale", "num_frames", "task_type", "quality",
             "realtime_preview_max_width")  # fmt: skip
    assert all(name in told for name in names)
    assert "warnings" not in second.stats


def test_case_a24(server: Served, client: Client) -> None:
    """Wrong frame kind, broken MessagePack, event before init, on one socket; then a right init."""
    whole = msgpack.packb({"type": "init", "prompt": "a"})
    bad: list[tuple[Any, str]] = [
        (msgpack.packb({"type": "event", "kind": "prompt", "payload": "b"}), "not_initialised"),
        ("hello", "text_frame"),
        (b"\xc1", "invalid_message"),
        (whole[: len(whole) // 2], "invalid_message"),
        (msgpack.packb([1, 2]), "invalid_message"),
        (msgpack.packb({"type": "init", "prompt": "a", "size": "33x33"}), "invalid_parameter"),
    ]
    for data, code in bad:
        client.socket.send(data)
        error = client.receive()
        assert (error["content"], error["code"]) == ("invalid generate request", code)
    client.init()
    client.chunk()
    wrong: list[tuple[Any, str]] = [
        (whole, "already_initialised"),
        (msgpack.packb({"type": "event", "kind": "jump", "event_id": 5}), "unknown_kind"),
        ("hello", "text_frame"),
        (b"\xc1", "invalid_message"),
        (msgpack.packb([1, 2]), "invalid_message"),
        (msgpack.packb({"type": "pause"}), "unknown_message"),
    ]
    index = 1
    for data, code in wrong:
        client.socket.send(data)
        error = None
        while error is None:
            chunk = client.chunk()
            assert chunk.index == index, "the chunks go on"
            index += 1
            error = next((one for one in chunk.others), None)
        assert (error["content"], error["code"]) == ("invalid event", code)
        assert error["event_id"] == (5 if code == "unknown_kind" else None)
    client.event("prompt", "a river", 6)
    while client.chunk().event_id != 6:
        pass
    with Client(server.url) as other:
        other.init()
        other.chunk()
        # The header of a frame of 64 MiB: the server does not need the rest to refuse it.
        other.socket.socket.sendall(b"\x82\xff" + (64 * 2**20).to_bytes(8, "big") + b"mask")
        assert other.closed().code == 1009
    assert client.chunk().event_id == 6, "the other's end is none of this one's business"


# Ends.


@pytest.mark.parametrize("where", ["open", "chunk", "frames", "commit"])
def test_a_session_that_fails_says_why(server: Served, client: Client, where: str) -> None:
    client.init(fail_at_chunk=2, fail_in=where)
    error = client.error()
    if where == "open":
        assert error["content"] == "invalid generate request"
        client.init(max_chunks=1)
        assert client.chunk().index == 0
    else:
        assert error["content"].startswith("error during generate loop: ")
        assert "\n" not in error["content"]
        assert error["code"] == "stage_failed"
        assert client.closed().code == 1011
    idle(server)


def test_case_a25_nothing_of_a_session_stays(server: Served) -> None:
    services, first = server.services, np.concatenate(run(server))

    def one(kind: int) -> None:
        with Client(server.url) as client:
            if kind == 3:
                client.init(size="33x33")
                assert client.error()["field"] == "size"
                return
            client.init(**({"fail_at_chunk": 2, "fail_in": "frames"} if kind == 4 else {}))
            if kind == 4:
                assert client.closed().code == 1011
                return
            if kind != 2:
                client.chunks(2)
            if kind in (1, 2):
                client.drop()

    threads = None
    for number in range(50):
        one(number % 5)
        idle(server)
        shown = httpx.get(f"{server.url}/metrics").text
        for gauge in ("sgld_sessions_live", "sgld_session_sockets_open", "sgld_session_kept_bytes"):
            assert f"{gauge} 0.0" in shown
        if number == 10:
            threads = threading.active_count()
    assert threads is not None
    assert threading.active_count() <= threads
    assert np.array_equal(np.concatenate(run(server)), first)
    assert services.sessions.bytes_kept == 0


# First frames.


def picture(size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint32).reshape(size[1], size[0], 3) % 251
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def web() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(picture())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}/frame.png"
        web.shutdown()
        thread.join()


def test_a_first_frame_as_bytes_data_url_and_address(server: Served, web: str) -> None:
    without = np.concatenate(run(server))
    data_url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    ways = [np.concatenate(run(server, first_frame=way)) for way in (picture(), data_url, web)]
    assert not np.array_equal(ways[0], without)
    assert np.array_equal(ways[0], ways[1])
    assert np.array_equal(ways[0], ways[2])


# What the server tells, and whom it lets in.


def test_the_model_tells_what_its_sessions_take(server: Served) -> None:
    told = httpx.get(f"{server.api}/models/toy-world").json()["realtime"]
    assert told["path"] == "/v1/realtime_video/generate"
    assert told["events"] == ["camera_actions", "prompt"]
    assert told["output_formats"] == ["raw", "webp", "jpeg", "h264"]
    rows = {row["name"]: row for row in told["parameters"]}
    assert rows["realtime_causal_sink_size"]["minimum"] == 0
    assert "seed" not in rows
    assert {row["name"]: row for row in told["settings"]}["seed"]["default"] == 42
    with Client(server.url) as client:
        client.init()
        client.chunk()
        assert httpx.get(f"{server.url}/server_info").json()["sessions"] == 1


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("http://evil.example", False), ("null", False), ("http://good.example", True), ("", True)],
)
def test_pages_from_elsewhere_are_kept_out(
    closed_server: Served, origin: str, allowed: bool
) -> None:
    url = closed_server.url.replace("http", "ws") + "/v1/realtime_video/generate?api_key=right-key"
    own = closed_server.url
    if allowed:
        Client(url, origin=origin or own).socket.close()
        return
    with pytest.raises(InvalidStatus) as refused:
        Client(url, origin=origin)
    assert refused.value.response.status_code == 403
    assert b"origin_not_allowed" in refused.value.response.body


KEYS: list[tuple[str, dict[str, Any], bool]] = [
    ("", {}, False),
    ("?api_key=wrong", {}, False),
    ("", {"subprotocols": ["sgld", "sgld.api-key.wrong"]}, False),
    ("", {"additional_headers": {"Authorization": "Bearer wrong"}}, False),
    ("?api_key=right-key", {"additional_headers": {"Authorization": "Bearer wrong"}}, False),
    ("?api_key=right-key", {}, True),
    ("", {"subprotocols": ["sgld", "sgld.api-key.right-key"]}, True),
    ("", {"additional_headers": {"Authorization": "Bearer right-key"}}, True),
]


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a key, whose model has no sessions."""
    folder = tmp_path_factory.mktemp("closed")
    options = {"api_key": "right-key", "cors_origin": "http://good.example"}
    with served_here("tiny:toy-image", folder, **options) as served:
        yield served


@pytest.mark.parametrize(("query", "options", "allowed"), KEYS)
def test_keys(closed_server: Served, query: str, options: dict[str, Any], allowed: bool) -> None:
    url = closed_server.url.replace("http", "ws") + "/v1/realtime_video/generate" + query
    if not allowed:
        with pytest.raises(InvalidStatus) as refused:
            Client(url, **options)
        assert refused.value.response.status_code == 401
        return
    with Client(url, **options) as client:
        assert client.socket.subprotocol == ("sgld" if "subprotocols" in options else None)
        client.init()
        error = client.receive()
        assert error["code"] == "unsupported_feature"
        assert "no realtime sessions" in error["message"]


def test_a_full_server_says_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(served_here("tiny:toy-world", tmp_path, {"max_sessions": 1}))
        with Client(server.url) as first, Client(server.url) as second:
            first.init(realtime_output_pacing=True)
            first.chunk()
            second.init()
            error = second.receive()
            assert error["content"] == "another realtime session is already active"
            assert error["code"] == "busy"
            assert error["live"] == 1
            assert error["retry_after"] > 0
            with pytest.raises(Closed) as closed:
                second.receive()
            assert closed.value.code == 1008
            first.chunk()
            first.drop()

        def let_in() -> bool:
            with Client(server.url) as third:
                third.init(max_chunks=1)
                return third.receive()["type"] == "frame_batch"

        wait_for(let_in, "a place")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--keys", "w"], "'w' is not KEY:CHUNKS"),
        (["--keys", "w:x"], "'w:x' is not KEY:CHUNKS"),
        (["--first-frame", __file__], "first_frame="),
    ],
)
def test_the_example_says_what_is_wrong(server: Served, more: list[str], words: str) -> None:
    example = Path(__file__).parents[1] / "examples" / "realtime_client.py"
    url = server.url.replace("http", "ws")
    command = [sys.executable, str(example), url, "--prompt", "a hill", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count(words) == 1


def test_the_example_runs(server: Served, tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "realtime_client.py"
    (tmp_path / "start.png").write_bytes(picture())
    command = [
        sys.executable, str(example), server.url.replace("http", "ws"), "--prompt", "a hill",
        "--first-frame", str(tmp_path / "start.png"), "--keys", "w:2,none:1", "--out",
        str(tmp_path / "frames"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "chunk 2: none" in done.stdout
    saved = sorted((tmp_path / "frames").iterdir())
    assert len(saved) == 3 + 4 + 4
    with Image.open(saved[0]) as shown:
        assert shown.size == (64, 48)
