"""A realtime session from Python.

with model.session(prompt="a forest", first_frame="door.png", rewind_chunks=4) as session:
    session.send("camera_actions", [["w"], ["w"], ["d"]])
    chunk = session.step()              # chunk.frames: uint8 [F, H, W, 3]
    for chunk in session: ...           # on and on, until `max_chunks` or a break
    session.rewind(2)
    other = session.fork()
    saved = session.snapshot()          # bytes; model.session(snapshot=saved) goes on from there
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import structlog

from sgld.api.errors import ParameterError, Problem, RequestError, SgldError
from sgld.engine.executors.executor import Executor
from sgld.engine.mailboxes import Mailboxes
from sgld.realtime.adapter import RealtimeAdapter
from sgld.realtime.messages import (
    CommandKind,
    SessionCommand,
    SessionOptions,
    SessionReport,
    SessionRequest,
)

log = structlog.get_logger("sgld.engine")

MOST_CHUNKS: Final = 10**9
GONE: Final = "session_not_found"
OVER: Final = (GONE, "session_complete")
"""How the engine refuses what comes after a session's last chunk."""


@dataclass(frozen=True, slots=True)
class SessionChunk:
    """Some frames of a session.

    Args:
        index: of the chunk, from 0.
        frames: RGB uint8 [F, H, W, 3].
        event_id: of the newest event that it has seen.
        seconds: part (prepare, denoise, decode, commit of the chunk before) → seconds of work.
        bytes: held by the session's state on the device.
        dropped: chunks that were left out before it (`on_full="drop"`).
    """

    index: int
    frames: npt.NDArray[np.uint8]
    event_id: int | None
    seconds: Mapping[str, float]
    bytes: int
    dropped: int = 0


def session_options(
    *,
    rewind_chunks: int,
    max_chunks: int | None,
    free_running: bool,
    queue_chunks: int,
    on_full: Literal["block", "drop"],
) -> SessionOptions:
    """How a session runs, checked.

    Raises ParameterError naming every field that is wrong.
    """
    ranges = {
        "rewind_chunks": (rewind_chunks, 0, 1024),
        "max_chunks": (1 if max_chunks is None else max_chunks, 1, MOST_CHUNKS),
        "queue_chunks": (queue_chunks, 1, 1024),
    }
    problems = [
        Problem(name, value, f"must be a whole number from {least} to {most}.")
        for name, (value, least, most) in ranges.items()
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most
    ]
    if on_full not in ("block", "drop"):
        problems.append(Problem("on_full", on_full, "must be block or drop."))
    if problems:
        raise ParameterError(problems)
    return SessionOptions(
        max_chunks=max_chunks or 0,
        queue_chunks=queue_chunks,
        on_full=on_full,
        rewind_chunks=rewind_chunks,
        free_running=bool(free_running),
    )


