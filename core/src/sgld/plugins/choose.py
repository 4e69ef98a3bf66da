"""Choose kernels, attention backends and platforms: fit, then narrowness, then priority.

Public: `DeviceFacts`, `choose_attention(...)`, `choose_kernel(...)`, `choose_platform(...)`,
`choose_cache(...)`, `reasons(requires, facts)`, `Choice.explain()`. Torch-free; a tie is an error
that says what to type, and a record that is not exact is taken only with the user's consent.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError, FeatureError, PluginError
from sgld.api.specs import (
    NO_LIMIT,
    AttentionSpec,
    CacheSpec,
    Failure,
    KernelSpec,
    PlatformSpec,
    Requires,
)
from sgld.plugins.catalog import load_target
from sgld.plugins.failures import meant
from sgld.plugins.near import failed_text, guilty
from sgld.plugins.probing import LIMIT_S, ask
from sgld.plugins.resolve import Entry

AUTO: Final = "auto"
REFERENCE: Final = "reference"
ANY_CACHE: Final = "*"
"""In `PipelineSpec.caches`: every installed policy may be picked."""


class Choice(NamedTuple):
    """What was chosen and why not the others; `entry` is None for the op's torch reference."""

    subject: str
    id: str
    entry: Entry[Any] | None
    target: str
    why: str
    losers: tuple[tuple[str, str], ...] = ()

    def explain(self) -> str:
        """One line for the log: what was taken, why, and why each other one was not."""
        text = f"{self.subject} = {self.id} ({self.why})"
        if self.losers:
            text += "; not " + "; not ".join(f"{name}: {why}" for name, why in self.losers)
        return text


