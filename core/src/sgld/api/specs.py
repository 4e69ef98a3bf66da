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
NATIVE: Final = "native"
"""The backend of a pipeline that is written for its family."""
TASKS: Final = ("text-to-image", "image-to-image", "text-to-video", "image-to-video")
"""What a pipeline may do; each has its address in the HTTP API."""

ID_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*")
MODEL_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*:[a-z0-9]+(?:[-.][a-z0-9]+)*")
FOLDER_PATTERN: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:\w[\w.-]*(?:/\w[\w.-]*)*")
TARGET_PATTERN: Final = re.compile(
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
)


class Plugin(NamedTuple):
    """Who a plugin is and which contract versions it speaks, for example `{"pipeline": 1}`."""

    name: str
    """As the entry point is named: lower-case words joined by `-`."""
    contracts: Mapping[str, int]
    """Kind → version, for every kind that the plugin brings."""
    summary: str = ""
    """One line for lists."""
    homepage: str = ""
    """Where to read more and to report what is wrong."""
    needs: tuple[str, ...] = ()
    """Names of plugins that must be usable for this one to work."""


class Requires(NamedTuple):
    """What must hold on the machine; pure data, all parts must hold."""

    device: str = "any"
    """Id of a platform."""
    arch: tuple[int, int] = (0, NO_LIMIT)
    """Inclusive range of the device's architecture number (CUDA 9.0 is 90)."""
    dtypes: tuple[str, ...] = ()
    """The device computes in at least one of these; empty: in any."""
    packages: tuple[str, ...] = ()
    """Importable module names."""
    abilities: tuple[str, ...] = ()
    """Words of the device's facts, such as `streams`."""
    programs: tuple[str, ...] = ()
    """Commands on the path; `gcc|clang` is any of them."""


class Where(NamedTuple):
    """One condition on a JSON file of a checkpoint.

    `key` walks into mappings with dots. `test` is one of `==`, `!=`, `in`, `set` (present and
    neither null, false nor empty), `unset`. For `==`, `!=` and `in`, `value` is what is compared.
    A missing file makes every test fail, except `unset` when `optional_file` is true.
    """

    file: str
    """Path inside the checkpoint, such as `model_index.json`."""
    key: str
    """Such as `_class_name`, or `transformer.1` for the second item of a list."""
    test: str = "set"
    """What must hold of the value there."""
    value: Any = None
    """What it is compared with."""
    optional_file: bool = False
    """Whether `unset` also holds when the file is missing."""


class Claims(NamedTuple):
    """How a pipeline recognises its checkpoints; evidence is scored, the best score wins.

    exact repo id 100 · alias 90 · `rules` 80 (+1 for each further condition, up to 9) · marker
    `files` 70 · `detect` target at most 60 · name `patterns` 20 + length, at most 50.
    """

    repos: tuple[str, ...] = ()
    """Hub ids, `owner/name`."""
    aliases: tuple[str, ...] = ()
    """Short names that users may type for the model."""
    rules: tuple[tuple[Where, ...], ...] = ()
    """Alternatives; within one alternative every condition must hold."""
    files: tuple[str, ...] = ()
    """Files whose presence says what it is."""
    patterns: tuple[str, ...] = ()
    """Shell patterns of names, such as `*acme-video*`."""
    detect: str = ""
    """Target `(ModelFiles) -> int`, asked only when nothing above matched."""


class Preset(NamedTuple):
    """Defaults of one known checkpoint or variant of a family, as parameter name → value.

    An exact `repos` match wins over `rules`; among rules the one with most conditions wins; a
    preset with neither is the family's base and always applies first.
    """

    id: str
    """Shown as the origin of a value."""
    defaults: Mapping[str, Any]
    """Parameter → value."""
    repos: tuple[str, ...] = ()
    """Hub ids that it holds for."""
    rules: tuple[tuple[Where, ...], ...] = ()
    """Alternatives, as in `Claims.rules`, that it holds for."""


class PipelineSpec(NamedTuple):
    """A model family (or one variant of it) that can turn requests into media."""

    id: str
    """What `--pipeline-class-name` and `tiny:ID` call it."""
    target: str
    """A `sgld.engine.pipeline.Pipeline` subclass."""
    params: str
    """A torch-free `sgld.params.sampling.SamplingParams` subclass."""
    tasks: tuple[str, ...]
    """Some of `TASKS`: `text-to-image`, `image-to-image`, `text-to-video`, `image-to-video`."""
    claims: Claims
    """How its checkpoints are recognised."""
    components: Mapping[str, str] = EMPTY
    """Name of every module a checkpoint may hold → its residency group (`dit`, `text_encoder`,
    `image_encoder`, `vae`)."""
    layout: str = ""
    """Torch-free target `(ModelFiles, ComponentOverrides) -> Sequence[Located]`: which files hold
    which component of a checkpoint; empty: the diffusers layout."""
    features: frozenset[str] = frozenset()
    """Options that it takes (`sgld.api.features`); what is not listed is refused before loading."""
    backend: str = NATIVE
    """What `--backend` calls it. Any other name makes it a fallback: it serves what no native
    pipeline claims, and what is asked of it by that name."""
    inspect: str = ""
    """Torch-free target `(ModelFiles, ServingOptions) -> sgld.params.inspected.Inspected`, for a
    pipeline that serves many families: the parameters of this very checkpoint, and what of the
    options it cannot fulfil; raises ModelError for a checkpoint that it cannot serve."""
    max_running: int = 0
    """Requests that it can run at once; 0: any number."""
    caches: tuple[str, ...] = ()
    """Ids of the cache policies that it takes; `*`: any that is installed."""
    presets: tuple[Preset, ...] = ()
    """Defaults of its parameters."""
    blueprints: Mapping[str, str] = EMPTY
    """Name → target `(folder: Path) -> None` writing a checkpoint without network: `tiny` is a
    complete random one under 5 MB; other names are real sizes as configuration only, or, of a
    fallback, further families as small as `tiny`."""
    summary: str = ""
    """One line for lists."""
    replaces: str = ""
    """The distribution or plugin whose record with this id it takes the place of."""
    retired: str = ""
    """Last version of the distribution that still had it; a tombstone."""


