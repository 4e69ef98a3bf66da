"""`sgld.model.Model`: threads, early leaving, closing, and an engine that is lost."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sgld.model
from sgld.api.errors import Cancelled, RequestError, SgldError
from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.executors.in_process import InProcessExecutor
from sgld.engine.mailboxes import Mailboxes
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore
from sgld.messages import LAST, Event, Request
from sgld.model import Model, Result
from sgld.params.merge import Layer
from sgld.params.sampling import ImageParams
from sgld.testing.toy import ToyParams, ToyPipeline, toy_modules

CPU = torch.device("cpu")


class Gate(torch.nn.Module):
    """A module that waits while it is shut, and may raise."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.open = threading.Event()
        self.entered = threading.Event()
        self.open.set()
        self.error: BaseException | None = None

    def forward(self, **inputs: Any) -> torch.Tensor:
        self.entered.set()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        return self.inner(**inputs)


class Rig:
    """A model of the toy family whose transformer is behind a gate."""

    def __init__(self, **settings: Any) -> None:
        modules: dict[str, torch.nn.Module] = dict(toy_modules())
        self.gate = modules["transformer"] = Gate(modules["transformer"])
        self.closed: list[bool] = []
        self.modules = modules
        plan: Any = SimpleNamespace(
            params_class=ImageParams,
            preset_layer=Layer("preset", {}, source="toy"),
            local_layer=Layer("preset", {}, source="toy"),
            close=lambda: self.closed.append(True),
        )
        self.executor = InProcessExecutor(partial(self._build, settings))
        self.model = Model(plan, self.executor)

    def _build(self, settings: dict[str, Any], emit: Callable[[Event], None]) -> Engine:
        self.engine = Engine(
            pipeline=ToyPipeline({}),
            validate=ToyParams.model_validate,
            store=ComponentStore(self.modules, {}, TorchMover(CPU)),
            device=CPU,
            emit=emit,
            settings=EngineSettings(**settings),
        )
        return self.engine

    def request(self, id: str, steps: int = 4, seeds: tuple[int, ...] = (1,)) -> Request:
        params = {"num_inference_steps": steps}
        return Request(id, params, seeds, want_latents=True)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.gate.open.set()
    made.model.close()


def latents(result: Result | list[Result]) -> Any:
    assert isinstance(result, Result)
    return result.outputs[0].latents


@pytest.mark.parametrize("settings", [{"batching": "off"}, {"batching": 8, "max_running": 8}])
def test_threads_share_a_model_and_get_their_own_results(settings: Any) -> None:
    rig = Rig(**settings)

    def generate(number: int) -> Any:
        result = rig.model.generate(
            prompt=f"prompt {number % 3}", seed=number, num_inference_steps=1 + number % 5,
            want_latents=True,
        )  # fmt: skip
        assert isinstance(result, Result)
        assert result.seed == number
        return latents(result)

    with rig.model:
        alone = [generate(number) for number in range(12)]
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(generate, range(12)))
    for one, other in zip(alone, together, strict=True):
        assert np.linalg.norm(one - other) / np.linalg.norm(one) < 1e-5
    assert rig.closed == [True]


def test_interleaved_streams_of_one_thread_both_end(rig: Rig) -> None:
    first, second = rig.model.run([rig.request("a")]), rig.model.run([rig.request("b", 6)])
    kinds: dict[str, list[str]] = {"a": [], "b": []}
    for events, id in ((first, "a"), (second, "b")):
        event = next(events)
        assert event.request_id == id
        kinds[id].append(event.kind)
    kinds["b"] += [event.kind for event in second]
    kinds["a"] += [event.kind for event in first]
    for id, steps in (("a", 4), ("b", 6)):
        assert kinds[id][0] == "queued"
        assert kinds[id][-1] == "done"
        assert kinds[id].count("step") == steps


def test_leaving_a_stream_cancels_and_its_id_is_free_again(rig: Rig) -> None:
    for _ in range(20):
        events = rig.model.run([rig.request("same", 200), rig.request("other", 300)])
        for event in events:
            if event.kind == "step" and event.request_id == "same":
                break
        events.close()
    done = [event for event in rig.model.run([rig.request("same", 3)]) if event.kind in LAST]
    assert [event.kind for event in done] == ["done"]
    assert rig.engine.idle()
    assert not rig.model._mail._boxes
    assert not rig.model._mail._left


def test_a_forgotten_stream_is_cancelled_when_it_is_collected(rig: Rig) -> None:
    events = rig.model.run([rig.request("r", 100_000)])
    next(events)
    del events
    gc.collect()
    assert latents(rig.model.generate(prompt="a", seed=1, want_latents=True)) is not None
    assert rig.engine.idle()


