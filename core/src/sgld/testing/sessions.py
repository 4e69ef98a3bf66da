"""An engine with realtime sessions, driven by hand: for tests of causal families.

rig = SessionRig(MyPipeline({...}), modules, MyParams, {"mine": MyAdapter})
rig.open("a", params, seed=7, rewind_chunks=2)
rig.step("a")                       the report of the next chunk
rig.ask("a", "rewind", chunks=1)    the answer; an AssertionError when it is refused
rig.close()
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from sgld.engine.causal import CausalPipeline
from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.executors.executor import Told
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore, Mode
from sgld.engine.sessions.desk import Sessions
from sgld.engine.sessions.opening import SessionSettings
from sgld.messages import Event
from sgld.realtime.adapter import RealtimeAdapter
from sgld.realtime.messages import (
    CommandKind,
    SessionCommand,
    SessionOptions,
    SessionReport,
    SessionRequest,
)

GIB = 2**30
PATIENCE = 60.0
"""Seconds that the lane may take for one task before a test is given up."""


class SessionDriver:
    """Drives the sessions of an engine, and keeps all that it tells.

    Args:
        params: the family's parameter class.
        adapter: id of the realtime adapter that sessions use.
        heard: called with everything the engine tells, beside keeping it.

    `attach` an engine whose events go to `take`.
    """

    def __init__(
        self, params: Any, adapter: str, heard: Callable[[Told], None] | None = None
    ) -> None:
        self.told: list[Told] = []
        self.params, self.adapter = params, adapter
        self._numbers = itertools.count(1)
        self._woken = threading.Event()
        self._heard = heard

    def attach(self, engine: Engine) -> None:
        """Drive this engine from now on."""
        self.engine = engine
        engine.on_wake(self._woken.set)

    def take(self, told: Told) -> None:
        """What the engine tells."""
        self.told.append(told)
        if self._heard is not None:
            self._heard(told)

    @property
    def sessions(self) -> Sessions:
        """The engine's sessions."""
        assert self.engine.sessions is not None
        return self.engine.sessions

    def reports(self, id: str, *kinds: str) -> list[SessionReport]:
        """What was told of a session, of these kinds or of all."""
        return [
            row
            for row in list(self.told)
            if isinstance(row, SessionReport)
            and row.session_id == id
            and (not kinds or row.kind in kinds)
        ]

    def events(self, id: str) -> list[Event]:
        """What was told of an ordinary request."""
        return [row for row in list(self.told) if isinstance(row, Event) and row.request_id == id]

    def send(self, id: str, kind: CommandKind, number: int | None = None, /, **values: Any) -> int:
        """Give a command; returns its number."""
        number = next(self._numbers) if number is None else number
        self.engine.command(SessionCommand(id, kind, number, values))
        return number

    def ask(self, id: str, kind: CommandKind, /, **values: Any) -> Mapping[str, Any]:
        """Give a command and drive until it is answered; the values of the answer."""
        report = self.answer(id, kind, **values)
        assert not report.code, report
        return report.values

    def answer(self, id: str, kind: CommandKind, /, **values: Any) -> SessionReport:
        """As `ask`, but a refusal is an answer too."""
        number = self.send(id, kind, **values)
        wanted = "opened" if kind == "open" else "answer"

        def found() -> list[SessionReport]:
            return [row for row in self.reports(id, wanted) if row.number == number]

        self.drive(lambda: bool(found()))
        assert found(), (id, kind, self.told[-3:])
        return found()[0]

    def request(
        self,
        id: str,
        params: Mapping[str, Any],
        *,
        seed: int = 1,
        images: tuple[Any, ...] = (),
        events: tuple[Any, ...] = (),
        snapshot: bytes = b"",
        **options: Any,
    ) -> SessionRequest:
        """What `open` sends; `options` are those of `SessionOptions`, stepped by default."""
        values = self.params(**params).model_dump(mode="json")
        made = SessionOptions(**{"free_running": False, **options})
        return SessionRequest(id, self.adapter, values, seed, images, events, made, snapshot)

    def open(self, id: str, params: Mapping[str, Any], **request: Any) -> Mapping[str, Any]:
        """Open a session and drive until it is open; its facts."""
        return self.ask(id, "open", request=self.request(id, params, **request))

    def step(self, id: str) -> SessionReport:
        """The next chunk of a stepped session, taken by its reader."""
        before = len(self.reports(id, "chunk"))
        self.ask(id, "step")
        self.drive(lambda: len(self.reports(id, "chunk", "closed")) > before)
        chunk = self.reports(id, "chunk", "closed")[before]
        assert chunk.kind == "chunk", chunk
        self.send(id, "taken", 0, chunk=chunk.chunk)
        return chunk

    def drive(self, done: Callable[[], bool] = lambda: False) -> None:
        """Turn the engine until `done`, or until it has nothing to do and the lane is idle."""
        while not done():
            if self.engine.turn() or done():
                continue
            if self.engine.idle():
                return
            assert self.woken(PATIENCE), "the lane does not come to an end"

    def woken(self, seconds: float) -> bool:
        """Wait until the engine has something to do again; False after so many seconds."""
        there = self._woken.wait(seconds)
        self._woken.clear()
        return there

    def close(self) -> None:
        """End everything."""
        self.engine.close()


class SessionRig(SessionDriver):
    """An engine of one causal pipeline and all that it has told.

    Args:
        pipeline: the family.
        modules: its components.
        params: its parameter class.
        adapters: its realtime adapters; the first one is used.
        memory: bytes for the states of all sessions and requests.
        undo_memory: bytes of host memory for the chunks to take back; None: out of `memory`.
        most: sessions at once.
        modes: residencies; all resident by default.
        heard: called with everything the engine tells, in place of just keeping it.
        clock: seconds that deadlines are told by.
    """

    def __init__(
        self,
        pipeline: CausalPipeline,
        modules: Mapping[str, nn.Module],
        params: Any,
        adapters: Mapping[str, type[RealtimeAdapter]],
        *,
        device: torch.device | None = None,
        memory: int = GIB,
        undo_memory: int | None = None,
        most: int = 64,
        modes: Mapping[str, Mode] | None = None,
        heard: Callable[[Told], None] | None = None,
        identity: Mapping[str, str] | None = None,
        **engine: Any,
    ) -> None:
        super().__init__(params, next(iter(adapters)), heard)
        self.pipeline = pipeline
        device = device or torch.device("cpu")
        identity = identity or {"model": "rig"}
        sessions = SessionSettings(adapters, identity, memory, most, undo_memory)
        engine_made = Engine(
            pipeline=pipeline,
            validate=params.model_validate,
            store=ComponentStore(modules, modes or {}, TorchMover(device)),
            device=device,
            emit=self.take,
            settings=EngineSettings(sessions=sessions),
            **engine,
        )
        self.attach(engine_made)
