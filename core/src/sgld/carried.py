"""Whether a model that a distribution carries is whole and can be served, told before anyone tries:
for `sgld plugins check` and for `ModelContract`. Reads headers of weights only. Torch-free.

    told = examine(entry, catalog)     Carried: its size, and everything that is wrong with it
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from sgld import bundled
from sgld.api.errors import ParameterError, PluginError, SgldError
from sgld.api.specs import ModelSpec
from sgld.media.images import load_image
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.plugins.catalog import Catalog
from sgld.plugins.resolve import Entry
from sgld.weights.complete import check_complete
from sgld.weights.files import ModelFiles
from sgld.weights.header import BrokenFile, read_header
from sgld.weights.resolve import PICKLE_SUFFIXES

PARTS: Final = ("folder", "weights", "pipeline", "start", "defaults", "picture")
"""What is examined, in this order: the folder is in the package; the weights are whole and hold no
code; the named pipeline recognises the checkpoint; a server would start with it; a request with its
defaults is valid; its pictures are pictures."""
AGAIN: Final = "Put it into the wheel again, whole."


class Fault(NamedTuple):
    """What is wrong with which of `PARTS`, as a sentence, and what its author can do."""

    part: str
    text: str
    remedy: str


class Carried(NamedTuple):
    """What is known of a carried model.

    Args:
        folder: where it lies; None: nowhere.
        size: bytes of all its files.
        faults: everything that is wrong.
    """

    folder: Path | None
    size: int
    faults: tuple[Fault, ...]

    @property
    def summary(self) -> str:
        """How large it is, in words."""
        return f"{self.size / 1e6:.1f} MB"


def examine(entry: Entry[ModelSpec], catalog: Catalog) -> Carried:
    """Examine the model that `entry` brings; `catalog` must hold its pipeline. Never raises for
    what is wrong with the model."""
    options = ServingOptions.model_validate({"model_path": entry.spec.id, "device": "cpu"})
    try:
        files = bundled.files_of(entry, options)
    except SgldError as error:
        fault = Fault("folder", _text(error), "Correct `folder`, or put it into the wheel.")
        return Carried(None, 0, (fault,))
    size = sum(path.stat().st_size for path in files.root.rglob("*") if path.is_file())
    faults = [*_weights(files), *_pipeline(entry, files, catalog)]
    faults += _pictures(entry)
    if not faults:
        faults += _served(entry, options, catalog)
    order = sorted(faults, key=lambda fault: PARTS.index(fault.part))
    return Carried(files.root, size, tuple(order))


def _text(error: SgldError) -> str:
    """An error without the code and owner that a plugin's failure begins with."""
    failures = error.failures if isinstance(error, PluginError) else ()
    return failures[0].message if failures else error.message


def _weights(files: ModelFiles) -> Iterator[Fault]:
    try:
        check_complete(files)
    except SgldError as error:
        yield Fault("weights", _text(error), AGAIN)
    found = [path for path in sorted(files.root.rglob("*")) if path.is_file()]
    tensors = 0
    for path in found:
        name = path.relative_to(files.root).as_posix()
        if path.suffix in PICKLE_SUFFIXES:
            text = f"{name} can run code when it is opened, so nobody would load it."
            yield Fault("weights", text, "Write the weights as .safetensors.")
        if path.suffix != ".safetensors":
            continue
        try:
            tensors += len(read_header(path).tensors)
        except BrokenFile as error:
            yield Fault("weights", f"{error}.", AGAIN)
            tensors += 1
    if not tensors:
        text = "no .safetensors file in its folder holds a tensor: it brings no weights."
        yield Fault("weights", text, AGAIN)


def _pipeline(entry: Entry[ModelSpec], files: ModelFiles, catalog: Catalog) -> Iterator[Fault]:
    """Found by its claims alone: a copy of the folder is then served just as the model is."""
    name = entry.spec.pipeline
    known = catalog.pipelines.get(name)
    if known is None:
        yield Fault("pipeline", catalog.no_pipeline(name).message, "Name it in `Plugin.needs`.")
        return
    try:
        found = catalog.recognise(files, backend=known.spec.backend).entry.spec.id
    except SgldError as error:
        yield Fault("pipeline", _text(error), "Correct model_index.json, or `pipeline`.")
        return
    if found != name:
        text = f"its checkpoint is one of {found!r}, not of {name!r}."
        yield Fault("pipeline", text, f"Write pipeline={found!r}.")


def _pictures(entry: Entry[ModelSpec]) -> Iterator[Fault]:
    for field, find in (("picture", bundled.picture_of), ("blank", bundled.blank_of)):
        remedy = f"Correct `{field}`, or put the file into the wheel."
        try:
            path = find(entry)
            if path:
                load_image(Path(path), field=field)
        except ParameterError as error:
            yield Fault("picture", str(error.problems[0]), remedy)
        except SgldError as error:
            yield Fault("picture", _text(error), remedy)


def _served(entry: Entry[ModelSpec], options: ServingOptions, catalog: Catalog) -> Iterator[Fault]:
    """Decide as a server would, and ask for what the model makes by itself."""
    try:
        plan = make_plan(options, environ={}, catalog=catalog)
    except SgldError as error:
        yield Fault("start", _text(error), error.remedy or "See what `sgld serve` says of it.")
        return
    with closing(plan):
        yield from _tasks(entry, plan)
        yield from _defaults(entry, plan)


def _tasks(entry: Entry[ModelSpec], plan: ModelPlan) -> Iterator[Fault]:
    """A task that the record adds and that brings no picture, though the pipeline begins with one:
    then every request would be refused."""
    begins = {"text-to-image": plan.blank, "text-to-video": plan.blank or plan.picture}
    for task, path in begins.items():
        if plan.params_class.needs_image and task in entry.spec.tasks and not path:
            text = (
                f"{task} brings no picture, its pipeline begins with one, and `blank` names none."
            )
            yield Fault("start", text, "Name a picture in `blank`, or leave the task out.")


def _defaults(entry: Entry[ModelSpec], plan: ModelPlan) -> Iterator[Fault]:
    own = Layer("preset", entry.spec.defaults, source=entry.spec.id)
    asked = {} if "prompt" in own.values else {"prompt": "anything"}
    # The plan's layer has them too; each wrong one is to be told once, and whose it is.
    rest = {key: value for key, value in plan.local_layer.values.items() if key not in own.values}
    family = plan.local_layer._replace(values=rest)
    try:
        build(plan.params_class, [Layer("call", asked), own, family])
    except ParameterError as error:
        for problem in error.problems:
            yield Fault("defaults", str(problem), "Correct `defaults`.")
