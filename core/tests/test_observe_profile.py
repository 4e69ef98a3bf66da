"""Profiles: what is in the file, its bounds, one at a time, and never a failed request."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore
from sgld.messages import Event, Request
from sgld.observe.profile import RequestProfiler, default_folder, profiled, trace_path
from sgld.testing.toy import ToyParams, ToyPipeline, toy_modules

SQUARE = torch.ones(16, 16)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def names(path: Path) -> Counter[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    return Counter(
        event["name"]
        for event in trace["traceEvents"]
        if event.get("cat") in ("cpu_op", "user_annotation")
    )


def test_a_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "block.json.gz"
    with profiled(path) as recording, recording.mark("squares"):
        _ = SQUARE @ SQUARE
    found = names(path)
    assert found["squares"] == 1
    assert found["aten::mm"] == 1
    assert [p.name for p in path.parent.iterdir()] == ["block.json.gz"]


def test_whatever_device_is_here_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch says of which kinds it can tell, so that none is asked for by its name."""
    kinds, asked = torch.profiler.ProfilerActivity, list[Any]()
    real = torch.profiler.profile
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {kinds.XPU, kinds.CPU})

    def profile(*, activities: Any, **more: Any) -> Any:
        asked.extend(activities)
        return real(activities=[kinds.CPU], **more)

    monkeypatch.setattr(torch.profiler, "profile", profile)
    with profiled(tmp_path / "x.json.gz"):
        _ = SQUARE @ SQUARE
    assert asked == [kinds.CPU, kinds.XPU]


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), profiled(tmp_path / "x.json.gz"):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []
    with profiled(tmp_path / "y.json.gz"):
        _ = SQUARE @ SQUARE
    assert names(tmp_path / "y.json.gz")["aten::mm"] == 1


def test_only_the_first_steps_of_each_stage(tmp_path: Path) -> None:
    with profiled(tmp_path / "x.json.gz", most_steps=3) as recording:
        for stage, steps in (("text", 1), ("denoise", 10), ("decode", 2)):
            for _ in range(steps):
                with recording.mark(stage):
                    _ = SQUARE @ SQUARE
                recording.step(stage)
            recording.next_stage()
    found = names(tmp_path / "x.json.gz")
    assert (found["text"], found["denoise"], found["decode"]) == (1, 3, 2)
    assert found["aten::mm"] == 6


def test_only_the_first_seconds(tmp_path: Path) -> None:
    clock = Clock()
    with profiled(tmp_path / "x.json.gz", most_seconds=10, clock=clock) as recording:
        for _ in range(5):
            with recording.mark("work"):
                _ = SQUARE @ SQUARE
            clock.now += 4
            recording.next_stage()
        assert recording.paused
    assert names(tmp_path / "x.json.gz")["work"] == 3


def test_one_at_a_time(tmp_path: Path) -> None:
    profiler = RequestProfiler(tmp_path)
    with profiler.mark("nothing is recorded"):
        pass
    assert profiler.start("a")
    assert profiler.request_id == "a"
    with capture_logs() as told:
        assert not profiler.start("b")
    assert told[0]["log_level"] == "warning"
    assert (told[0]["request"], told[0]["busy"]) == ("b", "a")
    assert profiler.stop("b") is None
    profiler.discard("b")
    with profiler.mark("work"):
        _ = SQUARE @ SQUARE
    path = profiler.stop("a")
    assert path is not None
    assert path == tmp_path / "a.trace.json.gz"
    assert names(path)["work"] == 1
    assert profiler.stop("a") is None
    assert profiler.start("b")
    profiler.discard("b")
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace.json.gz"]


