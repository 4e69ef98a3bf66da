"""Models that a plugin carries: examined in a process of its own beside the plugins that they need.

Public: `model_rows(own, everybody, catalog, settings) -> list[Row]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sgld.api.specs import ModelSpec
from sgld.plugins.catalog import Catalog
from sgld.plugins.describe import Described
from sgld.plugins.doctor.examine import Settings, death
from sgld.plugins.doctor.process import run
from sgld.plugins.doctor.rows import Row
from sgld.plugins.doctor.wire import pack
from sgld.plugins.find import Found

CODE: Final = "SGLD-P023"


def model_rows(
    own: Described, everybody: Sequence[Described], catalog: Catalog, settings: Settings
) -> list[Row]:
    """A row for each model that a plugin carries and that is in use, or one for each of its faults.

    Args:
        own: the plugin.
        everybody: all plugins that could be described, among which is what it needs.
        catalog: everything resolved.
        settings: time limit and stop.
    """
    rows: list[Row] = []
    for spec in own.records["model"]:
        entry = catalog.models.get(spec.id)
        if entry is None or (entry.plugin, entry.dist) != (own.plugin.name, own.found.dist):
            continue  # `resolve` or `needs` says why
        rows += _examined(spec, _company(own, spec, everybody, catalog), settings)
    return rows


def _company(
    own: Described, spec: ModelSpec, everybody: Sequence[Described], catalog: Catalog
) -> list[Found]:
    """The core's plugin, this one, the one that brings the pipeline, and all that they need."""
    named = {row.plugin.name: row for row in everybody}
    pipeline = catalog.pipelines.get(spec.pipeline)
    wanted = [own.plugin.name, *([pipeline.plugin] if pipeline else [])]
    taken = {name: row for name, row in named.items() if row.found.source == "builtin"}
    while wanted:
        name = wanted.pop()
        if name not in taken and name in named:
            taken[name] = named[name]
            wanted += named[name].plugin.needs
    return [row.found for row in taken.values()]


def _examined(spec: ModelSpec, company: Iterable[Found], settings: Settings) -> list[Row]:
    job = {"model": spec.id, "plugins": [pack(found) for found in company]}
    ended = run(job, settings.timeout, settings.stop)
    told = next((row for row in ended.answers if "faults" in row), None)
    if told is None:
        text = f"examining it {death(ended, settings.timeout)}"
        failed = next((row["error"] for row in ended.answers if "error" in row), "")
        return [_bad(spec, f"{failed or text}.", "This is for its author to mend.")]
    faults = [_bad(spec, text, remedy) for text, remedy in told["faults"]]
    good = f"model {spec.id!r} ({told['size']} in {spec.folder}): whole, recognised as "
    good += f"{spec.pipeline}, and what it sets is taken"
    return faults or [Row("ok", "models", good)]


def _bad(spec: ModelSpec, text: str, remedy: str) -> Row:
    # A failure of the catalog names the model itself.
    named = text if repr(spec.id) in text.partition(":")[0] + ":" else f"model {spec.id!r}: {text}"
    return Row("bad", "models", named, CODE, remedy)
