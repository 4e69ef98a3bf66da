"""What was decided, as JSON: for every engine process, which obeys and scans nothing, and as a file
with which a run can be repeated elsewhere.

Public: `make_lock(catalog, ...) -> Lock`, `Lock.to_json()`, `Lock.from_json(text)`,
`write_lock(lock, path)`, `read_lock(path) -> Lock`, `verify(lock) -> Catalog` (imports just the
lock's plugins; PluginError SGLD-P011 on a difference), `compare(lock)` and `disagree(texts)` for
those who have more to compare.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from sgld import __version__
from sgld.api.errors import PluginError, UserError
from sgld.api.specs import Failure
from sgld.plugins.catalog import Catalog, build
from sgld.plugins.failures import failure
from sgld.plugins.find import BUILTIN, Discovery, Found, Source
from sgld.plugins.lock_shape import misshapen
from sgld.plugins.scan import versions_of

ADAPTER: Final = "realtime"
"""In `Lock.choices`: the adapter of the pipeline's sessions."""
REFERENCE: Final = "reference"
"""In `Lock.choices`: the op runs as its plain-torch reference."""
CACHE: Final = "cache"
"""In `Lock.choices`: the cache policy that the user picked."""


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

    def summary(self) -> dict[str, Any]:
        """What is printed at the start of a run: digest, plugins with versions, choices other than
        the ops' references."""
        return {
            "digest": self.digest,
            "plugins": {row.name: row.version or "-" for row in self.plugins},
            "pipeline": self.pipeline,
            "platform": self.platform,
            "choices": {op: name for op, name in self.choices.items() if name != REFERENCE},
        }

    def line(self) -> str:
        """`summary` on one line of words."""
        parts: list[str] = []
        for key, value in self.summary().items():
            if isinstance(value, dict):
                pairs = cast("dict[str, str]", value)
                value = ",".join(f"{name}={text}" for name, text in pairs.items()) or "-"
            parts.append(f"{key}={value}")
        return " ".join(parts)

    def to_json(self) -> str:
        """One line of JSON, a few hundred bytes."""
        return json.dumps({**self._plain(), "digest": self.digest}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Lock:
        """Read a lock; raises PluginError (SGLD-P011) when it is damaged or was edited."""
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise disagree(
                [f"the lock cannot be read ({type(error).__name__}: {error})"]
            ) from error
        wrong = misshapen(plain)
        if wrong:
            raise disagree([f"the lock cannot be read ({'; '.join(wrong)})"])
        stated: str = plain.pop("digest")
        plain["plugins"] = tuple(Found(**row) for row in plain["plugins"])
        plain["features"] = tuple(plain["features"])
        lock = cls(**plain)
        if stated != lock.digest:
            raise disagree([f"the lock's digest is {stated}, its content gives {lock.digest}"])
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


def write_lock(lock: Lock, path: str) -> None:
    """Write a lock to a file, replacing what is there.

    Raises UserError when it cannot be written.
    """
    file = Path(path).expanduser()
    text = json.dumps(json.loads(lock.to_json()), indent=2, sort_keys=True) + "\n"
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UserError(
            f"write_lock={path!r}: cannot be written ({error.strerror or error}).",
            remedy="Name a file in a folder that is there and can be written to.",
        ) from None


def read_lock(path: str) -> Lock:
    """Read a lock from a file.

    Raises UserError when there is none, and PluginError (SGLD-P011) when it is damaged.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(
            f"lock={path!r}: cannot be read ({reason}).",
            remedy="Name a file that --write-lock has written.",
        ) from None
    return Lock.from_json(text)


def verify(lock: Lock) -> Catalog:
    """The catalog of exactly the lock's plugins, checked against the lock.

    Raises PluginError (SGLD-P011) listing every difference. Reads no environment variable and
    looks at no other plugin.
    """
    catalog, wrong = compare(lock)
    if wrong:
        raise disagree(wrong)
    return catalog


def compare(lock: Lock) -> tuple[Catalog, list[str]]:
    """The catalog of exactly the lock's plugins, and every difference to the lock, in words."""
    wrong: list[str] = []
    if lock.core != __version__:
        wrong.append(f"sgld-core is {__version__} here, {lock.core} in the lock")
    installed = [row for row in lock.plugins if row.source == "installed"]
    here = versions_of(row.dist for row in installed) if installed else {}
    for row in installed:
        if here[row.dist] != row.version:
            wrong.append(
                f"{row.dist} is {here[row.dist] or 'missing'} here, {row.version} in the lock"
            )
    gone = {row for row in installed if not here[row.dist]}
    # A package without metadata tells its version itself.
    found = [
        row._replace(version="") if row.source == "local" else row
        for row in lock.plugins
        if row not in gone
    ]
    catalog = build(Discovery(tuple(found), (), ()), lock.prefer)
    states = {row.name: row for row in catalog.plugins}
    for row in lock.plugins:
        state = states.get(row.name)
        if state is None or state.state == "failed":
            reason = state.reason if state is not None else "it has another name here"
            reason = "it is not installed" if row in gone else reason
            wrong.append(f"plugin {row.name} is not usable here: {reason}")
        elif row.source == "local" and state.version != row.version:
            wrong.append(
                f"{row.dist} is {state.version or 'without a version'} here, "
                f"{row.version or 'without one'} in the lock"
            )
    if not wrong and _records(catalog) != lock.records:
        wrong.append("a plugin describes itself otherwise here than when the lock was made")
    if lock.pipeline and lock.pipeline not in catalog.pipelines:
        wrong.append(f"pipeline {lock.pipeline!r} is not there")
    if lock.platform and lock.platform not in catalog.platforms:
        wrong.append(f"platform {lock.platform!r} is not there")
    adapter, cache = lock.choices.get(ADAPTER), lock.choices.get(CACHE)
    if adapter and adapter not in catalog.realtime:
        wrong.append(f"realtime adapter {adapter!r} is not there")
    if cache and cache not in catalog.caches:
        wrong.append(f"cache policy {cache!r} is not there")
    return catalog, wrong


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


def disagree(wrong: Iterable[str]) -> PluginError:
    """The error that names every difference between a lock and this process."""
    row: Failure = failure(
        "SGLD-P011",
        BUILTIN,
        f"this process does not find what the lock says: {'; '.join(wrong)}.",
        dist="sgld-core",
        version=__version__,
        hint="Bring the environment back to what the lock says, or make a new lock (--write-lock).",
    )
    return PluginError(str(row), failures=(row,))
