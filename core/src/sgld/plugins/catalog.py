"""Everything that plugins bring, resolved: the one object that the rest of the core asks.

Public: `load_catalog(environ, prefer=, strict=) -> Catalog` (used by all), `collect(...)` (the same
but never fails, for `sgld plugins`), `build(found, ...)` (of named plugins only, for workers and
tests), `load_target(target, entry)`, `parse_prefer(texts)`. Imports no torch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from sgld.api import specs
from sgld.api.errors import PluginError, SgldError, UserError
from sgld.api.specs import Failure
from sgld.plugins import known
from sgld.plugins.backends import AUTO
from sgld.plugins.describe import HOOKS, Described, Outcome, new_manager, record_id
from sgld.plugins.failures import failure, innermost, is_fatal, meant
from sgld.plugins.find import Discovery, find, name_clash
from sgld.plugins.match import Evidence, Files, merge_presets
from sgld.plugins.near import failed_text, guilty
from sgld.plugins.patience import describe_in_time
from sgld.plugins.recognise import Recognition, recognise
from sgld.plugins.resolve import Entry, Resolved, resolve
from sgld.plugins.rows import PluginRow, plugin_rows

PREFER: Final = "SGLD_PREFER"
STRICT: Final = "SGLD_STRICT"


class Catalog:
    """The usable records by kind (id → Entry), the plugins they come from, and what failed."""

    def __init__(
        self, resolved: Resolved, plugins: Sequence[PluginRow], failures: Sequence[Failure]
    ) -> None:
        entries = resolved.entries
        self.entries = entries
        self.platforms: Mapping[str, Entry[specs.PlatformSpec]] = entries["platform"]
        self.pipelines: Mapping[str, Entry[specs.PipelineSpec]] = entries["pipeline"]
        self.models: Mapping[str, Entry[specs.ModelSpec]] = entries["model"]
        self.stages: Mapping[str, Entry[specs.StageSpec]] = entries["stage"]
        self.realtime: Mapping[str, Entry[specs.RealtimeSpec]] = entries["realtime"]
        self.attention: Mapping[str, Entry[specs.AttentionSpec]] = entries["attention"]
        self.kernels: Mapping[str, Entry[specs.KernelSpec]] = entries["kernel"]
        self.caches: Mapping[str, Entry[specs.CacheSpec]] = entries["cache"]
        self.executors: Mapping[str, Entry[specs.ExecutorSpec]] = entries["executor"]
        self.postprocessors: Mapping[str, Entry[specs.PostprocessorSpec]] = entries["postprocessor"]
        self.commands: Mapping[str, Entry[specs.CommandSpec]] = entries["command"]
        self.routes: Mapping[str, Entry[specs.RouteSpec]] = entries["route"]
        self.retired = resolved.retired
        self.plugins = tuple(plugins)
        self.failures = tuple(failures)

    @property
    def fatal(self) -> tuple[Failure, ...]:
        """The failures that are more than notes."""
        return tuple(row for row in self.failures if is_fatal(row))

    def recognise(
        self, files: Files, *, pipeline: str = "", model_id: str = "", backend: str = AUTO
    ) -> Recognition:
        """The pipeline that serves a checkpoint.

        Args:
            files: the resolved model.
            pipeline: a pipeline id or class name that decides.
            model_id: a hub id, short name or alias to recognise it by, instead of its own.
            backend: `auto`, `native`, or the name of a fallback (`PipelineSpec.backend`).

        Raises:
            ParameterError: no plugin brings this backend.
            ModelError: `model_not_recognised` or `model_ambiguous`, listing what was tried.
            PluginError: the plugin that serves it is broken.
        """
        return recognise(self, Evidence(files, model_id), pipeline, backend)

    def preset(
        self, spec: specs.PipelineSpec, files: Files, *, model_id: str = ""
    ) -> dict[str, Any]:
        """Parameter defaults of a checkpoint: the family's base with its own preset on top."""
        return merge_presets(spec, Evidence(files, model_id)).defaults

    def blueprint(self, name: str, blueprint: str = "") -> tuple[Entry[specs.PipelineSpec], str]:
        """The pipeline entry and the target of one of its blueprints.

        `name` is a pipeline id, `pipeline:blueprint`, or a blueprint name that only one pipeline
        has; a blueprint may be called like its pipeline. Raises UserError naming what there is.
        """
        name, colon, rest = name.partition(":")
        blueprint = rest if colon else blueprint
        entry = self.pipelines.get(name)
        if entry is None:
            owners = [row for row in self.pipelines.values() if name in row.spec.blueprints]
            if len(owners) == 1 and not colon:
                return owners[0], owners[0].spec.blueprints[name]
            raise self.no_pipeline(name)
        choices = entry.spec.blueprints
        if not blueprint and not colon and name in choices:
            blueprint = name
        if not blueprint:
            names = ", ".join(f"{name}:{choice}" for choice in choices) or "none"
            raise UserError(
                f"{name!r} does not say which blueprint.", remedy=f"There are: {names}."
            )
        if blueprint not in choices:
            raise unknown(f"blueprint of pipeline {name!r}", blueprint, choices)
        return entry, choices[blueprint]

    def no_pipeline(self, name: str) -> SgldError:
        """The error for a pipeline that is not there: perhaps because its plugin is broken."""
        error = unknown("pipeline", name, self.pipelines)
        blamed = guilty(self.failures, name, known.suggest("", name))
        if blamed:
            text = f"{error.message} {failed_text(blamed)}"
            return PluginError(text, failures=blamed)
        error.remedy = f"{error.remedy} {failed_text(self.failures)}".rstrip()
        return error


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not there, with the nearest one and all of them."""
    names = sorted(known)
    there = f"There are: {', '.join(names)}." if names else "There are none."
    remedy = f"{meant(name, names)} {there}".strip()
    return UserError(f"there is no {what} {name!r}.", remedy=remedy)


def parse_prefer(texts: Iterable[str]) -> dict[str, str]:
    """Read `kind:id=distribution` pins; raises UserError for any other form."""
    pins: dict[str, str] = {}
    for text in texts:
        key, equals, dist = text.partition("=")
        kind, colon, name = key.strip().partition(":")
        if not (equals and colon and kind and name and dist.strip()):
            raise UserError(
                f"--prefer {text!r} is not of the form KIND:ID=DISTRIBUTION.",
                remedy="For example --prefer pipeline:wan-t2v=sgld-wan.",
            )
        pins[f"{kind}:{name}"] = dist.strip()
    return pins


def load_catalog(
    environ: Mapping[str, str] | None = None,
    *,
    prefer: Mapping[str, str] | None = None,
    strict: bool = False,
) -> Catalog:
    """Find, describe and resolve all plugins; a broken one becomes a row in `failures`.

    Raises PluginError for any failure with `strict=True` or SGLD_STRICT=1.
    """
    environ = os.environ if environ is None else environ
    catalog = collect(environ, prefer=prefer)
    refuse_failures(catalog, environ, strict=strict)
    return catalog


def refuse_failures(catalog: Catalog, environ: Mapping[str, str], *, strict: bool = False) -> None:
    """In strict mode raise PluginError for every plugin that is broken, else do nothing."""
    if catalog.fatal and (strict or is_strict(environ)):
        raise PluginError(
            "\n".join(str(row) for row in catalog.fatal),
            failures=catalog.fatal,
            remedy=f"(strict mode: {STRICT}=1 makes every failure of a plugin an error)",
        )


def is_strict(environ: Mapping[str, str]) -> bool:
    """Whether SGLD_STRICT asks that any broken plugin be an error."""
    return environ.get(STRICT, "").strip().lower() in ("1", "true", "yes", "on")


def collect(
    environ: Mapping[str, str],
    *,
    prefer: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
) -> Catalog:
    """As `load_catalog`, but nothing a plugin does can make it fail."""
    pins = parse_prefer(text for text in environ.get(PREFER, "").split(",") if text.strip())
    return build(find(environ, path), {**pins, **(prefer or {})})


def build(discovery: Discovery, prefer: Mapping[str, str]) -> Catalog:
    """Describe and resolve exactly the plugins of a discovery."""
    manager = new_manager()
    return assemble(
        discovery, [describe_in_time(found, manager) for found in discovery.found], prefer
    )


def assemble(
    discovery: Discovery, outcomes: Sequence[Outcome], prefer: Mapping[str, str]
) -> Catalog:
    """Resolve what describing each plugin of a discovery gave, wherever that was done."""
    failures = list(discovery.failures)
    failures += [row.failure for row in outcomes if row.failure is not None]
    failures += [remark for row in outcomes for remark in row.remarks]
    usable, clashes = _drop_same_names([row.described for row in outcomes if row.described])
    usable, unmet = _check_needs(usable)
    resolved = resolve(usable, prefer)
    unusable = [*clashes, *unmet]
    remarks = [*failures, *resolved.failures]
    rows = plugin_rows(discovery, outcomes, unusable, remarks)
    return Catalog(resolved, rows, [*remarks, *unusable])


def _drop_same_names(rows: Sequence[Described]) -> tuple[list[Described], list[Failure]]:
    """Set aside plugins whose name another one uses, such as a local and an installed one."""
    names: dict[str, list[Described]] = {}
    for row in rows:
        names.setdefault(row.plugin.name, []).append(row)
    kept = [same[0] for same in names.values() if len(same) == 1]
    clashes = [
        name_clash(row.found, [other.found for other in same])
        for same in names.values()
        if len(same) > 1
        for row in same
    ]
    return kept, clashes


def _check_needs(rows: Sequence[Described]) -> tuple[list[Described], list[Failure]]:
    """Set aside plugins that need one that is not usable, and those that need these, and so on."""
    kept, failures = list(rows), list[Failure]()
    while True:
        names = {row.plugin.name for row in kept}
        unmet = [row for row in kept if not set(row.plugin.needs) <= names]
        if not unmet:
            return kept, failures
        for row in unmet:
            missing = ", ".join(sorted(set(row.plugin.needs) - names))
            failures.append(
                failure(
                    "SGLD-P009",
                    row.plugin.name,
                    f"it needs plugin {missing}, which is not usable here.",
                    dist=row.found.dist,
                    version=row.found.version,
                    hint="Install the distribution that brings it, or mend it if `sgld plugins "
                    "list` shows it; a package that is not installed goes into "
                    "SGLD_EXTERNAL_MODEL_PACKAGE.",
                )
            )
        kept = [row for row in kept if row not in unmet]


def load_target(target: str, entry: Entry[Any] | None = None) -> Any:
    """Import what a target `module:attribute` names.

    Raises PluginError (SGLD-P007) telling whether the module is missing, one of its own imports
    is missing, or the attribute is not there.
    """
    module_name, _, path = target.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except (KeyboardInterrupt, SgldError):
        raise
    except BaseException as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        own = missing is not None and (module_name + ".").startswith(f"{missing}.")
        what = f"module {missing!r} is not there" if own else innermost(error)
        hint = "Correct the target." if own else "Install or mend what its module imports."
        raise _bad_target(target, entry, f"{what}.", error, hint) from error
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            what = f"{_holder(value)} has no {part!r}"
            near = meant(part, dir(value))
            what += f"; {near[0].lower()}{near[1:]}" if near else "."
            raise _bad_target(target, entry, what, error, "Correct the target.") from error
    return value


def _holder(value: Any) -> str:
    """What an attribute was looked for in, in words."""
    if isinstance(value, ModuleType):
        return f"module {value.__name__!r}"
    if isinstance(value, type):
        return f"class {value.__qualname__!r}"
    return f"an object of class {type(value).__qualname__!r}"


def _label(target: str, entry: Entry[Any]) -> str:
    """Which record names a target, and in which field if not in `target`: `pipeline 'x': `."""
    spec = entry.spec
    kind = next((kind for kind, record in HOOKS.values() if type(spec) is record), "")
    if not kind:
        return ""
    fields = [name for name in spec._fields if getattr(spec, name) == target]
    field = f", {fields[0]}" if fields and "target" not in fields else ""
    return f"{kind} {record_id(kind, spec)!r}{field}: "


def _bad_target(
    target: str, entry: Entry[Any] | None, what: str, error: BaseException, hint: str
) -> PluginError:
    owner = entry or Entry(None, "sgld", "", "")
    row = failure(
        "SGLD-P007",
        owner.plugin,
        f"{_label(target, owner)}target {target!r} cannot be used: {what}",
        dist=owner.dist,
        version=owner.version,
        cause=innermost(error),
        hint=hint,
    )
    return PluginError(str(row), failures=(row,))
