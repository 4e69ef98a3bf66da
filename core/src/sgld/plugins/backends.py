"""Native pipelines come first, fallbacks after them; the user may ask for one of the two.

Public: `groups(pipelines, backend)`. What makes a fallback is `PipelineSpec.backend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sgld.api.errors import ParameterError, Problem
from sgld.api.specs import NATIVE, PipelineSpec
from sgld.plugins import known
from sgld.plugins.resolve import Entry

AUTO: Final = "auto"
Pipelines = Mapping[str, Entry[PipelineSpec]]


def groups(pipelines: Pipelines, backend: str) -> list[Pipelines]:
    """The pipelines to ask, group by group: one group is asked when none before it fits.

    Raises ParameterError for a backend that no installed plugin brings.
    """
    names = sorted({entry.spec.backend for entry in pipelines.values()} - {NATIVE})
    if backend == AUTO:
        fallbacks = _of(pipelines, *names)
        return [_of(pipelines, NATIVE), *([fallbacks] if fallbacks else [])]
    if backend == NATIVE or backend in names:
        return [_of(pipelines, backend)]
    remedy = f"There are: {', '.join([AUTO, NATIVE, *names])}."
    if dist := known.BACKENDS.get(backend):
        remedy += f" To have it: pip install {dist}."
    raise ParameterError([Problem("backend", backend, "no usable plugin brings it.", remedy)])


def _of(pipelines: Pipelines, *backends: str) -> Pipelines:
    return {name: entry for name, entry in pipelines.items() if entry.spec.backend in backends}
