"""Choosing attention, kernels and platforms: fit, narrowness, priority, consent, ties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api import (
    AttentionSpec,
    DeviceError,
    FeatureError,
    KernelSpec,
    PlatformSpec,
    PluginError,
    Requires,
)
from sgld.platforms.probe import Probe
from sgld.plugins.choose import (
    DeviceFacts,
    choose_attention,
    choose_kernel,
    choose_platform,
    has_package,
    reasons,
)
from sgld.plugins.resolve import Entry

HOPPER = DeviceFacts("cuda", 90, frozenset({"float32", "bfloat16"}), frozenset({"fp8"}))
BLACKWELL = HOPPER._replace(arch=100)
CPU = DeviceFacts("cpu")


def entry(spec: Any) -> Entry[Any]:
    return Entry(spec, "acme", "acme-dist", "1.0")


ANYWHERE = Requires()


def attention(name: str, requires: Requires = ANYWHERE, **more: Any) -> Entry[Any]:
    return entry(AttentionSpec(name, f"m:{name}", requires, **more))


SDPA = attention("sdpa", can=frozenset({"mask"}))
CUDA = attention("flash2", Requires("cuda", (80, 200)))
NARROW = attention("flash3", Requires("cuda", (90, 90)))
LOSSY = attention("sage", Requires("cuda", (90, 90)), exact=False, priority=9)
ALL = [SDPA, CUDA, NARROW, LOSSY]

REASONS = [
    (Requires(), CPU, "", []),
    (Requires("cuda"), CPU, "", ["needs cuda"]),
    (Requires("cuda", (100, 120)), HOPPER, "", ["needs cuda arch 100 to 120", "has 90"]),
    (Requires("cuda", (100, 10**9)), HOPPER, "", ["or newer"]),
    (Requires(dtypes=("float16",)), HOPPER, "", ["float16"]),
    (Requires(dtypes=("float16", "bfloat16")), HOPPER, "", []),
    (Requires(dtypes=("bfloat16",)), HOPPER, "float32", ["not float32"]),
    (Requires(packages=("no_such_pkg", "json")), CPU, "", ["no_such_pkg is missing"]),
    (Requires(packages=("no_such_pkg.sub",)), CPU, "", ["no_such_pkg.sub is missing"]),
    (Requires(programs=("no_such_program|sh", "env")), CPU, "", []),
    (Requires(programs=("no-such|nor-this",)), CPU, "", ["no-such or nor-this is not on the path"]),
    (Requires(abilities=("fp8", "graphs")), HOPPER, "", ["'graphs'"]),
]


@pytest.mark.parametrize(("requires", "facts", "dtype", "parts"), REASONS)
def test_reasons(requires: Requires, facts: DeviceFacts, dtype: str, parts: list[str]) -> None:
    rows = reasons(requires, facts, dtype)
    assert bool(rows) == bool(parts)
    for part in parts:
        assert part in "; ".join(rows)


def test_all_reasons_are_given_at_once() -> None:
    requires = Requires("cuda", (90, 90), ("float8",), ("no_such_pkg",), ("graphs",))
    assert len(reasons(requires, CPU)) == 4


def test_packages_are_looked_for_and_not_imported() -> None:
    import sys

    sys.modules.pop("colorsys", None)
    assert has_package("colorsys")
    assert "colorsys" not in sys.modules
    assert not has_package("..")


CHOICES = [
    (CPU, {}, "sdpa"),
    (HOPPER, {}, "flash3"),
    (BLACKWELL, {}, "flash2"),
    (HOPPER, {"need": frozenset({"mask"})}, "sdpa"),
    (HOPPER, {"consent": True}, "sage"),
    (HOPPER, {"prefer": "sage"}, "sage"),
    (HOPPER, {"prefer": "sdpa"}, "sdpa"),
]


@pytest.mark.parametrize(("facts", "options", "wanted"), CHOICES)
def test_attention(facts: DeviceFacts, options: dict[str, Any], wanted: str) -> None:
    choice = choose_attention(ALL, facts, **options)
    assert choice.id == wanted
    assert choice.target == f"m:{wanted}"
    assert {name for name, _ in choice.losers} <= {row.spec.id for row in ALL} - {wanted}


def test_explain_names_the_losers_with_their_reasons() -> None:
    line = choose_attention(ALL, HOPPER).explain()
    assert line.startswith("attention = flash3 (narrowest fit)")
    assert "not sage: is not exact" in line
    assert "not sdpa: fits less narrowly" in line


REFUSED = [
    ({"prefer": "flash9"}, ["flash9", "There are: flash2, flash3, sage, sdpa"]),
    ({"prefer": "flash3"}, ["flash3 cannot be used", "needs cuda"]),
    ({"need": frozenset({"varlen"})}, ["nothing fits", "sdpa: cannot do 'varlen'"]),
    ({"family": "sparse"}, ["nothing fits", "family dense, not sparse"]),
]


@pytest.mark.parametrize(("options", "parts"), REFUSED)
def test_refusals_say_why(options: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(FeatureError) as caught:
        choose_attention(ALL, CPU, **options)
    for part in parts:
        assert part in str(caught.value)


def test_priority_decides_only_between_equally_narrow_ones() -> None:
    loud = attention("loud", priority=99)
    assert choose_attention([loud, NARROW], HOPPER).id == "flash3"
    assert choose_attention([SDPA, loud], HOPPER).id == "loud"


def test_a_tie_is_an_error_that_says_what_to_type() -> None:
    twin = attention("twin", Requires("cuda", (90, 90)))
    with pytest.raises(FeatureError) as caught:
        choose_attention([twin, NARROW], HOPPER)
    assert "flash3 and twin are equally good" in str(caught.value)
    assert "--attention flash3" in str(caught.value)


@given(st.permutations(ALL), st.sampled_from([CPU, HOPPER, BLACKWELL]), st.booleans())
def test_order_never_decides(rows: list[Any], facts: DeviceFacts, consent: bool) -> None:
    chosen = choose_attention(rows, facts, consent=consent)
    assert chosen.id == choose_attention(ALL, facts, consent=consent).id


# Kernels -----------------------------------------------------------------------------------------


def kernel(name: str, op: str = "norm.rms", **more: Any) -> Entry[Any]:
    return entry(KernelSpec(name, op, f"m:{name}", **more))


def test_without_a_fitting_kernel_the_reference_is_used() -> None:
    cuda = kernel("fast", requires=Requires("cuda"))
    choice = choose_kernel([cuda, kernel("other", "rope.apply")], "norm.rms", CPU)
    assert (choice.id, choice.entry) == ("reference", None)
    assert choice.losers == (("fast", "needs cuda; this device is cpu"),)
    assert choose_kernel([cuda], "norm.rms", HOPPER).id == "fast"
    assert choose_kernel([cuda], "norm.rms", HOPPER, prefer="reference").entry is None


def test_an_inexact_kernel_needs_consent() -> None:
    rough = kernel("rough", numerics="atol=1e-2")
    assert choose_kernel([rough], "norm.rms", CPU).id == "reference"
    assert choose_kernel([rough], "norm.rms", CPU, consent=True).id == "rough"
    assert choose_kernel([rough], "norm.rms", CPU, prefer="rough").id == "rough"


# Platforms ---------------------------------------------------------------------------------------


def platform(name: str, priority: int = 0) -> Entry[Any]:
    return entry(PlatformSpec(name, f"m:{name}", f"m:probe_{name}", priority=priority))


class Probes:
    """Stands in for importing probe targets."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def load(self, target: str, _: Any) -> Any:
        name = target.removeprefix("m:probe_")

        def probe() -> Any:
            self.asked.append(name)
            if isinstance(self.answers[name], Exception):
                raise self.answers[name]
            return self.answers[name]

        return probe


