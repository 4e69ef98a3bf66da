"""What a platform's probe promises: an answer, in time, without torch."""

from __future__ import annotations

from typing import Any, ClassVar

from sgld.plugins.probing import LIMIT_S
from sgld.testing.conformance.base import Contract, expect
from sgld.testing.conformance.probed import Probed, probe_apart


class ProbeContract(Contract):
    """The part of `PlatformContract` that needs no device."""

    kind: ClassVar[str] = "platform"
    named_by: ClassVar[str] = "platform"
    told: ClassVar[tuple[str, ...]] = ("platform", "variable")
    platform: ClassVar[str] = ""
    """The id of the record."""
    variable: ClassVar[str] = ""
    """The environment variable that says which devices are visible, if the family has one."""

    @classmethod
    def probed(cls) -> Probed:
        """What the probe does in a fresh process, with several values of `variable`."""
        entry = cls.entry()
        return probe_apart(entry.spec.probe, entry.plugin, cls.variable)

    def test_probe_answers(self) -> None:
        """It never raises and answers in time, whatever its variable says."""
        faults = [f"{row['value']!r}: {row['error']}" for row in self.probed().rows if row["error"]]
        expect(
            not faults,
            expected=f"an answer within {LIMIT_S:g} s, whatever {self.variable or 'is set'} says",
            got="; ".join(faults),
            remedy="Catch what can go wrong and return Probe(False, reason).",
        )

    def test_probe_gives_devices_or_a_reason(self) -> None:
        """Available with numbered devices, or not available with a reason for the user."""
        for row in self.probed().answers:
            good = (
                bool(row["devices"]) and all(_is_device(device) for device in row["devices"])
                if row["available"]
                else bool(row["reason"].strip())
            )
            expect(
                good,
                expected="available with devices (index, name, arch, bytes), or a reason",
                got=row,
                remedy="Return sgld.platforms.probe.Probe with Device rows, or with a reason.",
            )

    def test_probe_is_the_same_twice(self) -> None:
        """Asked again, it says the same."""
        first, again = self.probed().plain, self.probed().rows[-1]
        expect(
            first == again,
            expected="the same answer twice",
            got=f"{first}, then {again}",
            remedy="Give what does not change: leave out free memory, temperatures, clocks.",
        )

    def test_probe_imports_nothing_heavy(self) -> None:
        """Neither it nor its module imports torch: it runs before anything is decided."""
        heavy = self.probed().heavy
        expect(
            not heavy,
            expected="no heavy module",
            got=", ".join(heavy),
            remedy="Ask files, the driver's library through ctypes, or the environment; keep the "
            "probe in a module of its own.",
        )

    def test_probe_prints_nothing(self) -> None:
        """What it has to say is in its answer."""
        noise = self.probed().noise
        expect(
            not noise,
            expected="nothing on stdout and stderr",
            got=noise,
            remedy="Put it into the reason.",
        )

    def test_probe_obeys_its_variable(self) -> None:
        """`-1` in the variable hides every device."""
        if not self.variable:
            return
        row = next(row for row in self.probed().rows if row["value"] == "-1")
        expect(
            not row["available"],
            expected=f"no device with {self.variable}=-1",
            got=row["devices"],
            remedy=f"Read {self.variable}.",
        )


def _is_device(device: Any) -> bool:
    index, name, arch, memory, *_ = device
    numbers = all(type(value) is int and value >= 0 for value in (index, arch, memory))
    return numbers and isinstance(name, str) and bool(name)
