"""sgld-demo keeps the contracts of `sgld.testing.conformance`."""

from __future__ import annotations

from sgld.testing.conformance import PluginContract


class TestPlugin(PluginContract):
    plugin = "demo"
