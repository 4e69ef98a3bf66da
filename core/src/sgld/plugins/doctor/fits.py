"""Whether what a target names is what its contract says; imports it, so only for `--deep`.

Public: `faults(target) -> list[Fault]`, `reason(error)`.
Base classes are named as text, for they live above this package and need torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from sgld.api.errors import SgldError
from sgld.api.ops import OPS
from sgld.plugins.catalog import load_target
from sgld.plugins.doctor.heavy import Watch
from sgld.plugins.doctor.targets import Target
from sgld.plugins.failures import innermost

BASES: Final[Mapping[tuple[str, str], str]] = {
    ("pipeline", "target"): "sgld.engine.pipeline:Pipeline",
    ("pipeline", "params"): "sgld.params.sampling:SamplingParams",
    ("stage", "target"): "sgld.engine.stage:Stage",
    ("realtime", "target"): "sgld.realtime.adapter:RealtimeAdapter",
    ("platform", "target"): "sgld.platforms.platform:Platform",
    ("executor", "target"): "sgld.engine.executors.executor:Executor",
}
"""Kind and field → the class that the target must be a subclass of."""
POLICY: Final = "sgld.causal.policies:Policy"
CALLS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("pipeline", "layout"): ("files", "overrides"),
    ("pipeline", "detect"): ("files",),
    ("pipeline", "inspect"): ("files", "options"),
    ("platform", "target"): (),
    ("platform", "probe"): (),
}
"""Kind and field → the positional arguments that the core calls it with."""


class Fault(NamedTuple):
    """What is wrong with a target, as a predicate that follows its name, and what to do."""

    text: str
    remedy: str = "See the contract of this kind in docs/contracts.md."


def faults(row: Target) -> list[Fault]:
    """Everything that is wrong with a target, or an empty list."""
    torch_before = "torch" in sys.modules
    with Watch() as watch:
        try:
            value = load_target(row.target)
        except SgldError as error:
            failures = getattr(error, "failures", ())
            hint = failures[0].hint if failures else ""
            return [Fault(_predicate(error), hint or "Install or mend what its module imports.")]
    rows: list[str] = []
    if row.light and "torch" in sys.modules and not torch_before:
        where = watch.places.get("torch", "")
        rows.append(
            "imports torch" + (f" (at {where})" if where else "") + ", but processes without torch "
            "import it"
        )
    try:
        rows += _fit(row, value)
    except Exception as error:
        rows.append(f"cannot be looked at: {innermost(error)}")
    return [Fault(text) for text in rows]


def reason(error: BaseException) -> str:
    """An error in words, without the code and owner that a plugin's failure begins with."""
    failures = getattr(error, "failures", ())
    if failures:
        return failures[0].message
    return str(error) if isinstance(error, SgldError) else innermost(error)


def _predicate(error: SgldError) -> str:
    """What stands behind the target's name in the message of `load_target`."""
    text = reason(error).removesuffix(".")
    return "cannot be used: " + text.rpartition("cannot be used: ")[2]


def _fit(row: Target, value: Any) -> list[str]:
    key = (row.kind, row.field)
    rows: list[str] = []
    if key in BASES:
        rows += _subclass(value, BASES[key])
        if key == ("pipeline", "params") and not rows:
            rows += _presets(row, value)
    elif row.kind == "cache" and isinstance(value, type):
        rows += _subclass(value, POLICY)
    elif row.kind == "command":
        typer = cast("Any", sys.modules.get("typer"))
        if not callable(value) and not (typer and isinstance(value, typer.Typer)):
            rows.append(f"is {_what(value)}, neither a Typer app nor a function")
        return rows
    elif not callable(value):
        rows.append(f"is {_what(value)}, which cannot be called")
    if not rows:
        rows += _called(row, value)
    return rows


def _what(value: Any) -> str:
    if isinstance(value, type):
        return f"class {value.__qualname__}"
    return f"{type(value).__name__} {value!r:.40}"


def _subclass(value: Any, base_target: str) -> list[str]:
    base = cast("type[Any]", load_target(base_target))
    name = base_target.replace(":", ".")
    if not isinstance(value, type):
        return [f"is {_what(value)}, not a subclass of {name}"]
    if not issubclass(value, base):
        return [f"is {_what(value)}, which is no subclass of {name}"]
    left = sorted(getattr(value, "__abstractmethods__", ()))
    return [f"does not implement {', '.join(left)} of {name}"] if left else []


def _presets(row: Target, params: Any) -> list[str]:
    """Presets that set what the parameter class does not have."""
    if row.record.inspect:
        return []  # its checkpoints bring parameter classes of their own
    fields = set(params.model_fields)
    return [
        f"has no field {key!r}, which preset {preset.id!r} sets"
        for preset in row.record.presets
        for key in preset.defaults
        if key not in fields
    ]


def _called(row: Target, value: Any) -> list[str]:
    """Whether it can be called as the core does."""
    key = (row.kind, row.field)
    if key in CALLS:
        return _binds(value, CALLS[key])
    if row.field.startswith("blueprints."):
        return _binds(value, ("folder",))
    if row.kind == "attention":
        named = ("scale", "mask") if "mask" in row.record.can else ("scale",)
        return _binds(value, ("q", "k", "v"), named)
    if row.kind == "kernel" and row.record.op in OPS:
        return _like_reference(row.record.op, value)
    return []


def _binds(
    value: Callable[..., Any], given: tuple[str, ...], named: tuple[str, ...] = ()
) -> list[str]:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return []  # written in C: its signature is not known
    try:
        signature.bind(*given, **dict.fromkeys(named))
    except TypeError as error:
        call = ", ".join([*given, *(f"{name}=..." for name in named)])
        return [f"cannot be called as ({call}): {error}"]
    return []


def _like_reference(op: str, value: Any) -> list[str]:
    """Whether a kernel takes what the reference of its op takes."""
    table = load_target("sgld.ops.table:Ops").reference()
    rows = inspect.signature(table[op]).parameters.values()
    named = tuple(p.name for p in rows if p.kind is p.KEYWORD_ONLY)
    given = tuple(p.name for p in rows if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return _binds(value, given, named)
