"""Why an op runs on this kernel, why this platform is taken, which cache policies a pipeline takes:
answers for `sgld plugins why`.

Public: `machine(...)`, `ops_named(name)`, `why_op(...)`, `why_platform(...)`, `why_cache(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import FeatureError, PluginError, SgldError
from sgld.api.ops import ATTENTION, OPS
from sgld.api.specs import PlatformSpec
from sgld.plugins.binding import choose_op, facts_of
from sgld.plugins.catalog import Catalog, load_target, unknown
from sgld.plugins.choose import ANY_CACHE, AUTO, REFERENCE, Choice, choose_platform
from sgld.plugins.probing import LIMIT_S, ask
from sgld.plugins.resolve import Entry
from sgld.plugins.why import OUT, TAKEN, Answer, Row

Load = Callable[[str, Entry[Any]], Any]
"""Imports what a target names, as `sgld.plugins.catalog.load_target` does."""


class Machine(NamedTuple):
    """The device that ops are chosen for: its facts, the family's record, and a note on both."""

    facts: DeviceFacts
    platform: Entry[PlatformSpec]
    note: str = ""


def machine(catalog: Catalog, device: str = AUTO, *, load: Load = load_target) -> Machine:
    """The device of this machine, or of a named platform, whose device may be elsewhere.

    A platform without a device here, or whose probe does not tell enough, is taken as one that can
    do everything that the records ask for, of the newest architecture.

    Raises:
        UserError: there is no such platform, or no device for `auto`.
        PluginError: the probe that `auto` needs is broken.
    """
    if device == AUTO:
        chosen = choose_platform(catalog.platforms.values(), load=load)
        entry, probe = chosen.entry, chosen.probe
    elif device in catalog.platforms:
        entry = catalog.platforms[device]
        try:
            probe = ask(entry, load)
        except PluginError:
            probe = None
    else:
        raise unknown("platform", device, catalog.platforms)
    here = probe is not None and probe.available
    facts = facts_of(probe, entry.spec.id) if here else None
    if facts is not None:
        return Machine(facts, entry)
    told = "its probe does not tell what it can do" if here else "no such device is here"
    note = f"{told}: asked as if it could do everything and were of the newest architecture"
    return Machine(_everything(catalog, entry.spec.id), entry, note)


def _everything(catalog: Catalog, device: str) -> DeviceFacts:
    needs = [
        entry.spec.requires
        for entry in (*catalog.attention.values(), *catalog.kernels.values())
        if entry.spec.requires.device in ("any", device)
    ]
    dtypes = {"float32", *(name for need in needs for name in need.dtypes)}
    abilities = {name for need in needs for name in need.abilities}
    arch = max((need.arch[0] for need in needs), default=0)
    return DeviceFacts(device, arch, frozenset(dtypes), frozenset(abilities))


def ops_named(name: str) -> list[str]:
    """The ops that a name stands for: an op, or the beginning of several, such as `attention`.

    Raises UserError for a name that fits none.
    """
    fitting = [op for op in OPS if op == name or op.startswith(f"{name}.")]
    if not fitting:
        raise unknown("op", name, {*OPS, *(op.partition(".")[0] for op in OPS)})
    return fitting


def why_op(
    catalog: Catalog, op: str, at: Machine, *, wanted: Mapping[str, str] | None = None
) -> Answer:
    """Which kernel or attention backend runs an op."""
    question = f"op {op} on {at.facts.device}"
    facts = {
        "device": at.facts.device,
        "arch": at.facts.arch,
        "dtypes": sorted(at.facts.dtypes),
        "abilities": sorted(at.facts.abilities),
        "note": at.note,
    }
    attention, kernels = catalog.attention, catalog.kernels.values()
    try:
        choice = choose_op(
            op, attention, kernels, at.facts, platform=at.platform.spec.attention, wanted=wanted
        )
    except FeatureError as error:
        rows = tuple(_op_row(catalog, op, at, name) for name in _of_op(catalog, op))
        return Answer(question, "", "", rows, error, facts)
    owner = "" if choice.entry is None else f" ({choice.entry.owner})"
    text = f"{question}: {choice.id}{owner}, {choice.why}"
    return Answer(question, choice.id, text, _op_rows(catalog, op, at, choice), facts=facts)


def _of_op(catalog: Catalog, op: str) -> list[str]:
    if op.startswith(ATTENTION):
        return sorted(catalog.attention)
    return sorted(name for name, entry in catalog.kernels.items() if entry.spec.op == op)


