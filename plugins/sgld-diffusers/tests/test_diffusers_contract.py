"""The fallback keeps the contracts of a plugin and of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sgld.testing.conformance import PipelineContract, PluginContract


class TestPipeline(PipelineContract):
    """On its tiny Stable Diffusion 3."""

    pipeline = "diffusers"
    params: ClassVar[Mapping[str, Any]] = {"width": 64, "height": 64}


class TestPlugin(PluginContract):
    """The distribution."""

    plugin = "diffusers"
