"""LongLive 2.0: long clips of several shots (NVlabs/LongLive, `pipeline/` and `wan_5b/`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgld.causal.policies import PinnedSink, Policy, Rolling
from sgld.causal.positions import Absolute, AtRead, Positions, ShotOffset
from sgld.engine.job import Job
from sgld.stages.sampler import Sampler, SchedulerSampler
from sgld_wan.pipelines.causal import CausalWanPipeline
from sgld_wan.schedulers import flow_unipc


class LongLive2Pipeline(CausalWanPipeline):
    """A fresh multistep solver for each chunk, a sink for each shot, and a prompt for each chunk.

    What stays of an earlier prompt in the history stays: a new shot moves on in time instead, and
    has its first frames pinned.
    """

    def controls(self, params: Any, index: int) -> Mapping[str, Any]:
        shot = params.shot(index)
        return {"prompt": shot.prompt, "shot": shot.number}

    def sampler(self, job: Job) -> Sampler:
        params = job.params
        make = flow_unipc(params.flow_shift)
        return SchedulerSampler(make, params.num_inference_steps, job.device)

    def policy(self, params: Any) -> Policy:
        cut = self.chunking(params)
        shots = len(params.shot_prompts or ()) > 1 and bool(params.scene_cut_prefix)
        everything = cut.window < 0 or cut.window >= cut.total
        window = max(cut.total, 2 * cut.sink + 1) if everything else cut.window
        if shots and params.multi_shot_sink and (params.shot_clean_recache or not everything):
            return PinnedSink(window, cut.sink, params.shot_clean_recache)
        return Rolling(0, limit=cut.total) if everything else Rolling(window, cut.sink)

    def positions(self, params: Any) -> Positions:
        if params.relative_rope:
            return AtRead()
        offset = params.multi_shot_rope_offset
        return ShotOffset(offset) if offset else Absolute()