def _op_rows(catalog: Catalog, op: str, at: Machine, choice: Choice) -> tuple[Row, ...]:
    dist = "sgld-core" if choice.entry is None else choice.entry.dist
    rows = [Row(TAKEN, choice.id, dist, choice.why)]
    told = dict(choice.losers)
    for name in _of_op(catalog, op):
        if name != choice.id:
            row = _op_row(catalog, op, at, name)
            rows.append(row._replace(reason=told.get(name, row.reason)))
    if choice.id != REFERENCE and not op.startswith(ATTENTION):
        why = "the plain-torch reference, for when no kernel fits"
        rows.append(Row(OUT, REFERENCE, "sgld-core", why))
    return tuple(rows)


def _op_row(catalog: Catalog, op: str, at: Machine, name: str) -> Row:
    """Whether one could be taken, were it asked for by name."""
    kernel = not op.startswith(ATTENTION)
    entry: Entry[Any] = catalog.kernels[name] if kernel else catalog.attention[name]
    try:
        choose_op(op, catalog.attention, catalog.kernels.values(), at.facts, locked=name)
    except FeatureError as error:
        return Row(OUT, name, entry.dist, error.message.partition(": ")[2] or error.message)
    return Row(OUT, name, entry.dist, "fits")


def why_platform(catalog: Catalog, *, limit_s: float = LIMIT_S, load: Load = load_target) -> Answer:
    """Which device family `auto` takes, with what every probe says within `limit_s` seconds."""
    rows: list[Row] = []
    answers: dict[str, Any] = {}
    for entry in sorted(
        catalog.platforms.values(), key=lambda row: (-row.spec.priority, row.spec.id)
    ):
        name = entry.spec.id
        try:
            answers[name] = ask(entry, load, limit_s=limit_s)
            what = _devices(answers[name]) if answers[name].available else answers[name].reason
        except PluginError as error:
            answers[name], what = error, str(error)
        rows.append(Row(OUT, name, entry.dist, f"priority {entry.spec.priority}: {what}"))

    def told(target: str, entry: Entry[Any]) -> Any:
        answer = answers[entry.spec.id]
        if isinstance(answer, PluginError):
            raise answer
        return lambda: answer

    try:
        chosen = choose_platform(catalog.platforms.values(), load=told)
    except SgldError as error:
        return Answer("platform", "", "", tuple(rows), error)
    name = chosen.entry.spec.id
    rows = [row._replace(result=TAKEN) if row.id == name else row for row in rows]
    rows.sort(key=lambda row: row.id != name)
    text = f"auto takes {name} ({chosen.entry.owner}): the highest priority that has a device"
    return Answer("platform", name, text, tuple(rows))


def _devices(probe: Any) -> str:
    names = [getattr(device, "name", str(device)) for device in getattr(probe, "devices", ())]
    return f"{len(names)} there ({', '.join(names)})" if names else "there"


def why_cache(catalog: Catalog, pipeline: str) -> Answer:
    """Which cache policies a pipeline takes.

    Args:
        catalog: all plugins.
        pipeline: its id, also as `tiny:ID` or `config:ID:BLUEPRINT`.

    Raises UserError when there is no such pipeline, PluginError when its plugin is broken.
    """
    prefix, _, name = pipeline.partition(":")
    if prefix in ("tiny", "config") and name:
        pipeline = name.partition(":")[0]
    if pipeline not in catalog.pipelines:
        raise catalog.no_pipeline(pipeline)
    spec = catalog.pipelines[pipeline].spec
    named = [name for name in spec.caches if name != ANY_CACHE]
    rows: list[Row] = []
    for name, entry in sorted(catalog.caches.items()):
        if name in named:
            rows.append(Row("offered", name, entry.dist, f"{pipeline} names it"))
        elif ANY_CACHE in spec.caches:
            rows.append(Row("offered", name, entry.dist, f"{pipeline} takes any policy"))
        else:
            rows.append(Row(OUT, name, entry.dist, f"{pipeline} does not name it"))
    missing = [name for name in named if name not in catalog.caches]
    rows += [Row(OUT, name, OUT, "no usable plugin brings it") for name in missing]
    rows.sort(key=lambda row: row.result == OUT)
    offered = [row.id for row in rows if row.result == "offered"]
    if spec.caches:
        text = f"{pipeline} chooses its own, or --cache-policy {'|'.join(offered) or 'none'}"
    else:
        text = f"{pipeline} takes no cache policy: it keeps no history, or chooses itself"
    failed = [str(row) for row in catalog.fatal]
    facts = {"failed_plugins": failed} if failed else {}
    return Answer(f"cache policy of {pipeline}", "", text, tuple(rows), facts=facts)
