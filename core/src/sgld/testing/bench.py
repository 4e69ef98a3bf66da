"""Tiny checkpoints and engines of them, for the conformance kit and for tests of plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from sgld.api.errors import UserError
from sgld.messages import Output
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.plugins.catalog import Catalog, load_target
from sgld.testing.engine_rig import EngineRig
from sgld.testing.isolated import owner_catalog


class Bench:
    """Tiny checkpoints by pipeline, each built once, and engines on one device.

    Args:
        folder: where the checkpoints lie.
        device: what `--device` would be.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, device
        self._built: dict[tuple[str, str], Path] = {}

    def tiny(self, pipeline: str, plugin: str | ModuleType = "") -> Path:
        """Folder of the tiny checkpoint that a pipeline's record names under `blueprints`.

        Raises UserError when there is no such pipeline, or it has no blueprint `tiny`.
        """
        return self.tiny_of(owner_catalog("pipeline", pipeline, plugin), pipeline)

    def tiny_of(self, catalog: Catalog, pipeline: str) -> Path:
        """As `tiny`, of a pipeline in this catalogue."""
        target = blueprint(catalog, pipeline)
        key = (target, pipeline)
        if key not in self._built:
            folder = self.folder / re.sub(r"\W+", "-", f"{pipeline}-{len(self._built)}")
            load_target(target, catalog.pipelines[pipeline])(folder)
            self._built[key] = folder
        return self._built[key]

    def plan(self, catalog: Catalog, pipeline: str, **options: Any) -> ModelPlan:
        """A plan for the tiny checkpoint of a pipeline; `options` are those of `sgld.load`."""
        given = {
            "model_path": str(self.tiny_of(catalog, pipeline)),
            "pipeline_class_name": pipeline,
            "device": self.device,
            **options,
        }
        made = build(ServingOptions, [Layer("call", given)]).params
        return make_plan(made, catalog=catalog)

    @contextmanager
    def running(self) -> Iterator[Callable[..., Output]]:
        """What the fixture `run_pipeline` gives."""
        held: dict[tuple[Any, ...], EngineRig] = {}
        with ExitStack() as stack:

            def run(
                pipeline: str,
                *,
                plugin: str | ModuleType = "",
                options: Mapping[str, Any] | None = None,
                images: Any = None,
                **params: Any,
            ) -> Output:
                key = (pipeline, str(plugin), repr(sorted((options or {}).items())))
                if key not in held:
                    catalog = owner_catalog("pipeline", pipeline, plugin)
                    plan = self.plan(catalog, pipeline, **(options or {}))
                    held[key] = stack.enter_context(EngineRig(plan))
                rig = held[key]
                return rig.run(rig.request(images=images, **params))

            yield run


class Engines:
    """Engines of the pipeline that a conformance class tests, by options; each is loaded once.

    Args:
        bench: checkpoints and device.
        contract: a class with `catalog()`, `id()` and `params`.
    """

    def __init__(self, bench: Bench, contract: Any) -> None:
        self.bench, self.contract = bench, contract
        self._held: dict[str, EngineRig] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rig in self._held.values():
            rig.close()
        self._held.clear()

    @property
    def folder(self) -> Path:
        """The tiny checkpoint."""
        return self.bench.tiny_of(self.contract.catalog(), self.contract.id())

    def plan(self, **options: Any) -> ModelPlan:
        """A plan with these options; whoever asks closes it."""
        given = {**self.contract.options, **options}
        return self.bench.plan(self.contract.catalog(), self.contract.id(), **given)

    def rig(self, **options: Any) -> EngineRig:
        """An engine with these options, shared by the tests of the class; nothing runs in it."""
        key = repr(sorted(options.items()))
        if key not in self._held:
            self._held[key] = EngineRig(self.plan(**options), self.contract.params)
        rig = self._held[key]
        rig.told.clear()
        return rig


def blueprint(catalog: Catalog, pipeline: str) -> str:
    """The target that writes a pipeline's tiny checkpoint."""
    spec = catalog.pipelines[pipeline].spec
    if "tiny" not in spec.blueprints:
        raise UserError(
            f"pipeline {pipeline!r} has no blueprint 'tiny'.",
            remedy='Name one: PipelineSpec(..., blueprints={"tiny": "module:write_tiny"}).',
        )
    return spec.blueprints["tiny"]
