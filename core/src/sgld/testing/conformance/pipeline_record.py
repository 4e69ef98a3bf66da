"""A pipeline's record, its parameters and its tiny checkpoint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from sgld.api.errors import ParameterError, SgldError
from sgld.engine.pipeline import Pipeline
from sgld.params.merge import Layer
from sgld.params.requests import prepare
from sgld.params.sampling import SamplingParams
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.plugins.catalog import load_target
from sgld.testing.bench import Engines, blueprint
from sgld.testing.conformance.base import broken, expect
from sgld.testing.conformance.pipeline_base import OfPipeline

MOST_BYTES: Final = 5_000_000


class Record(OfPipeline):
    """What a `PipelineSpec` says of itself."""

    def test_targets_are_of_their_kind(self) -> None:
        """`target` is a `Pipeline`, `params` a `SamplingParams`."""
        entry = self.entry()
        for name, wanted in (("target", Pipeline), ("params", SamplingParams)):
            target = getattr(entry.spec, name)
            found = load_target(target, entry)
            expect(
                isinstance(found, type) and issubclass(found, wanted),
                expected=f"{name}={target!r} is a subclass of {wanted.__name__}",
                got=repr(found),
                remedy=f"Derive it from {wanted.__module__}.{wanted.__name__}.",
            )

    def test_tasks_fit_the_parameters(self) -> None:
        """A task that begins with a picture needs parameters that take one, and the other way."""
        entry = self.entry()
        params = load_target(entry.spec.params, entry)
        pictured = any(task.startswith("image-") for task in entry.spec.tasks)
        only = all(task.startswith("image-") for task in entry.spec.tasks)
        got = f"takes_image={params.takes_image}, needs_image={params.needs_image}"
        expect(
            pictured == params.takes_image and only == params.needs_image,
            expected=f"tasks {', '.join(entry.spec.tasks)}: takes_image={pictured}, "
            f"needs_image={only}",
            got=f"{params.__name__} has {got}",
            remedy="Correct `tasks` of the record, or TakesImage and needs_image there.",
        )

    def test_presets_are_valid(self) -> None:
        """Every preset, on top of the base, makes a valid request."""
        entry = self.entry()
        cls = load_target(entry.spec.params, entry)
        base = {
            name: value
            for preset in entry.spec.presets
            if not preset.repos and not preset.rules
            for name, value in preset.defaults.items()
        }
        for preset in entry.spec.presets:
            values = {**base, **preset.defaults}
            layers = [Layer("call", {"prompt": "x"}), Layer("preset", values, source=preset.id)]
            try:
                prepare(cls, layers, images_given=1 if cls.needs_image else 0)
            except ParameterError as error:
                broken(
                    expected=f"preset {preset.id!r} holds valid parameters of {cls.__name__}",
                    got=str(error),
                    remedy="Correct the defaults of the preset.",
                )

    def test_tiny_checkpoint(self, bench: Engines, tmp_path: Path) -> None:
        """The blueprint `tiny` is small, and writes the same bytes each time."""
        entry = self.entry()
        target = blueprint(self.catalog(), self.id())
        folder = bench.folder
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        expect(
            size < MOST_BYTES,
            expected=f"the tiny checkpoint has less than {MOST_BYTES:,} bytes",
            got=f"{size:,}",
            remedy="Take fewer layers, smaller widths and a smaller vocabulary.",
        )
        load_target(target, entry)(tmp_path / "again")
        first, second = _digests(folder), _digests(tmp_path / "again")
        changed = sorted(name for name in first | second if first.get(name) != second.get(name))
        expect(
            not changed,
            expected=f"{target} writes the same bytes each time",
            got=f"other bytes in {', '.join(changed)}",
            remedy="Draw weights from a generator with a fixed seed, and write no times.",
        )

    def test_recognises_its_checkpoint(self, bench: Engines) -> None:
        """The claims of the record find the tiny checkpoint, without the user naming a pipeline."""
        options = {"model_path": str(bench.folder), "device": bench.bench.device, **self.options}
        try:
            plan = make_plan(ServingOptions.model_validate(options), catalog=self.catalog())
        except SgldError as error:
            broken(
                expected=f"the claims of {self.id()} recognise its tiny checkpoint",
                got=str(error),
                remedy="Add a rule on model_index.json or config.json to `claims`.",
            )
        plan.close()
        expect(
            plan.spec.id == self.id(),
            expected=f"the tiny checkpoint is recognised as {self.id()}",
            got=f"{plan.spec.id}, because of {plan.recognition.evidence}",
            remedy="Make the rules of one of the two pipelines longer.",
        )

    def test_parameters_are_json(self, bench: Engines) -> None:
        """Parameters travel to another process as JSON and mean the same there."""
        rig = bench.rig(batching="off")
        cls, values = rig.plan.params_class, rig.request().params
        again: Any = cls.model_validate(json.loads(json.dumps(values))).model_dump(mode="json")
        changed = {name: again.get(name) for name in values if again.get(name) != values[name]}
        expect(
            not changed,
            expected=f"{cls.__name__} read from its own JSON is equal",
            got=f"other values: {changed}",
            remedy="Use fields whose JSON form validates to the same value.",
        )


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
