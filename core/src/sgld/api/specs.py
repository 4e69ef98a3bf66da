"""The records that a plugin returns to announce what it brings.

All are NamedTuples of strings, numbers and plain containers: cheap to import, compared by value,
never half built. A *target* is a string `"module:attribute"`; it is imported only when chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

NO_LIMIT: Final = 10**9
EMPTY: Final[Mapping[str, Any]] = {}

ID_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*")
TARGET_PATTERN: Final = re.compile(
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
)


class Plugin(NamedTuple):
    """Who a plugin is and which contract versions it speaks, for example `{"pipeline": 1}`."""

    name: str
    contracts: Mapping[str, int]
    summary: str = ""
    homepage: str = ""
    needs: tuple[str, ...] = ()
    """Names of plugins that must be usable for this one to work."""


class Requires(NamedTuple):
    """What must hold on the machine; pure data, all parts must hold."""

    device: str = "any"
    arch: tuple[int, int] = (0, NO_LIMIT)
    """Inclusive range of the device's architecture number (CUDA 9.0 is 90)."""
    dtypes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Importable module names."""
    abilities: tuple[str, ...] = ()


class Where(NamedTuple):
    """One condition on a JSON file of a checkpoint.

    `key` walks into mappings with dots. `test` is one of `==`, `!=`, `in`, `set` (present and
    neither null, false nor empty), `unset`. For `==`, `!=` and `in`, `value` is what is compared.
    A missing file makes every test fail, except `unset` when `optional_file` is true.
    """

    file: str
    key: str
    test: str = "set"
    value: Any = None
    optional_file: bool = False


class Claims(NamedTuple):
    """How a pipeline recognises its checkpoints; evidence is scored, the best score wins.

    exact repo id 100 · alias 90 · `rules` 80 (+1 for each further condition, up to 9) · marker
    `files` 70 · `detect` target at most 60 · name `patterns` 20 + length, at most 50.
    """

    repos: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    rules: tuple[tuple[Where, ...], ...] = ()
    """Alternatives; within one alternative every condition must hold."""
    files: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    detect: str = ""
    """Target `(ModelFiles) -> int`, asked only when nothing above matched."""


class Preset(NamedTuple):
    """Defaults of one known checkpoint or variant of a family, as parameter name → value.

    An exact `repos` match wins over `rules`; among rules the one with most conditions wins; a
    preset with neither is the family's base and always applies first.
    """

    id: str
    defaults: Mapping[str, Any]
    repos: tuple[str, ...] = ()
    rules: tuple[tuple[Where, ...], ...] = ()


class PipelineSpec(NamedTuple):
    """A model family (or one variant of it) that can turn requests into media."""

    id: str
    target: str
    """A `sgld.engine.pipeline.Pipeline` subclass."""
    params: str
    """A torch-free `sgld.params.sampling.SamplingParams` subclass."""
    tasks: tuple[str, ...]
    claims: Claims
    components: Mapping[str, str] = EMPTY
    """Name of every module a checkpoint may hold → its residency group (`dit`, `text_encoder`,
    `image_encoder`, `vae`)."""
    layout: str = ""
    """Torch-free target `(ModelFiles, ComponentOverrides) -> Sequence[Located]`: which files hold
    which component of a checkpoint; empty: the diffusers layout."""
    features: frozenset[str] = frozenset()
    caches: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = ()
    blueprints: Mapping[str, str] = EMPTY
    """Name → target `(folder: Path) -> None` writing a checkpoint without network: `tiny` is a
    complete random one under 5 MB; other names are real sizes as configuration only."""
    summary: str = ""
    replaces: str = ""
    retired: str = ""
    """Last version of the distribution that still had it; a tombstone."""


class StageSpec(NamedTuple):
    """A stage that other pipelines may reuse or replace by id."""

    id: str
    target: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    replaces: str = ""


class PlatformSpec(NamedTuple):
    """A device family. `probe` is a target `() -> Probe`-like mapping; `target` is the Platform."""

    id: str
    target: str
    probe: str
    requires: Requires = Requires()
    priority: int = 0
    replaces: str = ""


class RealtimeSpec(NamedTuple):
    """A realtime adapter for one pipeline: turns init and control events into chunk conditions."""

    id: str
    pipeline: str
    target: str
    events: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("rgb24",)
    replaces: str = ""


class AttentionSpec(NamedTuple):
    """One implementation of `attend(q, k, v)` with what it can do."""

    id: str
    target: str
    requires: Requires = Requires()
    can: frozenset[str] = frozenset()
    family: str = "dense"
    priority: int = 0
    exact: bool = True
    """False: results differ by more than rounding; never chosen without the user's consent."""
    replaces: str = ""


class KernelSpec(NamedTuple):
    """A kernel for a named op (`group.name`) that has a plain-torch reference in `sgld.ops`."""

    id: str
    op: str
    target: str
    requires: Requires = Requires()
    contract: int = 1
    numerics: str = "exact"
    priority: int = 0
    replaces: str = ""


class CacheSpec(NamedTuple):
    """A policy for causal caches: how history is stored, evicted, packed and shown."""

    id: str
    target: str
    bounded: bool
    lossless: bool = True
    quant: tuple[str, ...] = ()
    replaces: str = ""


class ExecutorSpec(NamedTuple):
    """Where an engine can live: in this process, in a child, on several ranks, on a cluster."""

    id: str
    target: str
    replaces: str = ""


class PostprocessorSpec(NamedTuple):
    """A step between decoded frames and the encoder, such as upscaling or interpolation."""

    id: str
    target: str
    replaces: str = ""


class CommandSpec(NamedTuple):
    """`sgld <name>`: `target` is a Typer app or function, imported when the name is typed."""

    name: str
    target: str
    help: str


class RouteSpec(NamedTuple):
    """An HTTP path of a plugin; `target` is imported by the server."""

    path: str
    methods: tuple[str, ...]
    target: str


class Failure(NamedTuple):
    """Why a plugin, or one record of it, cannot be used; shown by `sgld plugins list`."""

    code: str
    plugin: str
    dist: str
    version: str
    phase: str
    message: str
    cause: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.dist or self.plugin} {self.version}".strip()
        text = f"{self.code} {where}: {self.message}"
        return f"{text} {self.hint}".rstrip()
