"""Platforms, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from sgld.api import PlatformSpec, Plugin, hookimpl
from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError
from sgld.platforms.cpu import CpuPlatform
from sgld.platforms.platform import Memory, Platform

ANSWERS, SHAPE = "test_probe_answers", "test_probe_gives_devices_or_a_reason"
TWICE, LIGHT = "test_probe_is_the_same_twice", "test_probe_imports_nothing_heavy"
QUIET, OBEYS = "test_probe_prints_nothing", "test_probe_obeys_its_variable"
AGREES, FACTS, STABLE = "test_probe_agrees_with_the_device", "test_facts", "test_facts_are_stable"
DTYPE, DTYPES, MEMORY = "test_default_dtype", "test_every_dtype_works", "test_memory"
PEAK, SIDE = "test_peak_starts_again", "test_side_work_arrives"
ERRORS, WAITING = "test_errors_come_out_of_a_stream", "test_waiting_changes_nothing"
MISSING, ATTENTION = "test_missing_device_is_named", "test_preferred_attention_fits"
COLLECTIVE = "test_collective"
WITH_A_DEVICE = {AGREES, FACTS, STABLE, DTYPE, DTYPES, MEMORY, PEAK, SIDE, ERRORS, WAITING}
WITH_A_DEVICE |= {ATTENTION, COLLECTIVE}
GIB = 2**30
TOP = 2**50
"""More than a test holds at any time."""


class Bad(NamedTuple):
    """What finds a fault, and what the record and the class say."""

    found_by: set[str]
    record: dict[str, Any] = {}  # noqa: RUF012
    attributes: dict[str, Any] = {"variable": "BAD_VISIBLE_DEVICES"}  # noqa: RUF012


class Good(Platform):
    """One device that is really the host."""

    id = "bad"

    def __init__(self, index: int = 0) -> None:
        if index:
            raise DeviceError(f"device={self.name()}:{index}: there is one device.")

    @classmethod
    def name(cls) -> str:
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__)
        return words.removeprefix("-").replace("_", "-")

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def facts(self) -> DeviceFacts:
        return DeviceFacts(self.name(), 0, frozenset({"float32", "bfloat16"}))

    def default_dtype(self) -> torch.dtype:
        return torch.bfloat16

    def memory(self) -> Memory:
        return CpuPlatform().memory()._replace(peak=TOP)

    def reset_peak(self) -> None:
        """Nothing to reset."""


class AnotherFamily(Good):
    def facts(self) -> DeviceFacts:
        return super().facts()._replace(device="cuda")


class OddFacts(Good):
    def facts(self) -> Any:
        return super().facts()._replace(arch="9.0", dtypes=frozenset({"torch.float32", "bf16"}))


class NoFacts(Good):
    def facts(self) -> Any:
        return {"device": self.name()}


class MovingFacts(Good):
    turn = 0

    def facts(self) -> DeviceFacts:
        self.turn += 1
        return super().facts()._replace(abilities=frozenset({f"free-{self.turn}"}))


class HalfByDefault(Good):
    def default_dtype(self) -> torch.dtype:
        return torch.float16


class NoBfloat16(Good):
    """Claims a dtype that does not hold what it should."""

    def facts(self) -> DeviceFacts:
        return super().facts()._replace(dtypes=frozenset({"float32", "bfloat16", "uint8"}))


class MemoryInGib(Good):
    def memory(self) -> Any:
        return Memory(2.0, 1.0, 0.5, 1.0)  # pyright: ignore[reportArgumentType]


class MoreFreeThanThere(Good):
    def memory(self) -> Memory:
        return super().memory()._replace(free=TOP)


class CountsNothing(Good):
    def memory(self) -> Memory:
        return super().memory()._replace(allocated=7)


class NeverMoves(Good):
    def memory(self) -> Memory:
        return Memory(2 * GIB, GIB, GIB // 2, GIB)


class PeakGrows(Good):
    peak = TOP

    def memory(self) -> Memory:
        return super().memory()._replace(peak=self.peak)

    def reset_peak(self) -> None:
        self.peak *= 2


class PeakOfZero(Good):
    peak = TOP

    def memory(self) -> Memory:
        return super().memory()._replace(peak=self.peak)

    def reset_peak(self) -> None:
        self.peak = 0


class LosesSideWork(Good):
    def join(self, stream: Any, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            tensor.zero_()


class StreamsOnce(Good):
    used = False

    @contextmanager
    def stream(self) -> Any:
        if self.used:
            raise RuntimeError("the stream is in use")
        self.used = True
        yield None


class SwallowsErrors(Good):
    @contextmanager
    def stream(self) -> Any:
        with suppress(KeyError):
            yield None


class StaysBroken(Good):
    """A stream that an error went through is not given back."""

    broken = False

    @contextmanager
    def stream(self) -> Any:
        if self.broken:
            raise RuntimeError("no stream is left")
        self.broken = True
        yield None
        self.broken = False


class EmptiesTooMuch(Good):
    """Its caches hold what tensors still use."""

    held: torch.Tensor

    def synchronise(self) -> None:
        import gc

        same = [
            value
            for value in gc.get_objects()
            if type(value) is torch.Tensor and value.shape == (4096,)
        ]
        for tensor in same:
            tensor.zero_()


class NoName(Good):
    def __init__(self, index: int = 0) -> None:
        if index:
            raise DeviceError("no such device.")


class AnyIndex(Good):
    def __init__(self, index: int = 0) -> None:
        pass


class RaisesAnother(Good):
    def __init__(self, index: int = 0) -> None:
        [None][index]


class NoIndex(Good):
    def __init__(self) -> None:
        pass


class NoSuchAttention(Good):
    """Its record prefers a backend that nobody brings."""


class NoSuchCollective(Good):
    """Its record names a collective backend that torch does not know."""


VISIBLE = {"variable": "BAD_VISIBLE_DEVICES"}


def by_class(kind: type[Good], *found_by: str, **record: Any) -> tuple[str, Bad]:
    return kind.name(), Bad(set(found_by), {"target": f"{__name__}:{kind.__name__}", **record})


def by_probe(probe: str, *found_by: str, **attributes: Any) -> tuple[str, Bad]:
    kind = type("".join(word.title() for word in probe.split("_")), (Good,), {})
    globals()[kind.__name__] = kind
    record = {"probe": f"bad_probes:{probe}", "target": f"{__name__}:{kind.__name__}"}
    return kind.name(), Bad(set(found_by), record, {**VISIBLE, **attributes})


BAD: dict[str, Bad] = dict(
    [
        by_class(AnotherFamily, FACTS),
        by_class(OddFacts, FACTS, DTYPE, DTYPES, AGREES),
        by_class(NoFacts, FACTS, DTYPE, DTYPES, AGREES),
        by_class(MovingFacts, STABLE),
        by_class(HalfByDefault, DTYPE),
        by_class(NoBfloat16, DTYPES),
        by_class(MemoryInGib, MEMORY),
        by_class(MoreFreeThanThere, MEMORY),
        by_class(CountsNothing, MEMORY),
        by_class(NeverMoves, MEMORY),
        by_class(PeakGrows, PEAK),
        by_class(PeakOfZero, PEAK),
        by_class(LosesSideWork, SIDE, ERRORS),
        by_class(StreamsOnce, SIDE, ERRORS),
        by_class(SwallowsErrors, ERRORS),
        by_class(StaysBroken, ERRORS),
        by_class(EmptiesTooMuch, WAITING),
        by_class(NoName, MISSING),
        by_class(AnyIndex, MISSING),
        by_class(RaisesAnother, MISSING),
        by_probe("raises_on_odd_values", ANSWERS),
        by_probe("hangs_on_99", ANSWERS),
        by_probe("answers_with_a_mapping", ANSWERS, TWICE, *WITH_A_DEVICE),
        by_probe("no_reason", SHAPE),
        by_probe("no_devices", SHAPE, AGREES, variable=""),
        by_probe("odd_devices", SHAPE, AGREES, variable=""),
        by_probe("counts", TWICE, variable=""),
        by_probe("imports_numpy", LIGHT),
        by_probe("prints", QUIET),
        by_probe("ignores_its_variable", OBEYS),
        by_probe("another_arch", AGREES, variable=""),
        by_probe("other_dtypes", AGREES, variable=""),
        by_probe("ends_the_process", ANSWERS, TWICE, *WITH_A_DEVICE),
    ]
)
BAD["no-index"] = Bad(
    {MISSING}, {"target": f"{__name__}:NoIndex", "probe": "bad_probes:two"}, {"variable": ""}
)
BAD["no-such-attention"] = Bad(
    {ATTENTION}, {"attention": ("flash-9",), "target": f"{__name__}:NoSuchAttention"}
)
BAD["no-such-collective"] = Bad(
    {COLLECTIVE}, {"collective": "gluu", "target": f"{__name__}:NoSuchCollective"}
)


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin("bad", {"platform": 1})


@hookimpl
def sgld_platforms() -> Any:
    for name, bad in BAD.items():
        record = {"target": f"{__name__}:Good", "probe": "bad_probes:good", **bad.record}
        yield PlatformSpec(name, **record)
