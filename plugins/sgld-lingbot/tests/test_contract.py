"""sgld-lingbot keeps the contracts of `sgld.testing.conformance`."""

# ruff: noqa: RUF012  (what a conformance class is told stands in its attributes)

from __future__ import annotations

from sgld.testing.conformance import PipelineContract, PluginContract, RealtimeContract


class TestPlugin(PluginContract):
    plugin = "lingbot"


class TestLingbotWorld(PipelineContract):
    pipeline = "lingbot-world"


class TestCamera(RealtimeContract):
    adapter = "lingbot-world"
    samples = {
        "camera_actions": [["w"], ["w", "i"], ["s"]],
        "prompt": "it rains",
        "composite_input": {
            "input_types": ["prompt", "camera_actions"],
            "prompt": "it snows",
            "camera_actions": [["a"]],
        },
    }
