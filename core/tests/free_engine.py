"""An engine whose stages are written by a test, and what it has told."""

from __future__ import annotations

import gc
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sgld.engine.call import Call, StageRun
from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.job import Job
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore
from sgld.engine.stage import Stage
from sgld.messages import Event, Output, Request
from sgld.testing.toy import ToyParams, ToyPipeline, toy_modules

CPU = torch.device("cpu")
LAST = ("done", "failed", "cancelled")
Body = Callable[[Job], StageRun]


class Free(Stage):
    """A stage made of a function; it writes `frames` itself."""

    id = "free"

    def __init__(self, body: Body) -> None:
        self._body = body

    def run(self, job: Job) -> StageRun:
        return self._body(job)


class FreePipeline(Pipeline):
    """The stages, media and used parameters that a test wants."""

    batch_tokens = 64

    def __init__(self, *bodies: Body, media: Any = None, used: Any = None) -> None:
        super().__init__({})
        self._bodies, self._media, self._used = bodies, media, used

    @classmethod
    def load(cls, loader: Any) -> Loaded:
        raise NotImplementedError

    def stages(self, params: Any) -> Sequence[Stage]:
        return [Free(body) for body in self._bodies]

    def media(self, job: Job) -> Media:
        if self._media is not None:
            return self._media(job)
        frames = job.slots.frames if "frames" in job.slots else torch.zeros(1, 1, 1, 3)
        return Media("image", frames, 0)

    def used(self, job: Job) -> Any:
        return {} if self._used is None else self._used(job)


class Double(nn.Module):
    """Doubles rows; other methods return other kinds of results. Counts its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        self.rows.append(x.shape[0])
        return x * 2

    def pair(self, x: torch.Tensor) -> Any:
        self.rows.append(x.shape[0])
        return {"a": x * 2, "b": (x + 1, None), "c": Named(x * 3, [x])}

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(x.shape[0])
        return x.sum()

    def opaque(self, x: torch.Tensor) -> Any:
        self.rows.append(x.shape[0])
        return Opaque(x * 2)


Named = namedtuple("Named", ["first", "rest"])


@dataclass
class Opaque:
    tensor: torch.Tensor


class Rig:
    """An engine with one module, its events, and calls to make from inside an event."""

    def __init__(self, pipeline: Pipeline, **settings: Any) -> None:
        self.events: list[Event] = []
        self.module = Double()
        self.react: Callable[[Event], object] = lambda event: None
        modules: Any = toy_modules() if isinstance(pipeline, ToyPipeline) else {"m": self.module}
        validate: Any = ToyParams.model_validate if isinstance(pipeline, ToyPipeline) else dict
        self.engine = Engine(
            pipeline=pipeline,
            validate=validate,
            store=ComponentStore(modules, {}, TorchMover(CPU)),
            device=CPU,
            emit=self._emit,
            settings=EngineSettings(**settings),
        )

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def submit(self, *ids: str, seeds: tuple[int, ...] = (1,), **params: Any) -> None:
        for id in ids:
            self.engine.submit(Request(id, params, seeds, want_latents=True))

    def drain(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.engine.turn():
                return
        raise AssertionError("the engine never came to rest")

    def kinds(self, id: str) -> list[str]:
        return [event.kind for event in self.events if event.request_id == id]

    def last(self, id: str) -> Event:
        ends = [e for e in self.events if e.request_id == id and e.kind in LAST]
        assert len(ends) == 1, self.kinds(id)
        assert self.kinds(id)[-1] == ends[0].kind
        return ends[0]

    def outputs(self, id: str) -> list[Output]:
        return [e.output for e in self.events if e.request_id == id and e.output is not None]


def call(value: float, rows: int = 1, **options: Any) -> Call:
    options.setdefault("batch_key", "k")
    return Call("m", {"x": torch.full((rows, 2), value)}, **options)


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


ONE = torch.ones(1, 1, 1, 3)
