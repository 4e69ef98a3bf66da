"""Work beside the computation on any accelerator, where it is written down who waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from sgld.causal.host import host_bytes
from sgld.engine.residency.movers import TorchMover
from sgld.engine.sessions.lane import Lane
from sgld.engine.timing import Stopwatch
from sgld.platforms import streams
from sgld.testing.fake_torch import FakeNamespace

XPU, MPS, CPU = torch.device("xpu", 0), torch.device("mps"), torch.device("cpu")


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> FakeNamespace:
    """Answers for every device that has streams."""
    fake = FakeNamespace()
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    return fake


@pytest.mark.parametrize("device", [CPU, MPS, torch.device("meta")])
def test_where_work_has_one_order_there_is_nothing_to_wait_for(device: torch.device) -> None:
    assert streams.torch_of(device) is None
    assert streams.mark(device) is None
    streams.wait(device, None)


def test_accelerators_have_streams() -> None:
    assert streams.torch_of(XPU) is torch.xpu
    assert streams.torch_of(torch.device("cuda:1")) is torch.cuda


def test_a_tensor_of_the_host_needs_no_keeping(namespace: FakeNamespace) -> None:
    streams.keep(torch.ones(1))
    assert namespace.log == []


def test_later_work_waits_for_a_mark(namespace: FakeNamespace) -> None:
    side = namespace.Stream()
    with namespace.stream(side):
        mark = streams.mark(XPU)
    streams.wait(XPU, mark)
    assert namespace.log == ["side0 is marked", "main waits for side0"]


def test_a_lane_begins_after_what_was_asked_before(namespace: FakeNamespace) -> None:
    ended = threading.Event()
    seen: list[Any] = []
    lane = Lane(XPU, ended.set)
    lane.submit("session", lambda task: seen.append(namespace.current_stream().name))
    assert ended.wait(60)
    assert [task.error for task in lane.collect()] == [None]
    lane.close()
    assert seen == ["side0"]
    assert namespace.log == ["main is marked", "side0 waits for main"]


def test_uploads_ahead_run_on_a_stream_of_their_own(namespace: FakeNamespace) -> None:
    mover = TorchMover(XPU)
    with mover.ahead():
        assert namespace.current_stream().name == "side0"
        mark = mover.ready()
    mover.wait(mark)
    mover.discard([torch.ones(2)])
    assert namespace.log == ["side0 is marked", "main waits for side0"]


def test_a_mover_without_streams_moves_in_order() -> None:
    mover = TorchMover(CPU)
    held = mover.hold(torch.arange(4.0))
    with mover.ahead():
        (there,) = mover.upload([held])
        mark = mover.ready()
    mover.wait(mark)
    assert torch.equal(there, held)
    assert there.data_ptr() != held.data_ptr()


def test_work_is_timed_on_the_device(namespace: FakeNamespace) -> None:
    watch = Stopwatch(XPU)
    watch.stop()
    assert "host" not in " ".join(namespace.log)
    assert watch.seconds() == 1.5
    assert namespace.log[-1] == "host waits for main"


def test_pinned_memory_comes_in_powers_of_two_wherever_it_is_used() -> None:
    assert host_bytes(5000, "xpu:0") == host_bytes(5000, "cuda") == 8192
    assert host_bytes(5000, "mps") == host_bytes(5000, "cpu") == 5000
