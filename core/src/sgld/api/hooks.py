"""The hooks of a plugin. Each returns records; none registers anything or imports anything heavy.

A plugin is a module named by one entry point in group `sgld.plugins.v1`, holding functions marked
with `hookimpl`. Every hook is called once per process, plugin by plugin, all or nothing: a plugin
whose hook raises or returns a wrong record is set aside with its reason and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pluggy

from sgld.api import specs

GROUP: Final = "sgld.plugins.v1"
PROJECT: Final = "sgld"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def sgld_plugin() -> specs.Plugin:  # pyright: ignore[reportReturnType]
    """Name the plugin and the contract versions it speaks. Required, exactly one record."""


@hookspec
def sgld_platforms() -> Iterable[specs.PlatformSpec]:  # pyright: ignore[reportReturnType]
    """Device families: how to detect one and which class drives it."""


@hookspec
def sgld_pipelines() -> Iterable[specs.PipelineSpec]:  # pyright: ignore[reportReturnType]
    """Model families: how a checkpoint is recognised, its parameters and its pipeline class."""


@hookspec
def sgld_models() -> Iterable[specs.ModelSpec]:  # pyright: ignore[reportReturnType]
    """Checkpoints that this distribution carries, each for one pipeline id."""


@hookspec
def sgld_stages() -> Iterable[specs.StageSpec]:  # pyright: ignore[reportReturnType]
    """Stages that other pipelines may reuse. The core lists them and tests use them; a pipeline
    takes one by importing its class, so `replaces` moves the id and changes no pipeline."""


@hookspec
def sgld_realtime() -> Iterable[specs.RealtimeSpec]:  # pyright: ignore[reportReturnType]
    """Realtime adapters, each for one pipeline id."""


@hookspec
def sgld_attention() -> Iterable[specs.AttentionSpec]:  # pyright: ignore[reportReturnType]
    """Attention backends: softmax(q·kᵀ·scale)·v for the layers of every model."""


@hookspec
def sgld_kernels() -> Iterable[specs.KernelSpec]:  # pyright: ignore[reportReturnType]
    """Kernels: other implementations of the named ops of docs/ops.md."""


@hookspec
def sgld_caches() -> Iterable[specs.CacheSpec]:  # pyright: ignore[reportReturnType]
    """Policies of causal caches: which frames of the past a model remembers."""


@hookspec
def sgld_executors() -> Iterable[specs.ExecutorSpec]:  # pyright: ignore[reportReturnType]
    """Places where an engine can live. This core lists them and always uses its own two."""


@hookspec
def sgld_postprocessors() -> Iterable[specs.PostprocessorSpec]:  # pyright: ignore[reportReturnType]
    """Steps between decoded frames and the encoder. This core lists them and runs none yet."""


@hookspec
def sgld_commands() -> Iterable[specs.CommandSpec]:  # pyright: ignore[reportReturnType]
    """Further `sgld <name>` commands."""


@hookspec
def sgld_routes() -> Iterable[specs.RouteSpec]:  # pyright: ignore[reportReturnType]
    """Further HTTP paths of the server. This core lists them and serves none yet."""
