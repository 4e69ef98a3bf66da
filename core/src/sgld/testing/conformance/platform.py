"""What a platform promises: a probe that needs no torch, facts, memory, streams, a device that
computes.

A family whose hardware is not here is tested with a device that computes on the host: override
`open` and hand the platform's class a `sgld.testing.fake_torch.FakeNamespace`. It is told through
`allocate` of the tensors that have to show in its memory.
"""

from __future__ import annotations

import ctypes
import inspect
from contextlib import suppress
from typing import Any, ClassVar, Final

import pytest
import torch

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError, FeatureError
from sgld.platforms.platform import Platform
from sgld.plugins.choose import choose_attention, has_package
from sgld.testing.conformance.base import broken, expect
from sgld.testing.conformance.platform_probe import ProbeContract

MIB: Final = 2**20
FAR: Final = 10_000
"""An index that no machine has."""


class PlatformContract(ProbeContract):
    """A device family: `Platform` as the target of a `PlatformSpec`, and its probe."""

    told: ClassVar[tuple[str, ...]] = ("open",)

    def open(self) -> Platform:
        """The first device; skips where there is none, with the reason that the probe gives."""
        answer = self.probed().plain
        if not answer["available"]:
            pytest.skip(f"{self.id()}: {answer['reason']}")
        return self.target()()

    @pytest.fixture
    def device(self) -> Platform:
        """The device under test."""
        return self.open()

    def test_probe_agrees_with_the_device(self, device: Platform) -> None:
        """What it tells of the first device is what the opened device says."""
        answer = self.probed().plain
        if not answer["available"]:
            return  # `open` gave a device that only pretends
        _, _, arch, _, dtypes, abilities = answer["devices"][0]
        facts = device.facts()
        wrong = [f"arch {arch}, opened {facts.arch}"] if arch != facts.arch else []
        if dtypes and (set(dtypes), set(abilities)) != (facts.dtypes, facts.abilities):
            wrong.append(f"{dtypes} and {abilities}, opened {facts}")
        expect(
            not wrong,
            expected="the same architecture, dtypes and abilities before and after opening",
            got="; ".join(wrong),
            remedy="Derive both from one table.",
        )

    # The device ----------------------------------------------------------------------------------

    def test_facts(self, device: Platform) -> None:
        """Its family, a whole number as architecture, torch's names of dtypes, abilities."""
        facts, spec = device.facts(), self.entry().spec
        family = spec.id if spec.requires.device == "any" else spec.requires.device
        wrong: list[str] = []
        if not isinstance(facts, DeviceFacts):
            wrong.append(f"{facts!r} is no DeviceFacts")
        else:
            if facts.device != family:
                wrong.append(f"device={facts.device!r} and not {family!r}")
            if type(facts.arch) is not int or facts.arch < 0:
                wrong.append(f"arch={facts.arch!r}")
            wrong += [
                f"dtype {name!r}"
                for name in facts.dtypes
                if not isinstance(getattr(torch, name, None), torch.dtype)
            ]
            if "float32" not in facts.dtypes:
                wrong.append("no float32")
            if not all(isinstance(name, str) and name for name in facts.abilities):
                wrong.append(f"abilities={facts.abilities!r}")
        expect(
            not wrong,
            expected="DeviceFacts that describe the device",
            got="; ".join(wrong),
            remedy="See sgld.api.contracts.DeviceFacts.",
        )

    def test_facts_are_stable(self, device: Platform) -> None:
        """Facts do not change while the device is used."""
        before = device.facts()
        held = torch.ones(MIB, device=device.torch_device)
        device.synchronise()
        after = device.facts()
        del held
        expect(
            before == after,
            expected=f"the same facts: {before}",
            got=after,
            remedy="Leave out of the facts what changes.",
        )

    def test_default_dtype(self, device: Platform) -> None:
        """The dtype of those who name none is one that the device computes in."""
        name = str(device.default_dtype()).removeprefix("torch.")
        expect(
            name in device.facts().dtypes,
            expected=f"one of {sorted(device.facts().dtypes)}",
            got=name,
            remedy="Choose the default among the facts' dtypes.",
        )

    def test_every_dtype_works(self, device: Platform) -> None:
        """Tensors of each dtype can be made, and added where it is not an 8-bit one."""
        for name in sorted(device.facts().dtypes):
            dtype = getattr(torch, name)
            values = torch.tensor([1.0, 2.0, -4.0]).to(device.torch_device).to(dtype)
            got = values.float() if dtype.itemsize == 1 else (values + values).float() / 2
            expect(
                got.cpu().tolist() == [1.0, 2.0, -4.0],
                expected=f"[1, 2, -4] in {name}",
                got=got.cpu().tolist(),
                remedy=f"Leave {name} out of the facts.",
            )

    def test_memory(self, device: Platform) -> None:
        """Whole bytes with free within total and allocated within peak; a tensor shows in them."""
        size = 64 * MIB
        _give_back_freed_pages()
        device.synchronise()
        before = device.memory()
        held = torch.ones(size, dtype=torch.uint8, device=device.torch_device)
        _count(device, size)
        device.synchronise()
        memory = device.memory()
        del held
        _count(device, -size)
        wrong = [name for name, value in memory._asdict().items() if type(value) is not int]
        if not wrong:
            wrong += [] if 0 <= memory.free <= memory.total and memory.total else ["free and total"]
            wrong += [] if 0 <= memory.allocated <= memory.peak else ["allocated and peak"]
            # 0: the family does not count.
            wrong += [] if not memory.allocated or memory.allocated >= size else ["allocated"]
            # Half: the host gives back pages, and others use the device meanwhile.
            moved = max(memory.allocated - before.allocated, before.free - memory.free)
            wrong += [] if moved >= size // 2 else [f"{before} before a tensor of {size}"]
        expect(
            not wrong,
            expected=f"0 <= free <= total > 0 and {size} <= allocated <= peak, in bytes; a tensor "
            "moves `allocated` or `free`",
            got=f"{memory}: {', '.join(wrong)}",
            remedy="See sgld.platforms.platform.Memory.",
        )

    def test_peak_starts_again(self, device: Platform) -> None:
        """After `reset_peak` the peak is no more than it was, and no less than what is held."""
        before = device.memory()
        device.reset_peak()
        after = device.memory()
        expect(
            after.allocated <= after.peak and after.peak <= max(before.peak, after.allocated),
            expected=f"a peak from {after.allocated} to {before.peak}",
            got=after.peak,
            remedy="Let the peak start from what is held now.",
        )

    def test_side_work_arrives(self, device: Platform) -> None:
        """What is computed inside `stream` is there after `join`, for any number of times."""
        where = device.torch_device
        base = torch.arange(1024.0).to(where)
        for turn in range(3):
            with device.stream() as stream:
                side = base * 2
                for _ in range(20):
                    side = side + 1
            device.join(stream, side)
            got = (side - 20).cpu()
            expect(
                torch.equal(got, torch.arange(1024.0) * 2),
                expected="the numbers computed beside the computation",
                got=f"others in turn {turn}",
                remedy="Let the stream wait for the current one, and the current one for it in "
                "`join`.",
            )

    def test_errors_come_out_of_a_stream(self, device: Platform) -> None:
        """An error inside `stream` is not swallowed, and the device works on."""
        try:
            with device.stream():
                raise KeyError("inside")
        except KeyError:
            pass
        else:
            broken(
                expected="the error that was raised inside `stream`",
                got="none",
                remedy="Do not catch it.",
            )
        self.test_side_work_arrives(device)

    def test_waiting_changes_nothing(self, device: Platform) -> None:
        """`synchronise` and `empty_cache` leave every tensor as it is."""
        held = torch.arange(4096.0).to(device.torch_device) + 1
        device.synchronise()
        device.empty_cache()
        fresh = torch.zeros(4096, device=device.torch_device)
        expect(
            torch.equal(held.cpu(), torch.arange(4096.0) + 1) and not fresh.any(),
            expected="tensors that are held keep their values",
            got="other values",
            remedy="Give back only memory that no tensor uses.",
        )

    def test_missing_device_is_named(self) -> None:
        """A device that is not there is a DeviceError that names it."""
        platform_class = self.target()
        if "index" not in inspect.signature(platform_class).parameters:
            several = [row for row in self.probed().answers if len(row["devices"]) > 1]
            expect(
                not several,
                expected="a class that takes `index`, for the probe finds several devices",
                got=inspect.signature(platform_class),
                remedy="Take `index` as the first argument.",
            )
            return
        for index in (-1, FAR):
            named = f"{self.id()}:{index}"
            try:
                platform_class(index)
            except DeviceError as error:
                problem = "" if named in str(error) else f"a DeviceError without the name: {error}"
            except Exception as error:
                problem = repr(error)
            else:
                problem = "a platform"
            expect(
                not problem,
                expected=f"a DeviceError that names {named}",
                got=problem,
                remedy="Compare the index with the number of devices, and say how many there are.",
            )

    # What the record prefers ---------------------------------------------------------------------

    def test_preferred_attention_fits(self, device: Platform) -> None:
        """Each backend that the record prefers is there and runs on this device."""
        catalog, facts = self.catalog(), device.facts()
        for name in self.entry().spec.attention:
            try:
                choose_attention(catalog.attention.values(), facts, prefer=name)
            except FeatureError as error:
                broken(
                    expected=f"attention backend {name!r} fits {facts.device}",
                    got=str(error),
                    remedy="Correct `attention` in the record, or name in `needs` the plugin that "
                    "brings it.",
                )

    def test_collective(self, device: Platform) -> None:
        """Torch knows the record's collective backend, and it sums over a group of one."""
        spec = self.entry().spec
        name = spec.collective
        missing = [package for package in spec.requires.packages if not has_package(package)]
        if not name or missing:
            return
        distributed = torch.distributed
        expect(
            name in distributed.Backend.backend_list,
            expected=f"one of {', '.join(distributed.Backend.backend_list)}",
            got=name,
            remedy="Correct `collective`, or list in `requires.packages` the package that brings "
            "the backend.",
        )
        kind = device.torch_device.type
        if not distributed.is_backend_available(name) or not _serves(name, kind):
            return
        values = torch.arange(4.0).to(device.torch_device)
        store: Any = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        distributed.init_process_group(name, store=store, rank=0, world_size=1)
        try:
            distributed.all_reduce(values)
            device.synchronise()
        finally:
            distributed.destroy_process_group()
        assert values.cpu().tolist() == [0.0, 1.0, 2.0, 3.0]


def _give_back_freed_pages() -> None:
    """glibc serves even a large tensor from freed blocks that have grown together, if it has any;
    then the process grows by nothing."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _count(device: Platform, size: int) -> None:
    """Tell a namespace that only pretends, and so cannot see it, of a tensor that came or went."""
    allocate = getattr(getattr(device, "_namespace", None), "allocate", None)
    if allocate is not None:
        allocate(size)


def _serves(backend: str, kind: str) -> bool:
    """Whether torch says that a collective backend takes tensors of a device."""
    return kind in torch.distributed.Backend.backend_capability.get(backend, [])
