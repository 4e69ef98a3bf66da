"""The page to steer a world: in a real headless Chromium, against a real server of the toy world.

One browser and one server, which wants an API key, for all tests. A machine without Chromium skips
those that need it (package: chromium).
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from browsing import PATIENCE_MS, World, chromium, until
from PIL import Image
from websockets.sync.client import connect

from sgld.testing.served import Served, served_here

MODEL = "tiny:toy-world"
KEY = "a-key-of-the-page"
ODD_KEY = "k/e=y with @ in it"
"""One that cannot be the name of a subprotocol."""
STATIC = resources.files("sgld.server.page") / "static"

pytestmark = pytest.mark.multi_process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_here(MODEL, tmp_path_factory.mktemp("world"), api_key=(KEY, ODD_KEY)) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Any, server: Served) -> Iterator[Callable[..., Any]]:
    """`visit()` opens the page in a fresh profile that knows the key; whatever the console then
    calls an error fails the test."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_page(url: str = "", *, key: str = KEY, expect: str = "", **context: Any) -> Any:
        made = browser.new_context(**context)
        contexts.append(made)
        made.set_default_timeout(PATIENCE_MS)
        if key:
            keep = f"sessionStorage.setItem('sgld.key', {json.dumps(key)})"
            made.add_init_script(f"if (location.protocol === 'http:') {keep}")

        def listen(message: Any) -> None:
            if message.type == "error" and not (expect and expect in message.text):
                complaints.append(message.text)

        made.on("console", listen)
        made.on("weberror", lambda e: complaints.append(str(e.error)))
        page = made.new_page()
        page.goto(url or f"{server.url}/")
        return page

    yield open_page
    for made in contexts:
        made.close()
    assert not complaints


# Files


class Links(HTMLParser):
    """What a page loads and links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value]
        assert not [name for name, _ in attrs if name == "style" or name.startswith("on")]


def test_files_come_without_a_key_and_from_here_only(server: Served) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as web:
        first = web.get("/")
        assert first.headers["content-type"] == "text/html; charset=utf-8"
        assert first.headers["content-security-policy"].startswith("default-src 'self';")
        wanted = {f"/{link}" for link in Links(first.text).found if link.startswith("page/")}
        wanted |= {f"/page/{file.name}" for file in STATIC.iterdir() if file.name != "index.html"}
        for path in sorted(wanted):
            answer = web.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = web.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            text = answer.text.replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"(https?:)?//[\w-]+\.\w", text), (
                "nothing is loaded from elsewhere"
            )
        assert web.get("/page/%2e%2e/routes.py").status_code in (401, 404)
        assert web.head("/").status_code == 200
        assert web.get("/v1/models").status_code == 401


def test_a_model_that_is_not_steered_gets_links(tmp_path: Path) -> None:
    with (
        served_here("tiny:toy-image", tmp_path, served_model_name="<a> & b") as served,
        httpx.Client(base_url=served.url, trust_env=False) as web,
    ):
        page = web.get("/")
        assert "<h1>&lt;a&gt; &amp; b</h1>" in page.text
        assert "It makes images;" in page.text
        links = Links(page.text).found
        assert "docs" in links
        for link in links:
            assert web.get(f"/{link}").status_code == 200, link


# The MessagePack codec


def anything(dice: random.Random, depth: int = 0) -> Any:
    """A random value; JSON-like, with bytes."""
    kind = dice.randrange(9 if depth < 4 else 7)
    if kind == 0:
        return dice.choice([None, True, False, 0, -1, 1.5, -0.0, math.inf, "", b"", [], {}])
    if kind == 1:
        bits = dice.randrange(53)
        return dice.choice([1, -1]) * dice.getrandbits(bits + 1)
    if kind == 2:
        return dice.choice([2**31, 2**32 - 1, 2**32, -(2**31) - 1, 2**53 - 1, -128, -129, -32769])
    if kind == 3:
        return dice.uniform(-1e9, 1e9)
    if kind == 4:
        return dice.randbytes(dice.choice([0, 3, 255, 256, 65535, 65536]) if depth < 2 else 5)
    if kind in (5, 6):
        letters = "aé漢🙂\ufeff\0"
        return "".join(dice.choices(letters, k=dice.choice([0, 1, 5, 31, 32, 200])))
    size = dice.choice([0, 1, 3, 15, 16, 17])
    if kind == 7:
        return [anything(dice, depth + 2) for _ in range(size)]
    names = (f"{dice.choice(['__proto__', 'key', 'ü'])}{n}" for n in range(size))
    return {name: anything(dice, depth + 2) for name in names} | {"__proto__": 1}


def test_codec_reads_what_python_writes_and_back(visit: Callable[..., Any]) -> None:
    dice = random.Random(5)
    values = [anything(dice) for _ in range(300)]
    values += [2**63, 2**64 - 1, -(2**63), list(range(70_000)), {str(n): n for n in range(70_000)}]
    page = visit()
    answers = page.evaluate(
        """async (packed) => {
          const { decode, encode } = await import("/page/msgpack.js");
          const back = (one) => encode(decode(Uint8Array.fromBase64(one))).toBase64();
          return packed.map(back);
        }""",
        [base64.b64encode(msgpack.packb(value)).decode() for value in values],
    )
    read = [msgpack.unpackb(base64.b64decode(one)) for one in answers]
    assert read == values
    assert [repr(one) for one in read if one == 0] == [repr(one) for one in values if one == 0]


def test_codec_refuses_what_is_no_message(visit: Callable[..., Any]) -> None:
    dice = random.Random(6)
    whole = msgpack.packb({"a": [1, "text", b"bytes", 1.5, 2**40], "b": {"c": None}})
    bad = [whole[:end] for end in range(len(whole))] + [whole + b"\0"]
    bad += [b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1"]
    bad += [b"\xa1\xff", msgpack.packb({1: 2}), b"\xd4\0\0", b"\x91" * 10_000 + b"\0"]
    noise = [dice.randbytes(dice.randrange(1, 60)) for _ in range(2000)]
    outcomes = visit().evaluate(
        """async (all) => {
          const { decode } = await import("/page/msgpack.js");
          return all.map((one) => {
            try { decode(Uint8Array.fromBase64(one)); return "read"; }
            catch (error) { return error.name; }
          });
        }""",
        [base64.b64encode(one).decode() for one in bad + noise],
    )
    assert set(outcomes[: len(bad)]) == {"MsgpackError"}
    assert set(outcomes) <= {"MsgpackError", "read"}


# A session in the browser


class Proxy:
    """Passes TCP connections on to a server, and cuts them all when told to."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """End every connection that is open now."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop; every thread has ended then."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=run, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open |= {near, far}
                self._start(self._pass, near, far)
                self._start(self._pass, far, near)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()
        self._open.discard(source)


