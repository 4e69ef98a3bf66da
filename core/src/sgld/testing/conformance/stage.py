"""What every stage keeps, driven without an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import numpy as np
import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.messages import Request
from sgld.testing.conformance.base import Contract, broken, expect
from sgld.testing.watching import StageWatch, WatchedStage

MOST_YIELDS: Final = 10_000


class StageContract(Contract):
    """A stage.

        class TestDecode(StageContract):
            stage = "acme-decode"

            def slots(self):
                return {"latents": torch.ones(1, 4, 8, 8)}

            def components(self):
                return {"vae": TinyVae()}

    Args:
        stage: the id of its record, or the class itself; or override `make_stage`.
        params: the job's parameters, read as attributes.
        parts: the job's light parts.
    """

    kind: ClassVar[str] = "stage"
    named_by: ClassVar[str] = "stage"
    told: ClassVar[tuple[str, ...]] = (
        "stage", "params", "parts", "make_stage", "slots", "components", "answer", "make_job",
    )  # fmt: skip
    stage: ClassVar[str | type[Stage]] = ""
    params: ClassVar[Any] = {}
    parts: ClassVar[Mapping[str, Any]] = {}

    def make_stage(self) -> Stage:
        """The stage that is tested."""
        return self.stage() if isinstance(self.stage, type) else self.target()()

    def slots(self) -> Mapping[str, Any]:
        """The slots that it finds: all that it reads."""
        return {}

    def components(self) -> Mapping[str, Any]:
        """The components that it calls, by name."""
        return {}

    def answer(self, call: Call) -> Any:
        """The result of a call."""
        component = self.components().get(call.component)
        if component is None:
            broken(
                expected=f"the test class gives the component {call.component!r}",
                got=f"components: {', '.join(self.components()) or 'none'}",
                remedy="Return it from `components()`, or override `answer`.",
            )
        with torch.inference_mode():
            return getattr(component, call.method)(**call.inputs)

    def make_job(self, seed: int = 7) -> Job:
        """A job on the CPU, with the slots that the stage finds."""
        params = self.params
        if isinstance(params, Mapping):
            params = SimpleNamespace(**params)
        job = Job(
            id="job#0",
            request=Request("job", {}, (seed,)),
            index=0,
            params=params,
            device=torch.device("cpu"),
            parts=self.parts,
        )
        for name, value in self.slots().items():
            setattr(job.slots, name, value)
        return job

    # -- the tests --------------------------------------------------------------------------------

    def test_declares_itself(self) -> None:
        """It has an id, and tuples of names; a record says the same."""
        stage = self.make_stage()
        rows = {name: getattr(stage, name) for name in ("reads", "writes", "uses")}
        odd = [
            f"{name}={value!r}"
            for name, value in rows.items()
            if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value)
        ]
        named = isinstance(getattr(stage, "id", None), str) and stage.id
        expect(
            isinstance(stage, Stage) and named and not odd,
            expected="a Stage with an id, and reads, writes and uses as tuples of texts",
            got=f"{type(stage).__name__} with id={getattr(stage, 'id', None)!r} {' '.join(odd)}",
            remedy="Derive from sgld.engine.stage.Stage; write ('latents',) for one name.",
        )
        if isinstance(self.stage, str) and self.stage:
            spec = self.entry().spec
            other = [name for name in rows if set(getattr(spec, name)) != set(rows[name])]
            expect(
                not other,
                expected="a record that declares what the stage declares",
                got=f"other {', '.join(other)}",
                remedy="Copy reads, writes and uses into the StageSpec.",
            )

    def test_reads_what_it_says(self) -> None:
        """It reads no slot that is not in `reads`; one whose presence it asks for may be."""
        watch, _ = self._run()
        read = sorted(watch.read - watch.reads - watch.asked)
        expect(
            not read,
            expected=f"no slots are read but {sorted(watch.reads)}",
            got=f"also {read}",
            remedy="Name them in `reads`, or ask `'name' in job.slots` first.",
        )

    def test_writes_what_it_says(self) -> None:
        """It writes all slots in `writes`, and no others."""
        watch, _ = self._run()
        expect(
            watch.written <= watch.writes and not watch.missing,
            expected=f"the slots {sorted(watch.writes)} are written",
            got=f"{sorted(watch.written)}; missing at the end: {sorted(watch.missing)}",
            remedy="Correct `writes`: later stages are checked against it.",
        )

    def test_calls_what_it_says(self) -> None:
        """It calls the components in `uses`."""
        watch, _ = self._run()
        expect(
            watch.called <= watch.uses,
            expected=f"calls of {sorted(watch.uses) or 'no component'}",
            got=sorted(watch.called),
            remedy="Name the components in `uses`.",
        )

    def test_yields_calls_only(self) -> None:
        """`run` is a generator of calls, and of lists of calls."""
        stage, job = self.make_stage(), self.make_job()
        run = stage.run(job)
        expect(
            hasattr(run, "send"),
            expected="run() is a generator",
            got=type(run).__name__,
            remedy="Write `return` and, unreached, `yield` where a stage calls nothing.",
        )
        for wish in _wishes(run, self._answers):
            calls = wish if isinstance(wish, list | tuple) else [wish]
            expect(
                all(isinstance(call, Call) for call in calls),
                expected="a Call or a list of calls is yielded",
                got=f"{wish!r:.80}",
                remedy="Yield Call(component, inputs), and take the result of `yield`.",
            )

    def test_closes_at_any_yield(self) -> None:
        """Cancelled at any of its calls, it ends at once, without an error."""
        for place in range(self._count() + 1):
            run = self.make_stage().run(self.make_job())
            for number, _ in enumerate(_wishes(run, self._answers)):
                if number == place:
                    break
            try:
                run.close()
            except Exception as error:
                broken(
                    expected=f"closed at its call {place + 1}, the stage ends",
                    got=f"{type(error).__name__}: {error}",
                    remedy="Catch no GeneratorExit, and yield nothing in `finally`.",
                )

    def test_gives_the_same_again(self) -> None:
        """The same slots and the same seed give the same results, whatever the process drew."""
        before = torch.random.get_rng_state(), np.random.get_state()
        try:
            torch.manual_seed(1)
            first = self._run()[1]
            torch.manual_seed(2)
            np.random.seed(2)
            again = self._run()[1]
        finally:
            torch.random.set_rng_state(before[0])
            np.random.set_state(before[1])
        changed = [name for name in first if not _same(first[name], again.get(name))]
        expect(
            not changed,
            expected="one job run twice gives the same slots",
            got=f"others: {', '.join(changed)}",
            remedy="Draw noise with `job.noise` only.",
        )

    def test_jobs_share_no_state(self) -> None:
        """One stage object runs two jobs in turns, and each gets what it gets alone."""
        seeds = (7, 8)
        alone = [self._run(seed)[1] for seed in seeds]
        stage, jobs = self.make_stage(), [self.make_job(seed) for seed in seeds]
        runs = [_wishes(stage.run(job), self._answers) for job in jobs]
        while runs:
            runs = [run for run in runs if next(run, None) is not None]
        for job, wanted in zip(jobs, alone, strict=True):
            found = dict(vars(job.slots))
            changed = [name for name in wanted if not _same(wanted[name], found.get(name))]
            expect(
                not changed,
                expected="a job beside another one gets the slots that it gets alone",
                got=f"others: {', '.join(changed)}",
                remedy="Keep what belongs to a job in its slots or in local variables.",
            )

    # -- what the tests ask -----------------------------------------------------------------------

    def _answers(self, wish: Any) -> Any:
        if isinstance(wish, Call):
            return self.answer(wish)
        if not isinstance(wish, list | tuple):
            return None  # not a call: `test_yields_calls_only` says so
        return [self.answer(call) if isinstance(call, Call) else None for call in wish]

    def _run(self, seed: int = 7) -> tuple[StageWatch, dict[str, Any]]:
        """Run it to its end: what it did, and the slots."""
        watches: list[StageWatch] = []
        job = self.make_job(seed)
        stage = WatchedStage(self.make_stage(), watches.append)
        for _ in _wishes(stage.run(job), self._answers):
            pass
        return watches[0], dict(vars(job.slots))

    def _count(self) -> int:
        return sum(1 for _ in _wishes(self.make_stage().run(self.make_job()), self._answers))


def _wishes(run: StageRun, answers: Callable[[Any], Any]) -> Any:
    """Drive a stage; gives what it yields, before the answer is sent."""
    try:
        wish = next(run)
        for _ in range(MOST_YIELDS):
            yield wish
            wish = run.send(answers(wish))
    except StopIteration:
        return
    broken(
        expected="a stage that comes to its end",
        got=f"more than {MOST_YIELDS} calls",
        remedy="Look for a loop without an end.",
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, list | tuple):
        pairs = isinstance(right, type(left)) and len(left) == len(right)
        return pairs and all(_same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(
            _same(value, right[key]) for key, value in left.items()
        )  # fmt: skip
    plain = left is None or isinstance(left, str | int | float | bool)
    return left == right if plain else type(left) is type(right)
