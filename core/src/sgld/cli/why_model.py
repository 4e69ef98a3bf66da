"""`sgld plugins why MODEL`: the decision that `sgld serve` and `sgld generate` would make, found in
the same way: what they would write is written, what a distribution carries is looked up there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import typer

from sgld.api.errors import FeatureError, SgldError

if TYPE_CHECKING:
    from sgld.api.specs import PipelineSpec
    from sgld.params.serving import ServingOptions
    from sgld.plugins.catalog import Catalog
    from sgld.plugins.match import Files
    from sgld.plugins.resolve import Entry
    from sgld.plugins.why import Answer


class Sought(NamedTuple):
    """The files of a model, what pins its pipeline or backend, and where it comes from."""

    files: Files
    pipeline: str
    backend: str
    origin: str = ""


class Asked(NamedTuple):
    """A model, and what pins its pipeline or backend where something does."""

    model: str
    pipeline: str
    backend: str

    def options(self) -> ServingOptions:
        """The same as for `sgld serve`. Imported late: a name alone is explained without them."""
        from sgld.params.serving import ServingOptions

        return ServingOptions(
            model_path=self.model,
            backend=self.backend,
            pipeline_class_name=self.pipeline or None,
            load_format="dummy" if self.model.startswith("config:") else "auto",
        )


def why_model(
    catalog: Catalog, model: str, *, model_id: str = "", pipeline: str = "", backend: str = "auto"
) -> Answer:
    """Who serves a model, with everybody who was considered. Downloads nothing; a `tiny:` or
    `config:` model is written by a process of its own and removed again."""
    from sgld.plugins import why
    from sgld.plugins.match import Evidence

    asked = Asked(model, pipeline, backend)
    try:
        with _sought(asked, catalog) as sought:
            evidence = Evidence(sought.files, model_id)
            answer = why.why_model(
                catalog, model, evidence, pipeline=sought.pipeline, backend=sought.backend
            )
            if answer.taken and sought.origin:
                answer = answer._replace(text=f"{answer.text}; {sought.origin}")
            taken = catalog.pipelines.get(answer.taken)
            if (
                taken is None
                or not taken.spec.inspect
                or not sought.files.exists("model_index.json")
            ):
                return answer
            return answer._replace(error=_refusal(taken, sought.files, asked.options()))
    except SgldError as error:
        return why.Answer(f"model {model}", "", "", (), error)


@contextmanager
def _sought(asked: Asked, catalog: Catalog) -> Iterator[Sought]:
    """What is known of a model; of a hub id only its name, for a question downloads nothing."""
    from sgld import blueprints, bundled
    from sgld.plugins.match import NameOnly
    from sgld.weights.resolve import resolve

    model, pinned, backend = asked
    carried = bundled.entry_of(model, catalog)
    if blueprints.is_made(model):
        options = asked.options()
        entry, target = blueprints.blueprint_of(options, catalog)
        origin = f"{target} of {entry.spec.id} writes it"
        folder = blueprints.write(options, entry, target, isolate=True)
        try:
            files = resolve(str(blueprints.inside(folder, model)))
            yield Sought(files, pinned, blueprints.backend_of(options, catalog), origin)
        finally:
            folder.cleanup()
    elif carried is not None:
        files = bundled.files_of(carried, asked.options())
        origin = f"{carried.owner} carries it"
        yield Sought(files, pinned or carried.spec.pipeline, backend, origin)
    elif os.path.exists(os.path.expanduser(model)):
        yield Sought(resolve(model), pinned, backend)
    else:
        bundled.refuse_unknown(model, catalog)
        typer.echo(f"note: {model!r} is not a local folder; only its name is looked at.", err=True)
        yield Sought(NameOnly(model), pinned, backend)


def _refusal(entry: Entry[PipelineSpec], files: Files, options: ServingOptions) -> SgldError | None:
    """Why a pipeline that looks into each checkpoint would not serve this one."""
    from sgld.plugins.catalog import load_target

    try:
        refusals = load_target(entry.spec.inspect, entry)(files, options).refusals
    except SgldError as error:
        return error
    text = f"{entry.spec.id} cannot serve it: {'; '.join(refusals)}."
    return FeatureError(text) if refusals else None