def test_a_folder_that_cannot_be_written_fails_no_request(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    profiler = RequestProfiler(tmp_path / "file")
    assert profiler.start("a")
    with capture_logs() as told:
        assert profiler.stop("a") is None
    assert told[0]["event"] == "profile not written"
    assert profiler.start("b"), "the next one may try"
    profiler.discard("b")


def test_another_profiler_fails_no_request(tmp_path: Path) -> None:
    with profiled(tmp_path / "outer.json.gz"):
        profiler = RequestProfiler(tmp_path)
        with capture_logs() as told:
            assert not profiler.start("a")
        assert told[0]["event"] == "not profiled"
        assert profiler.request_id == ""
        _ = SQUARE @ SQUARE
    assert names(tmp_path / "outer.json.gz")["aten::mm"] == 1


@pytest.mark.parametrize(
    ("request_id", "name"),
    [
        ("video_1-2", "video_1-2.trace.json.gz"),
        ("../../etc/passwd", "_.._etc_passwd.trace.json.gz"),
        ("a b\n猫\x00", "a_b___.trace.json.gz"),
        ("...", "request.trace.json.gz"),
        ("", "request.trace.json.gz"),
        ("x" * 300, "x" * 100 + ".trace.json.gz"),
    ],
)
def test_file_names(tmp_path: Path, request_id: str, name: str) -> None:
    path = trace_path(tmp_path, request_id)
    assert path == tmp_path / name
    path.touch()
    second = trace_path(tmp_path, request_id)
    assert second.name == name.replace(".trace", "-2.trace")


def test_where_they_go() -> None:
    assert default_folder({}) == Path("profiles")
    assert default_folder({"SGLD_PROFILE_DIR": ""}) == Path("profiles")
    assert default_folder({"SGLD_PROFILE_DIR": "/x"}) == Path("/x")


class Watched:
    """An engine whose turns and events are shown to a profiler, as the engine's process does."""

    def __init__(self, folder: Path, request_id: str) -> None:
        self.events: list[Event] = []
        self.profiler = RequestProfiler(folder)
        self._id = request_id
        self.engine = Engine(
            pipeline=ToyPipeline({}),
            validate=ToyParams.model_validate,
            store=ComponentStore(toy_modules(), {}, TorchMover(torch.device("cpu"))),
            device=torch.device("cpu"),
            emit=self.emit,
            settings=EngineSettings(),
        )

    def emit(self, event: Event) -> None:
        if event.request_id == self._id:
            if event.kind == "started":
                self.profiler.start(event.request_id)
            elif event.kind == "step":
                self.profiler.step(event.request_id, event.stage)
            elif event.kind == "stage":
                self.profiler.stage_ended(event.request_id)
            elif event.kind == "done":
                event = replace(event, message=str(self.profiler.stop(event.request_id)))
            elif event.kind in ("failed", "cancelled"):
                self.profiler.discard(event.request_id)
        self.events.append(event)

    def run(self, *requests: Request, turns: int = 1000) -> None:
        for request in requests:
            self.engine.submit(request)
        for _ in range(turns):
            with self.profiler.mark("turn"):
                if not self.engine.turn():
                    return


def make(id: str, **params: Any) -> Request:
    return Request(id, params, (1,))


def test_a_request_in_the_engine(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "a")
    watched.run(make("a", num_inference_steps=12), make("b", num_inference_steps=30))
    done = {event.request_id: event for event in watched.events if event.kind == "done"}
    path = Path(done["a"].message)
    assert done["b"].message == ""
    found = names(path)
    assert 3 <= found["turn"] <= 20
    assert 3 <= sum(n for name, n in found.items() if ".forward x" in name) <= 20
    assert found["aten::linear"] + found["aten::matmul"] + found["aten::mm"] > 0
    assert watched.profiler.request_id == ""


def test_a_profile_changes_no_result(tmp_path: Path) -> None:
    frames = []
    for profile in ("a", ""):
        watched = Watched(tmp_path, profile)
        watched.run(make("a", num_inference_steps=8))
        frames.append(next(e.output.frames for e in watched.events if e.output is not None))
    assert (frames[0] == frames[1]).all()


def test_a_cancelled_request_leaves_no_profile(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "a")
    watched.run(make("a", num_inference_steps=50), turns=8)
    assert watched.profiler.request_id == "a"
    watched.engine.cancel("a")
    assert watched.profiler.request_id == ""
    assert list(tmp_path.iterdir()) == []
