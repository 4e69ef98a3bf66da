"""What every plugin keeps, whatever it brings."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any, ClassVar, Final

from sgld.api import features
from sgld.api.contracts import CONTRACTS
from sgld.api.errors import PluginError
from sgld.plugins.catalog import Catalog, load_target
from sgld.plugins.describe import Described, describe, new_manager
from sgld.plugins.find import Found
from sgld.testing.conformance.base import Contract, broken, expect
from sgld.testing.describing import HEAVY, Seen, described_apart
from sgld.testing.isolated import found_plugin, with_needs

LIGHT: Final = ("params", "layout", "probe")
"""Fields whose targets the HTTP process or the command line imports."""
TARGETS: Final = ("target", "params", "layout", "probe")
MOST_MODULES: Final = 60
"""More modules than a plugin needs to say what it brings."""
KNOWN: Final = tuple(
    value for name, value in vars(features).items() if name.isupper() and isinstance(value, str)
)
WORD: Final = re.compile(r"[a-z][a-z0-9]*(?:[-._][a-z0-9]+)*")


class PluginContract(Contract):
    """A plugin: describing it is cheap, quiet and always the same, and what it names is there.

        class TestAcme(PluginContract):
            plugin = "acme"

    Args:
        plugin: its name or distribution, an importable module, or a module object.
    """

    kind: ClassVar[str] = "plugin"
    named_by: ClassVar[str] = "plugin"

    @classmethod
    def catalog(cls) -> Catalog:
        """A catalogue of this plugin and what it needs."""
        return with_needs(cls._plugin(), *cls.beside)

    def test_loads_alone(self) -> None:
        """Without any other plugin, but for those that it names in `needs`, all of it is usable."""
        catalog = self.catalog()
        faults = [str(row) for row in catalog.failures]
        needed = {need for row in catalog.plugins for need in row.needs}
        named = {found_plugin(one).module for one in self.beside}
        beside = [row.name for row in catalog.plugins if row.module in named]
        faults += [f"{name} stands in `beside`" for name in beside if name not in needed]
        expect(
            not faults,
            expected="a plugin that is usable with nothing else installed",
            got="; ".join(faults),
            remedy="Name plugins that it cannot do without in `needs`; `sgld plugins check` "
            "explains each code.",
        )

    def test_describing_is_cheap(self) -> None:
        """Its module imports nothing heavy, and little else."""
        seen = self._seen()
        tops = {name.partition(".")[0] for name in seen.modules}
        heavy = [name for name in HEAVY if name in tops]
        expect(
            not heavy,
            expected="describing a plugin imports nothing heavy",
            got=", ".join(heavy),
            remedy="Name code as text, 'module:attribute', and import it nowhere in the plugin's "
            "module; mind the package's __init__.py, which is imported too.",
        )
        expect(
            len(seen.modules) <= MOST_MODULES,
            expected=f"at most {MOST_MODULES} modules for describing it",
            got=f"{len(seen.modules)}: {', '.join(seen.modules[:10])}, ...",
            remedy="Import less in the plugin's module.",
        )

    def test_describing_is_quiet(self) -> None:
        """Its module prints nothing and warns of nothing: `sgld --help` would show it."""
        seen = self._seen()
        said = [*seen.notes, *seen.stderr.strip().splitlines()]
        expect(
            not said,
            expected="nothing is printed while a plugin is described",
            got="; ".join(said[:5]),
            remedy="Take prints, logging at import and warnings out of the plugin's module.",
        )

    def test_describes_itself_equally_each_time(self) -> None:
        """Hooks called twice, and in another process, return equal records."""
        first, again, apart = self._described(), self._described(), self._seen()
        for what, plugin, records in (
            ("a second call", again.plugin, again.records),
            ("another process", apart.plugin, apart.records),
        ):
            changed = [kind for kind, rows in first.records.items() if rows != records.get(kind)]
            changed += ["plugin"] if first.plugin != plugin else []
            expect(
                not changed,
                expected=f"equal records in {what}",
                got=f"others of kind {', '.join(changed)}",
                remedy="Describe what the plugin brings, not what this machine or moment is like: "
                "that is what `requires` and `probe` are for.",
            )

    def test_records_are_plain(self) -> None:
        """Records hold plain values, so that they can be compared, written down and sent."""
        described = self._described()
        odd = list(_odd("plugin", described.plugin))
        for kind, rows in described.records.items():
            for row in rows:
                odd += _odd(f"{kind} {_name(row)}", row)
        expect(
            not odd,
            expected="records of texts, numbers, tuples, frozensets and mappings",
            got="; ".join(odd),
            remedy="Put a target 'module:attribute' in place of an object.",
        )
        everything = (described.plugin, dict(described.records))
        expect(
            pickle.loads(pickle.dumps(everything)) == everything,
            expected="records that are equal after pickling",
            got="others",
            remedy="Use plain values only.",
        )

    def test_states_the_contracts_of_what_it_brings(self) -> None:
        """A version for each kind that it brings and for no other, within this core's range."""
        described = self._described()
        brings = {kind for kind, rows in described.records.items() if rows}
        states = dict(described.plugin.contracts)
        expect(
            set(states) == brings,
            expected=f"contracts of just the kinds that it brings: {', '.join(sorted(brings))}",
            got=f"{', '.join(sorted(states))}",
            remedy="Correct `Plugin.contracts`, or add the hook that gives the records.",
        )
        wrong = {kind: v for kind, v in states.items() if not _within(v, CONTRACTS[kind])}
        expect(
            not wrong,
            expected=f"versions within {dict(CONTRACTS)}",
            got=wrong,
            remedy="Write the plugin for a version that this core takes, or install another core.",
        )

    def test_names_are_not_misspelled(self) -> None:
        """Features, tasks and events are words, and not almost one that the core knows."""
        faults = [fault for row in self._described().records["pipeline"] for fault in _names(row)]
        expect(
            not faults,
            expected="names as the core spells them, or entirely other ones",
            got="; ".join(faults),
            remedy="Take the names of features from `sgld.api.features`.",
        )

    def test_says_what_it_is(self) -> None:
        """The plugin and its pipelines have a summary, which lists and docs show."""
        described = self._described()
        rows = [described.plugin, *described.records["pipeline"]]
        silent = [_name(row) for row in rows if not row.summary.strip()]
        expect(
            not silent,
            expected="a summary of the plugin and of every pipeline",
            got=f"none of {', '.join(silent)}",
            remedy='Add summary="..." in one line.',
        )

    def test_targets_are_found(self) -> None:
        """Everything that a record names by target can be imported."""
        faults = [text for _, target in self._targets() if (text := _fault(target))]
        expect(
            not faults,
            expected="every target names something that is there",
            got="; ".join(faults),
            remedy="Correct the target, or add the package to the distribution's dependencies.",
        )

    def test_light_targets_need_no_torch(self) -> None:
        """Parameters, layouts, probes and adapters are imported where torch is not wanted."""
        seen = self._seen()
        faults = [f"{target} imports {', '.join(names)}" for target, names in seen.heavy.items()]
        expect(
            not faults,
            expected="targets that the HTTP process imports need no torch",
            got="; ".join(faults),
            remedy="Keep them in modules of their own, apart from the networks.",
        )

    # -- what the tests ask -----------------------------------------------------------------------

    @classmethod
    def _plugin(cls) -> str | ModuleType:
        expect(
            cls.plugin,
            expected=f"{cls.__name__}.plugin names what is tested",
            got=repr(cls.plugin),
            remedy='Write `plugin = "name"` in the class.',
        )
        return cls.plugin

    def _found(self) -> Found:
        return found_plugin(self._plugin())

    def _described(self) -> Described:
        outcome = describe(self._found(), new_manager())
        if outcome.described is None:
            broken(
                expected="a plugin that can be described",
                got=str(outcome.failure),
                remedy="`sgld plugins check` explains the code.",
            )
        return outcome.described

    def _seen(self) -> Seen:
        light = tuple(target for field, target in self._targets() if field in LIGHT)
        return described_apart(tuple(self._found()), light, tuple(sys.path))

    def _targets(self) -> Iterator[tuple[str, str]]:
        """Field and target of everything that the records name; a realtime adapter's is light."""
        for kind, rows in self._described().records.items():
            for row in rows:
                for field in TARGETS:
                    target = getattr(row, field, "")
                    if target:
                        yield ("params" if kind == "realtime" else field), target
                for target in getattr(row, "blueprints", {}).values():
                    yield "blueprint", target
                detect = getattr(getattr(row, "claims", None), "detect", "")
                if detect:
                    yield "layout", detect


