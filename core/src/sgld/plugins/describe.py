"""Import one plugin and collect its records, all or nothing; whatever goes wrong becomes a row.

Public: `describe(found, manager) -> Outcome`, `new_manager()`, `HOOKS`, `KINDS`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

import pluggy

from sgld import __version__
from sgld.api import hooks, specs
from sgld.api.contracts import CONTRACTS
from sgld.api.specs import Failure
from sgld.plugins.capture import Head
from sgld.plugins.check import problems
from sgld.plugins.failures import failure, innermost, meant, shown
from sgld.plugins.find import EXTERNAL, Found
from sgld.plugins.importing import Fault, guard, import_plugin, version_in
from sgld.plugins.register import register
from sgld.plugins.surroundings import Surroundings

HOOKS: Final[Mapping[str, tuple[str, type[Any]]]] = {
    "sgld_platforms": ("platform", specs.PlatformSpec),
    "sgld_pipelines": ("pipeline", specs.PipelineSpec),
    "sgld_models": ("model", specs.ModelSpec),
    "sgld_stages": ("stage", specs.StageSpec),
    "sgld_realtime": ("realtime", specs.RealtimeSpec),
    "sgld_attention": ("attention", specs.AttentionSpec),
    "sgld_kernels": ("kernel", specs.KernelSpec),
    "sgld_caches": ("cache", specs.CacheSpec),
    "sgld_executors": ("executor", specs.ExecutorSpec),
    "sgld_postprocessors": ("postprocessor", specs.PostprocessorSpec),
    "sgld_commands": ("command", specs.CommandSpec),
    "sgld_routes": ("route", specs.RouteSpec),
}
"""Hook → the kind of its records and their type; `sgld_plugin` is apart."""

KINDS: Final = tuple(kind for kind, _ in HOOKS.values())
HEAVY: Final = ("torch", "transformers", "diffusers", "numpy")
SLOW_MS: Final = 500.0
CORRECT: Final = "Its author has to correct the record; none of the plugin's is used until then."
MOST_RECORDS: Final = 10_000
"""More records than any plugin has; a generator that never ends must not hang the command line."""


class Described(NamedTuple):
    """A plugin that answered: who it is and its valid records by kind."""

    found: Found
    plugin: specs.Plugin
    records: Mapping[str, tuple[Any, ...]]


class Outcome(NamedTuple):
    """What describing one plugin gave: `described` or `failure`, its time and remarks."""

    found: Found
    described: Described | None
    failure: Failure | None
    ms: float
    notes: tuple[str, ...]
    remarks: tuple[Failure, ...] = ()
    noise: tuple[str, ...] = ()
    """Those of the notes that tell what it printed, warned of or changed around it."""


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows the hooks and nothing else."""
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    return manager


def record_id(kind: str, record: Any) -> str:
    """What makes a record unique within its kind."""
    if kind == "command":
        return record.name
    return record.path if kind == "route" else record.id


def describe(
    found: Found, manager: pluggy.PluginManager, step: Callable[[str], None] = lambda name: None
) -> Outcome:
    """Import a plugin's module and call its hooks; never raises but for KeyboardInterrupt.

    `step` is told `describe` once the module is imported, for who wants to know how far it came.
    """
    began = time.perf_counter()
    heavy = [name for name in HEAVY if name not in sys.modules]
    printed = Head()
    described: Described | None = None
    row: Failure | None = None
    around = Surroundings()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            described = _describe(found, manager, step)
        except Fault as fault:
            row = _row(found, fault)
        except Exception as error:  # a record whose own methods raise
            cause = innermost(error)
            row = _row(found, Fault("SGLD-P003", f"describing it failed: {cause}.", cause=cause))
    changed = around.restore()
    ms = (time.perf_counter() - began) * 1000
    notes = [f"warned: {item.category.__name__}: {shown(item.message)}" for item in caught]
    text = printed.getvalue().strip()
    if text:
        notes.append(f"printed to standard output: {text[:200]!r}")
    notes += changed
    noise = tuple(notes)
    if ms > SLOW_MS:
        notes.append(f"took {ms:.0f} ms to import and describe")
    brought = [name for name in heavy if name in sys.modules]
    remarks = (_heavy(found, brought),) if brought else ()
    if described is not None:
        found = described.found
    return Outcome(found, described, row, ms, tuple(notes), remarks, noise)


def _row(found: Found, fault: Fault) -> Failure:
    return failure(
        fault.code,
        found.name,
        fault.message,
        dist=found.dist,
        version=found.version,
        cause=fault.cause,
        hint=fault.hint or _hint(found, fault.code),
    )


def _hint(found: Found, code: str) -> str:
    """For a fault without a remedy of its own."""
    leave = f"leave it out with SGLD_PLUGINS=-{found.name}"
    if found.source == "local":
        leave = f"take it out of {EXTERNAL[0]}"
    if code == "SGLD-P001":
        return f"{leave[0].upper()}{leave[1:]}."
    return f"Its author has to correct the hook; until then, {leave}."


def _heavy(found: Found, names: list[str]) -> Failure:
    return failure(
        "SGLD-P008",
        found.name,
        f"describing it imported {', '.join(names)}, which slows every command.",
        dist=found.dist,
        version=found.version,
        hint="Its plugin module should name targets as text only.",
    )