THERE, GONE = Probe(True), Probe(False, "no driver")
PLATFORMS = [platform("cpu"), platform("cuda", 10)]


def test_an_accelerator_comes_before_the_cpu() -> None:
    probes = Probes(cpu=THERE, cuda=THERE)
    assert choose_platform(PLATFORMS, load=probes.load).entry.spec.id == "cuda"
    assert probes.asked == ["cuda"]


def test_the_cpu_is_used_when_there_is_nothing_else_and_the_reason_is_kept() -> None:
    choice = choose_platform(PLATFORMS, load=Probes(cpu=THERE, cuda=GONE).load)
    assert choice.entry.spec.id == "cpu"
    assert choice.losers == (("cuda", "no driver"),)


def test_a_named_platform_is_the_only_one_asked() -> None:
    probes = Probes(cpu=THERE, cuda=RuntimeError("dead"))
    assert choose_platform(PLATFORMS, prefer="cpu", load=probes.load).entry.spec.id == "cpu"
    assert probes.asked == ["cpu"]


@pytest.mark.parametrize("answer", [RuntimeError("dead"), None, "yes", {"available": True}])
def test_p010_a_probe_that_fails_is_never_skipped(answer: Any) -> None:
    with pytest.raises(PluginError) as caught:
        choose_platform(PLATFORMS, load=Probes(cpu=THERE, cuda=answer).load)
    (row,) = caught.value.failures
    assert (row.code, row.plugin) == ("SGLD-P010", "acme")
    assert "'cuda'" in row.message
    assert "--device cpu" in row.hint


def test_a_named_platform_without_a_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match="cuda: no driver"):
        choose_platform(PLATFORMS, prefer="cuda", load=Probes(cpu=THERE, cuda=GONE).load)
    with pytest.raises(FeatureError, match="There are: cuda, cpu"):
        choose_platform(PLATFORMS, prefer="tpu", load=Probes().load)


def test_two_accelerators_of_equal_priority_are_an_error() -> None:
    rows = [*PLATFORMS, platform("npu", 10)]
    with pytest.raises(FeatureError, match="cuda and npu are equally good"):
        choose_platform(rows, load=Probes(cpu=THERE, cuda=THERE, npu=THERE).load)