def _fault(target: str) -> str:
    try:
        load_target(target)
    except PluginError as error:
        return error.failures[0].message if error.failures else str(error)
    return ""


def _within(version: int, known: tuple[int, int]) -> bool:
    return known[0] <= version <= known[1]


def _name(row: Any) -> str:
    return getattr(row, "id", "") or getattr(row, "name", "") or getattr(row, "path", "")


def _names(row: Any) -> Iterator[str]:
    for field, names, known in (("feature", row.features, KNOWN), ("task", row.tasks, ())):
        for name in sorted(names):
            spelled = name.lower().replace("_", "-").replace(" ", "-")
            near = get_close_matches(spelled, known, n=1, cutoff=0.85)
            if not WORD.fullmatch(name):
                yield f"{_name(row)}: {field} {name!r} is not lower-case words joined by '-'"
            elif name not in known and near:
                yield f"{_name(row)}: {field} {name!r} is almost {near[0]!r}"


def _odd(where: str, value: Any) -> Iterator[str]:
    """Values that are not plain, with their place."""
    if value is None or isinstance(value, str | int | float | bool):
        return
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, item in zip(value._fields, value, strict=True):  # pyright: ignore[reportAttributeAccessIssue]
            yield from _odd(f"{where}.{field}", item)
    elif isinstance(value, tuple | list | frozenset | set):
        for item in value:
            yield from _odd(where, item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _odd(f"{where}[{key!r}]", item)
    else:
        what = "dataclass" if is_dataclass(value) else type(value).__name__
        yield f"{where} holds a {what}: {value!r:.60}"
