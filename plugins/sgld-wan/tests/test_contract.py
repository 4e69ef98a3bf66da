"""sgld-wan keeps the contracts of `sgld.testing.conformance`."""

from __future__ import annotations

from sgld.testing.conformance import PipelineContract, PluginContract


class TestPlugin(PluginContract):
    plugin = "wan"


class TestWanT2v(PipelineContract):
    pipeline = "wan-t2v"


class TestWanI2v(PipelineContract):
    pipeline = "wan-i2v"


class TestWan22T2vA14b(PipelineContract):
    pipeline = "wan2.2-t2v-a14b"


class TestWan22I2vA14b(PipelineContract):
    pipeline = "wan2.2-i2v-a14b"


class TestWan22Ti2v5b(PipelineContract):
    pipeline = "wan2.2-ti2v-5b"


class TestWanDmdT2v(PipelineContract):
    pipeline = "wan-dmd-t2v"


class TestWanCausalT2v(PipelineContract):
    pipeline = "wan-causal-t2v"


class TestLonglive2(PipelineContract):
    pipeline = "longlive2"
