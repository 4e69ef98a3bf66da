"""`ServingOptions`: which model to load, from where, onto what, and how to keep it there.

Also `resolve_residency`, which turns the user's selectors into one mode per component.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from sgld.api.errors import ParameterError, Problem
from sgld.params.nearest import did_you_mean
from sgld.params.options import Options, Text, as_text, option, scalar

RESIDENCY_MODES: Final = ("resident", "component-offload", "layerwise-offload")
ATTENTION_ROLES: Final = ("all", "self", "cross")
"""What `attention` may name: the ops `attention.NAME`, and `all` of them."""
GROUPS: Final = ("dit", "text_encoder", "image_encoder", "vae", "all")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
MAX_BATCH: Final = 64
BATCHING_RULE: Final = f"off, auto, or a whole number from 1 to {MAX_BATCH} (calls per forward)"
MAX_RUNNING: Final = 4
BACKEND: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
BACKEND_RULE: Final = "auto, native, or the name of an installed fallback"
DEVICE: Final = re.compile(r"[a-z][a-z0-9_]*(?:[-.][a-z0-9_]+)*(:[0-9]{1,3})?")
DEVICE_RULE: Final = "auto, cpu, cuda, cuda:N, or the name of another installed platform"


def pairs(value: Any, bare: str = "") -> Any:
    """`a=b`, `["a=b", "c=d"]` or `"a=b,c=d"` as a mapping; a bare word stands for `{bare: word}`.

    Anything that does not look like this is returned as it is, for the field's rule to refuse.
    """
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    if not isinstance(value, Sequence):
        return dict(value) if isinstance(value, Mapping) else value
    read: dict[str, str] = {}
    for word in value:
        if not isinstance(word, str) or not word:
            return value
        for part in word.split(","):
            name, equals, mode = (text.strip() for text in part.partition("="))
            if (equals and not (name and mode)) or not (equals or bare):
                return value
            read[name if equals else bare] = mode if equals else name
    return read


def _one_of(names: tuple[str, ...]) -> Any:
    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            for key, word in value.items():
                if word not in names:
                    guess = did_you_mean(str(word), names, limit=0)
                    rule = f"{key}={word!r} must be one of {', '.join(names)}"
                    raise ValueError(f"{rule}. {guess}".rstrip(". "))
        return value

    return check


def _residency(value: Any) -> Any:
    return _one_of(RESIDENCY_MODES)(pairs(value, "all"))


def _precisions(value: Any) -> Any:
    return _one_of(DTYPES)(pairs(value))


def _attention(value: Any) -> Any:
    value = pairs(value, "all")
    for role in value if isinstance(value, Mapping) else ():
        if role not in ATTENTION_ROLES:
            raise ValueError(f"{role} is no role of attention; roles: {', '.join(ATTENTION_ROLES)}")
    return value


def _prefer(value: Any) -> Any:
    value = pairs(value)
    for key in value if isinstance(value, Mapping) else ():
        kind, colon, name = str(key).partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{key} must be KIND:ID, for example pipeline:wan-t2v=sgld-wan")
    return value


def read_batching(value: Any) -> Any:
    """`off`, `auto` or a batch size; raises `ValueError` with the rule for anything else."""
    if value in ("off", "auto") and isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BATCH:
        return value
    raise ValueError(f"must be {BATCHING_RULE}")


def _device(value: Any) -> Any:
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise ValueError(f"must be {DEVICE_RULE}")
    return value


def _backend(value: Any) -> Any:
    if not isinstance(value, str) or not BACKEND.fullmatch(value):
        raise ValueError(f"must be {BACKEND_RULE}")
    return value


def _revision(value: Any) -> Any:
    # A commit of digits only is a number in YAML.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Table = Mapping[str, str]
Pairs = Annotated[Table, BeforeValidator(pairs)]
Residency = Annotated[Table, BeforeValidator(_residency)]
Attention = Annotated[Table, BeforeValidator(_attention)]
Prefer = Annotated[Table, BeforeValidator(_prefer)]
Precisions = Annotated[Table, BeforeValidator(_precisions)]
Batching = Annotated[Literal["off", "auto"] | int, BeforeValidator(read_batching), Text(scalar)]
DType = Literal["auto", "float32", "bfloat16", "float16"]
NAMED = "a table of NAME=VALUE"
SOME_TEXT = "text that is not empty"


class ServingOptions(Options):
    """How a model is found, loaded and run; every field may be given by flag, variable or file."""

    model_path: Annotated[str, BeforeValidator(as_text)] = option(
        description="A local folder, a hub id (owner/name), a model that a plugin carries "
        "(PLUGIN:NAME, see `sgld models list`), tiny:NAME or config:NAME.",
        rule=SOME_TEXT,
        min_length=1,
    )
    model_id: str | None = option(
        None, "Treat the checkpoint as this known hub id.", rule=SOME_TEXT, min_length=1
    )
    pipeline_class_name: str | None = option(
        None,
        "Use the pipeline with this id or class name instead of the one the checkpoint names.",
        rule=SOME_TEXT,
        min_length=1,
    )
    backend: Annotated[str, BeforeValidator(_backend)] = option(
        "auto",
        "Which kind of pipeline serves the model: native ones, written for their family, or a "
        "fallback by its name; `auto` takes a native one where a plugin has it.",
        rule=BACKEND_RULE,
    )
    trust_remote_code: bool = option(
        False, "Run code that the checkpoint brings; only from people you trust."
    )
    revision: Annotated[str | None, BeforeValidator(_revision)] = option(
        None, "Branch, tag or commit of the hub repository.", rule=SOME_TEXT, min_length=1
    )
    load_format: Literal["auto", "dummy"] = option(
        "auto", "`dummy` draws random weights of the real architecture, to measure speed."
    )
    allow_pickle: bool = option(
        False, "Read pickle checkpoints too; these can run code, so only from people you trust."
    )
    component_paths: Pairs = option(
        {}, "Folder or hub id of single components.", rule=NAMED, merge="keys"
    )
    component_weights_paths: Pairs = option(
        {}, "Weight file of single components.", rule=NAMED, merge="keys"
    )
    component_precisions: Precisions = option(
        {},
        "Precision of single components.",
        rule=f"{NAMED}, each one of {', '.join(DTYPES)}",
        merge="keys",
    )
    device: Annotated[str, BeforeValidator(_device)] = option(
        "auto", "Where to run; `auto` takes the best device of this machine.", rule=DEVICE_RULE
    )
    dtype: DType = option("auto", "Precision of the weights; `auto` is the best of the device.")
    residency: Residency = option(
        {},
        "Where components live: resident on the device, moved in whole, or layer by layer. A bare "
        "mode holds for all; an exact name beats a group, a group beats all. Groups: "
        + ", ".join(GROUPS)
        + ".",
        rule=f"{NAMED}, each of {', '.join(RESIDENCY_MODES)}",
    )
    batching: Batching = option(
        "auto", "How many calls of different requests run as one forward.", rule=BATCHING_RULE
    )
    max_running: int | None = option(
        None,
        f"How many requests are driven at once; without a number {MAX_RUNNING}, or fewer where the "
        "model can run only fewer.",
        unit="requests",
        ge=1,
        le=256,
    )
    attention: Attention = option(
        {}, "Attention backend for all roles (a bare id or auto) or single roles.", rule=NAMED
    )
    cache_policy: str | None = option(
        None,
        "Which frames a causal model remembers: the id of a cache policy that it supports; without "
        "one the model decides.",
        rule=SOME_TEXT,
        min_length=1,
    )
    prefer: Prefer = option(
        {},
        "Which plugin wins where two offer the same id.",
        rule="a table of KIND:ID=DISTRIBUTION",
        merge="keys",
    )
    max_sessions: int = option(
        16, "How many realtime sessions may be live at once.", unit="sessions", ge=1, le=1024
    )
    session_memory: float | None = option(
        None,
        "Device memory for the states of all realtime sessions and causal requests; without a "
        "number, three quarters of what is free after loading. A session whose state does not fit "
        "is refused, a request waits. On the CPU also for what sessions can take back.",
        unit="GiB",
        gt=0,
        le=100_000,
    )
    lock: str | None = option(
        None,
        "Repeat what a lock file says: exactly its plugins, their versions and what was chosen.",
        rule=SOME_TEXT,
        min_length=1,
    )
    write_lock: str | None = option(
        None,
        "Write plugins, versions and choices of this run to a file for --lock.",
        rule=SOME_TEXT,
        min_length=1,
    )
    strict_plugins: bool = option(False, "Stop when any plugin is broken.")
    vae_tiling: bool = option(False, "Decode in tiles: less memory, a little slower.")


def resolve_residency(
    selectors: Mapping[str, str], components: Mapping[str, str], field: str = "residency"
) -> dict[str, str]:
    """One mode for each component: an exact name beats its group, a group beats `all`.

    `components` maps name → group. A component without a selector is `resident`. A selector that
    names neither a component nor a group is a `ParameterError` with the valid names.
    """
    valid = (*GROUPS, *(name for name in components if name not in GROUPS))
    problems = [
        Problem(
            field,
            f"{key}={mode}",
            f"{key} is neither a component nor a group.",
            f"{did_you_mean(key, valid, limit=0)} Valid names: {', '.join(valid)}.".strip(),
        )
        for key, mode in selectors.items()
        if key not in valid
    ]
    if problems:
        raise ParameterError(problems)
    general = selectors.get("all", "resident")
    return {
        name: selectors.get(name, selectors.get(group, general))
        for name, group in components.items()
    }
