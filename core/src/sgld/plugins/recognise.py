"""From a checkpoint to the pipeline that serves it, or an error that says what was tried.

Public: `recognise(catalog, evidence, pipeline) -> Recognition`, `score_table(...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

from sgld.api.errors import ModelError, PluginError
from sgld.api.specs import Failure, PipelineSpec
from sgld.plugins import known
from sgld.plugins.failures import is_fatal
from sgld.plugins.match import PINNED, Evidence, Tried, score_all
from sgld.plugins.resolve import Entry
from sgld.plugins.rows import PluginRow
from sgld.plugins.scan import CORE, normalise

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


def recognise(source: Source, evidence: Evidence, pipeline: str = "") -> Recognition:
    """The one pipeline with the best score; see `Catalog.recognise`."""
    candidates = _pinned(source, pipeline) if pipeline else dict(source.pipelines)
    if pipeline and len(candidates) == 1:
        entry = next(iter(candidates.values()))
        why = f"pinned by the user as {pipeline!r}"
        return Recognition(entry, PINNED, why, (Tried(entry.spec.id, entry.dist, PINNED, why),))
    tried = score_all(candidates.values(), evidence, _load)
    best = [row for row in tried if row.score and row.score == tried[0].score]
    if len(best) == 1:
        row = best[0]
        return Recognition(candidates[row.pipeline], row.score, row.evidence, tuple(tried))
    if best or pipeline:
        raise _ambiguous(evidence, best or tried, pipeline)
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


def _pinned(source: Source, pipeline: str) -> Pipelines:
    """Candidates for a pin; several where checkpoints of one class name differ in their rules."""
    if pipeline in source.pipelines:
        return {pipeline: source.pipelines[pipeline]}
    fitting = {
        name: entry for name, entry in source.pipelines.items() if pipeline in class_names(entry)
    }
    if fitting:
        return fitting
    if pipeline in source.retired:
        raise _retired(source.retired[pipeline])
    names = set(source.pipelines).union(*(class_names(row) for row in source.pipelines.values()))
    text = f"no usable plugin has a pipeline {pipeline!r}."
    raise _error(
        source,
        text,
        [_near(pipeline, names), _installed(source)],
        known.suggest(pipeline, pipeline),
    )


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
    looked = ", ".join(row.pipeline for row in tried)
    parts = [f"Tried: {looked}." if looked else _installed(source)]
    claimed = {
        name
        for entry in source.pipelines.values()
        for name in (*entry.spec.claims.repos, *entry.spec.claims.aliases)
    }
    parts.append(_near(evidence.repo_id or evidence.name, claimed))
    text = f"no plugin serves model {evidence.repo_id or evidence.name!r}{facts}."
    return _error(source, text, parts, known.suggest(class_name, evidence.repo_id or evidence.name))


def _near(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, sorted(names), n=1, cutoff=0.75)
    return f"Did you mean {near[0]!r}?" if near else ""


def _installed(source: Source) -> str:
    """What model plugins there are, in words."""
    names = sorted({row.dist for row in source.pipelines.values()} - {CORE})
    return f"Model plugins in use: {', '.join(names)}." if names else "No model plugin is in use."


def _error(source: Source, text: str, parts: list[str], suggested: list[str]) -> Exception:
    """A PluginError when the plugin that should serve it is there but broken, else a ModelError."""
    failed = [row for row in source.failures if is_fatal(row)]
    guilty = [row for row in failed if normalise(row.dist) in suggested]
    if guilty:
        reasons = " ".join(f"Plugin {row.plugin} failed: {row}" for row in guilty)
        return PluginError(f"{text} {reasons}", failures=guilty)
    denied = {normalise(row.dist): row for row in source.plugins if row.state == "denied"}
    left_out = next((denied[name] for name in suggested if name in denied), None)
    if left_out is not None:
        parts.append(f"Plugin {left_out.name} is installed but {left_out.reason}.")
    elif suggested:
        present = {normalise(row.dist) for row in source.plugins}
        missing = [name for name in suggested if name not in present]
        if missing:
            parts.append(f"To serve it: pip install {missing[0]}.")
    else:
        parts.append("`sgld models list` shows what is served; install a plugin that serves it.")
    parts.extend(f"Plugin {row.plugin} failed: {row}" for row in failed)
    return ModelError(
        text, code="model_not_recognised", remedy=" ".join(part for part in parts if part)
    )
