"""What a run decides beside its pipeline: platform, realtime adapter, cache policy, and what runs
each op. Written down as a lock, or taken from one. Torch-free.

    choose_wishes(...)      what can be decided here, and every reason why something cannot be had
    repeat(lock, options)   the plugins of a lock, and refusal of options that contradict it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sgld.api.errors import DeviceError, FeatureError, ParameterError, PluginError, Problem
from sgld.api.ops import ATTENTION, OPS
from sgld.api.specs import CacheSpec, PipelineSpec, PlatformSpec
from sgld.params.serving import ServingOptions
from sgld.plugins.binding import choose_ops, facts_of
from sgld.plugins.catalog import PREFER, Catalog, parse_prefer
from sgld.plugins.choose import AUTO, choose_cache, choose_platform
from sgld.plugins.find import ALLOW, BUILTIN, BUILTIN_MODULE, Allowed, external_packages
from sgld.plugins.lock import ADAPTER, CACHE, REFERENCE, Lock, compare, disagree, make_lock
from sgld.plugins.resolve import Entry
from sgld.plugins.scan import normalise, scan, versions_of

REMEDY: Final = "Leave it out, or run without --lock and write a new one with --write-lock."


class Decisions(NamedTuple):
    """What was decided for one pipeline.

    Args:
        platform: the device family.
        cache: the cache policy that the user picked; None: the family's own.
        choices: op, `realtime` or `cache` → id; an op that is missing is decided when the device is
            open, because its probe does not say enough.
    """

    platform: Entry[PlatformSpec]
    cache: Entry[CacheSpec] | None
    choices: Mapping[str, str]


class Wishes(NamedTuple):
    """What became of the options that plugins have to fulfil: decisions, or reasons against it."""

    decisions: Decisions | None
    refused: tuple[str, ...] = ()

    def granted(self) -> Decisions:
        """The decisions; FeatureError when something was refused."""
        if self.decisions is None:
            raise FeatureError("; ".join(self.refused) + ".")
        return self.decisions


def choose_wishes(
    spec: PipelineSpec, options: ServingOptions, catalog: Catalog, lock: Lock | None
) -> Wishes:
    """Decide; what cannot be had is a reason, and with any reason there is no decision.

    Raises PluginError for a platform whose probe is broken.
    """
    refused: list[str] = []
    locked = {} if lock is None else dict(lock.choices)
    cache: Entry[CacheSpec] | None = None
    policy = options.cache_policy or locked.get(CACHE)
    if policy is not None:
        try:
            cache = choose_cache(catalog.caches, spec.caches, policy, catalog.failures)
        except FeatureError as error:
            refused.append(str(error).rstrip("."))
    platform, choices = _place(options, catalog, lock, locked, refused)
    adapters = [name for name, row in catalog.realtime.items() if row.spec.pipeline == spec.id]
    refused += _session_reasons(spec, options, bool(adapters))
    if len(adapters) == 1:
        choices[ADAPTER] = adapters[0]
    if cache is not None:
        choices[CACHE] = cache.spec.id
    if refused or platform is None:
        return Wishes(None, tuple(refused))
    return Wishes(Decisions(platform, cache, choices))


def _session_reasons(spec: PipelineSpec, options: ServingOptions, realtime: bool) -> list[str]:
    """Limits of what this pipeline has not: they would change nothing."""
    reasons: list[str] = []
    usual = ServingOptions.model_fields["max_sessions"].default
    if options.max_sessions != usual and not realtime:
        text = f"no plugin brings a realtime adapter for pipeline {spec.id}"
        reasons.append(f"--max-sessions {options.max_sessions}: {text}")
    if options.session_memory is not None and not realtime and not spec.caches:
        text = f"pipeline {spec.id} has neither a realtime adapter nor cache policies"
        reasons.append(f"--session-memory {options.session_memory:g}: {text}")
    return reasons


def _place(
    options: ServingOptions,
    catalog: Catalog,
    lock: Lock | None,
    locked: Mapping[str, str],
    refused: list[str],
) -> tuple[Entry[PlatformSpec] | None, dict[str, str]]:
    """The platform, and what runs each op on it as far as its probe tells."""
    asked, _, index = options.device.partition(":")
    if lock is not None and lock.platform:
        asked = lock.platform
    try:
        chosen = choose_platform(catalog.platforms.values(), prefer=asked)
    except (DeviceError, FeatureError) as error:
        refused.append(str(error).rstrip("."))
        return None, {}
    facts = facts_of(chosen.probe, chosen.entry.spec.id, int(index or 0))
    if facts is None:
        return chosen.entry, {op: locked[op] for op in OPS if op in locked}
    try:
        ops = choose_ops(
            catalog.attention,
            catalog.kernels.values(),
            facts,
            platform=chosen.entry.spec.attention,
            wanted=options.attention,
            locked=locked,
        )
    except FeatureError as error:
        refused.append(str(error).rstrip("."))
        return None, {}
    return chosen.entry, {op: choice.id for op, choice in ops.items()}


def write_down(
    catalog: Catalog,
    spec: PipelineSpec,
    decisions: Decisions,
    options: ServingOptions,
    environ: Mapping[str, str],
    lock: Lock | None,
) -> Lock:
    """The decision as a lock. One that repeats a lock is that lock.

    Raises PluginError (SGLD-P011) naming every decision that is not what the lock says.
    """
    pins = _pins(options, environ) if lock is None else lock.prefer
    made = make_lock(
        catalog,
        platform=decisions.platform.spec.id,
        pipeline=spec.id,
        choices=decisions.choices,
        features=spec.features,
        prefer=pins,
    )
    if lock is None:
        return made
    wrong = _changed(made, lock)
    if wrong:
        raise disagree(wrong)
    return lock


def refuse_other(spec: PipelineSpec, lock: Lock) -> None:
    """Raise PluginError (SGLD-P011) when a lock is of another pipeline: what it says of caches and
    ops says nothing about this one."""
    if lock.pipeline and spec.id != lock.pipeline:
        raise disagree([f"the pipeline is {spec.id} here, {lock.pipeline} in the lock"])


def only_of(lock: Lock) -> str:
    """What to think of when a model is not recognised under a lock."""
    names = ", ".join(row.name for row in lock.plugins)
    served = f"; it was made for pipeline {lock.pipeline}" if lock.pipeline else ""
    return f"Only the plugins of the lock were asked ({names}){served}."


def _changed(made: Lock, lock: Lock) -> list[str]:
    """What this run decides otherwise than the lock; a lock need not decide everything."""
    wrong: list[str] = []
    for field in ("pipeline", "platform"):
        here, there = getattr(made, field), getattr(lock, field)
        if there and here != there:
            wrong.append(f"the {field} is {here} here, {there} in the lock")
    for name, there in lock.choices.items():
        here = made.choices.get(name, "")
        if here != there:
            wrong.append(f"{name} is {here or 'nothing'} here, {there} in the lock")
    return wrong


def _pins(options: ServingOptions, environ: Mapping[str, str]) -> dict[str, str]:
    texts = [text for text in environ.get(PREFER, "").split(",") if text.strip()]
    return {**parse_prefer(texts), **options.prefer}


def repeat(
    lock: Lock, options: ServingOptions, environ: Mapping[str, str] | None = None
) -> Catalog:
    """The plugins that a lock names, and no others.

    Args:
        lock: what was decided before.
        options: what this run asks for.
        environ: where the user's variables are looked up; None: in an engine process, whose parent
            has done so.

    Raises:
        ParameterError: options or variables that contradict the lock, each by its name.
        PluginError: SGLD-P011, naming every difference between the lock and what is installed.
    """
    problems = _contradictions(lock, options)
    if environ is not None:
        refused = [*_variables(lock, environ), *_untrusted(lock, environ)]
        if refused:  # before anything that the file names is imported
            raise ParameterError([*problems, *refused])
        _refuse_undeclared(lock)
    catalog, wrong = compare(lock)
    problems += _other_backend(lock, options, catalog)
    if problems:
        raise ParameterError(problems)
    if lock.platform in catalog.platforms:
        try:
            choose_platform(catalog.platforms.values(), prefer=lock.platform)
        except (DeviceError, PluginError) as error:
            wrong.append(f"platform {lock.platform!r} cannot be used: {error.message.rstrip('.')}")
    wrong += _missing_ops(lock, catalog)
    if wrong:
        raise disagree(wrong)
    return catalog


def _missing_ops(lock: Lock, catalog: Catalog) -> list[str]:
    wrong: list[str] = []
    for op in OPS:
        name = lock.choices.get(op, "")
        known: Mapping[str, Any] = (
            catalog.attention if op.startswith(ATTENTION) else catalog.kernels
        )
        if name and name not in (*known, REFERENCE):
            wrong.append(f"{name!r}, which runs {op}, is not there")
    return wrong


def _contradictions(lock: Lock, options: ServingOptions) -> list[Problem]:
    """Options that ask for something else than the lock says."""
    problems: list[Problem] = []

    def refuse(field: str, shown: str, said: str) -> None:
        message = f"contradicts the lock, which says {said}."
        problems.append(Problem(field, shown, message, REMEDY))

    device = options.device.partition(":")[0]
    if lock.platform and device not in (AUTO, lock.platform):
        refuse("device", options.device, lock.platform)
    named = options.pipeline_class_name
    if named and lock.pipeline and named == named.lower() and named != lock.pipeline:
        refuse("pipeline_class_name", named, lock.pipeline)
    policy, locked = options.cache_policy, lock.choices.get(CACHE)
    if policy is not None and policy != locked:
        refuse("cache_policy", policy, locked or "the family's own")
    for role, name in options.attention.items():
        roles = [role] if role != "all" else [op.removeprefix(ATTENTION) for op in OPS]
        said = {lock.choices.get(ATTENTION + one, name) for one in roles}
        if role == "all" and name in said:
            continue  # a backend named for all plays the roles that it can
        if name != AUTO and said - {name}:
            shown = name if role == "all" else f"{role}={name}"
            refuse("attention", shown, ", ".join(sorted(said - {name})))
    for key, dist in options.prefer.items():
        if lock.prefer.get(key, "") != dist:
            refuse("prefer", f"{key}={dist}", lock.prefer.get(key) or "no such pin")
    return problems


def _other_backend(lock: Lock, options: ServingOptions, catalog: Catalog) -> list[Problem]:
    """Whether the lock's pipeline is one of another backend than the option asks for."""
    entry = catalog.pipelines.get(lock.pipeline)
    if entry is None or options.backend in (AUTO, entry.spec.backend):
        return []
    said = f"{entry.spec.backend} (that of pipeline {lock.pipeline})"
    message = f"contradicts the lock, which says {said}."
    return [Problem("backend", options.backend, message, REMEDY)]


