"""Random histories of submit, turn and cancel, with failures at random: what must hold in each."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from torch import nn

from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.entries import Entry
from sgld.engine.job import Job
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore
from sgld.engine.running import Running
from sgld.messages import Event, Request
from sgld.testing.second_device import FakeDeviceMover
from sgld.testing.toy import ToyParams, ToyPipeline, toy_modules

CPU = torch.device("cpu")
LAST = ("done", "failed", "cancelled")
RANK = {"queued": 0, "started": 1, "stage": 2, "step": 2, "preview": 2, "output": 2, "done": 3,
        "failed": 3, "cancelled": 3}  # fmt: skip
STAGES = ["text", "timesteps", "latents", "denoise", "decode"]

PARAMS = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from(["a lamp", "a dog", "bad text", "bad latents"]),
        "negative_prompt": st.sampled_from(["", "blur"]),
        "num_inference_steps": st.integers(1, 5),
        "guidance_scale": st.sampled_from([1.0, 3.0]),
        "size": st.sampled_from([3, 4]),
    }
)


class Faulty(nn.Module):
    """A toy module that now and then fails, or always for a marked prompt."""

    def __init__(self, inner: nn.Module, faults: Faults, name: str) -> None:
        super().__init__()
        self.inner, self.faults, self.name = inner, faults, name

    def layer_groups(self) -> Any:
        return self.inner.layer_groups()  # type: ignore[operator]

    def forward(self, **inputs: Any) -> torch.Tensor:
        self.faults.strike(self.name, inputs)
        return self.inner(**inputs)


class Faults:
    """Which forwards fail: those that hold a row of a marked prompt, and one that was asked for."""

    def __init__(self) -> None:
        self.next: str | None = None
        text = toy_modules()["text_encoder"]
        self.marker = text(torch.tensor([list(b"bad latents")]))[0]
        self.struck = 0

    def strike(self, name: str, inputs: dict[str, Any]) -> None:
        if self.next == name:
            self.next = None
            self.struck += 1
            raise RuntimeError("a passing fault")
        if name == "text_encoder" and inputs["ids"].tolist()[0] == list(b"bad text"):
            raise RuntimeError("a fault of the prompt")
        if name == "transformer" and any(torch.allclose(t, self.marker) for t in inputs["text"]):
            raise torch.OutOfMemoryError("a fault of the prompt")


@cache
def solo(params: tuple[tuple[str, Any], ...], seed: int) -> np.ndarray[Any, Any]:
    """Latents of one output alone, everything resident."""
    events: list[Event] = []
    engine = build(events, toy_modules(), {}, TorchMover(CPU), EngineSettings("off", 1))
    engine.submit(Request("solo", dict(params), (seed,), want_latents=True))
    while engine.turn():
        pass
    output = next(event.output for event in events if event.output is not None)
    assert output.latents is not None
    return output.latents


def build(events: Any, modules: Any, modes: Any, mover: Any, chosen: EngineSettings) -> Engine:
    return Engine(
        pipeline=ToyPipeline({}),
        validate=ToyParams.model_validate,
        store=ComponentStore(modules, modes, mover),
        device=CPU,
        emit=events.append,
        settings=chosen,
    )


class EngineMachine(RuleBasedStateMachine):
    """One engine, its requests by id, and every event it gave."""

    requests: Bundle[str] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.sent: dict[str, Request] = {}
        self.faults = Faults()
        self.seen = 0
        self.ended: set[str] = set()

    @initialize(
        batching=st.sampled_from(["off", "auto", 2, 3, 5, 64]),
        max_running=st.integers(1, 6),
        mode=st.sampled_from(["resident", "component-offload", "layerwise-offload"]),
        memo=st.sampled_from([0, 40, 10**6]),
    )
    def start(self, batching: Any, max_running: int, mode: Any, memo: int) -> None:
        modules: dict[str, nn.Module] = dict(toy_modules())
        for name in ("text_encoder", "transformer"):
            modules[name] = Faulty(modules[name], self.faults, name)
        self.mover = FakeDeviceMover()
        modes = {"transformer": mode, "vae": "component-offload"} if mode != "resident" else {}
        self.max_running = max_running
        chosen = EngineSettings(batching, max_running, memo)
        self.engine = build(self.events, modules, modes, self.mover, chosen)

    @rule(
        target=requests,
        params=PARAMS,
        seeds=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        preview_every=st.integers(0, 2),
    )
    def submit(self, params: dict[str, Any], seeds: list[int], preview_every: int) -> str:
        id = f"r{len(self.sent)}"
        request = Request(id, params, tuple(seeds), want_latents=True, preview_every=preview_every)
        self.sent[id] = request
        self.engine.submit(request)
        return id

    @rule(turns=st.integers(1, 9))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.turn()

    @rule(target=requests, id=consumes(requests))
    def cancel(self, id: str) -> Any:
        ended = any(e.request_id == id and e.kind in LAST for e in self.events)
        assert self.engine.cancel(id) is not ended
        assert not self.engine.cancel(id)
        return multiple()

    @rule(component=st.sampled_from(["text_encoder", "transformer"]))
    def fault(self, component: str) -> None:
        self.faults.next = component

    @invariant()
    def nothing_follows_a_last_event(self) -> None:
        ended = self.ended
        for event in self.events[self.seen :]:
            assert event.request_id not in ended, event
            if event.kind in LAST:
                ended.add(event.request_id)
        self.seen = len(self.events)
        if hasattr(self, "engine"):
            assert set(self.engine._open) == set(self.sent) - ended
            assert len(self.engine._ready) <= self.max_running
            assert all(not running.closed for _, running in self.engine._ready)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        limit = 100 * (1 + len(self.sent)) * 3
        while self.engine.turn():
            limit -= 1
            assert limit > 0, "the engine never came to rest"
        assert self.engine.idle()
        for id, request in self.sent.items():
            check(request, [event for event in self.events if event.request_id == id])
        assert leaks() == 0
        self.engine.close()
        assert self.mover.bytes_now == 0


def leaks() -> int:
    gc.collect()
    return sum(type(thing) in (Running, Job, Entry) for thing in gc.get_objects())


def check(request: Request, events: list[Event]) -> None:
    """One request's events: complete, in order, and with the outputs of a solo run."""
    kinds = [event.kind for event in events]
    assert [RANK[kind] for kind in kinds] == sorted(RANK[kind] for kind in kinds)
    assert sum(kind in LAST for kind in kinds) == 1
    assert kinds.count("queued") == 1
    assert kinds.count("started") <= 1
    total = request.params["num_inference_steps"]
    for index in range(len(request.seeds)):
        own = [event for event in events if event.index == index]
        steps = [event.step for event in own if event.kind == "step"]
        assert steps == list(range(1, len(steps) + 1))
        stages = [event.stage for event in own if event.kind == "stage"]
        assert stages == STAGES[: len(stages)]
        for output in (event.output for event in own if event.output is not None):
            assert steps == list(range(1, total + 1))
            assert stages == STAGES
            wanted = solo(tuple(sorted(request.params.items())), request.seeds[index])
            assert output.latents is not None
            error = np.linalg.norm(output.latents - wanted) / np.linalg.norm(wanted)
            assert error < 1e-5
    if kinds[-1] == "done":
        indices = [event.index for event in events if event.kind == "output"]
        assert sorted(indices) == list(range(len(request.seeds)))
        assert not request.params["prompt"].startswith("bad")


EngineMachine.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngineMachine = EngineMachine.TestCase
