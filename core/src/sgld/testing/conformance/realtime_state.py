"""What a realtime adapter holds between events and chunks, by itself and in sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sgld.realtime.adapter import RealtimeAdapter
from sgld.testing.conformance.base import expect
from sgld.testing.conformance.realtime_base import OWN_STATE, OfAdapter, is_json
from sgld.testing.live import Live


class State(OfAdapter):
    """Controls over time."""

    def test_events_take_effect(self, live: Live) -> None:
        """After each sample, the first chunk that can see it is given other controls."""
        for kind, payload in self.samples.items():
            with_event, without = live.instance(), live.instance()
            control = live.adapter.read_event(kind, payload)
            with_event.apply(kind, control, 1)
            until = with_event.first_chunk(kind, control, 0)
            pairs = [(with_event.sample(c), without.sample(c)) for c in live.chunks(until + 1)]
            expect(
                pairs[-1][0].controls != pairs[-1][1].controls,
                expected=f"{kind}={payload!r:.40}: chunk {until} sees it",
                got=f"the controls are {pairs[-1][0].controls!r:.80} with and without it",
                remedy="Hold what `apply` was given until `sample`, or mend `first_chunk`.",
            )

    def test_first_chunk_is_not_over(self, live: Live) -> None:
        """An event is not seen by a chunk that has begun."""
        for kind, payload in self.samples.items():
            control = live.adapter.read_event(kind, payload)
            adapter = live.instance()
            adapter.apply(kind, control, 1)
            found = adapter.first_chunk(kind, control, 5)
            expect(
                isinstance(found, int) and found >= 5,
                expected=f"{kind}: seen by chunk 5 or a later one, if 5 comes next",
                got=found,
                remedy="Return `next`, or a larger index.",
            )

    def test_controls_are_json(self, live: Live) -> None:
        """What a chunk sees is JSON values, before and after events."""
        adapter = live.instance()
        for index, chunk in enumerate(live.chunks(3)):
            controls = adapter.sample(chunk).controls
            expect(
                is_json(controls),
                expected=f"chunk {index}: controls of JSON values",
                got=f"{controls!r:.100}",
                remedy="Make tensors in the stage that reads the controls, not in the adapter.",
            )
            self._apply_all(live, adapter, index)

    def test_event_ids_only_grow(self, live: Live) -> None:
        """A chunk reports the newest event that any chunk has seen so far."""
        adapter, ids = live.instance(), list[int | None]()
        numbers = iter(range(100, 200))
        for chunk in live.chunks(4):
            ids.append(adapter.sample(chunk).event_id)
            if chunk.index < 2:
                for kind, payload in self.samples.items():
                    adapter.apply(kind, live.adapter.read_event(kind, payload), next(numbers))
        known = [id for id in ids if id is not None]
        grows = known == sorted(known) and None not in ids[ids.count(None) :]
        expect(
            ids[0] is None and known and grows,
            expected="no id before the first event, then ids that never fall",
            got=ids,
            remedy="Keep the id of the newest event that a chunk has seen; report it from then on.",
        )

    def test_sessions_are_isolated(self, live: Live) -> None:
        """Events of one session leave another one alone, by itself and in the engine."""
        busy, quiet, alone = live.instance(), live.instance(), live.instance()
        chunks = live.chunks(3)
        alone_saw = [alone.sample(chunk) for chunk in chunks]
        for chunk, wanted in zip(chunks, alone_saw, strict=True):
            self._apply_all(live, busy, chunk.index)
            busy.sample(chunk)
            found = quiet.sample(chunk)
            expect(
                found == wanted,
                expected=f"a session without events sees {wanted!r:.80}",
                got=f"{found!r:.80}, beside one that has events",
                remedy=OWN_STATE,
            )
        solo = live.steps(live.open(), 2)
        quiet_one, busy_one = live.open(), live.open(events=self.samples.items())
        found_steps = []
        for _ in range(2):
            live.steps(busy_one, 1)
            found_steps += live.steps(quiet_one, 1)
        self._expect_same(solo, found_steps, "a session beside another one", OWN_STATE)

    def test_dump_and_load_give_the_same(self, live: Live) -> None:
        """From JSON, another instance goes on in the same way; so does a fork."""
        adapter = live.instance()
        for chunk in live.chunks(2):
            self._apply_all(live, adapter, chunk.index)
            adapter.sample(chunk)
        self._apply_all(live, adapter, 2)
        values = adapter.dump()
        expect(
            is_json(values),
            expected="a dump of JSON values",
            got=f"{values!r:.100}",
            remedy="Lists, not tuples; texts, numbers and maps with texts as keys.",
        )
        other = live.adapter(live.params())
        other.load(json.loads(json.dumps(values)))
        chunks = live.chunks(4, start=2)
        wanted = [adapter.sample(chunk) for chunk in chunks]
        expect(
            (found := [other.sample(chunk) for chunk in chunks]) == wanted,
            expected=f"after dump and load, chunks see {wanted!r:.100}",
            got=f"{found!r:.100}",
            remedy="Dump everything that `sample` depends on.",
        )

    def test_dump_is_a_copy(self, live: Live) -> None:
        """What was dumped does not change when the session goes on."""
        adapter = live.instance()
        self._apply_all(live, adapter, 0)
        values = adapter.dump()
        before = json.dumps(values, sort_keys=True)
        for chunk in live.chunks(2):
            adapter.sample(chunk)
            self._apply_all(live, adapter, chunk.index + 1)
        expect(
            (after := json.dumps(values, sort_keys=True)) == before,
            expected=f"the dump stays {before:.100}",
            got=f"{after:.100}",
            remedy="Copy lists and maps in `dump` and `load`.",
        )

    def test_rewind_takes_controls_back(self, live: Live) -> None:
        """A chunk that is made again sees what it saw, and has the same bits."""
        adapter = live.instance()
        self._apply_all(live, adapter, 0)
        chunks = live.chunks(3)
        adapter.sample(chunks[0])
        values = adapter.dump()
        first = [adapter.sample(chunk) for chunk in chunks[1:]]
        adapter.load(values)
        again = [adapter.sample(chunk) for chunk in chunks[1:]]
        expect(
            first == again,
            expected=f"after going back, chunks see {first!r:.100}",
            got=f"{again!r:.100}",
            remedy="`load` must replace everything, also what has come since the dump.",
        )
        name = live.open(events=self.samples.items(), rewind_chunks=2)
        shown = live.steps(name, 3)[1:]
        live.driver.ask(name, "rewind", chunks=2)
        remedy = "`load` must replace everything that `sample` depends on."
        self._expect_same(shown, live.steps(name, 2), "chunks made again", remedy)

    def test_session_runs(self, live: Live) -> None:
        """A session makes chunks in order, of the size it told, and asks for controls once each."""
        asked: list[int] = []
        with _spied(live.adapter, asked):
            name = live.open(events=self.samples.items())
            reports = live.steps(name, 4)
        opened = live.driver.reports(name, "opened")[0].values
        sizes = [opened["first_frames"], *[opened["chunk_frames"]] * 3]
        found = [0 if row.frames is None else len(row.frames) for row in reports]
        expect(
            [row.chunk for row in reports] == [0, 1, 2, 3] and found == sizes,
            expected=f"chunks 0, 1, 2, 3 of {sizes} frames",
            got=f"chunks {[row.chunk for row in reports]} of {found} frames",
            remedy="Mend `plan` and `frames` of the pipeline.",
        )
        expect(
            asked == [0, 1, 2, 3],
            expected="controls are sampled once for each chunk, in order",
            got=asked,
            remedy="Call `sample` nowhere yourself: it uses up what has come.",
        )


@contextmanager
def _spied(adapter: type[RealtimeAdapter], asked: list[int]) -> Iterator[None]:
    """Notes the index of every chunk that any instance is asked for."""
    sample = adapter.sample
    own = "sample" in vars(adapter)

    def noted(self: RealtimeAdapter, chunk: Any) -> Any:
        asked.append(chunk.index)
        return sample(self, chunk)

    adapter.sample = noted
    try:
        yield
    finally:
        if own:
            adapter.sample = sample
        else:
            del adapter.sample
