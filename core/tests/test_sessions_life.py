"""Sessions in the engine: every command, every end, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sgld.messages import Request
from sgld.realtime.messages import CommandKind, SessionReport
from sgld.testing.sessions import SessionRig
from sgld.testing.toy_world import ToyWorldPipeline, world_modules
from sgld.testing.toy_world_params import ToyWorldAdapter, ToyWorldParams

HILL = {"prompt": "a hill"}
ADAPTERS = {"toy-world": ToyWorldAdapter}
WALK = {"kind": "camera_actions", "control": {"actions": [["w"], ["d"], ["s"]]}}


def rig_of(**keywords: Any) -> SessionRig:
    return SessionRig(ToyWorldPipeline({}), world_modules(), ToyWorldParams, ADAPTERS, **keywords)


@pytest.fixture
def rig() -> Iterator[SessionRig]:
    made = rig_of()
    yield made
    made.close()
    assert made.sessions.budget.reserved == 0


def frames(rows: list[SessionReport]) -> bytes:
    return b"".join(row.frames.tobytes() for row in rows if row.frames is not None)


def steps(rig: SessionRig, id: str, number: int) -> list[SessionReport]:
    return [rig.step(id) for _ in range(number)]


def test_a_session_opens_makes_chunks_and_closes(rig: SessionRig) -> None:
    facts = rig.open("a", HILL)
    assert facts["width"], facts["height"] == (64, 48)
    assert (facts["fps"], facts["chunk_latents"], facts["chunk"], facts["live"]) == (16, 2, 0, 1)
    chunks = steps(rig, "a", 3)
    assert [row.chunk for row in chunks] == [0, 1, 2]
    sizes = [row.frames.shape for row in chunks if row.frames is not None]
    assert sizes == [(facts["first_frames"], 48, 64, 3)] + [(facts["chunk_frames"], 48, 64, 3)] * 2
    assert all(row.frames is not None and row.frames.dtype == np.uint8 for row in chunks)
    assert rig.ask("a", "close")["chunk"] == 3
    rig.drive()
    closed = rig.reports("a", "closed")
    assert [(row.code, row.values["reason"]) for row in closed] == [("", "closed")]
    assert rig.sessions.budget.live == 0


def test_a_session_makes_what_a_request_makes(rig: SessionRig) -> None:
    """The same stages, run by another owner."""
    rig.open("a", HILL, seed=5)
    chunks = steps(rig, "a", 2)
    values = ToyWorldParams(prompt="a hill", num_frames=7).model_dump(mode="json")
    rig.engine.submit(Request("r", values, (5,)))
    rig.drive()
    parts = [event for event in rig.events("r") if event.kind == "frames"]
    assert [(event.step, event.total) for event in parts] == [(1, 2), (2, 2)]
    handed = b"".join(event.frames.tobytes() for event in parts if event.frames is not None)
    output = next(event.output for event in rig.events("r") if event.output is not None)
    assert frames(chunks) == handed == output.frames.tobytes()


def test_free_running_rests_while_the_reader_is_behind(rig: SessionRig) -> None:
    rig.open("a", HILL, free_running=True, queue_chunks=3)
    rig.drive()
    assert [row.chunk for row in rig.reports("a", "chunk")] == [0, 1, 2]
    rig.send("a", "taken", chunk=0)
    rig.drive()
    assert [row.chunk for row in rig.reports("a", "chunk")] == [0, 1, 2, 3]
    rig.send("a", "taken", chunk=3)
    rig.drive()
    assert [row.chunk for row in rig.reports("a", "chunk")] == list(range(7))


def test_a_reader_that_is_behind_gets_the_newest_chunk(rig: SessionRig) -> None:
    rig.open("a", HILL, free_running=True, queue_chunks=2, on_full="drop", max_chunks=400)
    rig.drive(lambda: len(rig.reports("a", "chunk")) == 2)
    for _ in range(40):
        rig.engine.turn()
    rig.ask("a", "pause")
    rig.drive()
    assert len(rig.reports("a", "chunk")) == 2
    rig.send("a", "taken", chunk=1)
    third = rig.reports("a", "chunk")[2]
    assert third.chunk > 2
    assert third.values["dropped"] == third.chunk - 2
    assert len(rig.reports("a", "chunk")) == 3


def test_the_last_chunk_is_handed_over_room_or_not(rig: SessionRig) -> None:
    rig.open("a", HILL, free_running=True, queue_chunks=1, on_full="drop", max_chunks=5)
    rig.drive()
    rows = rig.reports("a", "chunk", "closed")
    assert [(row.kind, row.chunk) for row in rows[:-1]] == [("chunk", 0), ("chunk", 4)]
    assert rows[1].values["dropped"] == 3
    assert rows[-1].values["reason"] == "complete"


def test_max_chunks_ends_a_session(rig: SessionRig) -> None:
    rig.open("a", HILL, free_running=True, max_chunks=2)
    rig.drive()
    rows = rig.reports("a", "chunk", "closed")
    assert [(row.kind, row.code) for row in rows] == [("chunk", ""), ("chunk", ""), ("closed", "")]
    assert rows[-1].values == {"reason": "complete"}
    assert rig.answer("a", "step").code == "session_not_found"


def test_no_step_follows_the_last_one(rig: SessionRig) -> None:
    rig.open("a", HILL, max_chunks=1)
    first, second = rig.send("a", "step"), rig.send("a", "step")
    rig.drive()
    codes = {row.number: row.code for row in rig.reports("a", "answer")}
    assert (codes[first], codes[second]) == ("", "session_complete")


def test_the_last_chunk_has_no_commit(rig: SessionRig) -> None:
    """Nobody would read what it leaves in the caches."""
    rig.open("a", HILL, free_running=True, max_chunks=1)
    rig.drive()
    assert rig.engine.forwards["transformer"] == ToyWorldParams(prompt="x").num_inference_steps


def test_events_are_seen_from_the_next_chunk_on(rig: SessionRig) -> None:
    rig.open("a", HILL)
    rig.open("b", HILL)
    same = steps(rig, "a", 1), steps(rig, "b", 1)
    assert frames(same[0]) == frames(same[1])
    assert rig.ask("a", "event", event_id=4, **WALK)["chunk"] == 1
    one, other = rig.step("a"), rig.step("b")
    assert (one.event_id, other.event_id) == (4, None)
    assert frames([one]) != frames([other])
    prompt = {"kind": "prompt", "control": {"prompt": "a lake"}}
    rig.ask("b", "event", event_id=9, **prompt)
    assert rig.step("b").event_id == 9


def test_an_event_during_a_chunk_waits_for_the_next_one(rig: SessionRig) -> None:
    rig.open("a", HILL)
    rig.send("a", "step")
    rig.engine.turn()  # inside the first chunk
    assert rig.ask("a", "event", event_id=4, **WALK)["chunk"] == 1
    rig.drive()
    assert rig.reports("a", "chunk")[0].event_id is None
    assert rig.step("a").event_id == 4


def test_what_is_no_event_is_refused_and_changes_nothing(rig: SessionRig) -> None:
    rig.open("a", HILL)
    refused = rig.answer("a", "event", kind="hop", control={})
    assert (refused.code, refused.values["field"]) == ("invalid_event", "kind")
    assert "camera_actions" in refused.message
    assert rig.answer("a", "event", kind="prompt", control={}).code
    assert rig.step("a").chunk == 0


def test_pause_and_resume(rig: SessionRig) -> None:
    rig.open("a", HILL, free_running=True, queue_chunks=9)
    rig.drive(lambda: len(rig.reports("a", "chunk")) >= 2)
    made = rig.ask("a", "pause")["chunk"]
    rig.ask("a", "pause")
    rig.drive()
    # The chunk that had begun is the last one.
    assert len(rig.reports("a", "chunk")) == made
    rig.send("a", "taken", chunk=made - 1)
    rig.step("a")
    rig.drive()
    assert len(rig.reports("a", "chunk")) == made + 1
    rig.ask("a", "resume")
    rig.drive()
    assert len(rig.reports("a", "chunk")) > made + 1
    assert rig.answer("a", "step").code == "invalid_command"


def test_chunks_after_a_rewind_are_the_same_to_the_bit(rig: SessionRig) -> None:
    rig.open("a", HILL, rewind_chunks=3)
    steps(rig, "a", 2)
    rig.ask("a", "event", event_id=1, **WALK)
    first = steps(rig, "a", 3)
    assert rig.ask("a", "rewind", chunks=3)["chunk"] == 2
    again = steps(rig, "a", 3)
    assert [row.chunk for row in again] == [2, 3, 4]
    assert frames(again) == frames(first)
    assert [row.event_id for row in again] == [row.event_id for row in first]
    assert rig.ask("a", "rewind", to=3)["chunk"] == 3
    assert frames(steps(rig, "a", 2)) == frames(first[1:])


def test_controls_sent_after_a_rewind_make_another_world(rig: SessionRig) -> None:
    rig.open("a", HILL, rewind_chunks=2)
    first = steps(rig, "a", 3)
    rig.ask("a", "rewind", chunks=2)
    rig.ask("a", "event", event_id=1, **WALK)
    assert frames(steps(rig, "a", 2)) != frames(first[1:])


def test_a_rewind_gives_up_the_chunk_that_is_being_made(rig: SessionRig) -> None:
    rig.open("a", HILL, rewind_chunks=9, free_running=True, queue_chunks=9)
    rig.drive(lambda: len(rig.reports("a", "chunk")) >= 4)
    before = rig.reports("a", "chunk")
    for _ in range(2):
        rig.engine.turn()
    number = rig.send("a", "rewind", to=3)
    rig.drive(lambda: any(row.number == number for row in rig.reports("a", "answer")))
    place = next(i for i, row in enumerate(rig.reports("a")) if row.number == number)
    rig.drive(lambda: rig.reports("a")[-1].kind == "chunk" and len(rig.reports("a")) > place + 1)
    again = next(row for row in rig.reports("a")[place:] if row.kind == "chunk")
    assert again.chunk == 3
    assert frames([again]) == frames(before[3:4])


def test_a_rewind_that_cannot_be_done_is_refused_by_number(rig: SessionRig) -> None:
    rig.open("a", HILL, rewind_chunks=2)
    assert rig.answer("a", "rewind", chunks=1).code == "invalid_command"
    chunks = steps(rig, "a", 3)
    for wrong in (0, 3, -1, "1", True, None):
        refused = rig.answer("a", "rewind", chunks=wrong)
        assert (refused.code, refused.values["field"]) == ("invalid_command", "chunks")
        assert "from 1 to 2" in refused.message
    assert "from 1 to 3" in rig.answer("a", "rewind", to=0).message
    assert rig.ask("a", "rewind", chunks=2)["chunk"] == 1
    assert frames(steps(rig, "a", 2)) == frames(chunks[1:])
    rig.open("b", HILL)
    assert "rewind_chunks" in rig.answer("b", "rewind", chunks=1).message


def test_a_fork_goes_on_as_its_parent_would(rig: SessionRig) -> None:
    rig.open("a", HILL, seed=3, rewind_chunks=2)
    rig.open("alone", HILL, seed=3)
    steps(rig, "a", 2)
    rig.ask("a", "event", **WALK)
    assert rig.ask("a", "fork", id="b") == {"id": "b", "chunk": 2}
    assert rig.reports("b")[0].kind == "opened"
    assert rig.reports("b")[0].values["live"] == 3
    steps(rig, "alone", 2)
    rig.ask("alone", "event", **WALK)
    parts = [(rig.step("a"), rig.step("b"), rig.step("alone")) for _ in range(3)]
    for one, two, three in parts:
        assert frames([one]) == frames([two]) == frames([three])
    rig.ask("b", "event", kind="prompt", control={"prompt": "the sea"})
    assert frames([rig.step("b")]) != frames([rig.step("a")])
    rig.ask("b", "rewind", chunks=2)
    assert frames([rig.step("b")]) == frames([parts[2][1]])
    rig.ask("a", "close")
    assert rig.step("b").chunk == 5


def test_a_fork_counts_its_commands_itself(rig: SessionRig) -> None:
    """The number of the `fork` is one of the parent's commands; a fork has had none yet."""
    rig.open("a", HILL)
    kinds: list[tuple[CommandKind, dict[str, Any]]] = [
        ("step", {}),
        ("event", WALK),
        ("fork", {"id": "other"}),
        ("close", {}),
    ]
    for number, (kind, values) in enumerate(kinds, 50):
        for _ in range(2):
            rig.send("a", "fork", number, id=kind)
            rig.drive()
        assert len(rig.reports(kind, "opened")) == 1
        rig.send(kind, kind, number, **values)
        rig.drive()
        assert [row.code for row in rig.reports(kind, "answer")] == [""], kind
    assert [row.chunk for row in rig.reports("step", "chunk")] == [0]
    assert rig.reports("other", "opened")
    assert [row.values["reason"] for row in rig.reports("close", "closed")] == ["closed"]


