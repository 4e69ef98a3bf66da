"""sgld-sana keeps the contracts of `sgld.testing.conformance`."""

from __future__ import annotations

from sgld.testing.conformance import PipelineContract, PluginContract


class TestPlugin(PluginContract):
    plugin = "sana"


class TestSana(PipelineContract):
    pipeline = "sana"


class TestSanaSprint(PipelineContract):
    pipeline = "sana-sprint"


class TestSanaVideo(PipelineContract):
    pipeline = "sana-video"


class TestSanaVideoI2v(PipelineContract):
    pipeline = "sana-video-i2v"