class ModelSpec(NamedTuple):
    """A checkpoint that a distribution carries, so that it runs without a download.

    Where just one is installed, `sgld serve` and `sgld generate` use it when no model is named.
    """

    id: str
    """What `--model-path` calls it: two names with a colon, such as `acme:village`."""
    pipeline: str
    """Id of the pipeline that serves it."""
    folder: str
    """The checkpoint's folder inside an importable package, `package:folder/in/it`."""
    defaults: Mapping[str, Any] = EMPTY
    """Parameter → value; they go before the presets of the pipeline."""
    picture: str = ""
    """File in the folder that a session begins with when it names no picture, for a pipeline that
    begins with one; a request too, unless there is a `blank`."""
    blank: str = ""
    """File in the folder that stands for no picture: shown it, the model makes one up from the
    prompt. A request that names none begins with it, and so does a session without `picture`."""
    tasks: tuple[str, ...] = ()
    """Some of `TASKS`, the main one first; empty: those of the pipeline. `text-to-image` of a
    pipeline that makes clips is a clip of one frame."""
    summary: str = ""
    """One line for lists."""
    replaces: str = ""


class StageSpec(NamedTuple):
    """A stage that other pipelines may reuse."""

    id: str
    target: str
    """A `sgld.engine.stage.Stage` subclass whose constructor needs no argument."""
    reads: tuple[str, ...] = ()
    """Slots; equal to those of the class, as are the next two."""
    writes: tuple[str, ...] = ()
    """Slots."""
    uses: tuple[str, ...] = ()
    """Components that it calls."""
    replaces: str = ""


class PlatformSpec(NamedTuple):
    """A device family."""

    id: str
    """What `--device` and `Requires.device` call it."""
    target: str
    """A `sgld.platforms.platform.Platform` subclass."""
    probe: str
    """Torch-free `() -> sgld.platforms.probe.Probe`."""
    requires: Requires = Requires()
    """`packages` are looked for once the probe has found a device."""
    priority: int = 0
    """`--device auto` takes the highest that has a device; 0 is the CPU's, 10 an accelerator's."""
    attention: tuple[str, ...] = ()
    """Attention backends that `auto` prefers on this family, best first, among those that fit
    equally narrowly; it goes before their priority."""
    collective: str = ""
    """Backend of torch.distributed for several of these devices, such as `nccl`."""
    replaces: str = ""


class RealtimeSpec(NamedTuple):
    """A realtime adapter for one pipeline: turns init and control events into chunk conditions."""

    id: str
    pipeline: str
    """Id of the pipeline that it steers."""
    target: str
    """A torch-free `sgld.realtime.adapter.RealtimeAdapter` subclass."""
    events: tuple[str, ...] = ()
    """Kinds of events, equal to those of the class."""
    outputs: tuple[str, ...] = ("rgb24",)
    """Formats of frames. Shown; not read by this core, which encodes for every family alike."""
    replaces: str = ""


class AttentionSpec(NamedTuple):
    """One implementation of `attend(q, k, v)` with what it can do."""

    id: str
    """What `--attention` calls it."""
    target: str
    """`attend(q, k, v, *, scale=None)`."""
    requires: Requires = Requires()
    """Where it runs."""
    can: frozenset[str] = frozenset()
    """What it can beside plain attention: `mask`."""
    family: str = "dense"
    """`auto` takes those of family `dense` only."""
    priority: int = 0
    """Decides among those that fit equally narrowly; torch's own has 0."""
    exact: bool = True
    """False: results differ by more than rounding; never chosen without the user's consent."""
    replaces: str = ""


class KernelSpec(NamedTuple):
    """A kernel for a named op (`group.name`) that has a plain-torch reference in `sgld.ops`."""

    id: str
    op: str
    """The op's name, such as `norm.rms`."""
    target: str
    """A callable with the signature of the op's reference."""
    requires: Requires = Requires()
    """Where it runs."""
    contract: int = 1
    """Version of the contract of kernels that it was written for."""
    numerics: str = "exact"
    """`exact` but for rounding, or its error as `atol=NUMBER` or `rtol=NUMBER`; then it is taken
    only with the user's consent."""
    priority: int = 0
    """Decides among those that fit equally narrowly."""
    replaces: str = ""


class CacheSpec(NamedTuple):
    """A policy for causal caches: how history is stored, evicted, packed and shown."""

    id: str
    """What `--cache-policy` and `PipelineSpec.caches` call it."""
    target: str
    """A `sgld.causal.policies.Policy`, a frozen dataclass."""
    bounded: bool
    """Whether memory has an end, however long the generation."""
    lossless: bool = True
    """False: history is kept with less precision. Shown; not read by this core."""
    quant: tuple[str, ...] = ()
    """How it packs history, such as `int4`. Shown; not read by this core."""
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
    """A command `sgld NAME`."""

    name: str
    """The word after `sgld`; words of the core win."""
    target: str
    """A Typer app or a function, imported when the name is typed."""
    help: str
    """One line for `sgld --help` of the command."""


class RouteSpec(NamedTuple):
    """An HTTP path of a plugin; `target` is imported by the server."""

    path: str
    """Begins with a slash."""
    methods: tuple[str, ...]
    """`GET`, `POST`, ..."""
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