class Session:
    """An open session; use it as a context manager, or call `close`. One thread at a time.

    Args:
        executor: where the engine lives, and `mail` its events.
        adapter: reads control events.
        request: what the session starts from.
        name: makes ids of forks.

    Raises RequestError when it is refused: `busy` when there is no memory left.
    """

    def __init__(
        self,
        executor: Executor,
        mail: Mailboxes,
        adapter: type[RealtimeAdapter],
        request: SessionRequest,
        name: Callable[[], str],
    ) -> None:
        self._setup(executor, mail, adapter, request, name)
        try:
            self.facts = self._ask("open", request=request).values
        except BaseException:
            self._box.close()
            raise
        self._next = int(self.facts["chunk"])

    def _setup(
        self,
        executor: Executor,
        mail: Mailboxes,
        adapter: type[RealtimeAdapter],
        request: SessionRequest,
        name: Callable[[], str],
    ) -> None:
        self._executor = executor
        self._mail = mail
        self._adapter = adapter
        self._request = request
        self._name = name
        self._numbers = itertools.count(1)
        self._box = mail.join(request.id)
        self._chunks: deque[SessionChunk] = deque()
        self._ended: SessionReport | None = None
        self._next = 0
        self.facts: Mapping[str, Any] = {}
        """What is known of the session: width, height, fps, chunk_latents, first_frames,
        chunk_frames, bytes (reserved)."""

    @property
    def id(self) -> str:
        """Its name in the engine."""
        return self._request.id

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._ended is not None

    @property
    def free_running(self) -> bool:
        """Whether it generates on its own."""
        return self._request.options.free_running

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[SessionChunk]:
        """Chunks until the last one."""
        while (chunk := self._advance()) is not None:
            yield chunk

    def send(self, kind: str, payload: Any, event_id: int | None = None) -> int:
        """Send a control event; returns the index of the first chunk that sees it.

        Raises:
            ParameterError: the payload is wrong; nothing was sent.
        """
        control = self._adapter.read_event(kind, payload)
        answer = self._ask("event", kind=kind, control=control, event_id=event_id)
        return int(answer.values["chunk"])

    def step(self) -> SessionChunk:
        """The next chunk; waits for it.

        Raises RequestError when the session has ended, with its code.
        """
        chunk = self._advance()
        if chunk is None:
            raise self._over()
        return chunk

    def rewind(self, chunks: int) -> None:
        """Take back the last `chunks` chunks that were given, and the controls with them.

        Raises RequestError when they are not remembered, ParameterError when there are not so many.
        """
        if isinstance(chunks, bool) or not isinstance(chunks, int) or not 1 <= chunks <= self._next:
            wanted = f"must be a whole number from 1 to {self._next}, the chunks there are."
            raise ParameterError([Problem("chunks", chunks, wanted)])
        self._go_back("rewind", to=self._next - chunks)

    def reset(self) -> None:
        """Begin again with chunk 0, as the session was opened."""
        self._go_back("reset")

    def fork(self) -> Session:
        """A second session that goes on from here with the same controls; close it, too."""
        request = SessionRequest(
            self._name(),
            self._request.adapter,
            self._request.params,
            self._request.seed,
            self._request.images,
            options=self._request.options,
        )
        other = object.__new__(Session)
        other._setup(self._executor, self._mail, self._adapter, request, self._name)
        try:
            self._ask("fork", id=request.id)
            other.facts = other._wait("opened", None).values
        except BaseException:
            other._box.close()
            raise
        other._next = int(other.facts["chunk"])
        return other

    def snapshot(self) -> bytes:
        """All of it as bytes, for `Model.session(snapshot=...)` of the same model, anywhere."""
        return self._ask("snapshot").values["snapshot"]

    def pause(self) -> None:
        """Generate only on `step` from now on."""
        self._ask("pause")

    def resume(self) -> None:
        """Generate on its own from now on."""
        self._ask("resume")

    def close(self) -> None:
        """End it and free its memory. Safe to call again, also after the model was closed."""
        try:
            if self._ended is None:
                self._command("close")
            while self._ended is None:
                self._read()
        except SgldError as error:
            # A closed or lost engine has freed it already; its owner has been told.
            log.debug("a session ended with its engine", session=self.id, reason=str(error))
        self._box.close()

    def _advance(self) -> SessionChunk | None:
        """The next chunk, or None when the session has come to its end."""
        if not self._chunks and self._ended is None and not self.free_running:
            try:
                self._ask("step")
            except RequestError as error:
                if error.code not in OVER:
                    raise
        while not self._chunks:
            if self._ended is not None:
                if self._ended.code:
                    raise self._over()
                return None
            self._read()
        chunk = self._chunks.popleft()
        self._next = chunk.index + 1
        self._command("taken", chunk=chunk.index)
        return chunk

    def _go_back(self, kind: CommandKind, /, **values: Any) -> None:
        answer = self._ask(kind, **values)
        self._next = int(answer.values["chunk"])
        # Those that came before the answer are the ones that were taken back.
        self._chunks = deque(chunk for chunk in self._chunks if chunk.index < self._next)

    def _ask(self, kind: CommandKind, /, **values: Any) -> SessionReport:
        """Send a command and wait for its answer.

        Raises RequestError when it is refused, or the session ends instead.
        """
        number = self._command(kind, **values)
        return self._wait("opened" if kind == "open" else "answer", number)

    def _wait(self, kind: str, number: int | None) -> SessionReport:
        while True:
            report = self._read()
            if report.kind == kind and number in (report.number, None):
                if report.code:
                    raise RequestError(report.message, code=report.code)
                return report
            if report.kind == "closed":
                raise self._over()

    def _command(self, kind: CommandKind, /, **values: Any) -> int:
        number = next(self._numbers)
        if self._ended is None:
            self._executor.command(SessionCommand(self.id, kind, number, values))
        elif kind != "taken":
            raise self._over()
        return number

    def _read(self) -> SessionReport:
        report = self._box.next()
        if report is None:
            raise self._over()
        if report.kind == "closed" or (report.kind == "opened" and report.code):
            self._ended = report
        elif report.kind == "chunk" and report.frames is not None:
            values = report.values
            self._chunks.append(
                SessionChunk(
                    report.chunk,
                    report.frames,
                    report.event_id,
                    values["seconds"],
                    values["bytes"],
                    values["dropped"],
                )
            )
        return report

    def _over(self) -> RequestError:
        ended = self._ended
        if ended is None or not ended.code:
            return RequestError("the session has ended.", code=GONE)
        return RequestError(ended.message, code=ended.code)