@pytest.fixture
def proxy(server: Served) -> Iterator[Proxy]:
    made = Proxy(int(server.url.rpartition(":")[2]))
    yield made
    made.close()


def last_frame(server: Served, **init: Any) -> np.ndarray:
    """The last frame of a session as raw pixels, by a client of protocol 1."""
    address = f"ws{server.url.removeprefix('http')}/v1/realtime_video/generate"
    headers = {"authorization": f"Bearer {KEY}"}
    message = {"type": "init", "prompt": "a harbour", **init}
    frame = np.zeros((0,), np.uint8)
    with connect(address, additional_headers=headers, max_size=None, proxy=None) as socket:
        socket.send(msgpack.packb(message))
        for data in socket:
            got = msgpack.unpackb(data)
            if got["type"].startswith("frame_batch"):
                pixels = got.get("payload") or socket.recv()
                shape = got["num_frames"], got["height"], got["width"], 3
                frame = np.frombuffer(pixels, np.uint8).reshape(shape)[-1]
    return frame


@pytest.mark.parametrize(
    ("format", "size", "most"),
    [("raw", "128x96", 0), ("webp", "64x48", 8), ("jpeg", "80x48", 8), ("h264", "64x48", 12)],
)
def test_pictures_of_every_format(
    visit: Callable[..., Any], server: Served, format: str, size: str, most: int
) -> None:
    world = World(visit())
    quality = {} if format == "raw" else {"output_compression": 95}
    fields = {"seed": 7, "max_chunks": 3, "size": size, "realtime_output_format": format, **quality}
    world.start(**fields)
    world.until("b.state === 'ended' && c.chunk === '2' && c.last === 'true'")
    want, got = last_frame(server, seed=7, size=size, max_chunks=3), world.pixels()
    assert f"{got.shape[1]}x{got.shape[0]}" == size
    # The middle of each square of one colour, away from edges that encoders blur.
    middles = slice(6, None, 16)
    apart = np.abs(got[middles, middles].astype(int) - want[middles, middles])
    assert apart.max() <= most, apart.max()
    assert len(np.unique(want[middles, middles].reshape(-1, 3), axis=0)) > 6
    assert world.text("#state") == "ended"
    assert "generation complete" in world.text("#veil")
    assert world.said[0]["realtime_output_format"] == format
    taken = [one["request_id"] for one in world.said if one["type"] == "received"]
    assert len(taken) == len(set(taken)) == 3


