"""What a pipeline that serves many families finds out about one checkpoint."""

from __future__ import annotations

from typing import NamedTuple

from sgld.params.sampling import SamplingParams


class Inspected(NamedTuple):
    """The answer of `PipelineSpec.inspect`.

    Args:
        params: the parameters of this checkpoint, with its own defaults.
        refusals: one clause for each option that it cannot fulfil; all are shown at once.
    """

    params: type[SamplingParams]
    refusals: tuple[str, ...] = ()
