"""Each decision with everybody who was considered: for `sgld plugins why`.

Public: `Answer`, `why_model(...)`; ops, platforms and cache policies: `sgld.plugins.why_machine`.
An answer tells also what keeps a decision from being made, instead of raising it. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.api.errors import SgldError, UserError
from sgld.api.specs import NATIVE, PipelineSpec
from sgld.plugins.backends import AUTO, groups
from sgld.plugins.catalog import Catalog, load_target
from sgld.plugins.match import Evidence, Tried, holds, score_all, show
from sgld.plugins.recognise import recognise

TAKEN: Final = "taken"
OUT: Final = "-"


class Row(NamedTuple):
    """One that was considered: `result` is `taken`, a score, or `-`; `reason` says why."""

    result: str
    id: str
    dist: str
    reason: str


class Answer(NamedTuple):
    """A decision.

    Args:
        question: what is decided, in the words of the command line.
        taken: id of what is used; empty when nothing is.
        text: the answer in one line.
        rows: everybody who was considered, the taken one first.
        error: why nothing is used; whoever needs it gets this error.
        facts: what the answer rests on, as JSON values.
    """

    question: str
    taken: str
    text: str
    rows: tuple[Row, ...]
    error: SgldError | None = None
    facts: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values."""
        error = None
        if self.error is not None:
            error = {"code": self.error.code, "message": str(self.error)}
        return {
            "question": self.question,
            "taken": self.taken or None,
            "answer": self.text or None,
            "considered": [row._asdict() for row in self.rows],
            "error": error,
            "facts": dict(self.facts),
        }


def why_model(
    catalog: Catalog,
    model: str,
    evidence: Evidence,
    *,
    pipeline: str = "",
    backend: str = AUTO,
) -> Answer:
    """Which pipeline serves the model of which this is known."""
    question = f"model {model}"
    try:
        found = recognise(catalog, evidence, pipeline, backend)
    except SgldError as error:
        rows = _considered(catalog, evidence, backend, _scores(catalog, evidence, backend), "")
        return Answer(question, "", "", rows, error)
    spec, owner = found.entry.spec, found.entry.owner
    kind = "" if spec.backend == NATIVE else f", the fallback {spec.backend}"
    text = f"{model} is served by {spec.id} ({owner}{kind}): {found.evidence}"
    facts = {"pipeline": spec.id, "distribution": found.entry.dist, "backend": spec.backend}
    facts |= {"version": found.entry.version, "score": found.score, "evidence": found.evidence}
    rows = _considered(catalog, evidence, backend, found.tried, spec.id)
    return Answer(question, spec.id, text, rows, facts=facts)


def _scores(catalog: Catalog, evidence: Evidence, backend: str) -> list[Tried]:
    try:
        asked = groups(catalog.pipelines, backend)
    except UserError:
        return []
    rows: list[Tried] = []
    for group in asked:
        if not any(row.score for row in rows):
            rows += score_all(group.values(), evidence, load_target)
    return rows


def _considered(
    catalog: Catalog, evidence: Evidence, backend: str, tried: Sequence[Tried], taken: str
) -> tuple[Row, ...]:
    """Pipelines that were scored, then those that were not asked."""
    rows = [
        Row(
            str(row.score or OUT),
            row.pipeline,
            row.dist,
            row.evidence or _nearest_miss(catalog.pipelines[row.pipeline].spec, evidence),
        )
        for row in tried
    ]
    asked = {row.pipeline for row in tried}
    for name, entry in catalog.pipelines.items():
        if name in asked:
            continue
        kind = entry.spec.backend
        if backend not in (AUTO, kind):
            why = f"not asked: {'a native one' if kind == NATIVE else kind}, not {backend}"
        elif kind != NATIVE:
            why = f"not asked: the fallback {kind} serves what no native pipeline claims"
        else:
            why = "not asked: another one was named"
        rows.append(Row(OUT, name, entry.dist, why))
    rows.sort(key=lambda row: (row.id != taken, not row.result.isdecimal()))
    return tuple(rows)


def _nearest_miss(spec: PipelineSpec, evidence: Evidence) -> str:
    """Why no rule fits: the first condition that does not hold, of the rule that comes nearest."""
    best: tuple[int, str] = (0, "nothing fits")
    for rule in spec.claims.rules:
        held = [holds(where, evidence) for where in rule]
        if sum(held) > best[0] and not all(held):
            rest = f"the other {sum(held)} of its rule hold" + ("s" if sum(held) == 1 else "")
            best = sum(held), f"not {show(rule[held.index(False)])}; {rest}"
    return best[1]
