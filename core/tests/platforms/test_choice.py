"""`--device`: what `auto` takes, what a failing or silent probe does to it, and what is asked of a
platform's preferences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
import torch

from sgld.api import (
    AttentionSpec,
    DeviceError,
    DeviceFacts,
    FeatureError,
    PlatformSpec,
    PluginError,
    Requires,
)
from sgld.params.serving import ServingOptions
from sgld.platforms.probe import Device, Probe
from sgld.plugins.catalog import load_catalog
from sgld.plugins.choose import choose_attention, choose_platform
from sgld.plugins.probing import ask
from sgld.plugins.resolve import Entry

THERE, GONE = Probe(True, devices=(Device(0, "one", 0, 0),)), Probe(False, "no driver")
UNBUILT = Probe(False, "a GPU is there, but torch is another build", (Device(0, "one", 0, 0),))


def platform(name: str, priority: int = 10, **more: Any) -> Entry[Any]:
    spec = PlatformSpec(name, f"m:{name}", f"m:probe_{name}", priority=priority, **more)
    return Entry(spec, f"{name}-plugin", f"{name}-dist", "1.0")


def loads(**answers: Any) -> Callable[[str, Any], Any]:
    def load(target: str, entry: Any) -> Any:
        answer = answers[entry.spec.id]
        if isinstance(answer, PluginError):
            raise answer
        return answer if callable(answer) else lambda: answer

    return load


def breaks(error: BaseException) -> Callable[[], Any]:
    def probe() -> Any:
        raise error

    return probe


@pytest.fixture
def hangs() -> Iterator[Callable[[], Any]]:
    """A probe that answers only when the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


CPU = platform("cpu", 0)
CUDA, ACME = platform("cuda"), platform("acme")


def test_a_probe_that_hangs_is_a_failure_and_not_a_reason_for_the_cpu(
    hangs: Callable[[], Any],
) -> None:
    with pytest.raises(PluginError) as caught:
        choose_platform([CPU, ACME], load=loads(cpu=THERE, acme=hangs), limit_s=0.05)
    (row,) = caught.value.failures
    assert (row.code, row.plugin) == ("SGLD-P010", "acme-plugin")
    assert "did not answer within 0.05 s" in row.message
    assert "SGLD_PLUGINS=-acme-plugin" in row.hint


@pytest.mark.parametrize(
    "answer",
    [
        breaks(RuntimeError("dead")),
        breaks(SystemExit(3)),
        PluginError("SGLD-P007 target 'm:probe_acme' cannot be used"),
        None,
    ],
)
def test_a_failing_probe_leaves_another_accelerator_in_use(answer: Any) -> None:
    choice = choose_platform([CPU, ACME, CUDA], load=loads(cpu=THERE, cuda=THERE, acme=answer))
    assert choice.entry.spec.id == "cuda"
    ((name, reason),) = choice.losers
    assert name == "acme"
    assert "SGLD-P0" in reason
    assert choice.present == ("acme",)
    with pytest.raises(PluginError, match="SGLD-P0"):
        choose_platform([CPU, ACME, CUDA], load=loads(cpu=THERE, cuda=GONE, acme=answer))
    named = choose_platform([CPU, ACME, CUDA], prefer="cpu", load=loads(cpu=THERE, acme=answer))
    assert named.entry.spec.id == "cpu"


def test_a_failing_probe_of_high_rank_is_not_passed_over_for_a_lower_one() -> None:
    first = platform("first", 20)
    load = loads(first=breaks(OSError("dead")), cuda=THERE, cpu=THERE)
    with pytest.raises(PluginError, match="dead"):
        choose_platform([CPU, CUDA, first], load=load)


def test_hardware_that_torch_cannot_drive_is_told_of() -> None:
    load = loads(cpu=THERE, cuda=UNBUILT, acme=GONE)
    choice = choose_platform([CPU, CUDA, ACME], load=load)
    assert (choice.entry.spec.id, choice.present) == ("cpu", ("cuda",))


def test_a_missing_package_is_an_error_and_not_a_reason_for_the_cpu() -> None:
    npu = platform("npu", requires=Requires("npu", packages=("no_such_torch_npu",)))
    with pytest.raises(DeviceError) as caught:
        choose_platform([CPU, npu], load=loads(cpu=THERE, npu=THERE))
    assert "platform npu has a device, but package no_such_torch_npu is missing" in str(
        caught.value
    )
    assert "--device cpu" in str(caught.value)
    assert choose_platform([CPU, npu], load=loads(cpu=THERE, npu=GONE)).entry.spec.id == "cpu"


def test_two_accelerators_ask_for_a_word() -> None:
    with pytest.raises(FeatureError, match=r"acme and cuda are equally good.*--device acme"):
        choose_platform([CPU, CUDA, ACME], load=loads(cpu=THERE, cuda=THERE, acme=THERE))


def test_a_probe_runs_apart_from_the_thread_that_asks() -> None:
    threads: list[str] = []

    def probe() -> Probe:
        threads.append(threading.current_thread().name)
        return THERE

    assert ask(ACME, loads(acme=probe)) == THERE
    assert threads == ["sgld-probe"]


# Our own ------------------------------------------------------------------------------------------

