"""Control queues: the golden log, a naive model of the whole history, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.causal.blocks import BlockPlan
from sgld.realtime.controls import ActionQueue, Levels, Tokens, read_actions
from sgld.testing.toy_world_params import ToyWorldAdapter, ToyWorldParams

TOKENS = Tokens(tuple("wasdijkl"))
GOLDEN = json.loads((Path(__file__).parent / "data" / "control_sampling.json").read_text())


@pytest.mark.parity
@pytest.mark.parametrize("scenario", GOLDEN["scenarios"], ids=lambda scenario: scenario["name"])
def test_a_log_of_events_gives_the_golden_levels(scenario: dict[str, Any]) -> None:
    queue = ActionQueue(TOKENS._replace(min_pulse=GOLDEN["min_pulse_items"]))
    sampled = 0
    for row in scenario["log"]:
        if row["op"] == "sample":
            wanted = row["result"] and [tuple(level) for level in row["result"]]
            assert queue.sample(row["chunk"]) == Levels(wanted, row["event_id"]), row
            sampled += 1
        elif row["op"] == "script":
            queue.apply(read_actions(row["frames"], TOKENS), row["event_id"])
        else:
            queue.apply(read_actions(state(*row["actions"]), TOKENS), row["event_id"])
    assert sampled >= 2


def state(*levels: list[str]) -> dict[str, Any]:
    return {"mode": "state", "transitions": [{"actions": level} for level in levels]}


class Naive:
    """The rule in words, over everything that has come since the last chunk."""

    def __init__(self, min_pulse: int) -> None:
        self.min_pulse = min_pulse
        self.script: list[Any] | None = None
        self.script_id: int | None = None
        self.pending: list[tuple[tuple[str, ...], int | None]] = []
        self.held: tuple[tuple[str, ...], int | None] | None = None

    def apply(self, actions: Any, event_id: int | None) -> None:
        if isinstance(actions, list):
            self.script, self.script_id = [tuple(level) for level in actions], event_id
            self.pending, self.held = [], ((), None)
        else:
            self.script = None
            self.pending += [(tuple(t["actions"]), event_id) for t in actions["transitions"]]

    def sample(self, steps: int) -> Levels:
        if self.script is not None:
            levels, rest = self.script[:steps], self.script[steps:]
            self.script = rest or None
            return Levels(levels + [()] * (steps - len(levels)), self.script_id)
        presses = [row for row in self.pending if row[0]]
        if self.pending:
            self.held = self.pending[-1]
        self.pending = []
        if self.held is None:
            return Levels(None, None)
        levels, event_id = [self.held[0]] * steps, self.held[1]
        if presses and presses[-1][0] != self.held[0]:
            count = min(self.min_pulse, steps)
            levels[:count] = [presses[-1][0]] * count
            event_id = presses[-1][1] if count == steps else event_id
        return Levels(levels, event_id)


LEVEL = st.lists(st.sampled_from("wasdijkl"), unique=True, max_size=3)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("script"), st.lists(LEVEL, max_size=7)),
        st.tuples(st.just("state"), st.lists(LEVEL, min_size=1, max_size=4)),
        st.tuples(st.just("sample"), st.integers(1, 5)),
        st.tuples(st.just("dump"), st.none()),
    ),
    max_size=30,
)


@given(EVENTS, st.integers(1, 6))
def test_any_history_gives_what_the_rule_says(events: list[Any], min_pulse: int) -> None:
    tokens = TOKENS._replace(min_pulse=min_pulse)
    queue, naive = ActionQueue(tokens), Naive(min_pulse)
    for number, (kind, value) in enumerate(events):
        if kind == "sample":
            assert queue.sample(value) == naive.sample(value)
        elif kind == "dump":
            values = json.loads(json.dumps(queue.dump()))
            queue = ActionQueue(tokens)
            queue.load(values)
        else:
            actions = read_actions(value if kind == "script" else state(*value), tokens)
            queue.apply(actions, number)
            naive.apply(actions, number)


def test_a_flood_of_transitions_takes_little_room_and_loses_nothing_visible() -> None:
    queue = ActionQueue(TOKENS)
    for number in range(5_000):
        queue.apply(read_actions(state(["w"], ["a"], []), TOKENS), number)
    assert len(json.dumps(queue.dump())) < 200
    assert queue.sample(3) == Levels([("a",), (), ()], 4_999)


@pytest.mark.parametrize("token", ["W", "x", "ww", "", 3, None, ["w"], b"w"])
def test_an_unknown_token_is_refused_by_name(token: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        read_actions([["w"], ["s", token]], TOKENS)
    (problem,) = caught.value.problems
    assert problem.field == "camera_actions[1][1]"
    assert repr(token) in str(problem) or token is None
    assert "Allowed are w, a, s, d, i, j, k, l." in problem.remedy
    assert ("lower case" in problem.remedy) == (token == "W")


def test_every_wrong_place_is_named_at_once() -> None:
    event = {
        "mode": "state",
        "speed": 2,
        "transitions": [
            {"actions": ["q"]},
            {"action": ["w"]},
            {"actions": "w"},
            {"actions": ["w"], "client_ts_ms": "now"},
            {"actions": ["w"], "client_ts_ms": 17.5},
        ],
    }
    with pytest.raises(ParameterError) as caught:
        read_actions(event, TOKENS, field="payload")
    assert [problem.field for problem in caught.value.problems] == [
        "payload.speed",
        "payload.transitions[0].actions[0]",
        "payload.transitions[1]",
        "payload.transitions[2].actions",
        "payload.transitions[3].client_ts_ms",
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        "w",
        7,
        b"w",
        ["w"],
        [["w"], "a"],
        {"mode": "script", "transitions": [{"actions": []}]},
        {"mode": "state"},
        {"mode": "state", "transitions": []},
        {"mode": "state", "transitions": {"actions": []}},
        [["w"]] * 513,
        {"mode": "state", "transitions": [{"actions": []}] * 513},
        [["w"] * 9],
    ],
)
def test_a_value_of_another_form_is_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match="camera_actions"):
        read_actions(value, TOKENS)


def test_the_longest_script_is_taken_whole() -> None:
    queue = ActionQueue(TOKENS)
    queue.apply(read_actions([["w", "w"]] * 512, TOKENS), 1)
    assert queue.sample(600).actions == [("w",)] * 512 + [()] * 88


def test_a_state_can_be_ruled_out() -> None:
    with pytest.raises(ParameterError, match="one list of action tokens per control step"):
        read_actions(state(["w"]), TOKENS, state=False)


def test_a_chunk_tells_the_newest_event_whatever_its_id() -> None:
    """A client may number its events as it likes; the one that came last counts."""
    adapter = ToyWorldAdapter(ToyWorldParams(prompt="a hill"))
    plan = BlockPlan(2)
    for index, id in enumerate((10, 3, -4, 0)):
        adapter.apply("camera_actions", {"actions": state(["w"], [])}, id)
        assert adapter.sample(plan.chunk(index)).event_id == id
    adapter.apply("prompt", {"prompt": "the sea"}, 2)
    assert adapter.sample(plan.chunk(4)).event_id == 2
    adapter.apply("prompt", {"prompt": "a lake"}, 1)
    adapter.apply("camera_actions", {"actions": [["w"]]}, -9)
    adapter = adapter.fork()
    assert adapter.sample(plan.chunk(5)).event_id == -9
    adapter.apply("camera_actions", {"actions": [["a"]]}, None)
    sampled = adapter.sample(plan.chunk(6))
    assert sampled.controls == {"actions": [["a"], []], "prompt": "a lake"}
    assert sampled.event_id == -9, "an event without an id leaves the last one standing"