def test_keys_and_pads_steer(visit: Callable[..., Any]) -> None:
    world = World(visit())
    page = world.page
    page.keyboard.press("w")  # nothing is live yet
    world.start()
    world.until("c.chunk >= 1")
    before = world.pixels()
    page.keyboard.down("w")
    page.keyboard.down("w")  # the keyboard repeats; the page does not
    world.until("c.eventId === '1'")
    assert re.fullmatch(r"\d+ ms", world.text("[data-figure=latency]"))
    assert "held" in page.locator("[data-action=w]").get_attribute("class")
    page.keyboard.down("d")
    page.keyboard.up("w")
    page.keyboard.up("d")
    world.until("c.eventId === '4'")
    page.locator("[data-action=a]").hover()
    page.mouse.down()
    world.until("c.eventId === '5'")
    page.mouse.up()
    page.locator("[data-action=s]").focus()
    page.keyboard.down("Space")
    world.until("c.eventId === '7'")
    page.evaluate("() => dispatchEvent(new Event('blur'))")
    world.until("c.eventId === '8'")
    page.locator("#steer-text").press_sequentially("was")
    page.keyboard.press("Control+d")
    assert world.held() == [["w"], ["w", "d"], ["d"], [], ["a"], [], ["s"], []]
    for event in world.events():
        assert event["mode"] == "state"
        assert abs(event["transitions"][0]["client_ts_ms"] - time.time() * 1000) < 600_000
    assert not np.array_equal(before, world.pixels())
    page.evaluate(
        """() => {
          const pad = { index: 0, axes: [0, -1, 0, 0] };
          navigator.getGamepads = () => [null, pad];
          dispatchEvent(new Event("gamepadconnected"));
          globalThis.unplug = () => { navigator.getGamepads = () => [null, null]; };
        }"""
    )
    world.until("c.eventId === '9'")
    assert world.held()[-1] == ["w"]
    page.evaluate("() => globalThis.unplug()")
    world.until("c.eventId === '10'")
    assert world.held()[-1] == []
    # What the model does not know is refused by the server, and the page says so.
    page.locator("#steer-text").blur()
    page.keyboard.press("ArrowUp")
    page.locator("#problem:visible").wait_for()
    assert "w, a, s, d" in world.text("#problem")


def test_prompt_pause_and_capture(visit: Callable[..., Any]) -> None:
    world = World(visit())
    page = world.page
    world.start("first words", seed=3)
    world.until("c.chunk >= 1")
    page.fill("#steer-text", "second words")
    page.keyboard.press("Enter")
    page.locator("#notice:visible").wait_for()
    assert re.fullmatch(r"“second words” from chunk \d+ on\.", world.text("#notice"))
    assert page.input_value("#steer-text") == ""
    assert world.events("prompt") == ["second words"]
    world.until("c.eventId === '1'")
    page.click("#pause")
    world.until("b.paused === 'true'")
    assert page.get_attribute("#pause", "aria-pressed") == "true"
    frames = "async () => { const now = canvas.dataset.pictures; for (let i = 0; i < 20; i += 1)"
    frames += "await new Promise(requestAnimationFrame); return [now, canvas.dataset.pictures]; }"
    before, after = page.evaluate(frames)
    assert before == after
    page.click("#capture")
    until(page, "document.getElementById('frame-view').ariaLabel.includes('64 by 48')")
    shown = world.pixels()
    page.click("#pause")
    world.until(f"b.paused === 'false' && c.pictures > {after}")
    world.start("third words", max_chunks=1)
    world.until("b.state === 'ended' && c.last === 'true'")
    init = [one for one in world.said if one["type"] == "init"][-1]
    with Image.open(io.BytesIO(init["first_frame"])) as sent:
        assert np.array_equal(np.asarray(sent.convert("RGB")), shown)
    assert [one["type"] for one in world.said].count("close") == 1, "the first world was ended"


