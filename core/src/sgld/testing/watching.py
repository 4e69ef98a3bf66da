"""What the stages of a pipeline really touch: slots read and written, calls, how they close.

watch = Watch(pipeline)         from now on every stage that this pipeline gives is watched
watch.runs                      one `StageWatch` for each stage that has run
watch.release()                 the pipeline as it was
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.causal import CausalPipeline
from sgld.engine.job import Job, Slots
from sgld.engine.pipeline import Media, Pipeline
from sgld.engine.stage import Stage

CAUSAL: Final = ("open_stages", "chunk_stages", "frame_stages", "commit_stages")
PRESET: Final = frozenset({"undo", "chunk", "chunk_count", "controls"})
"""Slots that the engine fills for the stages of a causal pipeline."""


@dataclass
class StageWatch:
    """What one run of a stage did.

    Args:
        id, reads, writes, uses: as declared.
        read: slots that it read before it wrote them itself.
        asked: slots whose presence it asked for (`"mask" in job.slots`): it may read what is there.
        written: slots that it wrote.
        missing: slots of `writes` that are not there at its end.
        called: components that it called.
        strange: what it yielded that is neither a call nor a list of calls.
        tensors: weak references to tensors that it put into slots, by slot.
        ended: whether it ran to its end.
        unclosed: why closing it failed, or empty.
    """

    id: str
    reads: frozenset[str]
    writes: frozenset[str]
    uses: frozenset[str]
    read: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    strange: list[str] = field(default_factory=list)
    tensors: list[tuple[str, weakref.ref[torch.Tensor]]] = field(default_factory=list)
    ended: bool = False
    unclosed: str = ""

    @property
    def faults(self) -> list[str]:
        """Where it did not keep to what it declares, one text each."""
        read = sorted(self.read - self.reads - self.asked - PRESET)
        written = sorted(self.written - self.writes)
        called = sorted(self.called - self.uses) if self.uses else []
        rows = [f"reads {name!r}, which is not in its reads" for name in read]
        rows += [f"writes {name!r}, which is not in its writes" for name in written]
        rows += [
            f"does not write {name!r}, which is in its writes" for name in sorted(self.missing)
        ]
        rows += [f"calls {name!r}, which is not in its uses" for name in called]
        rows += [f"yields {text}" for text in self.strange]
        return [f"stage {self.id!r} {row}" for row in rows]


class Watch:
    """Watches every stage that a pipeline gives, and keeps the media that it makes."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.runs: list[StageWatch] = []
        self.media: list[Media] = []
        self._pipeline = pipeline
        causal = isinstance(pipeline, CausalPipeline)
        self._patched = (*(CAUSAL if causal else ("stages",)), "media")
        for name in self._patched[:-1]:
            setattr(pipeline, name, partial(self._stages, getattr(pipeline, name)))
        pipeline.media = partial(self._media, pipeline.media)

    def release(self) -> None:
        """The pipeline as it was."""
        for name in self._patched:
            vars(self._pipeline).pop(name, None)

    def clear(self) -> None:
        """Forget what was seen."""
        self.runs.clear()
        self.media.clear()

    def _stages(self, make: Callable[[Any], Sequence[Stage]], params: Any) -> Sequence[Stage]:
        return [WatchedStage(stage, self.runs.append) for stage in make(params)]

    def _media(self, make: Callable[[Job], Media], job: Job) -> Media:
        media = make(job)
        self.media.append(media)
        return media


class WatchedStage(Stage):
    """A stage whose run is noted.

    Args:
        stage: does the work.
        note: is given a `StageWatch` when it starts; the watch fills as it runs.
    """

    def __init__(self, stage: Stage, note: Callable[[StageWatch], None]) -> None:
        self.id, self.reads, self.writes, self.uses = (  # pyright: ignore[reportAttributeAccessIssue]
            stage.id, stage.reads, stage.writes, stage.uses,
        )  # fmt: skip
        self._stage, self._note = stage, note

    def run(self, job: Job) -> StageRun:
        watch = StageWatch(
            self.id, frozenset(self.reads), frozenset(self.writes), frozenset(self.uses)
        )
        self._note(watch)
        slots = watched_slots(job.slots, watch)
        run = _with(job, slots, lambda: self._stage.run(job))
        if not hasattr(run, "send"):
            raise TypeError(f"run() gave {type(run).__name__}, not a generator")
        yield from _driven(run, job, slots, watch)


def _driven(run: StageRun, job: Job, slots: Slots, watch: StageWatch) -> Generator[Any, Any, None]:
    resume: Callable[[], Any] = partial(run.send, None)
    while True:
        try:
            wish = _with(job, slots, resume)
        except StopIteration:
            watch.ended = True
            watch.missing = {name for name in watch.writes if name not in vars(slots)}
            return
        calls = [wish] if isinstance(wish, Call) else wish
        if isinstance(calls, list | tuple) and all(isinstance(call, Call) for call in calls):
            watch.called |= {call.component for call in calls}
        else:
            watch.strange.append(f"{wish!r:.60}")
        try:
            resume = partial(run.send, (yield wish))
        except GeneratorExit:
            _close(run, job, slots, watch)
            raise
        except BaseException as error:
            resume = partial(run.throw, error)


def _close(run: StageRun, job: Job, slots: Slots, watch: StageWatch) -> None:
    try:
        _with(job, slots, run.close)
    except BaseException as error:
        watch.unclosed = f"{type(error).__name__}: {error}"
        raise


def _with(job: Job, slots: Slots, action: Callable[[], Any]) -> Any:
    """Do something while the job has the watched slots."""
    before, job.slots = job.slots, slots
    try:
        return action()
    finally:
        job.slots = before


def watched_slots(slots: Slots, watch: StageWatch) -> Slots:
    """The same slots, but access through this object is noted."""

    class WatchedSlots(Slots):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and name != "clear" and name not in watch.written:
                watch.read.add(name)
            return object.__getattribute__(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            watch.written.add(name)
            if isinstance(value, torch.Tensor):
                watch.tensors.append((name, weakref.ref(value)))
            super().__setattr__(name, value)

        def __contains__(self, name: str) -> bool:
            watch.asked.add(name)
            return super().__contains__(name)

    same = WatchedSlots()
    object.__setattr__(same, "__dict__", vars(slots))
    return same
