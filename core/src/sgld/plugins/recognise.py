"""From a checkpoint to the pipeline that serves it, or an error that says what was tried.

Public: `recognise(catalog, evidence, pipeline) -> Recognition`, `score_table(...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, Protocol

from sgld.api.errors import ModelError, PluginError
from sgld.api.specs import NATIVE, Failure, PipelineSpec
from sgld.plugins import known
from sgld.plugins.backends import AUTO, groups
from sgld.plugins.match import PINNED, Evidence, NameOnly, Tried, score_all
from sgld.plugins.near import failed_text, guilty, install_hint, near_models
from sgld.plugins.resolve import Entry
from sgld.plugins.rows import PluginRow
from sgld.plugins.scan import CORE

MOST_TRIED: Final = 10
"""So many pipelines are named in a message."""

Pipelines = Mapping[str, Entry[PipelineSpec]]


class Recognition(NamedTuple):
    """The pipeline that serves a checkpoint, with the evidence and what else was tried."""

    entry: Entry[PipelineSpec]
    score: int
    evidence: str
    tried: tuple[Tried, ...]


class Source(Protocol):
    """What recognition asks of the catalog."""

    @property
    def pipelines(self) -> Pipelines:
        """Usable pipelines."""
        ...

    @property
    def retired(self) -> Pipelines:
        """Tombstones."""
        ...

    @property
    def plugins(self) -> tuple[PluginRow, ...]:
        """All plugins with their state."""
        ...

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What cannot be used."""
        ...


def _load(target: str, entry: Entry[Any]) -> Any:
    from sgld.plugins.catalog import load_target  # noqa: PLC0415  (the catalog imports this module)

    return load_target(target, entry)


def score_table(source: Source, evidence: Evidence) -> list[Tried]:
    """Every pipeline with its score, best first."""
    return score_all(source.pipelines.values(), evidence, _load)


def recognise(
    source: Source, evidence: Evidence, pipeline: str = "", backend: str = AUTO
) -> Recognition:
    """The one pipeline with the best score; see `Catalog.recognise`."""
    tried: list[Tried] = []
    for group in groups(source.pipelines, backend):
        candidates = _pinned(group, pipeline) if pipeline else group
        if pipeline and len(candidates) == 1:
            entry = next(iter(candidates.values()))
            why = f"named, as {pipeline!r}"
            return Recognition(entry, PINNED, why, (Tried(entry.spec.id, entry.dist, PINNED, why),))
        rows = score_all(candidates.values(), evidence, _load)
        tried += rows
        best = [row for row in rows if row.score and row.score == rows[0].score]
        if len(best) == 1:
            row = best[0]
            return Recognition(candidates[row.pipeline], row.score, row.evidence, tuple(tried))
        if best or (pipeline and candidates):
            raise _ambiguous(evidence, best or tried, pipeline)
        if not pipeline and backend == AUTO and _guilty(source, evidence):
            break  # a fallback must not hide that the native plugin is broken
    if pipeline:
        raise _no_pipeline(source, pipeline)
    broken = [row.failure for row in tried if row.failure is not None]
    if broken:  # one of these might have known it
        raise PluginError("; ".join(str(row) for row in broken), failures=broken)
    raise _unrecognised(source, evidence, tried)


def class_names(entry: Entry[PipelineSpec]) -> set[str]:
    """Class names by which a pipeline may be pinned: its own, and those it claims."""
    names = {entry.spec.target.rpartition(":")[2]}
    for rule in entry.spec.claims.rules:
        for where in rule:
            if where.key == "_class_name" and where.test in ("==", "in"):
                values = (where.value,) if isinstance(where.value, str) else tuple(where.value)
                names.update(str(value) for value in values)
    return names


def _pinned(pipelines: Pipelines, pipeline: str) -> Pipelines:
    """Candidates for a pin; several where checkpoints of one class name differ in their rules. A
    fallback that looks into each checkpoint may know any class."""
    if pipeline in pipelines:
        return {pipeline: pipelines[pipeline]}
    fitting = {name: entry for name, entry in pipelines.items() if pipeline in class_names(entry)}
    if fitting:
        return fitting
    return {
        name: entry
        for name, entry in pipelines.items()
        if entry.spec.inspect and entry.spec.backend != NATIVE
    }


