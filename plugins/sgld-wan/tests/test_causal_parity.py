"""Causal Wan and LongLive 2.0 against golden tensors of their reference implementations: every
stage of the real pipelines, over all chunks, with windows, sinks, shots and guidance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import causal_drive as drive
import pytest
import torch
from torch import Tensor

from sgld_wan.causal_params import LongLive2Params, WanCausalParams
from sgld_wan.pipelines.causal import WanCausalDMDPipeline
from sgld_wan.pipelines.longlive import LongLive2Pipeline
from sgld_wan.stages.causal import kv_cache

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def selfforcing() -> drive.Golden:
    return drive.golden("selfforcing")


@pytest.fixture(scope="module")
def longlive() -> drive.Golden:
    return drive.golden("longlive2")


def padded(rows: Tensor, length: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(length - len(rows), rows.shape[1])])[None]


def golden_noise(golden: drive.Golden, frames: int) -> Iterator[Tensor]:
    """Noise of each chunk, then what is added between its steps, [1, f, C, h, w]."""
    x = golden.tensors
    for first in range(0, len(x["noise"]), frames):
        yield x["noise"][None, first : first + frames]
        for more in x.get("renoise", ()):
            yield more[None, first : first + frames]


def feed(job: Any, numbers: Iterator[Tensor]) -> None:
    def noise(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = next(numbers)
        assert tuple(drawn.shape) == shape
        return drawn

    job.noise = noise


@pytest.mark.parity
@pytest.mark.parametrize("case", ["global", "w6_s0", "w6_s3", "w9_s0", "w9_s3", "w9_s3_ext"])
def test_self_forcing(selfforcing: drive.Golden, case: str) -> None:
    about, x, network = selfforcing
    facts, given = about["cases"][case], 3 if case.endswith("ext") else 0
    pipeline = WanCausalDMDPipeline(drive.parts_for(network.config))
    params = WanCausalParams(
        prompt="p0",
        height=8 * about["config"]["lat_h"],
        width=8 * about["config"]["lat_w"],
        num_frames=4 * (15 + given - 1) + 1,
        window_latents=facts["window_frames"],
        sink_latents=facts["sink_frames"],
    )
    job = drive.new_job(params, pipeline.parts, images=4 * given - 3 if given else 0)
    feed(job, golden_noise(selfforcing, 3))
    module, velocities = drive.recorded(network)
    initial = x["initial_latent"].transpose(0, 1)[None]
    text = padded(x["text_embeds"], about["config"]["text_len"])
    modules = {
        "transformer": module,
        "text_encoder": drive.text_states(text),
        "vae": drive.GivenVae(initial),
    }
    latents = [made for _, made in drive.chunks(pipeline, job, modules)]
    found = drive.frames_first([initial, *latents] if given else latents)
    drive.assert_close(found, x[f"{case}.latents"], "latents")
    drive.assert_close(
        drive.frames_first(velocities[::4]), x[f"{case}.flow_step0"], "velocity of the first steps"
    )
    keys, values = kv_cache(job.slots.state).ordered(0)
    drive.assert_close(keys, x[f"{case}.final_k.layer0"], "keys")
    drive.assert_close(values, x[f"{case}.final_v.layer0"], "values")


LONGLIVE = (
    "single", "nosink", "prompt_switch", "multi_shot", "multi_shot_recache", "relative_rope", "i2v",
    "cfg3",
)  # fmt: skip
PREFIX = "The scene transitions. "


@pytest.mark.parity
@pytest.mark.parametrize("case", LONGLIVE)
def test_longlive(longlive: drive.Golden, case: str) -> None:
    about, x, network = longlive
    facts = about["cases"][case]
    pipeline = LongLive2Pipeline(drive.parts_for(network.config, stride=16))
    params = longlive_params(about, facts)
    job = drive.new_job(params, pipeline.parts, images=1 if facts.get("i2v") else 0)
    feed(job, golden_noise(longlive, 3))
    module, velocities = drive.recorded(network)
    table = torch.cat([x["text_embeds"], x["negative_text_embeds"][None]])
    modules = {
        "transformer": module,
        "text_encoder": drive.text_states(table),
        "vae": drive.GivenVae(x["initial_latent"].transpose(0, 1)[None]),
    }
    latents = [made for _, made in drive.chunks(pipeline, job, modules)]
    drive.assert_close(drive.frames_first(latents), x[f"{case}.latents"], "latents")
    if params.guidance_scale == 1:
        first = drive.frames_first(velocities[::4])
        drive.assert_close(first, x[f"{case}.flow_step0"], "velocity of the first steps")
    keys, values = kv_cache(job.slots.state).ordered(0)
    drive.assert_close(keys, x[f"{case}.final_k.layer0"], "keys")
    drive.assert_close(values, x[f"{case}.final_v.layer0"], "values")


def longlive_params(about: Any, facts: Any) -> LongLive2Params:
    """The request that a case stands for."""
    prompts = [text.removeprefix(PREFIX) for text in facts["prompts"]]
    cuts = any(text.startswith(PREFIX) for text in facts["prompts"])
    names = list(dict.fromkeys(prompts))
    shots = {
        "shot_prompts": tuple(names),
        "shot_durations": tuple(prompts.count(name) for name in names),
        "scene_cut_prefix": PREFIX if cuts else "",
    }
    return LongLive2Params(
        prompt=prompts[0],
        **(shots if len(names) > 1 else {}),
        height=16 * about["config"]["lat_h"],
        width=16 * about["config"]["lat_w"],
        num_frames=4 * (21 - 1) + 1,
        chunk_latents=3,
        window_latents=facts["window"],
        sink_latents=facts["sink"],
        guidance_scale=facts.get("cfg", 1.0),
        negative_prompt="n3",
        multi_shot_sink=facts.get("multi_shot_sink", False),
        multi_shot_rope_offset=facts.get("rope_offset", 0.0),
        shot_clean_recache=facts.get("clean_recache", False),
        relative_rope=facts.get("relative_rope", False),
    )
