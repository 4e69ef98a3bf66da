"""Stages, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch

from sgld.api import Plugin, StageSpec, hookimpl
from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage


class Bad(NamedTuple):
    """What finds a fault, the stage, and what its record says."""

    found_by: set[str]
    target: Any
    record: dict[str, Any] = {}  # noqa: RUF012

    @property
    def attributes(self) -> dict[str, Any]:
        """What the test class has beside the id."""
        return {
            "slots": lambda self: {"latents": torch.ones(1, 2), "hidden": torch.ones(1, 2)},
            "components": lambda self: {"vae": torch.nn.Identity(), "other": torch.nn.Identity()},
        }


class Good(Stage):
    """Decodes twice, and adds noise."""

    id = "decode"
    reads: ClassVar[tuple[str, ...]] = ("latents",)
    writes: ClassVar[tuple[str, ...]] = ("frames",)
    uses: ClassVar[tuple[str, ...]] = ("vae",)

    def run(self, job: Job) -> StageRun:
        first = yield Call("vae", {"input": job.slots.latents})
        [second] = yield [Call("vae", {"input": first})]
        job.slots.frames = second + job.noise((1, 2))


class Nameless(Good):
    id = ""


class Nosy(Good):
    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.frames = job.slots.frames + job.slots.hidden


class Scribbling(Good):
    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.scratch = 1


class Silent(Good):
    def run(self, job: Job) -> StageRun:
        yield Call("vae", {"input": job.slots.latents})


class Calling(Good):
    def run(self, job: Job) -> StageRun:
        yield Call("other", {"input": job.slots.latents})
        yield from super().run(job)


class Asking(Good):
    def run(self, job: Job) -> StageRun:
        yield "may I?"
        yield from super().run(job)


class Clinging(Good):
    def run(self, job: Job) -> StageRun:
        try:
            yield from super().run(job)
        finally:
            yield Call("vae", {"input": job.slots.latents})


class Restless(Good):
    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.frames = job.slots.frames + torch.rand(1)


class Shared(Good):
    def run(self, job: Job) -> StageRun:
        self.seed = job.seed
        yield from super().run(job)
        job.slots.frames = job.slots.frames + self.seed


BAD: dict[str, Bad] = {
    "nameless": Bad({"test_declares_itself"}, Nameless),
    "other-record": Bad({"test_declares_itself"}, Good, {"reads": ("latents", "hidden")}),
    "nosy": Bad({"test_reads_what_it_says"}, Nosy),
    "scribbling": Bad({"test_writes_what_it_says"}, Scribbling),
    "silent": Bad({"test_writes_what_it_says"}, Silent),
    "calling": Bad({"test_calls_what_it_says"}, Calling),
    "asking": Bad({"test_yields_calls_only"}, Asking),
    "clinging": Bad({"test_closes_at_any_yield"}, Clinging),
    # Random numbers of the process make two jobs differ from what each gets alone, too.
    "restless": Bad({"test_gives_the_same_again", "test_jobs_share_no_state"}, Restless),
    "shared": Bad({"test_jobs_share_no_state"}, Shared),
}
GOOD = {"good": Bad(set(), Good)}


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin("bad-stages", contracts={"stage": 1}, summary="One fault each")


@hookimpl
def sgld_stages() -> Any:
    for name, bad in {**BAD, **GOOD}.items():
        globals()[f"make_{name}".replace("-", "_")] = bad.target
        said = {"reads": Good.reads, "writes": Good.writes, "uses": Good.uses, **bad.record}
        target = f"{__name__}:make_{name}".replace("-", "_")
        yield StageSpec(id=name, target=target, **said)
