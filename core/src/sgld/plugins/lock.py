"""What the parent decided, as JSON, for every engine process: workers obey and scan nothing.

Public: `make_lock(catalog, ...) -> Lock`, `Lock.to_json()`, `Lock.from_json(text)`,
`verify(lock) -> Catalog` (imports just the lock's plugins; PluginError SGLD-P011 on a difference).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from sgld import __version__
from sgld.api.errors import PluginError
from sgld.api.specs import Failure
from sgld.plugins.catalog import Catalog, build
from sgld.plugins.failures import failure
from sgld.plugins.find import BUILTIN, Discovery, Found, Source
from sgld.plugins.scan import version_of

ADAPTER: Final = "realtime"
"""In `Lock.choices`: the adapter of the pipeline's sessions."""


class Lock(NamedTuple):
    """The exact plugins and choices of a run. `choices` maps an op or role to a record id."""

    core: str
    plugins: tuple[Found, ...]
    platform: str = ""
    pipeline: str = ""
    choices: Mapping[str, str] = {}
    features: tuple[str, ...] = ()
    prefer: Mapping[str, str] = {}
    records: str = ""
    """Digest of the records that were in use, so that edited code of one version is noticed."""

    @property
    def digest(self) -> str:
        """Equal on every rank that decided the same."""
        return _digest(self._plain())

    def _plain(self) -> dict[str, Any]:
        plain = self._asdict()
        plain["plugins"] = [row._asdict() for row in self.plugins]
        plain["features"] = sorted(self.features)
        return plain

    def to_json(self) -> str:
        """One line of JSON, a few hundred bytes."""
        return json.dumps({**self._plain(), "digest": self.digest}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Lock:
        """Read a lock; raises PluginError (SGLD-P011) when it is damaged or was edited."""
        try:
            plain = cast("dict[str, Any]", json.loads(text))
            stated: str = plain.pop("digest")
            plain["plugins"] = tuple(Found(**row) for row in plain["plugins"])
            plain["features"] = tuple(plain["features"])
            lock = cls._make(plain[field] for field in cls._fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _disagree(
                [f"the lock cannot be read ({type(error).__name__}: {error})"]
            ) from error
        if stated != lock.digest:
            raise _disagree([f"the lock's digest is {stated}, its content gives {lock.digest}"])
        return lock


def make_lock(
    catalog: Catalog,
    *,
    platform: str = "",
    pipeline: str = "",
    choices: Mapping[str, str] | None = None,
    features: Iterable[str] = (),
    prefer: Mapping[str, str] | None = None,
) -> Lock:
    """Write down a decision: all usable plugins, and what was chosen among their records."""
    rows = tuple(
        Found(row.name, row.module, row.dist, row.version, cast("Source", row.source), row.core)
        for row in catalog.plugins
        if row.state in ("ok", "partial")
    )
    return Lock(
        __version__,
        rows,
        platform,
        pipeline,
        dict(choices or {}),
        tuple(sorted(features)),
        dict(prefer or {}),
        _records(catalog),
    )


def verify(lock: Lock) -> Catalog:
    """The catalog of exactly the lock's plugins, checked against the lock.

    Raises PluginError (SGLD-P011) listing every difference. Reads no environment variable and
    looks at no other plugin.
    """
    wrong: list[str] = []
    if lock.core != __version__:
        wrong.append(f"sgld-core is {__version__} here, {lock.core} in the lock")
    for row in lock.plugins:
        if row.source == "installed":
            here = version_of(row.dist)
            if here != row.version:
                wrong.append(f"{row.dist} is {here or 'missing'} here, {row.version} in the lock")
    if wrong:
        raise _disagree(wrong)
    catalog = build(Discovery(lock.plugins, (), ()), lock.prefer)
    states = {row.name: row for row in catalog.plugins}
    for row in lock.plugins:
        if row.name not in states or states[row.name].state == "failed":
            reason = states[row.name].reason if row.name in states else "it has another name here"
            wrong.append(f"plugin {row.name} is not usable here: {reason}")
    if not wrong and _records(catalog) != lock.records:
        wrong.append("a plugin describes itself otherwise here than when the lock was made")
    if lock.pipeline and lock.pipeline not in catalog.pipelines:
        wrong.append(f"pipeline {lock.pipeline!r} is not there")
    if lock.platform and lock.platform not in catalog.platforms:
        wrong.append(f"platform {lock.platform!r} is not there")
    adapter = lock.choices.get(ADAPTER)
    if adapter and adapter not in catalog.realtime:
        wrong.append(f"realtime adapter {adapter!r} is not there")
    if wrong:
        raise _disagree(wrong)
    return catalog


def _records(catalog: Catalog) -> str:
    plain = {
        kind: {name: _plain(entry) for name, entry in rows.items()}
        for kind, rows in catalog.entries.items()
    }
    return _digest(plain)


def _plain(value: Any) -> Any:
    """JSON values with a fixed order; the order of a set differs between processes."""
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in cast("frozenset[Any]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _plain(item) for key, item in items}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _disagree(wrong: Iterable[str]) -> PluginError:
    row: Failure = failure(
        "SGLD-P011",
        BUILTIN,
        f"this process does not find what the lock says: {'; '.join(wrong)}.",
        dist="sgld-core",
        version=__version__,
        hint="Start again, so that all processes see one environment.",
    )
    return PluginError(str(row), failures=(row,))
