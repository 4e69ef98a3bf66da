"""From an `open` command to a session with memory of its own; nothing is allocated here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import torch

from sgld.api.errors import SgldError
from sgld.causal.blocks import BlockPlan
from sgld.engine.causal import CausalPipeline
from sgld.engine.sessions.budget import Budget, Refusal, Undo
from sgld.engine.sessions.outlet import Outlet
from sgld.engine.sessions.session import Session
from sgld.engine.sessions.snapshot import Snapshot
from sgld.engine.sessions.turns import Reader
from sgld.realtime.adapter import RealtimeAdapter
from sgld.realtime.messages import SessionCommand, SessionOptions, SessionReport, SessionRequest


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What an engine needs to hold sessions.

    Args:
        adapters: id → realtime adapter of the loaded pipeline.
        identity: what a snapshot must share with the engine that continues it, such as the model.
        memory: bytes of the device for the states of all sessions and causal requests together.
        most: sessions at once.
        undo_memory: bytes of host memory for the chunks that sessions can take back; None: out of
            `memory`, where the device's memory is the host's.
    """

    adapters: Mapping[str, type[RealtimeAdapter]] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    memory: int = sys.maxsize
    most: int = 16
    undo_memory: int | None = None


class Opener:
    """Makes sessions and reserves their memory.

    Args:
        pipeline: the family.
        validate: turns parameters into the family's validated object.
        device: where states live.
        budget: where memory is reserved.
        emit: what sessions hand their chunks to.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        pipeline: CausalPipeline,
        validate: Callable[[Any], Any],
        settings: SessionSettings,
        device: torch.device,
        budget: Budget,
        emit: Callable[[SessionReport], Any],
        clock: Callable[[], float],
    ) -> None:
        self._pipeline = pipeline
        self._validate = validate
        self._settings = settings
        self._device = device
        self._budget = budget
        self._emit = emit
        self._clock = clock
        self._numbers = count(1)

    def session(self, command: SessionCommand) -> Session:
        """The session that an `open` asks for, with its memory reserved.

        Raises Refusal, or what the family's adapter raises for its events.
        """
        request = command.values.get("request")
        if not isinstance(request, SessionRequest) or request.id != command.session_id:
            raise Refusal("open needs a request with the session's id.", code="invalid_command")
        check_options(request.options)
        adapter_class = self._adapter(request.adapter)
        snapshot = Snapshot.read(request.snapshot) if request.snapshot else None
        params = self._params(request)
        if snapshot is not None:
            snapshot.check(self._settings.identity, request.params, request.seed)
            if snapshot.adapter != request.adapter:
                raise Refusal(
                    f"the snapshot is one of adapter {snapshot.adapter!r}.",
                    code="snapshot_mismatch",
                    field="snapshot",
                )
            request = replace(request, images=request.images or snapshot.images, snapshot=b"")
        if adapter_class.needs_first_frame and not request.images:
            raise Refusal(
                "a first frame is required: this model starts from a picture.",
                code="invalid_parameter",
                field="first_frame",
            )
        adapter = adapter_class(params)
        if snapshot is not None:
            adapter.load(snapshot.controls)
        for kind, control, event_id in request.events:
            adapter.apply(kind, control, event_id)
        session = self._session(request, params, adapter)
        session.restoring = snapshot
        if snapshot is not None:
            session.first_index = snapshot.next_index
        self._reserve(session)
        return session

    def fork(self, source: Session, id: str) -> Session:
        """A session that goes on from where `source` stands, with memory of its own.

        Raises Refusal when there is no room.
        """
        assert source.state is not None
        request = replace(source.request, id=id)
        session = self._session(request, source.params, source.adapter.fork())
        self._reserve(session)
        try:
            session.state = source.state.fork()
        except BaseException:
            self._budget.release(session)
            raise
        session.phase = "idle"
        session.first_index = source.first_index
        session.event_id = source.event_id
        session.marks.extend(source.marks)
        session.paused = source.paused
        return session

    def adapter(self, session: Session) -> RealtimeAdapter:
        """The controls that a session began with."""
        adapter = self._adapter(session.request.adapter)(session.params)
        for kind, control, event_id in session.request.events:
            adapter.apply(kind, control, event_id)
        return adapter

    def reader(self, session: Session) -> Reader:
        """A reader that has nothing to show yet."""
        return Reader(self._clock(), session.params.fps)

    def snapshot(self, session: Session) -> bytes:
        """A session between two chunks, as bytes."""
        assert session.state is not None
        request = session.request
        return Snapshot(
            identity=self._settings.identity,
            params=request.params,
            seed=request.seed,
            adapter=request.adapter,
            controls=session.adapter.dump(),
            event_id=session.event_id,
            next_index=session.state.next_index,
            images=request.images,
            state=session.state.snapshot(),
        ).to_bytes()

    def report(self, session: Session, number: int) -> SessionReport:
        """The report that a session is open."""
        plan, params, pipeline = session.plan, session.params, self._pipeline
        values = {
            "width": params.width,
            "height": params.height,
            "fps": params.fps,
            "chunk_latents": plan.size,
            "first_frames": pipeline.frames(plan.chunk(0)),
            "chunk_frames": pipeline.frames(plan.chunk(1)),
            "chunk": session.next_index,
            "bytes": session.promised,
            "undo_bytes": session.promised_undo,
            "live": self._budget.live,
        }
        return SessionReport(session.id, "opened", number, values=values)

    def _session(self, request: SessionRequest, params: Any, adapter: RealtimeAdapter) -> Session:
        options = request.options
        plan: BlockPlan = self._pipeline.plan(params)
        return Session(
            request=request,
            params=params,
            plan=plan._replace(total=0),
            adapter=adapter,
            outlet=Outlet(self._emit, options.queue_chunks, options.on_full == "drop"),
            reader=Reader(self._clock(), params.fps),
            seniority=next(self._numbers),
        )

    def _reserve(self, session: Session) -> None:
        options, params, pipeline = session.options, session.params, self._pipeline
        chunks = options.rewind_chunks
        size = partial(_undo_bytes, pipeline, params, self._device)
        session.promised = pipeline.state_bytes(params, undo=chunks)
        session.promised_undo = self._budget.reserve(
            session, session.promised, Undo(chunks, options.ahead, size)
        )

    def _adapter(self, id: str) -> type[RealtimeAdapter]:
        adapters = self._settings.adapters
        if id in adapters:
            return adapters[id]
        there = ", ".join(sorted(adapters)) or "none"
        raise Refusal(
            f"this model has no realtime adapter {id!r} (there are: {there}).",
            code="unsupported_feature",
            field="adapter",
        )

    def _params(self, request: SessionRequest) -> Any:
        try:
            return self._validate(request.params)
        except SgldError:
            raise
        except Exception as error:  # what a family's own validation raises
            raise Refusal(str(error), code="invalid_parameter", field="params") from error


def _undo_bytes(pipeline: CausalPipeline, params: Any, device: torch.device, undo: int) -> int:
    return pipeline.undo_bytes(params, undo=undo, device=device)


def check_options(options: SessionOptions) -> None:
    """Raises Refusal naming the option that is out of its range."""
    wrong = {
        "max_chunks": options.max_chunks < 0,
        "queue_chunks": options.queue_chunks < 1,
        "rewind_chunks": options.rewind_chunks < 0,
        "ahead": not 0 <= options.ahead <= max(options.rewind_chunks, 0),
        "on_full": options.on_full not in ("block", "drop"),
    }
    for name, bad in wrong.items():
        if bad:
            value = getattr(options, name)
            rule = {
                "queue_chunks": "must be 1 or more",
                "on_full": "must be block or drop",
                "ahead": "must be from 0 to rewind_chunks",
            }.get(name, "must not be negative")
            raise Refusal(f"{name}={value!r} {rule}.", code="invalid_parameter", field=name)
