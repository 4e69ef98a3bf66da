"""The core's own cache policies and stages keep the contracts."""

# ruff: noqa: RUF012  (what a conformance class is told stands in its attributes)

from __future__ import annotations

import torch

from sgld.stages.denoise import Denoise
from sgld.stages.latents import InitialNoise
from sgld.stages.timesteps import Timesteps
from sgld.testing.conformance import CacheContract, PluginContract, StageContract
from sgld.testing.toy import EulerSampler, ToyDenoiser, toy_modules

CPU = torch.device("cpu")


class TestBuiltin(PluginContract):
    plugin = "builtin"


class TestRolling(CacheContract):
    policy = "rolling"


class TestGrowing(CacheContract):
    policy = "growing"


class TestGlobalSink(CacheContract):
    policy = "global-sink"


class TestGlobalSinkThatCuts(CacheContract):
    policy = "global-sink"
    settings = {"window": 9, "sink": 2, "clean_recache": True}


class TestPinnedSink(CacheContract):
    policy = "pinned-sink"


class TestTimesteps(StageContract):
    def make_stage(self):
        return Timesteps(lambda job: EulerSampler(4, job.device))


class TestInitialNoise(StageContract):
    def make_stage(self):
        return InitialNoise(lambda job: (1, 16, 8))


class TestDenoise(StageContract):
    params = {"guidance_scale": 3.0}

    def make_stage(self):
        return Denoise(ToyDenoiser())

    def slots(self):
        generator = torch.Generator().manual_seed(0)
        text, negative = torch.randn(2, 1, 8, generator=generator)
        noise = torch.randn(1, 16, 8, generator=generator)
        sampler = EulerSampler(3, CPU)
        return {"latents": noise, "sampler": sampler, "text": text, "negative": negative}

    def components(self):
        return toy_modules()
