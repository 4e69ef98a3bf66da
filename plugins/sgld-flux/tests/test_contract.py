"""sgld-flux keeps the contracts of `sgld.testing.conformance`."""

# ruff: noqa: RUF012  (what a conformance class is told stands in its attributes)

from __future__ import annotations

from sgld.testing.conformance import PipelineContract, PluginContract


class TestPlugin(PluginContract):
    plugin = "flux"


class TestFlux1Dev(PipelineContract):
    pipeline = "flux.1-dev"
    guided = {"true_cfg_scale": 3.0, "negative_prompt": "fog"}
    pictured = {"num_inference_steps": 4}


class TestFlux1Schnell(PipelineContract):
    pipeline = "flux.1-schnell"
    guided = {"true_cfg_scale": 3.0, "negative_prompt": "fog"}
    pictured = {"num_inference_steps": 4}


class TestFlux2Dev(PipelineContract):
    pipeline = "flux.2-dev"


class TestFlux2Klein(PipelineContract):
    pipeline = "flux.2-klein"


class TestFlux2KleinBase(PipelineContract):
    pipeline = "flux.2-klein-base"


class TestFlux2KleinKv(PipelineContract):
    pipeline = "flux.2-klein-kv"
