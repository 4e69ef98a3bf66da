"""What all conformance classes share: whose record is tested, how a failure reads, and the rule
that nothing may be removed.

A conformance test may be overridden only like this, so that what a plugin does not keep stands in
its tests for everybody to read:

    class TestMine(PipelineContract):
        pipeline = "acme-t2v"

        @pytest.mark.xfail(reason="the upstream sampler keeps state between requests")
        def test_requests_share_no_state(self, bench):
            super().test_requests_share_no_state(bench)

As soon as such a test passes, it fails: the mark has to go. Of the rest of a conformance class only
what it lists in `told` may be set or overridden: its helpers and fixtures belong to the kit.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar, Final, NoReturn

import pytest

from sgld.plugins.catalog import Catalog, load_target
from sgld.plugins.resolve import Entry
from sgld.testing.isolated import owner_catalog

KIT: Final = "sgld.testing.conformance"
META: Final = "test_nothing_removed"
FIXTURES: Final = frozenset({"bench", "live", "sgld_bench", "sgld_device"})
"""Fixtures of `sgld.testing.plugin` on which conformance tests rely."""

KEPT: Final = frozenset({"_catalog", "_seen", "_first"})
"""Attributes in which conformance classes keep what they found, each for itself."""


def broken(*, expected: str, got: Any, remedy: str) -> NoReturn:
    """End a test: what was expected, what came, and what the plugin's author can do."""
    __tracebackhide__ = True
    pytest.fail(f"expected: {expected}\n     got: {got}\n  remedy: {remedy}", pytrace=False)


def expect(holds: Any, *, expected: str, got: Any, remedy: str) -> None:
    """`broken(...)` unless `holds`."""
    __tracebackhide__ = True
    if not holds:
        broken(expected=expected, got=got, remedy=remedy)


class Contract:
    """Base of all conformance classes.

    Args:
        plugin: whose records are used: a plugin's name, an importable module, or a module object
            such as `local_plugin` makes. Empty: whichever installed plugin brings the id.
        beside: plugins that it needs and that are not installed, as importable modules: sgld's
            toys, for example.
    """

    plugin: ClassVar[str | ModuleType] = ""
    beside: ClassVar[tuple[str | ModuleType, ...]] = ()
    kind: ClassVar[str] = ""
    """Kind of the record: `pipeline`, `cache`, ..."""
    named_by: ClassVar[str] = ""
    """Attribute of the class that holds the record's id."""
    told: ClassVar[tuple[str, ...]] = ("plugin", "beside")
    """Attributes and methods that a test class may set or override, besides those that `told` of
    its bases lists."""
    _catalog: ClassVar[tuple[Any, Catalog] | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if META in vars(cls):
            raise TypeError(
                f"{cls.__name__}.{META} guards the conformance tests and cannot be overridden."
            )

    @classmethod
    def id(cls) -> str:
        """The id of the record that is tested."""
        value = getattr(cls, cls.named_by, "")
        expect(
            isinstance(value, str) and value,
            expected=f"{cls.__name__}.{cls.named_by} names what is tested",
            got=repr(value),
            remedy=f'Write `{cls.named_by} = "..."` in the class.',
        )
        return value

    @classmethod
    def catalog(cls) -> Catalog:
        """A catalogue of the core's own plugin, the one that brings the record, and its needs; made
        once for each class."""
        asked = (cls.kind, cls.id(), cls.plugin, *cls.beside)
        known = vars(cls).get("_catalog")
        if known is None or known[0] != asked:
            known = (asked, owner_catalog(*asked))
            cls._catalog = known
        return known[1]

    @classmethod
    def entry(cls) -> Entry[Any]:
        """The record that is tested, and whose it is."""
        return cls.catalog().entries[cls.kind][cls.id()]

    @classmethod
    def target(cls) -> Any:
        """What the record's `target` names."""
        entry = cls.entry()
        return load_target(entry.spec.target, entry)

    @classmethod
    def mistold(cls) -> Iterator[str]:
        """What is wrong with the values of attributes in `told`, one text each: values with which
        tests would test nothing."""
        return iter(())

    def test_nothing_removed(self) -> None:
        """Every conformance test is there, or is overridden with an xfail mark and its reason; and
        nothing is overridden on which they rely."""
        faults = [*removals(type(self)), *changes(type(self)), *self.mistold()]
        expect(
            not faults,
            expected="every conformance test is inherited, or overridden with "
            "@pytest.mark.xfail(reason=...)",
            got="; ".join(faults),
            remedy="Delete the override, or mark it with the reason why the contract is not kept; "
            f"besides tests a class may set {', '.join(told(type(self)))}.",
        )


def conformance_tests(cls: type) -> Iterator[str]:
    """Names of the tests that a class has from the kit."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.startswith(KIT):
            seen.update(name for name in vars(base) if name.startswith("test"))
    yield from sorted(seen)


def removals(cls: type) -> Iterator[str]:
    """What is wrong with a class's overrides of conformance tests, one text each."""
    if cls.__module__.startswith(KIT):
        return
    if "__init__" in dir(cls) and cls.__init__ is not object.__init__:
        yield f"{cls.__name__} has an __init__, so pytest leaves its tests out"
    for name in conformance_tests(cls):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        if owner.__module__.startswith(KIT):
            continue
        override = vars(owner)[name]
        if not callable(override):
            yield f"{owner.__name__}.{name} is {override!r}"
        elif not _reasons(override):
            yield f"{owner.__name__}.{name} is overridden without an xfail reason"


def told(cls: type) -> list[str]:
    """Names of what a conformance class is told."""
    return list(dict.fromkeys(name for base in cls.__mro__ for name in _told(base)))


def changes(cls: type) -> Iterator[str]:
    """What a class overrides of the kit that is neither a test nor meant for it, one text each."""
    kit = [base for base in cls.__mro__ if base.__module__.startswith(KIT)]
    # Python itself puts names with two underscores into every class, and the kit keeps results.
    names = {name for base in kit for name in vars(base) if not name.startswith("__")}
    names |= FIXTURES | {"__getattribute__", "__init_subclass__"}
    for name in sorted(names - {*told(cls), *conformance_tests(cls), *KEPT}):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        if owner is not object and owner not in kit:
            yield f"{owner.__name__}.{name} belongs to the kit"


def _told(base: type) -> tuple[str, ...]:
    return vars(base).get("told", ()) if base.__module__.startswith(KIT) else ()


def _reasons(function: Any) -> list[str]:
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "xfail"]
    reasons = [mark.kwargs.get("reason", "") for mark in marks]
    return [text for text in reasons if isinstance(text, str) and text.strip()]
