"""What the plugin announces, and where its kernels are chosen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sgld.api import DeviceError
from sgld.api.contracts import DeviceFacts
from sgld.api.ops import OPS
from sgld.plugins import choose
from sgld.plugins.binding import decide_all
from sgld.plugins.choose import Choice
from sgld.plugins.resolve import Entry
from sgld.testing.conformance import PluginContract
from sgld.testing.isolated import owner_catalog
from sgld_kernels_triton.plugin import TARGETS, kernel_id, sgld_kernels

FACTS = DeviceFacts("cuda", 90, frozenset({"float32", "float16", "bfloat16"}), frozenset())


class TestPlugin(PluginContract):
    plugin = "triton"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The commands that are on the path, and the packages that are there; both may be changed."""
    there = {"gcc", "triton"}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in there else None)
    monkeypatch.setattr(choose, "has_package", lambda name: name in there)
    return there


def decided(facts: DeviceFacts) -> dict[str, Choice]:
    """What `auto` takes with the built-in plugin and this one."""
    attention = owner_catalog("attention", "sdpa").attention
    kernels = [Entry(spec, "triton", "sgld-kernels-triton", "0.1.0") for spec in sgld_kernels()]
    found = decide_all(attention, kernels, facts)
    assert [row.op for row in found] == list(OPS)
    choices = {row.op: row.choice for row in found if row.choice is not None}
    assert len(choices) == len(OPS)
    return choices


@pytest.mark.parametrize("arch", [80, 89, 90, 100, 120])
def test_chosen_on_cuda_without_a_flag(compiler: set[str], arch: int) -> None:
    choices = decided(FACTS._replace(arch=arch))
    taken = {op: choice.id for op, choice in choices.items() if choice.entry is not None}
    assert {op: name for op, name in taken.items() if not op.startswith("attention.")} == {
        op: kernel_id(op) for op in TARGETS
    }
    assert choices["norm.layer"].target == "sgld_kernels_triton.norm:layer"


@pytest.mark.parametrize(
    ("facts", "lacking", "why"),
    [
        (FACTS._replace(arch=75), "", "needs cuda arch 80 or newer; this device has 75"),
        (FACTS._replace(device="rocm"), "", "needs cuda; this device is rocm"),
        (FACTS._replace(device="cpu", arch=0), "", "needs cuda; this device is cpu"),
        (FACTS._replace(dtypes=frozenset({"float64"})), "", "which the device lacks"),
        (FACTS, "triton", "package triton is missing"),
        (FACTS, "gcc", "program gcc or clang is not on the path"),
    ],
)
def test_told_why_not(compiler: set[str], facts: DeviceFacts, lacking: str, why: str) -> None:
    compiler.discard(lacking)
    choices = decided(facts)
    for op in TARGETS:
        assert choices[op].entry is None
        ((name, reason),) = choices[op].losers
        assert name == kernel_id(op)
        assert why in reason


def test_a_named_compiler_needs_none_on_the_path(
    compiler: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.discard("gcc")
    monkeypatch.setenv("CC", "/opt/cc")
    assert decided(FACTS)["norm.rms"].id == "triton-norm-rms"


def test_discovery_and_decisions_import_neither_torch_nor_triton() -> None:
    code = (
        "import json, sys\n"
        "from sgld.cli.main import main\n"
        "code = main(['plugins', 'why', '--op', 'residual.gate', '--json'])\n"
        "print(json.dumps([code, *sorted({'torch', 'triton'} & set(sys.modules))]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0], done.stdout + done.stderr
    assert "triton-residual-gate" in done.stdout


def test_a_machine_where_triton_cannot_build_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from triton.runtime.driver import driver

    from sgld_kernels_triton import kernels

    class Broken:
        def get_current_device(self) -> int:
            raise RuntimeError("Python.h: no such file.")

    monkeypatch.setattr(driver, "_active", Broken())
    with pytest.raises(DeviceError, match=r"Python\.h: no such file\.") as caught:
        kernels.build_launcher()
    assert "SGLD_PLUGINS=-triton" in (caught.value.remedy or "")
