"""What to say of a model that nothing serves: names that are near, who failed, what to install.

Public: `near_models(name, pipelines)`, `guilty(failures, name, dists)`, `failed_text(failures)`,
`install_hint(suggested, plugins, by_name=)`. Words for error messages only; nothing is chosen here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from sgld.api.specs import NATIVE, Failure, PipelineSpec
from sgld.plugins import known
from sgld.plugins.failures import is_fatal
from sgld.plugins.resolve import Entry
from sgld.plugins.scan import normalise

CUTOFF: Final = 0.75
MOST_FAILURES: Final = 3
"""So many broken plugins are told with their reasons; of more only the number."""


def near_models(name: str, pipelines: Mapping[str, Entry[PipelineSpec]]) -> str:
    """`Did you mean ...?` over everything that a model may be called here, or an empty text."""
    if name.lower() in pipelines:
        return _meant(_of_pipeline(pipelines[name.lower()].spec))
    spelled: dict[str, str] = {}
    for entry in pipelines.values():
        for one in _names(entry.spec):
            spelled.setdefault(one.lower(), one)
    for one in list(spelled.values()):  # people leave out the organisation
        spelled.setdefault(one.rpartition("/")[2].lower(), one)
    near = get_close_matches(name.lower(), sorted(spelled), n=3, cutoff=CUTOFF)
    near = near or get_close_matches(
        name.rpartition("/")[2].lower(), sorted(spelled), n=3, cutoff=CUTOFF
    )
    return _meant(dict.fromkeys(spelled[one] for one in near))


def _names(spec: PipelineSpec) -> Iterable[str]:
    yield from spec.claims.repos
    yield from spec.claims.aliases
    for preset in spec.presets:
        yield from preset.repos
    yield from _of_pipeline(spec)


def _of_pipeline(spec: PipelineSpec) -> list[str]:
    """What can be typed as a model to have this pipeline without a checkpoint."""
    # A native family's other blueprints are real sizes without weights, a fallback's are families.
    prefix = "config" if spec.backend == NATIVE else "tiny"
    rest = [f"{prefix}:{spec.id}:{name}" for name in spec.blueprints if name != "tiny"]
    return ([f"tiny:{spec.id}"] if "tiny" in spec.blueprints else []) + rest


def _meant(names: Iterable[str]) -> str:
    texts = [repr(name) for name in names]
    return f"Did you mean {' or '.join(texts)}?" if texts else ""


def guilty(failures: Iterable[Failure], name: str, dists: Sequence[str]) -> list[Failure]:
    """Failures of plugins that probably serve a model: of known distributions, and of those whose
    name consists of words of the model's."""
    words = set(re.split(r"[^a-z0-9]+", name.lower())) - {""}
    return [
        row
        for row in failures
        if is_fatal(row)
        and (normalise(row.dist) in dists or set(normalise(row.plugin).split("-")) <= words)
    ]


def failed_text(failures: Sequence[Failure]) -> str:
    """Who is broken and why, in one line however many there are."""
    fatal = [row for row in failures if is_fatal(row)]
    if len(fatal) > MOST_FAILURES:
        return f"{len(fatal)} failures of plugins; `sgld plugins list` shows them."
    return " ".join(f"Plugin {row.plugin} failed: {row}" for row in fatal)


def install_hint(suggested: Sequence[str], plugins: Iterable[Any], *, by_name: bool) -> str:
    """What to install for a model, or which plugin was left out.

    Args:
        suggested: distributions that probably serve it.
        plugins: rows of the plugins that are there.
        by_name: no file of the model is known, so that nobody can say what it is.
    """
    rows = {normalise(row.dist): row for row in plugins}
    left_out = next((rows[name] for name in suggested if _denied(rows.get(name))), None)
    if left_out is not None:
        return f"Plugin {left_out.name} is installed but {left_out.reason}."
    missing = [name for name in suggested if name not in rows]
    parts = [f"To serve it: pip install {missing[0]}."] if missing else []
    if not suggested:
        parts.append("`sgld models list` shows what is served; install a plugin that serves it.")
        if by_name and known.GENERIC not in rows:
            parts.append(f"Any diffusers model: pip install {known.GENERIC}.")
    return " ".join(parts)


def _denied(row: Any) -> bool:
    return row is not None and row.state == "denied"