def _describe(
    found: Found, manager: pluggy.PluginManager, step: Callable[[str], None]
) -> Described:
    module = import_plugin(found)
    step("describe")
    register(module, manager)
    try:
        plugin = _who(found, module, manager)
        found = found._replace(name=plugin.name, version=found.version or version_in(module))
        _check_contracts(found, plugin)
        records = {
            kind: _collect(found, module, manager, hook) for hook, (kind, _) in HOOKS.items()
        }
    except BaseException:
        manager.unregister(module)
        raise
    for kind, rows in records.items():
        if rows and kind not in plugin.contracts:
            known = CONTRACTS[kind]
            raise Fault(
                "SGLD-P004",
                f"it brings a {kind} but states no contract version for that kind.",
                hint=f"Its author should add {{{kind!r}: {known[1]}}} to Plugin.contracts.",
            )
    return Described(found, plugin, records)


def _call(module: ModuleType, manager: pluggy.PluginManager, hook: str) -> list[Any]:
    """What this module's own implementations of one hook return, one value each.

    `manager.hook.x()` would stop at the first exception and not say whose value is whose.
    """
    caller = cast("pluggy.HookCaller", getattr(manager.hook, hook))
    values: list[Any] = []
    for implementation in caller.get_hookimpls():
        if implementation.plugin is not module:
            continue
        if implementation.wrapper or implementation.hookwrapper:
            raise Fault("SGLD-P002", f"{hook} is a wrapper; describing hooks only return records.")
        values.append(guard(hook, "SGLD-P003", implementation.function))
    return values


def _who(found: Found, module: ModuleType, manager: pluggy.PluginManager) -> specs.Plugin:
    values = _call(module, manager, "sgld_plugin")
    if len(values) != 1 or not isinstance(values[0], specs.Plugin):
        if values == [None]:
            raise _silent("sgld_plugin", "return")
        got = ", ".join(type(value).__name__ for value in values) or "nothing"
        hint = "Write a function sgld_plugin, marked with hookimpl, that returns one."
        raise Fault(
            "SGLD-P003", f"sgld_plugin must return one Plugin record; got {got}.", hint=hint
        )
    plugin = values[0]
    rows = problems(plugin)
    if rows:
        raise Fault("SGLD-P003", f"its Plugin record is wrong: {'; '.join(rows)}.", hint=CORRECT)
    if found.source != "local" and plugin.name != found.name:
        raise Fault(
            "SGLD-P003",
            f"its entry point is named {found.name!r} but its Plugin record {plugin.name!r}.",
            hint="Its author should give both the same name.",
        )
    return plugin


def _check_contracts(found: Found, plugin: specs.Plugin) -> None:
    for kind, version in plugin.contracts.items():
        if kind not in CONTRACTS:
            remedy = meant(kind, CONTRACTS) or "Install a newer sgld-core."
            raise Fault(
                "SGLD-P004",
                f"it speaks a contract {kind!r} that sgld-core {__version__} does not know.",
                hint=f"{remedy} This one knows {', '.join(CONTRACTS)}.",
            )
        low, high = CONTRACTS[kind]
        if not low <= version <= high:
            newer = "a newer sgld-core" if version > high else f"a newer {found.dist}"
            older = f"an older {found.dist}" if version > high else "an older sgld-core"
            raise Fault(
                "SGLD-P004",
                f"it speaks {kind} contract {version}; "
                f"sgld-core {__version__} takes {low}..{high}.",
                hint=f"Install {newer} or {older}.",
            )


def _collect(
    found: Found, module: ModuleType, manager: pluggy.PluginManager, hook: str
) -> tuple[Any, ...]:
    """All valid records of one hook; the first wrong one sets the plugin aside."""
    kind, wanted = HOOKS[hook]
    rows: list[Any] = []
    for value in _call(module, manager, hook):
        if value is None:
            raise _silent(hook, "return or yield")
        if isinstance(value, str | bytes | wanted) or not isinstance(value, Iterable):
            raise Fault(
                "SGLD-P003",
                f"{hook} must return several {wanted.__name__} records (a list or a generator), "
                f"not one {type(value).__name__}.",
                hint=f"Write `yield`, or return a list of {wanted.__name__} records.",
            )
        items = cast("Iterable[Any]", value)
        rows.extend(guard(hook, "SGLD-P003", partial(_take, items)))
    if len(rows) >= MOST_RECORDS:
        raise Fault("SGLD-P003", f"{hook} gives no end of records (over {MOST_RECORDS}).")
    seen: set[str] = set()
    for row in rows:
        _check_record(found, hook, wanted, row)
        key = record_id(kind, row)
        if key in seen:
            raise Fault("SGLD-P003", f"{hook} gives two records with the id {key!r}.", hint=CORRECT)
        seen.add(key)
    return tuple(rows)


def _silent(hook: str, missing: str) -> Fault:
    return Fault(
        "SGLD-P003",
        f"{hook} returned nothing: a {missing} is missing.",
        hint="Let it give its records.",
    )


def _take(items: Iterable[Any]) -> list[Any]:
    return list(islice(items, MOST_RECORDS))


def _check_record(found: Found, hook: str, wanted: type[Any], row: Any) -> None:
    if not isinstance(row, wanted):
        raise Fault(
            "SGLD-P003",
            f"{hook} must give {wanted.__name__} records; got {type(row).__name__} {row!r:.80}.",
            hint=CORRECT,
        )
    faults = problems(row)
    if getattr(row, "replaces", "") == "*" and found.source != "local":
        faults.append("replaces='*': only a local package may; name the distribution to replace")
    if faults:
        label = getattr(row, "id", "") or getattr(row, "name", "") or getattr(row, "path", "")
        text = f"{hook}: record {label!r} is wrong: {'; '.join(faults)}."
        raise Fault("SGLD-P003", text, hint=CORRECT)