def _no_pipeline(source: Source, pipeline: str) -> Exception:
    """The error for a pin that nothing here knows."""
    if pipeline in source.retired:
        return _retired(source.retired[pipeline])
    names = set(source.pipelines).union(*(class_names(row) for row in source.pipelines.values()))
    text = f"no usable plugin has a pipeline {pipeline!r}."
    parts = [_near(pipeline, names), _installed(source)]
    return _error(source, text, parts, known.suggest(pipeline, pipeline))


def _ambiguous(evidence: Evidence, rows: Iterable[Tried], pipeline: str) -> ModelError:
    rows = list(rows)
    names = " and ".join(
        f"{row.pipeline} ({row.dist}: {row.evidence or 'nothing'})" for row in rows
    )
    what = f"as {pipeline!r} " if pipeline else ""
    return ModelError(
        f"model {evidence.name!r} can be served {what}equally well by {names}.",
        code="model_ambiguous",
        remedy=f"Pin one with --pipeline-class-name {rows[0].pipeline}, or leave a plugin out with "
        "SGLD_PLUGINS=-NAME.",
    )


def _retired(entry: Entry[PipelineSpec]) -> ModelError:
    last = entry.spec.retired
    return ModelError(
        f"pipeline {entry.spec.id!r} was retired; {entry.dist} {last} was the last to have it.",
        code="model_not_recognised",
        remedy=f"pip install '{entry.dist}<={last}' brings it back.",
    )


def _unrecognised(source: Source, evidence: Evidence, tried: list[Tried]) -> Exception:
    """The error for a checkpoint that nothing claims: facts first, then what to do."""
    graves = score_all(source.retired.values(), evidence, _load)
    if graves and graves[0].score:
        return _retired(source.retired[graves[0].pipeline])
    class_name = evidence.class_name()
    facts = f" (its model index says {class_name!r})" if class_name else ""
    parts = [_tried(tried) or _installed(source)]
    parts.append(near_models(evidence.repo_id or evidence.name, source.pipelines))
    text = f"no plugin serves model {evidence.repo_id or evidence.name!r}{facts}."
    return _error(source, text, parts, _suggested(evidence), evidence)


def _tried(rows: list[Tried]) -> str:
    """What was looked at; of a crowd only whose it was."""
    if len(rows) <= MOST_TRIED:
        return f"Tried: {', '.join(row.pipeline for row in rows)}." if rows else ""
    dists = ", ".join(sorted({row.dist for row in rows}))
    return f"Tried {len(rows)} pipelines of {dists}."


def _suggested(evidence: Evidence) -> list[str]:
    """Distributions that probably serve a checkpoint, the most likely one first."""
    return known.suggest(evidence.class_name(), evidence.repo_id or evidence.name)


def _guilty(source: Source, evidence: Evidence) -> list[Failure]:
    """Failures of the plugins that should serve it."""
    name = evidence.repo_id or evidence.name
    return guilty(source.failures, name, _suggested(evidence))


def _near(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, sorted(names), n=1, cutoff=0.75)
    return f"Did you mean {near[0]!r}?" if near else ""


def _installed(source: Source) -> str:
    """What model plugins there are, in words."""
    names = sorted({row.dist for row in source.pipelines.values()} - {CORE})
    return f"Model plugins in use: {', '.join(names)}." if names else "No model plugin is in use."


def _error(
    source: Source,
    text: str,
    parts: list[str],
    suggested: list[str],
    evidence: Evidence | None = None,
) -> Exception:
    """A PluginError when the plugin that should serve it is there but broken, else a ModelError."""
    blamed = (
        _guilty(source, evidence)
        if evidence is not None
        else guilty(source.failures, "", suggested)
    )
    if blamed:
        reasons = " ".join(f"Plugin {row.plugin} failed: {row}" for row in blamed)
        return PluginError(f"{text} {reasons}", failures=blamed)
    by_name = evidence is not None and isinstance(evidence.files, NameOnly)
    parts.append(install_hint(suggested, source.plugins, by_name=by_name))
    parts.append(failed_text(source.failures))
    return ModelError(
        text, code="model_not_recognised", remedy=" ".join(part for part in parts if part)
    )
