"""sgld-demo keeps the contracts of `sgld.testing.conformance`."""

from __future__ import annotations

from typing import ClassVar

from sgld.testing.conformance import ModelContract, PluginContract


class TestPlugin(PluginContract):
    plugin = "demo"


class TestWorld(ModelContract):
    model = "demo:world"
    params: ClassVar[dict[str, int]] = {"num_frames": 9}
