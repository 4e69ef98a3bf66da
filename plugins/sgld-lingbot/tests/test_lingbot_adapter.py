"""Opening and steering a session: what takes effect when, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.causal.blocks import BlockPlan
from sgld_lingbot.realtime import LingBotAdapter

PLAN = BlockPlan(3)
PICTURE = b"\x89PNG"


def adapter() -> LingBotAdapter:
    return LingBotAdapter(SimpleNamespace(prompt="a castle"))


def send(session: LingBotAdapter, kind: str, payload: Any, id: int | None = None) -> None:
    session.apply(kind, json.loads(json.dumps(session.read_event(kind, payload))), id)


def state(*levels: list[str]) -> dict[str, Any]:
    return {"mode": "state", "transitions": [{"actions": level} for level in levels]}


def sample(session: LingBotAdapter, index: int) -> tuple[Any, str, int | None]:
    controls, id = session.sample(PLAN.chunk(index))
    json.dumps(controls)
    return controls.get("actions"), controls["prompt"], id


def problems(kind: str, payload: Any) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        LingBotAdapter.read_event(kind, payload)
    return [problem.field for problem in caught.value.problems]


def test_nothing_is_said_of_a_camera_that_was_never_steered() -> None:
    session = adapter()
    assert sample(session, 0) == (None, "a castle", None)
    assert "actions" not in session.sample(PLAN.chunk(1)).controls


def test_keys_are_held_until_they_are_let_go() -> None:
    session = adapter()
    send(session, "camera_actions", state(["w"]), 4)
    assert sample(session, 0) == ([["w"]] * 3, "a castle", 4)
    assert sample(session, 1) == ([["w"]] * 3, "a castle", 4)
    send(session, "camera_actions", state(["l"], []), 5)
    assert sample(session, 2) == ([["l"], [], []], "a castle", 5)
    assert sample(session, 3) == ([[], [], []], "a castle", 5)


def test_a_prompt_waits_for_the_second_chunk_and_the_last_one_wins() -> None:
    session = adapter()
    send(session, "prompt", "fog", 1)
    assert sample(session, 0) == (None, "a castle", None)
    send(session, "prompt", "night", 2)
    assert sample(session, 1) == (None, "night", 2)
    assert sample(session, 2) == (None, "night", 2)


@pytest.mark.parametrize(
    ("kind", "payload", "first"),
    [
        ("prompt", "fog", 1),
        ("camera_actions", [["w"]], 0),
        ("composite_input", {"input_types": ["prompt"], "prompt": "fog"}, 1),
        (
            "composite_input",
            {"input_types": ["prompt", "camera_actions"], "prompt": "fog", "camera_actions": []},
            0,
        ),
    ],
)
def test_the_first_chunk_that_is_told_is_the_first_one_that_has_the_id(
    kind: str, payload: Any, first: int
) -> None:
    session = adapter()
    control = LingBotAdapter.read_event(kind, payload)
    session.apply(kind, control, 7)
    assert session.first_chunk(kind, control, 0) == first
    assert session.first_chunk(kind, control, 4) == 4
    ids = [sample(session, index)[2] for index in range(2)]
    assert ids == [None] * first + [7] * (2 - first)


def test_the_newest_event_seen_is_told_whatever_its_kind() -> None:
    session = adapter()
    send(session, "camera_actions", [["w"]] * 5, 10)
    assert sample(session, 0)[2] == 10
    send(session, "prompt", "fog", 3)
    assert sample(session, 1) == ([["w"], ["w"], []], "fog", 3)
    send(session, "camera_actions", [["a"]])  # without an id
    assert sample(session, 2) == ([["a"], [], []], "fog", 3)


def test_all_of_a_composite_event_comes_together() -> None:
    session = adapter()
    payload = {"input_types": ["prompt", "camera_actions"], "prompt": "fog", "camera_actions": []}
    send(session, "composite_input", {**payload, "camera_actions": state(["w"])}, 8)
    assert sample(session, 1) == ([["w"]] * 3, "fog", 8)


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (None, ["composite_input"]),
        ({}, ["input_types"]),
        ({"input_types": []}, ["input_types"]),
        ({"input_types": "prompt", "prompt": "x"}, ["input_types"]),
        ({"input_types": ["hdmap"], "hdmap": 1}, ["input_types[0]"]),
        ({"input_types": [3]}, ["input_types[0]"]),
        ({"input_types": ["prompt"] * 17, "prompt": "x"}, ["input_types"]),
        ({"input_types": ["prompt"]}, ["prompt"]),
        (
            {"input_types": ["prompt"], "prompt": "x", "camera_actions": []},
            ["camera_actions"],
        ),
        (
            {"input_types": ["prompt", "camera_actions"], "prompt": " ", "camera_actions": [["q"]]},
            ["prompt", "camera_actions[0][0]"],
        ),
    ],
)
def test_a_composite_event_is_taken_whole_or_not_at_all(payload: Any, fields: list[str]) -> None:
    assert problems("composite_input", payload) == fields


@pytest.mark.parametrize(
    ("kind", "payload", "fields"),
    [
        ("prompt", None, ["prompt"]),
        ("prompt", "  ", ["prompt"]),
        ("prompt", 7, ["prompt"]),
        ("prompt", "x" * 32_001, ["prompt"]),
        ("composite_input", {"input_types": ["prompt"], "prompt": "x" * 32_001}, ["prompt"]),
        ("camera_actions", [["W"]], ["camera_actions[0][0]"]),
        ("camera_actions", state(["x"]), ["camera_actions.transitions[0].actions[0]"]),
        ("action", "w-3", ["kind"]),
    ],
)
def test_a_wrong_event_is_refused_by_field(kind: str, payload: Any, fields: list[str]) -> None:
    assert problems(kind, payload) == fields


def test_an_init_is_a_picture_keys_and_parameters() -> None:
    init = {
        "prompt": "a castle",
        "first_frame": PICTURE,
        "size": "832x480",
        "realtime_causal_sink_size": 3,
        "condition_inputs": {"camera_actions": [["w", "w"], []]},
    }
    opening = LingBotAdapter.read_init(init)
    assert opening.first_frame == PICTURE
    assert opening.params == {
        "prompt": "a castle",
        "size": "832x480",
        "realtime_causal_sink_size": 3,
        "num_frames": 21,
    }
    assert opening.events == (("camera_actions", {"actions": [["w"], []]}, None),)
    session = adapter()
    session.apply(*opening.events[0])
    assert sample(session, 0) == ([["w"], [], []], "a castle", None)


@pytest.mark.parametrize(("given", "taken"), [(None, 21), (9, 21), (81, 81), (0, 0), ("9", "9")])
def test_the_still_clip_is_never_shorter_than_two_chunks(given: Any, taken: Any) -> None:
    init = {"prompt": "x", "first_frame": PICTURE}
    if given is not None:
        init["num_frames"] = given
    assert LingBotAdapter.read_init(init).params["num_frames"] == taken


@pytest.mark.parametrize(
    ("more", "taken"),
    [({"chunk_latents": 4}, 29), ({"recipe": "v2-script"}, 29), ({"recipe": "v1"}, 21),
     ({"recipe": "v2-script", "chunk_latents": 1}, 5), ({"chunk_latents": "x"}, 21)],
)  # fmt: skip
def test_the_still_clip_follows_the_size_of_a_chunk(more: dict[str, Any], taken: int) -> None:
    opening = LingBotAdapter.read_init({"prompt": "x", "first_frame": PICTURE, **more})
    assert opening.params["num_frames"] == taken


@pytest.mark.parametrize(
    ("inputs", "fields"),
    [
        ({"condition_inputs": [["w"]]}, ["condition_inputs"]),
        ({"condition_inputs": {"action": "w-3"}}, ["condition_inputs.action"]),
        (
            {"condition_inputs": {"my_camera_actions": [["w"]]}},
            ["condition_inputs.my_camera_actions"],
        ),
        (
            {"condition_inputs": {"camera_actions": state(["w"])}},
            ["condition_inputs.camera_actions"],
        ),
        (
            {"condition_inputs": {"camera_actions": [["X"]]}},
            ["condition_inputs.camera_actions[0][0]"],
        ),
        ({"camera_actions": [["X"]]}, ["camera_actions[0][0]"]),
        (
            {"camera_actions": [], "condition_inputs": {"camera_actions": []}},
            ["condition_inputs.camera_actions"],
        ),
    ],
)
def test_a_wrong_init_is_refused_by_field(inputs: Any, fields: list[str]) -> None:
    with pytest.raises(ParameterError) as caught:
        LingBotAdapter.read_init({"prompt": "x", "first_frame": PICTURE, **inputs})
    assert [problem.field for problem in caught.value.problems] == fields


def test_keys_beside_the_parameters_are_events_too() -> None:
    opening = LingBotAdapter.read_init({"prompt": "x", "camera_actions": [["w"]]})
    assert opening.events == (("camera_actions", {"actions": [["w"]]}, None),)
    assert "camera_actions" not in opening.params


LEVEL = st.lists(st.sampled_from("wasdijkl"), unique=True, max_size=3)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("camera_actions"), st.lists(LEVEL, max_size=7)),
        st.tuples(
            st.just("camera_actions"),
            st.lists(LEVEL, min_size=1, max_size=3).map(lambda levels: state(*levels)),
        ),
        st.tuples(st.just("prompt"), st.sampled_from(["fog", "night"])),
        st.tuples(st.just("sample"), st.none()),
    ),
    max_size=25,
)


@given(EVENTS, st.data())
def test_a_copy_and_a_reloaded_one_go_on_alike(events: list[Any], data: st.DataObject) -> None:
    ours, cut, index = adapter(), data.draw(st.integers(0, len(events))), 0
    others: list[LingBotAdapter] = []
    for number, (kind, payload) in enumerate(events):
        if number == cut:
            loaded = adapter()
            loaded.load(json.loads(json.dumps(ours.dump())))
            others = [ours.fork(), loaded]
        sampled = []
        for session in (ours, *others):
            if kind == "sample":
                sampled.append(sample(session, index))
            else:
                send(session, kind, payload, number)
        assert all(row == sampled[0] for row in sampled)
        index += kind == "sample"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=4)
    | st.sampled_from(["w", "W", "state", "prompt", "camera_actions", ""]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["mode", "transitions", "actions", "client_ts_ms", "input_types", "prompt",
             "camera_actions"]
        ) | st.text(max_size=3) | st.integers(),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def taken(read: Callable[[], Any]) -> Any:
    """What was read; None when it was refused, for reasons that all name a field."""
    refused = None
    try:
        return read()
    except ParameterError as error:
        refused = error
    assert all(problem.field and problem.message for problem in refused.problems)
    return None


@given(st.sampled_from([*LingBotAdapter.events, "action", 7]), ANYTHING, st.integers(0, 3))
def test_whatever_is_sent_is_taken_or_refused_with_a_field(
    kind: Any, payload: Any, index: int
) -> None:
    session = adapter()
    control = taken(lambda: LingBotAdapter.read_event(kind, payload))
    if control is None:
        return
    session.apply(kind, json.loads(json.dumps(control)), 1)
    sample(session, index)


@given(
    st.dictionaries(
        st.sampled_from(
            ["condition_inputs", "camera_actions", "num_frames", "prompt", "first_frame"]
        ),
        ANYTHING,
    )
)
def test_whatever_an_init_says_is_taken_or_refused_with_a_field(init: dict[str, Any]) -> None:
    opening = taken(lambda: LingBotAdapter.read_init(init))
    if opening is None:
        return
    session = adapter()
    for kind, control, id in opening.events:
        session.apply(kind, json.loads(json.dumps(control)), id)
    assert len(opening.events) <= 1


def test_the_http_process_needs_no_torch_for_it() -> None:
    code = (
        "import sys; import sgld_lingbot.plugin, sgld_lingbot.realtime, sgld_lingbot.params, "
        "sgld_lingbot.layout; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