OURS = ("cpu", "cuda", "rocm", "xpu", "npu", "musa", "mps")


def test_ours() -> None:
    platforms = load_catalog({"SGLD_PLUGINS": ""}).platforms
    assert set(platforms) == set(OURS)
    for name, entry in platforms.items():
        assert entry.spec.priority == (0 if name == "cpu" else 10)
        assert entry.spec.collective
        assert entry.spec.requires.device == ("any" if name == "cpu" else name)


@pytest.mark.parametrize("name", [*OURS, "acme-npu", "acme.gpu2"])
def test_a_device_may_be_numbered(name: str) -> None:
    options = ServingOptions.model_validate({"model_path": "tiny:toy", "device": f"{name}:1"})
    assert options.device == f"{name}:1"


def test_what_is_not_used_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgld.engine import build
    from sgld.plan import make_plan

    monkeypatch.setattr("sgld.platforms.probes.xpu.probe_xpu", lambda: UNBUILT)
    monkeypatch.setattr("sgld.platforms.probe.probe_cuda", lambda: GONE)
    environ = {"SGLD_PLUGINS": "", "SGLD_EXTERNAL_MODEL_PACKAGE": "sgld.testing.toy_plugin"}
    options = ServingOptions.model_validate({"model_path": "tiny:toy-image"})
    plan = make_plan(options, environ=environ)
    with structlog.testing.capture_logs() as logs:
        assert build.open_platform(plan).id == "cpu"
    plan.close()
    (row,) = [row for row in logs if row["event"] == "a device is not used"]
    assert (row["platform"], row["used"], row["log_level"]) == ("xpu", "cpu", "warning")
    assert "another build" in row["reason"]


# Preferred attention ------------------------------------------------------------------------------


def attention(name: str, **more: Any) -> Entry[Any]:
    return Entry(AttentionSpec(name, f"m:{name}", **more), "acme", "acme-dist", "1.0")


WIDE = [attention("sdpa"), attention("loud", priority=9), attention("soft")]
NARROW = attention("narrow", requires=Requires("xpu"))
XPU = DeviceFacts("xpu")

PREFERENCES = [
    (WIDE, (), "loud"),
    (WIDE, ("sdpa",), "sdpa"),
    (WIDE, ("soft", "sdpa"), "soft"),
    (WIDE, ("absent", "sdpa"), "sdpa"),
    ([*WIDE, NARROW], ("sdpa",), "narrow"),
]


@pytest.mark.parametrize(("rows", "order", "wanted"), PREFERENCES)
def test_a_platform_prefers_among_equally_narrow_ones(
    rows: list[Any], order: tuple[str, ...], wanted: str
) -> None:
    assert choose_attention(rows, XPU, platform=order).id == wanted


def test_a_preference_does_not_beat_what_must_hold() -> None:
    masked = attention("masked", can=frozenset({"mask"}))
    lossy = attention("lossy", exact=False)
    need = frozenset({"mask"})
    assert choose_attention([*WIDE, masked], XPU, need=need, platform=("sdpa",)).id == "masked"
    assert choose_attention([*WIDE, lossy], XPU, platform=("lossy", "soft")).id == "soft"
    assert choose_attention(WIDE, XPU, prefer="soft", platform=("sdpa",)).id == "soft"


# A pretended device ------------------------------------------------------------------------------


def test_a_pretended_device_is_chosen_for_and_refused(fake_platform: Any) -> None:
    hopper = fake_platform(arch=90, abilities=("streams", "graphs"))
    older = fake_platform(arch=80)
    needs = Requires("cuda", (90, 90), abilities=("graphs",))
    rows = [attention("sdpa"), attention("narrow", requires=needs)]
    assert choose_attention(rows, hopper.facts()).id == "narrow"
    assert choose_attention(rows, older.facts()).id == "sdpa"
    with pytest.raises(
        FeatureError, match=r"needs cuda arch 90 to 90; this device has 80.*'graphs'"
    ):
        choose_attention(rows, older.facts(), prefer="narrow")


def test_a_pretended_device_computes_on_the_host(fake_platform: Any) -> None:
    platform = fake_platform("npu", 0, dtypes=("float32", "float16"), total=2**30)
    assert (platform.id, platform.facts().device) == ("npu", "npu")
    assert torch.ones(2, device=platform.torch_device).device.type == "cpu"
    assert platform.default_dtype() is torch.float16
    assert platform.memory().free == 2**30


def test_ops_are_chosen_as_the_platform_prefers(fake_platform: Any) -> None:
    from sgld.plugins.binding import choose_ops
    from sgld.testing.isolated import catalog_of, local_plugin

    rival = AttentionSpec("rival", "sgld.ops.attention:attend", can=frozenset({"mask"}), priority=9)
    with local_plugin("rival", rival) as module:
        catalog = catalog_of(module)
    for device, wanted in (("cuda", "rival"), ("xpu", "sdpa")):
        chosen = choose_ops(
            catalog.attention,
            catalog.kernels.values(),
            fake_platform(device).facts(),
            platform=catalog.platforms[device].spec.attention,
        )
        assert {chosen[f"attention.{role}"].id for role in ("self", "cross", "masked")} == {wanted}