def test_a_fork_needs_room_and_a_name_of_its_own() -> None:
    needed = ToyWorldPipeline({}).state_bytes(ToyWorldParams(prompt="x"))
    rig = rig_of(memory=2 * needed)
    rig.open("a", HILL)
    assert rig.answer("a", "fork", id="a").code == "session_exists"
    assert rig.answer("a", "fork").code == "invalid_command"
    rig.ask("a", "fork", id="b")
    refused = rig.answer("a", "fork", id="c")
    assert refused.code == "busy"
    assert refused.values == {"retry_after": 5, "live": 2, "needed": needed, "free": 0}
    assert rig.step("a").chunk == 0
    assert not rig.reports("c")
    rig.close()


def test_a_snapshot_goes_on_elsewhere_to_the_bit(rig: SessionRig) -> None:
    picture = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
    rig.open("a", HILL, seed=3, images=(picture,))
    steps(rig, "a", 2)
    rig.ask("a", "event", event_id=8, **WALK)
    steps(rig, "a", 1)
    data = rig.ask("a", "snapshot")["snapshot"]
    assert isinstance(data, bytes)
    there = rig_of()
    assert there.open("z", HILL, seed=3, snapshot=data, max_chunks=3)["chunk"] == 3
    here, later = steps(rig, "a", 3), steps(there, "z", 3)
    assert [(row.chunk, row.event_id) for row in here] == [(r.chunk, r.event_id) for r in later]
    assert frames(here) == frames(later)
    there.drive()
    assert there.reports("z", "closed")[0].values["reason"] == "complete"
    there.close()