def test_rewind_history_reset_and_fork(visit: Callable[..., Any]) -> None:
    world = World(visit())
    page = world.page
    world.start(rewind_chunks=6)
    world.until("c.chunk >= 5")
    page.fill("#rewind-count", "2")
    page.click("#rewind")
    page.locator("#notice:visible").wait_for()
    behind = int(re.fullmatch(r"Going on behind chunk (\d+)\.", world.text("#notice"))[1])
    world.until(f"c.chunk == {behind + 1}")
    chunks = [int(text) for text in page.locator("#history li").all_inner_texts()]
    assert chunks == list(range(chunks[0], chunks[0] + len(chunks)))
    world.until("c.chunk >= 8")
    page.click("#pause")
    world.until("b.paused === 'true'")
    earlier = page.locator("#history li").nth(-3)
    chunk = int(earlier.inner_text())
    earlier.locator("button").click()
    until(page, f"document.getElementById('notice').textContent.endsWith('chunk {chunk}.')")
    assert int(page.locator("#history li").last.inner_text()) == chunk
    page.click("#pause")
    world.until(f"c.chunk == {chunk + 1}")
    page.keyboard.down("w")
    world.answered()
    with page.context.expect_page() as opened:
        page.click("#fork")
    fork = World(opened.value)
    fork.until("b.state === 'live' && c.chunk > 0")
    fork.answered()
    assert fork.held() == [[]], "nobody holds a key there"
    assert "take" not in fork.page.url
    assert fork.page.evaluate("() => sessionStorage['sgld.session']") != page.evaluate(
        "() => sessionStorage['sgld.session']"
    )
    fork.page.click("#end")
    fork.until("b.state === 'ended'")
    page.bring_to_front()
    page.evaluate("() => { window.open = () => null; }")  # as a browser that blocks pop-ups
    page.click("#fork")
    page.locator("#notice a[href*='#take=']").wait_for()
    page.click("#reset")
    until(page, "document.getElementById('notice').textContent === 'Back at the beginning.'")
    world.until("b.state === 'live' && c.chunk < 3")


def test_a_lost_connection_and_a_new_page_take_the_session_up(
    visit: Callable[..., Any], proxy: Proxy
) -> None:
    world = World(visit(f"{proxy.url}/"))
    page = world.page
    world.start(rewind_chunks=40, queue_chunks=2)
    world.until("b.state === 'live' && c.chunk >= 0")
    page.keyboard.down("w")
    for chunk in (2, 5, 8):
        world.until(f"b.state === 'live' && c.chunk >= {chunk}")
        page.evaluate(
            "() => { globalThis.lost = new Promise((seen) => { const watch = () => {"
            "if (document.body.dataset.state === 'reconnecting') seen(); };"
            "new MutationObserver(watch).observe(document.body, { attributes: true }); }); }"
        )
        proxy.cut()
        page.evaluate("() => globalThis.lost")
    world.until("b.state === 'live' && c.chunk >= 12")
    chunks = [int(text) for text in page.locator("#history li").all_inner_texts()]
    assert chunks == list(range(len(chunks))), "every chunk was shown, once"
    assert [one["type"] for one in world.said].count("init") == 4
    assert world.held() == [["w"], []], "what was held is let go, once"
    assert len({one["resume_token"] for one in world.said if "resume_token" in one}) == 1
    page.reload()
    world.until("b.state === 'live' && c.chunk >= 11")
    page.keyboard.up("w")
    page.keyboard.down("d")
    world.until("c.eventId === '3'")
    page.reload()
    world.until("b.state === 'live' && c.eventId === '4'")
    page.click("#pause")
    world.until("b.paused === 'true'")
    page.reload()
    world.until("b.state === 'live' && b.paused === 'true'")
    page.click("#pause")
    world.until("b.paused === 'false' && b.shown === 'true'")


def test_a_chunk_that_was_cut_off_is_shown_once(visit: Callable[..., Any]) -> None:
    seen = visit().evaluate(
        """async () => {
          const { encode } = await import("/page/msgpack.js");
          const { Session } = await import("/page/session.js");
          const sockets = [];
          globalThis.WebSocket = class {
            static OPEN = 1;
            readyState = 1;
            constructor() { sockets.push(this); }
            send() {}
            close() {}
            says(message) { this.onmessage({ data: encode(message) }); }
          };
          const session = new Session(new URL("ws://x/"), "");
          const got = [];
          const reopened = new Promise((done) => session.addEventListener("state", ({ detail }) => {
            if (detail === "reconnecting") setTimeout(function look() {
              if (sockets.length > 1) done(); else setTimeout(look, 5);
            });
          }));
          session.addEventListener("batch", ({ detail }) => got.push([detail.request_id,
            detail.frame_batch_index, detail.seen]));
          session.start({});
          const facts = { type: "session", resume_token: "t", grace_seconds: 9, warnings: [] };
          const batch = (id, index) => ({ type: "frame_batch", request_id: id, num_frames: 6,
            frame_batch_index: index, is_final_frame_batch: index === 2, payload: "" });
          sockets[0].says(facts);
          for (const index of [0, 1, 2]) sockets[0].says(batch("a", index));
          for (const index of [0, 1]) sockets[0].says(batch("b", index));
          sockets[0].says({ ...batch("b", 2), type: "frame_batch_header" });
          sockets[0].onclose({ code: 1006, reason: "" });
          await reopened;
          sockets[1].says(facts);
          for (const index of [0, 1, 2]) sockets[1].says(batch("b", index));
          sockets[1].says(batch("c", 0));
          session.end();
          return got;
        }"""
    )
    first = [["a", 0, 0], ["a", 1, 0], ["a", 2, 0], ["b", 0, 0], ["b", 1, 0]]
    assert seen == [*first, ["b", 0, 12], ["b", 1, 6], ["b", 2, 0], ["c", 0, 0]]


