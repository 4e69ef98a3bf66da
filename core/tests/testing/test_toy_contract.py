"""The toy families keep the contracts that every plugin keeps."""

# ruff: noqa: RUF012  (what a conformance class is told stands in its attributes)

from __future__ import annotations

from sgld.testing.conformance import PipelineContract, PluginContract, RealtimeContract

TOY = "sgld.testing.toy_plugin"


class TestImage(PipelineContract):
    plugin = TOY
    pipeline = "toy-image"


class TestEdit(PipelineContract):
    plugin = TOY
    pipeline = "toy-edit"


class TestVideo(PipelineContract):
    plugin = TOY
    pipeline = "toy-video"


class TestWorld(PipelineContract):
    plugin = TOY
    pipeline = "toy-world"


class TestToy(PluginContract):
    plugin = TOY


class TestWorldAdapter(RealtimeContract):
    plugin = TOY
    adapter = "toy-world"
    samples = {"prompt": "it rains", "camera_actions": [["w"], ["w", "a"], ["d"]]}