def has_package(name: str) -> bool:
    """Whether a module can be found; its parents may be imported, the module itself is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def reasons(requires: Requires, facts: DeviceFacts, dtype: str = "") -> tuple[str, ...]:
    """Why a requirement does not hold here; empty when it does. `dtype` is what the call uses."""
    rows: list[str] = []
    low, high = requires.arch
    if requires.device not in ("any", facts.device):
        rows.append(f"needs {requires.device}; this device is {facts.device}")
    elif not low <= facts.arch <= high:
        upper = "or newer" if high == NO_LIMIT else f"to {high}"
        rows.append(f"needs {facts.device} arch {low} {upper}; this device has {facts.arch}")
    if dtype and requires.dtypes and dtype not in requires.dtypes:
        rows.append(f"takes {', '.join(requires.dtypes)}, not {dtype}")
    elif requires.dtypes and not facts.dtypes & set(requires.dtypes):
        rows.append(f"needs one of {', '.join(requires.dtypes)}, which the device lacks")
    rows += [f"package {name} is missing" for name in requires.packages if not has_package(name)]
    lacking = [name for name in requires.abilities if name not in facts.abilities]
    rows += [f"the device lacks {name!r}" for name in lacking]
    for names in requires.programs:
        if not any(map(shutil.which, names.split("|"))):
            rows.append(f"program {names.replace('|', ' or ')} is not on the path")
    return tuple(rows)


def _narrowness(requires: Requires) -> tuple[int, int]:
    """Sorts wider requirements first: any device, a device, a smaller range of architectures."""
    low, high = requires.arch
    return int(requires.device != "any"), -(high - low)


def choose_attention(
    entries: Iterable[Entry[AttentionSpec]],
    facts: DeviceFacts,
    *,
    need: frozenset[str] = frozenset(),
    prefer: str = AUTO,
    family: str = "dense",
    dtype: str = "",
    consent: bool = False,
    platform: Sequence[str] = (),
) -> Choice:
    """The attention backend for a device.

    Args:
        entries: all backends, in any order.
        facts: the device.
        need: abilities the layer needs, such as `mask`.
        prefer: a backend id, or `auto`.
        family: only backends of this family are looked at by `auto`.
        dtype: the dtype of the call, or empty.
        consent: whether a backend that is not exact may be taken by `auto`.
        platform: `PlatformSpec.attention`: of equally narrow ones `auto` takes the first of these,
            before it looks at priority.

    Raises:
        FeatureError: nothing fits, the preferred one does not fit or is unknown, or two are equal.
    """

    def refusal(spec: AttentionSpec) -> tuple[str, ...]:
        rows = list(reasons(spec.requires, facts, dtype))
        if spec.family != family and prefer == AUTO:
            rows.append(f"is of family {spec.family}, not {family}")
        rows += [f"cannot do {name!r}" for name in sorted(need - spec.can)]
        if not spec.exact and not consent and prefer == AUTO:
            rows.append("is not exact and was not asked for")
        return tuple(rows)

    return _choose("attention", list(entries), refusal, prefer, "--attention", None, platform)


def choose_kernel(
    entries: Iterable[Entry[KernelSpec]],
    op: str,
    facts: DeviceFacts,
    *,
    prefer: str = AUTO,
    dtype: str = "",
    consent: bool = False,
) -> Choice:
    """The kernel for an op, or the op's plain-torch reference (`entry` None) when none fits.

    `prefer` is a kernel id, `auto` or `reference`; `consent` allows kernels whose `numerics` is
    not `exact`. Raises FeatureError as `choose_attention` does.
    """
    subject = f"op {op}"
    if prefer == REFERENCE:
        return Choice(subject, REFERENCE, None, "", "asked for")

    def refusal(spec: KernelSpec) -> tuple[str, ...]:
        rows = list(reasons(spec.requires, facts, dtype))
        if spec.numerics != "exact" and not consent and prefer == AUTO:
            rows.append(f"is not exact ({spec.numerics}) and was not asked for")
        return tuple(rows)

    fitting = [entry for entry in entries if entry.spec.op == op]
    reference = Choice(subject, REFERENCE, None, "", "no kernel fits")
    return _choose(subject, fitting, refusal, prefer, "--kernel", reference)


def _choose(
    subject: str,
    entries: list[Entry[Any]],
    refusal: Callable[[Any], tuple[str, ...]],
    prefer: str,
    flag: str,
    fallback: Choice | None,
    platform: Sequence[str] = (),
) -> Choice:
    refused = {entry.spec.id: refusal(entry.spec) for entry in entries}
    fit = [entry for entry in entries if not refused[entry.spec.id]]
    losers = tuple((name, ", ".join(rows)) for name, rows in sorted(refused.items()) if rows)
    if prefer != AUTO:
        return _preferred(subject, entries, refused, prefer, flag)
    if not fit:
        if fallback is not None:
            return fallback._replace(losers=losers)
        told = "; ".join(f"{name}: {why}" for name, why in losers) or "no plugin brings one"
        raise FeatureError(
            f"nothing fits for {subject}: {told}.", remedy="Install a plugin that does."
        )
    best = max(_rank(entry.spec, platform) for entry in fit)
    winners = [entry for entry in fit if _rank(entry.spec, platform) == best]
    if len(winners) > 1:
        names = sorted(entry.spec.id for entry in winners)
        raise FeatureError(
            f"{' and '.join(names)} are equally good for {subject}.",
            remedy=f"Choose one, for example {flag} {names[0]}.",
        )
    winner = winners[0]
    rest = tuple((row.spec.id, "fits less narrowly") for row in fit if row is not winner)
    why = "narrowest fit" if len(fit) > 1 else "the only fit"
    return Choice(subject, winner.spec.id, winner, winner.spec.target, why, losers + rest)


def _rank(spec: Any, platform: Sequence[str]) -> tuple[int, int, int, int]:
    liked = len(platform) - platform.index(spec.id) if spec.id in platform else 0
    return (*_narrowness(spec.requires), liked, spec.priority)


def _preferred(
    subject: str,
    entries: list[Entry[Any]],
    refused: Mapping[str, tuple[str, ...]],
    prefer: str,
    flag: str,
) -> Choice:
    entry = next((entry for entry in entries if entry.spec.id == prefer), None)
    if entry is None:
        names = ", ".join(sorted(refused)) or "none"
        raise FeatureError(
            f"{flag} {prefer}: there is no such one for {subject}.", remedy=f"There are: {names}."
        )
    if refused[prefer]:
        raise FeatureError(
            f"{flag} {prefer} cannot be used for {subject}: {', '.join(refused[prefer])}.",
            remedy=f"Use {flag} auto to let sgld choose.",
        )
    return Choice(subject, prefer, entry, entry.spec.target, "asked for")


class PlatformChoice(NamedTuple):
    """The platform to use, what its probe said, and why the others were not taken.

    `present` names the losers whose hardware is there all the same: it lacks a build of torch, or
    its probe failed.
    """

    entry: Entry[PlatformSpec]
    probe: Any
    losers: tuple[tuple[str, str], ...] = ()
    present: tuple[str, ...] = ()


def choose_platform(
    entries: Iterable[Entry[PlatformSpec]],
    *,
    prefer: str = AUTO,
    load: Callable[[str, Entry[Any]], Any] = load_target,
    limit_s: float = LIMIT_S,
) -> PlatformChoice:
    """The platform to run on: what the user named, else the highest priority that has a device.

    Only the named one is asked when one is named. A probe that fails never makes `auto` take a
    platform of lower priority, such as the CPU: it is an error unless another of its rank is there.

    Raises:
        DeviceError: the named platform, or any, has no device, or lacks a package.
        FeatureError: there is no such platform, or two have devices and the same priority.
        PluginError: SGLD-P010 or SGLD-P007 when a probe fails or does not answer in `limit_s`.
    """
    rows = sorted(entries, key=lambda entry: (-entry.spec.priority, entry.spec.id))
    if prefer != AUTO:
        named = [entry for entry in rows if entry.spec.id == prefer]
        if not named:
            names = ", ".join(entry.spec.id for entry in rows)
            raise FeatureError(
                f"--device {prefer}: there is no such platform.", remedy=f"There are: {names}."
            )
        rows = named
    losers: list[tuple[str, str]] = []
    present: list[str] = []
    found: list[tuple[Entry[PlatformSpec], Any]] = []
    failed: list[tuple[Entry[PlatformSpec], PluginError]] = []
    for entry in rows:
        if found and entry.spec.priority < found[0][0].spec.priority:
            break
        if failed and entry.spec.priority < failed[0][0].spec.priority and not found:
            break
        try:
            probe = ask(entry, load, limit_s=limit_s)
        except PluginError as error:
            failed.append((entry, error))
            losers.append((entry.spec.id, str(error)))
            present.append(entry.spec.id)
            continue
        if probe.available:
            found.append((entry, probe))
        else:
            losers.append((entry.spec.id, probe.reason))
            present += [entry.spec.id] if getattr(probe, "devices", ()) else []
    if failed and not found:
        raise failed[0][1]
    if not found:
        told = "; ".join(f"{name}: {why}" for name, why in losers)
        raise DeviceError(f"no device can be used: {told or 'no plugin brings a platform'}.")
    if len(found) > 1:
        names = " and ".join(entry.spec.id for entry, _ in found)
        raise FeatureError(
            f"{names} are equally good.", remedy=f"Choose --device {found[0][0].spec.id}."
        )
    _check_packages(found[0][0].spec)
    return PlatformChoice(*found[0], tuple(losers), tuple(present))


def _check_packages(spec: PlatformSpec) -> None:
    missing = [name for name in spec.requires.packages if not has_package(name)]
    if missing:
        names = ", ".join(missing)
        raise DeviceError(
            f"platform {spec.id} has a device, but package {names} is missing.",
            remedy=f"Install {names}, or choose --device cpu.",
        )


def choose_cache(
    entries: Mapping[str, Entry[CacheSpec]],
    supported: Sequence[str],
    prefer: str,
    failures: Sequence[Failure] = (),
) -> Entry[CacheSpec]:
    """The cache policy that a user picked for a pipeline.

    Args:
        entries: all policies by id.
        supported: `PipelineSpec.caches`.
        prefer: an id.
        failures: of plugins, for one of them may be why the policy is not there.

    Raises:
        FeatureError: the pipeline does not support it, or no plugin brings it.
    """
    named = [name for name in supported if name != ANY_CACHE]
    allowed = sorted({*named, *entries}) if ANY_CACHE in supported else named
    if prefer not in allowed and ANY_CACHE not in supported:
        raise FeatureError(
            f"--cache-policy {prefer}: this model does not take it.",
            remedy=f"It takes: {', '.join(allowed) or 'none, for it keeps no history'}.",
        )
    if prefer not in entries:
        usable = [name for name in allowed if name in entries]
        takes = f"It takes: {', '.join(usable) or 'none that is installed'}."
        told = failed_text(guilty(failures, prefer, ()) or failures)
        list_hint = "" if told else "`sgld plugins list` shows the plugins that are there."
        raise FeatureError(
            f"--cache-policy {prefer}: no usable plugin brings it.",
            remedy=" ".join(
                part for part in (meant(prefer, usable), takes, told, list_hint) if part
            ),
        )
    return entries[prefer]