def test_what_cannot_be_decoded_is_told_and_counted(visit: Callable[..., Any]) -> None:
    outcome = visit().evaluate(
        """async () => {
          const { Decoder } = await import("/page/decoders.js");
          const told = [], out = [];
          let enough;
          const all = new Promise((done) => { enough = done; });
          const decoder = new Decoder({
            onError: (error) => told.push(error.message),
            onPicture: (one) => {
              out.push([one.requestId, one.source === null, one.last]);
              if (out.length === 8) enough();
            },
          });
          const batch = (id, more) => ({ request_id: id, num_frames: 2, width: 8, height: 8,
            is_final_frame_batch: true, payload: new Uint8Array(20).fill(1),
            payload_lengths: [10, 10], ...more });
          decoder.push(batch("a", { encoding: "webp", content_type: "image/webp" }));
          decoder.push(batch("b", { encoding: "raw", bytes_per_frame: 192 }));
          const h264 = { encoding: "h264", codec: "avc1.42E01E" };
          decoder.push(batch("c", { ...h264, key_frames: [false, false] }));
          decoder.push(batch("d", { ...h264, key_frames: [true, false] }));
          await all;
          return [told, out.filter(([id]) => id < "c"), out.filter(([id]) => id >= "c")];
        }"""
    )
    told, pictures, video = outcome
    assert [one[1:] for one in video] == [[True, False], [True, True]] * 2
    assert [one[0] for one in video] == ["c", "c", "d", "d"]
    assert [one[0] for one in pictures] == ["a", "a", "b", "b"]
    assert pictures[1][1:] == pictures[3][1:] == [True, True]
    assert any("picture" in one for one in told)
    assert any("does not add up" in one for one in told)
    assert any("this video" in one for one in told)


def test_the_next_chunk_is_asked_for_just_in_time(visit: Callable[..., Any]) -> None:
    outcome = visit().evaluate(
        """async () => {
          const { Pace } = await import("/page/pace.js");
          let now = 0;
          performance.now = () => now;
          const taken = [], steps = [];
          const pace = new Pace((id) => taken.push(id));
          const step = (act) => { act(); steps.push(taken.join("")); };
          pace.open({ justInTime: true, fps: 10, pictures: 10 });
          step(() => pace.arrived("a", 11));
          step(() => pace.waits(10));
          now += 100;
          step(() => pace.arrived("b", 15));
          step(() => pace.waits(4));
          step(() => pace.waits(3));
          pace.disturbed();
          now += 9000;
          step(() => pace.arrived("c", 4));
          step(() => pace.shown("b"));
          step(() => pace.shown("c"));
          step(() => pace.arrived("d", 9));
          step(() => pace.flush());
          step(() => pace.shown("d"));
          pace.open({ justInTime: false, fps: 10, pictures: 10 });
          step(() => { pace.arrived("e", 0); pace.waits(0); });
          step(() => pace.shown("e"));
          return steps;
        }"""
    )
    assert outcome == [
        *("", "a", "a", "a", "ab"),  # at most a chunk ahead; then 120 ms and two pictures
        *("ab", "ab", "abc"),  # the long pause did not count; shown is the latest moment
        *("abc", "abcd", "abcd"),  # gone back: everything that came is done with
        *("abcd", "abcde"),  # steadily: when it was shown
    ]


# What can go wrong, and for whom it is


