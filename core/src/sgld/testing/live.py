"""Realtime sessions of a tiny checkpoint, driven by hand, through a family's own adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Self

import numpy as np

from sgld.causal.blocks import Chunk
from sgld.engine.build import build_engine
from sgld.engine.causal import CausalPipeline
from sgld.params.merge import Layer
from sgld.params.requests import prepare
from sgld.plugins.catalog import load_target
from sgld.realtime.adapter import Opening, RealtimeAdapter
from sgld.realtime.messages import SessionReport
from sgld.testing.bench import Bench
from sgld.testing.engine_rig import picture, smallest
from sgld.testing.sessions import SessionDriver

Event = tuple[str, Any]
"""Kind and payload, as a client sends them."""


class Live:
    """An engine with sessions of one adapter.

    Args:
        bench: checkpoints and device.
        contract: a class with `catalog()`, `id()`, `init` and `options`.
    """

    def __init__(self, bench: Bench, contract: Any) -> None:
        catalog, id = contract.catalog(), contract.id()
        entry = catalog.realtime[id]
        self.adapter: type[RealtimeAdapter] = load_target(entry.spec.target, entry)
        self.plan = bench.plan(catalog, entry.spec.pipeline, **contract.options)
        self.init = {**smallest(self.plan), **contract.init}
        self.driver = SessionDriver(self.plan.params_class, id)
        self.driver.attach(build_engine(self.plan, self.driver.take))
        self._names = (f"s{number}" for number in count(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()
        self.plan.close()

    @property
    def pipeline(self) -> CausalPipeline:
        """The family."""
        pipeline = self.driver.engine.pipeline
        assert isinstance(pipeline, CausalPipeline)
        return pipeline

    def opening(self, **more: Any) -> Opening:
        """What the adapter reads from the init message, with further fields."""
        return self.adapter.read_init({**self.init, **more})

    def params(self, **more: Any) -> Any:
        """The validated parameters of a session.

        Raises ParameterError for what adapter or family refuse.
        """
        opening = self.opening(**more)
        layers = [Layer("call", dict(opening.params)), self.plan.preset_layer]
        images = 1 if self.adapter.needs_first_frame else 0
        [made] = prepare(self.plan.params_class, layers, images_given=images)
        return made.params

    def instance(self) -> RealtimeAdapter:
        """The control state of a new session, with the events of its init message."""
        adapter = self.adapter(self.params())
        for kind, control, event_id in self.opening().events:
            adapter.apply(kind, control, event_id)
        return adapter

    def chunks(self, number: int, start: int = 0) -> list[Chunk]:
        """So many chunks of a session."""
        plan = self.pipeline.plan(self.params())._replace(total=0)
        return [plan.chunk(index) for index in range(start, start + number)]

    def open(self, *, events: Iterable[Event] = (), rewind_chunks: int = 0) -> str:
        """Open a session, give it these events, and return its name."""
        name = next(self._names)
        frame = (picture(),) if self.adapter.needs_first_frame else ()
        values = self.params().model_dump(mode="json")
        self.driver.open(
            name,
            values,
            images=frame,
            events=self.opening().events,
            rewind_chunks=rewind_chunks,
        )
        for kind, payload in events:
            self.event(name, kind, payload)
        return name

    def event(self, name: str, kind: str, payload: Any, event_id: int | None = None) -> int:
        """Send an event as the server does; the first chunk that can see it.

        Raises ParameterError when the adapter refuses it.
        """
        control = self.adapter.read_event(kind, payload)
        values: Mapping[str, Any] = {"kind": kind, "control": control, "event_id": event_id}
        return self.driver.ask(name, "event", **values)["chunk"]

    def steps(self, name: str, number: int) -> list[SessionReport]:
        """The reports of the next chunks."""
        return [self.driver.step(name) for _ in range(number)]


def same_frames(left: list[SessionReport], right: list[SessionReport]) -> bool:
    """Whether two rows of chunks have the same bits."""
    pairs = zip(left, right, strict=True)
    return len(left) == len(right) and all(np.array_equal(a.frames, b.frames) for a, b in pairs)  # pyright: ignore[reportArgumentType]