def test_a_snapshot_that_does_not_fit_is_refused_by_name(rig: SessionRig) -> None:
    rig.open("a", HILL, seed=3)
    steps(rig, "a", 1)
    data = rig.ask("a", "snapshot")["snapshot"]

    def opened(rig: SessionRig, **request: Any) -> SessionReport:
        values = {"params": HILL, "seed": 3, "snapshot": data, **request}
        params = values.pop("params")
        return rig.answer("z", "open", request=rig.request("z", params, **values))

    other = opened(rig, seed=4)
    assert other.code == "snapshot_mismatch"
    assert "params.seed is 3 in it and 4 here" in other.message
    assert "params.height" in opened(rig, params={**HILL, "width": 64, "height": 64}).message
    elsewhere = rig_of(identity={"model": "another"})
    report = opened(elsewhere)
    assert report.code == "snapshot_mismatch"
    assert "model is 'rig' in it and 'another' here" in report.message
    elsewhere.close()
    for place in (0, 9, 30, len(data) // 2, len(data) - 1):
        broken = bytearray(data)
        broken[place] ^= 0x40
        assert opened(rig, snapshot=bytes(broken)).code == "snapshot_damaged"
    for cut in (data[:5], data[:60], data[:-1], data + b"x"):
        assert opened(rig, snapshot=cut).code == "snapshot_damaged"
    assert rig.sessions.budget.live == 1
    assert not opened(rig).code


def test_reset_begins_again(rig: SessionRig) -> None:
    events = (("camera_actions", WALK["control"], 2),)
    rig.open("a", HILL, events=events, rewind_chunks=2)
    first = steps(rig, "a", 3)
    rig.ask("a", "event", kind="prompt", control={"prompt": "the sea"})
    steps(rig, "a", 1)
    assert rig.ask("a", "reset")["chunk"] == 0
    again = steps(rig, "a", 3)
    assert [row.event_id for row in again] == [2, 2, 2]
    assert frames(again) == frames(first)
    assert rig.sessions.budget.live == 1


def test_reset_in_the_middle_of_a_chunk(rig: SessionRig) -> None:
    rig.open("a", HILL, free_running=True, queue_chunks=2)
    rig.drive()
    first = rig.reports("a", "chunk")
    rig.send("a", "taken", chunk=1)
    rig.engine.turn()
    number = rig.send("a", "reset")
    rig.drive()
    rows = rig.reports("a")
    place = next(i for i, row in enumerate(rows) if row.number == number and row.kind == "answer")
    after = [row for row in rows[place:] if row.kind == "chunk"]
    assert [row.chunk for row in after] == [0, 1]
    assert frames(after) == frames(first)


def test_commands_take_effect_in_order(rig: SessionRig) -> None:
    """What follows a command that waits for a chunk boundary waits with it."""
    rig.open("a", HILL)
    rig.send("a", "step")
    rig.engine.turn()
    numbers = [
        rig.send("a", "fork", id="b"),
        rig.send("a", "event", event_id=1, **WALK),
        rig.send("a", "step"),
        rig.send("b", "step"),
    ]
    rig.drive()
    answers = [row.number for row in rig.reports("a", "answer") if row.number in numbers]
    assert answers == numbers[:3]
    assert rig.reports("a", "chunk")[1].event_id == 1
    assert [row.code for row in rig.reports("b")] == ["session_not_found", ""]


def test_a_command_that_comes_again_changes_nothing(rig: SessionRig) -> None:
    request = rig.request("a", HILL, rewind_chunks=3)
    rig.send("a", "open", 100, request=request)
    rig.send("a", "open", 100, request=request)
    rig.drive()
    rig.send("a", "open", 100, request=request)
    assert len(rig.reports("a", "opened")) == 2
    assert rig.reports("a", "opened")[0] == rig.reports("a", "opened")[1]
    chunks = steps(rig, "a", 2)
    twice: list[tuple[Any, ...]] = [
        ("step", {}),
        ("event", {"event_id": 3, **WALK}),
        ("rewind", {"chunks": 1}),
        ("pause", {}),
        ("fork", {"id": "b"}),
    ]
    for number, (kind, values) in enumerate(twice, 200):
        for _ in range(3):
            rig.send("a", kind, number, **values)
            rig.drive()
        answers = [row for row in rig.reports("a", "answer") if row.number == number]
        assert len(answers) >= 2, kind
        assert all(row == answers[0] and not row.code for row in answers), kind
    assert rig.sessions.budget.live == 2
    assert [row.chunk for row in rig.reports("a", "chunk")] == [0, 1, 2]
    assert frames([rig.step("a")]) == frames([rig.reports("a", "chunk")[2]])
    del chunks
    again = rig.send("a", "pause", 200)
    assert next(row for row in reversed(rig.told) if row.number == again).code == "invalid_command"
    for _ in range(2):
        rig.send("a", "close", 300)
    assert [row.code for row in rig.reports("a", "answer") if row.number == 300] == ["", ""]
    rig.drive()
    assert len(rig.reports("a", "closed")) == 1


def test_commands_to_unknown_sessions_are_answered(rig: SessionRig) -> None:
    for kind in ("step", "pause", "resume", "reset", "rewind", "fork", "snapshot", "close"):
        assert rig.answer("nobody", kind).code == "session_not_found"
    told = len(rig.told)
    rig.send("nobody", "taken", chunk=1)
    rig.send("nobody", "event", 0, **WALK)
    assert len(rig.told) == told
    assert rig.answer("nobody", "event", **WALK).code == "session_not_found"


def test_what_cannot_be_opened_is_refused_by_field(rig: SessionRig) -> None:
    def refused(**options: Any) -> SessionReport:
        return rig.answer("a", "open", request=rig.request("a", HILL, **options))

    for field, value in (
        ("queue_chunks", 0),
        ("rewind_chunks", -1),
        ("max_chunks", -1),
        ("on_full", "x"),
    ):
        report = refused(**{field: value})
        assert (report.kind, report.code) == ("opened", "invalid_parameter")
        assert report.values["field"] == field
    assert rig.answer("a", "open").code == "invalid_command"
    assert rig.answer("b", "open", request=rig.request("a", HILL)).code == "invalid_command"
    unknown = rig.request("a", HILL)
    object.__setattr__(unknown, "adapter", "none")
    assert rig.answer("a", "open", request=unknown).code == "unsupported_feature"
    broken = rig.request("a", HILL)
    object.__setattr__(broken, "params", {"prompt": 3})
    assert rig.answer("a", "open", request=broken).code == "invalid_parameter"
    rig.open("a", HILL)
    assert refused().code == "session_exists"
    assert rig.step("a").chunk == 0


def test_a_first_frame_that_is_needed_is_asked_for() -> None:
    class Needs(ToyWorldAdapter):
        needs_first_frame = True

    rig = SessionRig(ToyWorldPipeline({}), world_modules(), ToyWorldParams, {"toy-world": Needs})
    report = rig.answer("a", "open", request=rig.request("a", HILL))
    assert (report.code, report.values["field"]) == ("invalid_parameter", "first_frame")
    rig.open("a", HILL, images=(np.zeros((4, 4, 3), np.uint8),))
    rig.close()


def test_memory_is_promised_before_it_is_taken() -> None:
    needed = ToyWorldPipeline({}).state_bytes(ToyWorldParams(prompt="x"))
    rig = rig_of(memory=2 * needed + needed // 2)
    for id in "ab":
        assert rig.open(id, HILL)["bytes"] == needed
    report = rig.answer("c", "open", request=rig.request("c", HILL))
    assert (report.kind, report.code) == ("opened", "busy")
    assert report.values == {"retry_after": 5, "live": 2, "needed": needed, "free": needed // 2}
    large = rig.answer("d", "open", request=rig.request("d", {**HILL, "width": 64, "height": 480}))
    assert large.code == "out_of_memory"
    assert "--session-memory" in large.message
    rig.ask("a", "close")
    rig.drive()
    rig.open("c", HILL)
    rig.close()


def test_so_many_sessions_and_no_more() -> None:
    rig = rig_of(most=2)
    rig.open("a", HILL)
    rig.open("b", HILL)
    report = rig.answer("c", "open", request=rig.request("c", HILL))
    assert (report.code, report.values["live"]) == ("busy", 2)
    assert "--max-sessions" in report.message
    rig.close()


@pytest.mark.parametrize("size", [(64, 48), (96, 32), (32, 32)])
@pytest.mark.parametrize(("window", "sink"), [(6, 1), (7, 0), (12, 3)])
@pytest.mark.parametrize("undo", [0, 2])
def test_memory_held_is_memory_promised(
    size: tuple[int, int], window: int, sink: int, undo: int
) -> None:
    rig = rig_of()
    params = {
        **HILL,
        "width": size[0],
        "height": size[1],
        "realtime_causal_kv_cache_num_frames": window,
        "realtime_causal_sink_size": sink,
    }
    promised = rig.open("a", params, rewind_chunks=undo)["bytes"]
    held = [rig.step("a").values["bytes"] for _ in range(5)]
    assert max(held) <= promised
    assert held[-1] >= 0.98 * promised
    rig.close()