def test_faults_stand_at_their_fields(visit: Callable[..., Any], tmp_path: Path) -> None:
    world = World(visit())
    page = world.page
    page.click("#start")
    assert "Say what the world looks like" in world.text(".fault[data-for=prompt]")
    assert page.get_attribute("#prompt", "aria-invalid") == "true"
    world.start(size="65x48")
    page.locator("#size[aria-invalid=true]").wait_for()
    world.until("b.state === 'ended'")
    assert "65" in world.text(".fault[data-for=size]")
    page.fill("#size", "64x48")
    assert page.get_attribute("#size", "aria-invalid") is None
    page.fill("#seed", "1.5")
    page.click("#start")
    assert world.text(".fault[data-for=other]").startswith("Seed: ")
    note = tmp_path / "note.png"
    note.write_text("no picture")
    page.set_input_files("#frame-file", note)
    page.locator(".fault[data-for=first_frame]:not(:empty)").wait_for()
    assert "note.png is no" in world.text(".fault[data-for=first_frame]")
    assert [one["type"] for one in world.said].count("init") == 1
    page.click("#seed-new")
    picture = io.BytesIO()
    Image.new("RGB", (32, 24), "white").save(picture, "PNG")
    page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          const file = new File([Uint8Array.fromBase64(bytes)], "white.png", { type: "image/png" });
          data.items.add(file);
          dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        base64.b64encode(picture.getvalue()).decode(),
    )
    until(page, "document.getElementById('frame-view').ariaLabel.includes('32 by 24')")
    world.start()
    world.until("b.state === 'live' && c.chunk >= 0")
    assert not any(page.locator(".setup .fault").all_inner_texts())
    inits = [one for one in world.said if one["type"] == "init"]
    assert inits[-1]["first_frame"] == picture.getvalue()


def test_a_failure_is_told(visit: Callable[..., Any]) -> None:
    world = World(visit())
    world.page.evaluate(
        """async () => {
          const { decode, encode } = await import("/page/msgpack.js");
          const { send } = WebSocket.prototype;
          WebSocket.prototype.send = function (data) {
            const message = decode(data);
            if (message.type === "init") message.fail_at_chunk = 2;
            send.call(this, encode(message));
          };
        }"""
    )
    world.start()
    world.until("b.state === 'ended' && c.last === 'true'")
    world.page.locator("#problem:visible").wait_for()
    assert "told to fail in chunk 1" in world.text("#problem")
    assert "stage_failed" in world.text("#veil")
    assert [one["type"] for one in world.said].count("init") == 1, "there is nothing to resume"


def test_the_key_is_asked_for(visit: Callable[..., Any]) -> None:
    page = visit(key="", expect="401")
    page.locator("#key-dialog[open]").wait_for()
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.locator("#key-fault:not(:empty)").wait_for()
    page.fill("#key", ODD_KEY)
    page.click("#key-dialog button.go")
    world = World(page)
    assert world.text("#model") == "toy-world"
    world.start(max_chunks=1)
    world.until("b.state === 'ended' && c.last === 'true'")


def test_everybody_can_use_it(visit: Callable[..., Any]) -> None:
    page = visit(viewport={"width": 360, "height": 640}, has_touch=True, reduced_motion="reduce")
    World(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, canvas")]
          .filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
          .map((one) => one.id || one.outerHTML)"""
    )
    assert not nameless
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    sizes = page.evaluate(
        """() => [...document.querySelectorAll(".pad button, .transport button, .steer button")]
          .map((one) => one.getBoundingClientRect())
          .map((box) => Math.min(box.width, box.height))"""
    )
    assert min(sizes) >= 44
    assert page.evaluate(
        "() => getComputedStyle(canvas.nextElementSibling).transitionDuration"
    ) in (
        "0s",
        "",
    )
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        names = ["ground", "panel", "text", "dim", "accent", "bad", "on-accent", "bad-ground"]
        colours = page.evaluate(
            "(names) => names.map((name) => getComputedStyle(document.documentElement)"
            ".getPropertyValue(`--${name}`).trim())",
            names,
        )
        colour = dict(zip(names, colours, strict=True))
        pairs = [(ink, paper) for ink in ("text", "dim", "accent", "bad") for paper in
                 ("ground", "panel")]  # fmt: skip
        for ink, paper in [*pairs, ("on-accent", "accent"), ("bad", "bad-ground")]:
            assert contrast(colour[ink], colour[paper]) >= 4.5, (scheme, ink, paper)


def contrast(one: str, other: str) -> float:
    """Ratio of two colours, `#rrggbb`, as the accessibility guidelines (WCAG 2.2) define it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