def _untrusted(lock: Lock, environ: Mapping[str, str]) -> list[Problem]:
    """A file does not decide which packages are imported: local ones are named by the user."""
    variable, packages = external_packages(environ)
    local = list(dict.fromkeys(row.module for row in lock.plugins if row.source == "local"))
    missing = [name for name in local if name not in packages]
    if not missing:
        return []
    message = f"does not name {', '.join(missing)}, which the lock takes as a local package."
    remedy = f"If you trust what the lock names, set {variable}={','.join(local)}."
    return [Problem(variable, environ.get(variable, ""), message, remedy)]


def _refuse_undeclared(lock: Lock) -> None:
    """Nor does it decide which module of an installed distribution is imported.

    Raises PluginError (SGLD-P011) for modules that no installed distribution declares.
    """
    declared = {(normalise(row.dist), row.name, row.value) for row in scan()}
    installed = [row for row in lock.plugins if row.source == "installed"]
    odd = [row for row in installed if (normalise(row.dist), row.name, row.module) not in declared]
    here = versions_of(row.dist for row in odd)
    # One that is not installed is told of with all other differences, and not imported either.
    wrong = [
        f"{row.dist} declares no plugin {row.name} in module {row.module!r}"
        for row in odd
        if here[row.dist]
    ]
    wrong += [
        f"plugin {row.name} in module {row.module!r} is not a part of sgld-core"
        for row in lock.plugins
        if row.source == "builtin" and (row.name, row.module) != (BUILTIN, BUILTIN_MODULE)
    ]
    if wrong:
        raise disagree(wrong)


def _variables(lock: Lock, environ: Mapping[str, str]) -> list[Problem]:
    """Variables that would give other plugins than those of the lock."""
    problems: list[Problem] = []
    allowed = Allowed(environ.get(ALLOW))
    installed = [row for row in lock.plugins if row.source == "installed"]
    out = [row.name for row in installed if not allowed.takes(row.name, row.dist)]
    if out:
        message = f"leaves out {', '.join(out)}, which the lock has."
        problems.append(Problem(ALLOW, environ.get(ALLOW, ""), message, "Unset it."))
    variable, packages = external_packages(environ)
    local = {row.dist for row in lock.plugins if row.source == "local"}
    more = [name for name in packages if name not in local]
    if more:
        message = f"names {', '.join(more)}, which the lock has not."
        remedy = "Name only packages that the lock has."
        problems.append(Problem(variable, environ.get(variable, ""), message, remedy))
    texts = [text for text in environ.get(PREFER, "").split(",") if text.strip()]
    for key, dist in parse_prefer(texts).items():
        if lock.prefer.get(key) != dist:
            said = lock.prefer.get(key) or "no such pin"
            message = f"contradicts the lock, which says {said}."
            problems.append(Problem(PREFER, f"{key}={dist}", message, "Unset it."))
    return problems
