"""What every pipeline keeps, shown on the tiny checkpoint that its record names.

Split by subject: `pipeline_record` (record, presets, tiny checkpoint), `pipeline_requests` (what a
request gives), `pipeline_features` (what is listed works), `pipeline_conduct` (stages, progress,
cancellation).
"""

from __future__ import annotations

from sgld.testing.conformance.pipeline_conduct import Conduct
from sgld.testing.conformance.pipeline_features import Features
from sgld.testing.conformance.pipeline_record import Record
from sgld.testing.conformance.pipeline_requests import Requests


class PipelineContract(Record, Requests, Features, Conduct):
    """A model family.

        class TestMine(PipelineContract):
            pipeline = "acme-t2v"
            guided = {"true_cfg_scale": 3.0}

    Each test runs requests to the family's tiny checkpoint in this process, on `--sgld-device`.
    """


__all__ = ["PipelineContract"]
