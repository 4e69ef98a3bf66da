"""Clips and sessions on the real engine: the same frames, events at the next chunk, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import sgld
from sgld.engine.build import build_engine
from sgld.engine.executors.in_process import InProcessExecutor
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.realtime.messages import (
    SessionCommand,
    SessionOptions,
    SessionReport,
    SessionRequest,
)
from sgld_lingbot.params import LingBotParams
from sgld_lingbot.plugin import PIPELINE
from sgld_lingbot.realtime import LingBotAdapter

Frames = npt.NDArray[np.uint8]
PICTURE = np.random.default_rng(3).integers(0, 255, (37, 81, 3), dtype=np.uint8)
SCRIPT = [["w"], ["w", "l"], [], ["a"], ["i"], ["d"], ["w", "d"], ["k"], ["j"]]
SIZE = {"width": 48, "height": 32, "num_frames": 33, "fps": 8}


class Sessions:
    """An engine on its own thread, and its reports by session."""

    def __init__(self, folder: Path) -> None:
        options = {"model_path": str(folder), "device": "cpu", "dtype": "float32"}
        plan = make_plan(build(ServingOptions, [Layer("call", options)]).params)
        self.plan = plan
        self.executor = InProcessExecutor(lambda emit: build_engine(plan, emit))
        self._numbers = iter(range(1, 10_000))
        self._early: list[SessionReport] = []

    def close(self) -> None:
        self.executor.close()
        self.plan.close()

    def open(self, id: str, *, seed: int = 5, snapshot: bytes = b"", **init: Any) -> SessionReport:
        """Open a session that runs chunk by chunk, as an init message asks for it."""
        message = {"prompt": "a castle", "first_frame": b"x", **SIZE, **init}
        opening = LingBotAdapter.read_init(message)
        params = build(LingBotParams, [Layer("call", dict(opening.params))]).params
        request = SessionRequest(
            id,
            PIPELINE,
            params.model_dump(mode="json"),
            seed,
            (PICTURE,),
            opening.events,
            SessionOptions(free_running=False, queue_chunks=64, rewind_chunks=4),
            snapshot,
        )
        return self.ask(id, "open", request=request)

    def send(self, id: str, kind: str, payload: Any, event_id: int) -> None:
        control = LingBotAdapter.read_event(kind, payload)
        values = {"kind": kind, "control": control, "event_id": event_id}
        self.executor.command(SessionCommand(id, "event", 0, values))

    def ask(self, session: str, command: Any, /, **values: Any) -> SessionReport:
        """Command a session and wait for the answer."""
        number = next(self._numbers)
        self.executor.command(SessionCommand(session, command, number, values))
        report = self._wait(lambda row: row.session_id == session and row.number == number)
        assert not report.code, report
        return report

    def chunk(self, id: str) -> SessionReport:
        """The next chunk of a session."""
        self.ask(id, "step")
        return self._wait(lambda row: row.session_id == id and row.kind == "chunk")

    def chunks(self, id: str, count: int) -> list[Frames]:
        made = [self.chunk(id).frames for _ in range(count)]
        return [frames for frames in made if frames is not None]

    def _wait(self, fits: Any) -> SessionReport:
        for row in self._early:
            if fits(row):
                self._early.remove(row)
                return row
        while True:
            row = self.executor.next_event()
            assert isinstance(row, SessionReport)
            assert row.kind != "closed" or not row.code, row
            if fits(row):
                return row
            self._early.append(row)


@pytest.fixture(scope="module")
def sessions(tiny: Path) -> Iterator[Sessions]:
    opened = Sessions(tiny)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def clip(tiny: Path) -> Any:
    """A clip with a script of keys, made by an ordinary request."""
    with sgld.load(str(tiny), device="cpu", dtype="float32") as model:
        return model.generate(
            prompt="a castle", images=[PICTURE], seed=5, camera_actions=SCRIPT, **SIZE
        )


def test_a_clip_has_the_asked_length_and_tells_what_was_used(clip: Any) -> None:
    assert clip.frames.shape == (33, 32, 48, 3)
    assert clip.parameters["chunk_latents"] == 3
    assert clip.parameters["flow_shift"] == 5.0
    assert clip.frames.std() > 1


@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_weights_may_wait_on_the_host(
    tiny: Path, clip: Any, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a second device whose host copies are NaN: what is not there when it is used shows.
    from sgld.engine import build as engine_build
    from sgld.testing.second_device import FakeDeviceMover

    mover = FakeDeviceMover()
    monkeypatch.setattr(engine_build, "TorchMover", lambda device: mover)
    with sgld.load(str(tiny), device="cpu", dtype="float32", residency={"all": mode}) as model:
        again = model.generate(
            prompt="a castle", images=[PICTURE], seed=5, camera_actions=SCRIPT, **SIZE
        )
    assert np.array_equal(again.frames, clip.frames)
    assert mover.uploads > 3
    assert mover.bytes_now == 0


def test_a_session_with_the_same_keys_makes_the_same_frames(sessions: Sessions, clip: Any) -> None:
    report = sessions.open("same", condition_inputs={"camera_actions": SCRIPT})
    assert report.values["chunk_latents"] == 3
    assert (report.values["first_frames"], report.values["chunk_frames"]) == (9, 12)
    frames = np.concatenate(sessions.chunks("same", 3))
    assert np.array_equal(frames, clip.frames)
    sessions.ask("same", "close")


def test_a_session_holds_the_bytes_that_were_reserved(sessions: Sessions) -> None:
    report = sessions.open("bytes", condition_inputs={"camera_actions": SCRIPT})
    held = [sessions.chunk("bytes").values["bytes"] for _ in range(3)]
    assert held[-1] == pytest.approx(report.values["bytes"], rel=0.02)
    sessions.ask("bytes", "close")


def test_events_take_effect_with_the_next_chunk(sessions: Sessions) -> None:
    sessions.open("left")
    sessions.open("right")
    first = sessions.chunk("left"), sessions.chunk("right")
    assert np.array_equal(first[0].frames, first[1].frames)
    assert first[0].event_id is None
    state = {"mode": "state", "transitions": [{"actions": ["w"]}]}
    sessions.send("left", "camera_actions", state, 7)
    steered, still = sessions.chunk("left"), sessions.chunk("right")
    assert not np.array_equal(steered.frames, still.frames)
    assert (steered.event_id, still.event_id) == (7, None)
    composite = {"input_types": ["prompt", "camera_actions"], "prompt": "fog"}
    sessions.send("right", "composite_input", {**composite, "camera_actions": state}, 8)
    assert sessions.chunk("left").event_id == 7
    assert sessions.chunk("right").event_id == 8
    for id in ("left", "right"):
        sessions.ask(id, "close")


def test_a_prompt_before_the_first_chunk_is_promised_for_the_second(sessions: Sessions) -> None:
    sessions.open("early")
    control = LingBotAdapter.read_event("prompt", "fog")
    answer = sessions.ask("early", "event", kind="prompt", control=control, event_id=3)
    assert answer.values["chunk"] == 1
    assert [sessions.chunk("early").event_id for _ in range(2)] == [None, 3]
    sessions.ask("early", "close")


def test_rewind_fork_and_snapshot_repeat_what_was_made(sessions: Sessions) -> None:
    sessions.open("origin", condition_inputs={"camera_actions": SCRIPT})
    first = sessions.chunks("origin", 1)
    sessions.send("origin", "prompt", "fog", 3)
    first += sessions.chunks("origin", 3)
    sessions.ask("origin", "rewind", chunks=2)
    assert all(map(np.array_equal, sessions.chunks("origin", 2), first[2:]))
    sessions.ask("origin", "rewind", chunks=2)
    sessions.ask("origin", "fork", id="twin")
    data = sessions.ask("origin", "snapshot").values["snapshot"]
    sessions.ask("origin", "reset")
    assert np.array_equal(sessions.chunks("origin", 1)[0], first[0])
    sessions.ask("origin", "close")
    sessions.open("again", snapshot=data)
    for id in ("twin", "again"):
        assert all(map(np.array_equal, sessions.chunks(id, 2), first[2:])), id
        sessions.ask(id, "close")


def test_sessions_side_by_side_do_not_disturb_each_other(sessions: Sessions) -> None:
    walks = {"a": [["w"]] * 9, "b": [["l"]] * 9, "c": [[]] * 9}
    alone: dict[str, list[Frames]] = {}
    for id, script in walks.items():
        sessions.open(id, condition_inputs={"camera_actions": script})
        alone[id] = sessions.chunks(id, 3)
        sessions.ask(id, "close")
    for id, script in walks.items():
        sessions.open(f"{id}2", condition_inputs={"camera_actions": script})
    for index in range(3):
        for id in walks:
            sessions.ask(f"{id}2", "step")
        for id in walks:
            report = sessions._wait(
                lambda row, id=id: row.session_id == f"{id}2" and row.kind == "chunk"
            )
            assert np.array_equal(report.frames, alone[id][index])
    for id in walks:
        sessions.ask(f"{id}2", "close")
