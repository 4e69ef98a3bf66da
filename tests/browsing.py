"""A real headless Chromium for tests, and the page to steer a world as a test sees it.

    with chromium() as browser: ...     skips where the program is not installed
    World(page).start("a harbour")      the page with its session

Package: chromium.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("the program chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


WAIT = """() => new Promise((done, fail) => {
  const end = performance.now() + PATIENCE;
  const look = () => {
    if (CONDITION) done();
    else if (performance.now() > end) fail(new Error("waited in vain"));
    else setTimeout(look, 10);
  };
  look();
})"""


def until(page: Any, condition: str) -> None:
    """Wait for a JavaScript condition. The page's policy forbids `eval`, and with it playwright's
    own way of waiting."""
    page.evaluate(WAIT.replace("PATIENCE", str(PATIENCE_MS)).replace("CONDITION", condition))


class World:
    """A visited page with its session: what the page said to the server, and what it shows."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[dict[str, Any]] = []
        page.on("websocket", lambda socket: socket.on("framesent", self._note))
        page.wait_for_url(re.compile("^http"))
        until(page, "!document.getElementById('start').disabled")

    def _note(self, frame: Any) -> None:
        self.said.append(msgpack.unpackb(frame))

    def start(self, prompt: str = "a harbour", **fields: Any) -> World:
        self.fill(prompt=prompt, **{"fps": 60, **fields})
        self.page.click("#start")
        return self

    def fill(self, **fields: Any) -> None:
        """By the names of the fields of an init message."""
        self.page.evaluate("() => { document.getElementById('world').open = true; }")
        for name, value in fields.items():
            field = self.page.locator(f"[name={name}]")
            if name in ("realtime_output_format", "queue_chunks"):
                field.select_option(str(value))
            else:
                field.fill(str(value))

    def until(self, condition: str) -> None:
        """A condition on `c`, what the canvas tells, and `b`, the body."""
        until(self.page, f"((c, b) => {condition})(canvas.dataset, document.body.dataset)")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def pixels(self) -> np.ndarray:
        """What the canvas shows, RGB uint8 [H, W, 3]."""
        width, height, data = self.page.evaluate(
            """() => {
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return [width, height, new Uint8Array(data.buffer).toBase64()];
            }"""
        )
        rgba = np.frombuffer(base64.b64decode(data), np.uint8)
        return rgba.reshape(height, width, 4)[..., :3]

    def events(self, kind: str = "camera_actions") -> list[Any]:
        """Payloads of the events that went out."""
        return [m["payload"] for m in self.said if m.get("kind") == kind]

    def answered(self) -> None:
        """Wait until a picture is shown that has seen the first event."""
        while not (numbers := [m["event_id"] for m in self.said if m["type"] == "event"]):
            self.page.evaluate("() => new Promise(requestAnimationFrame)")
        number = numbers[0]
        self.until(f"c.eventId === '{number}'")

    def held(self) -> list[list[str]]:
        """The actions of the camera events that went out."""
        return [one["transitions"][0]["actions"] for one in self.events()]