def test_an_id_is_refused_while_it_is_open(rig: Rig) -> None:
    with pytest.raises(ValueError, match="already open: r"):
        next(rig.model.run([rig.request("r"), rig.request("r")]))
    rig.gate.open.clear()
    events = rig.model.run([rig.request("r")])
    next(events)
    with pytest.raises(ValueError, match="already open: r"):
        next(rig.model.run([rig.request("q"), rig.request("r")]))
    rig.gate.open.set()
    assert [event.kind for event in events][-1] == "done"
    assert [event.kind for event in rig.model.run([rig.request("q")])][-1] == "done"


def test_closing_ends_the_runs_of_other_threads(rig: Rig) -> None:
    rig.gate.open.clear()
    with ThreadPoolExecutor(3) as pool:
        waiting = [
            pool.submit(rig.model.generate, prompt="a", num_inference_steps=500) for _ in range(3)
        ]
        assert rig.gate.entered.wait(20)
        closing = threading.Thread(target=rig.model.close)
        closing.start()
        rig.gate.open.set()
        for future in waiting:
            with pytest.raises((Cancelled, SgldError)) as caught:
                future.result(timeout=20)
            assert caught.value.code in ("cancelled", "closed")
        closing.join(20)
    with pytest.raises(SgldError, match="closed"):
        rig.model.generate(prompt="a")


def test_an_engine_that_is_lost_says_so_to_every_thread(rig: Rig) -> None:
    class LostError(BaseException):
        pass

    rig.gate.open.clear()
    rig.gate.error = LostError("the device fell off the bus")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(rig.model.generate, prompt="a") for _ in range(4)]
        assert rig.gate.entered.wait(20)
        rig.gate.open.set()
        for future in waiting:
            with pytest.raises(LostError, match="fell off"):
                future.result(timeout=20)
    with pytest.raises(LostError):
        rig.model.generate(prompt="b")
    rig.model.close()
    assert rig.closed == [True]


def test_cancelling_from_another_thread_is_an_error_of_its_own(rig: Rig) -> None:
    rig.gate.open.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(rig.model.generate, prompt="a", num_inference_steps=500)
        assert rig.gate.entered.wait(20)
        rig.model.cancel("request-1")
        rig.gate.open.set()
        with pytest.raises(Cancelled, match="request-1"):
            future.result(timeout=20)


def test_one_failed_prompt_of_several_cancels_the_others(rig: Rig) -> None:
    rig.gate.error = RuntimeError("no")
    with pytest.raises(RequestError, match="no"):
        rig.model.generate(prompt=["a", "b", "c"], num_inference_steps=50)
    rig.gate.error = None
    assert latents(rig.model.generate(prompt="a", want_latents=True)) is not None
    assert rig.engine.idle()


def test_an_error_in_the_with_block_frees_everything() -> None:
    rig = Rig()
    with pytest.raises(KeyError), rig.model:  # noqa: PT012
        events = rig.model.run([rig.request("r", 10_000)])
        next(events)
        raise KeyError("mine")
    assert rig.closed == [True]
    assert not rig.executor._thread.is_alive()


def test_interrupting_a_reader_lets_another_read_on() -> None:
    """The thread that reads for all may be interrupted; the others must not wait for it."""

    class Source:
        def __init__(self) -> None:
            self.events: queue.Queue[Event] = queue.Queue()
            self.interrupt = True

        def submit(self, requests: Any) -> None: ...
        def cancel(self, request_id: str) -> None: ...

        def next_event(self, timeout: float | None = None) -> Event:
            if self.interrupt:
                self.interrupt = False
                raise KeyboardInterrupt
            return self.events.get(timeout=20)

    source: Any = Source()
    mail = Mailboxes(source)
    one, two = mail.submit([Request("a", {}, (1,))]), mail.submit([Request("b", {}, (1,))])
    with pytest.raises(KeyboardInterrupt):
        one.next()
    for event in (Event("queued", "a"), Event("done", "b"), Event("done", "a")):
        source.events.put(event)
    got = two.next()
    assert got is not None
    assert got.request_id == "b"
    assert two.next() is None
    assert [one.next(), one.next(), one.next()] == [Event("queued", "a"), Event("done", "a"), None]


def test_interrupted_loading_stops_at_the_next_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    ended = threading.Event()

    def build(plan: Any, emit: Any, progress: Any) -> Any:
        try:
            for number in range(10_000):
                progress("transformer", number, 10_000)
                pieces.append(number)
                time.sleep(0.001)
        finally:
            ended.set()

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        while len(pieces) < 3:
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(sgld.model, "build_engine", build)
    monkeypatch.setattr(queue.Queue, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Model.open(SimpleNamespace())  # type: ignore[arg-type]
    assert ended.wait(20)
    assert 3 <= len(pieces) < 10_000
