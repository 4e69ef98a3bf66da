"""Broken plugins of every sort side by side: each gets its code, and no other one notices.

All are examined in one round, for starting processes is dear.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sgld.cli.main import main
from sgld.plugins.doctor import show
from sgld.plugins.doctor.check import check
from sgld.plugins.doctor.rows import PluginReport, Report, Row

TIMEOUT = 8.0
"""Of the one that hangs; a busy machine starts a process more slowly than one thinks."""

STAGES = "@hookimpl\ndef sgld_stages():\n"
PIPELINES = "@hookimpl\ndef sgld_pipelines():\n"
KERNELS = "@hookimpl\ndef sgld_kernels():\n"
ATTENTION = "@hookimpl\ndef sgld_attention():\n"
PLATFORMS = "@hookimpl\ndef sgld_platforms():\n"
CRASH = "import ctypes; ctypes.string_at(0)"
BUSY = "import time\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass"
NOISE = """
import os, sys, warnings
print('hello')
os.write(2, b'raw words')
warnings.warn('old ways')
sys.path.append('/elsewhere')
"""
FLOOD = "import os\nfor _ in range(400): os.write(1, b'flood ' * 10000)"
DIRTY = """
import json, os
json.dumps = lambda *args, **more: '"not a mapping"'
os.write = lambda *args: 0
"""
BEHIND = """
import signal, threading
threading.Thread(target=threading.Event().wait, name='acme-poll').start()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
COUNTER = "count = iter(range(9))\n" + STAGES + "    yield StageSpec(f's{next(count)}', 'os:sep')\n"
PROBES = {
    "crash": f"def probe(): {CRASH}",
    "raises": "def probe(): raise OSError('no such bus')",
    "torch": "import sys\nfrom sgld.platforms.probe import Probe\n"
    "def probe():\n    sys.modules['torch'] = sys\n    return Probe(False, 'not today')",
}


def _platform(name: str) -> str:
    target = f"probes_dist.{name}:probe"
    return f"    yield PlatformSpec('my-{name}', 'sgld.platforms.cpu:X', {target!r}, priority=-1)\n"


def _pipeline(name: str, more: str = "") -> str:
    head = f"    yield PipelineSpec({name!r}, 'os:sep', 'os:sep', ('text-to-video',), "
    return f"{head}Claims(){more})\n"


def _fill(site: Any) -> None:
    site.add("good", PIPELINES + _pipeline("good-t2v"), metadata=("Requires-Dist: pluggy>=1",))
    site.add("segfault", first=CRASH)
    site.add("hook-segfault", STAGES + f"    {CRASH}\n    return []\n")
    site.add("hang", first="import threading; threading.Event().wait()")
    site.add("leaves", first="import os; os._exit(3)")
    site.add("exits", first="import sys; sys.exit('enough')")
    site.add("hook-leaves", STAGES + "    import os; os._exit(0)\n")
    site.add("lacks", first="import no_such_library_x")
    site.add("prints", first=NOISE)
    site.add("floods", first=FLOOD)
    site.add("dirty", first=DIRTY)
    site.add("behind", first=BEHIND)
    site.add("heavy", first="import numpy")
    site.add("slow", first=BUSY)
    site.add("fickle", COUNTER)
    site.add(
        "typo", PIPELINES + _pipeline("typo-t2v").replace("'os:sep'", "'typo_dist.net:Net'", 1)
    )
    site.add("hook-name", "@hookimpl\ndef sgld_pipeline():\n    return []\n")
    site.add("unmarked", (PIPELINES + _pipeline("u-t2v")).replace("@hookimpl\n", ""))
    site.add("boasts", contracts={"stage": 1, "kernel": 1})
    site.add("raises", STAGES + "    raise RuntimeError('boom')\n")
    site.add("future", contracts={"pipeline": 99})
    site.add("loader", group="sgld.plugins.v99")
    site.add("badname", entry="01.badname")
    site.add("twin", dist="twin-a-dist")
    site.add("twin", dist="twin-b-dist")
    site.add("claim-a", PIPELINES + _pipeline("same-t2v"))
    site.add("claim-b", PIPELINES + _pipeline("same-t2v"))
    site.add("needy", needs=("segfault",))
    dangling = ", replaces='nobody', caches=('no-such-cache',)"
    kernel = "    yield KernelSpec('k-dangling', 'no.such_op', 'os:getcwd')\n"
    site.add("dangling", PIPELINES + _pipeline("d-t2v", dangling) + KERNELS + kernel)
    packages = "requires=Requires({device!r}, packages=('no_such_package_x',)))\n"
    kernel = "    yield KernelSpec({id!r}, 'norm.rms', 'os:getcwd', " + packages
    kernels = kernel.format(id="k-any", device="any") + kernel.format(id="k-far", device="moon")
    site.add("packages", KERNELS + kernels)
    site.add(
        "wheel",
        metadata=(
            "Requires-Dist: sgld-core>=99",
            "Requires-Dist: no-such-dist-x>=2",
            "Requires-Dist: not-asked-for>=2; extra == 'more'",
            "Requires-Dist: ???",
            "Requires-Python: <3",
        ),
    )
    site.add("probes", PLATFORMS + "".join(map(_platform, PROBES)), **PROBES)
    tied = "    yield AttentionSpec({!r}, 'os:getcwd', priority=5, can=frozenset({{'mask'}}))\n"
    site.add("tied", ATTENTION + tied.format("tied-a") + tied.format("tied-b"))
    site.add("cold")
    (site.folder / "cold_dist" / "__pycache__").touch()
    site.add("denied", first=CRASH)
    site.package(
        "outside",
        plugin="from sgld.api import *\n@hookimpl\ndef sgld_plugin():\n"
        "    return Plugin('outside', {})\n",
    )
    site.package("outside_crash", plugin=CRASH)


ENVIRON = {
    "SGLD_PLUGINS": "-denied,-nobody-has-this",
    "SGLD_EXTERNAL_MODEL_PACKAGE": "outside,outside_crash",
}


@pytest.fixture(scope="module")
def site(new_site: Callable[[], Any]) -> Any:
    site = new_site()
    _fill(site)
    return site


@pytest.fixture(scope="module")
def report(site: Any) -> Iterator[Report]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site.folder)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        before = set(sys.modules)
        yield check(ENVIRON, timeout=TIMEOUT)
        brought = {name.partition(".")[0] for name in set(sys.modules) - before}
        assert not {name for name in brought if name.endswith("_dist") or name == "outside"}


def _plugin(report: Report, name: str) -> PluginReport:
    (row,) = [row for row in report.plugins if name in (row.found.name, row.found.dist)]
    return row


def _one(report: Report, name: str, code: str) -> Row:
    (row,) = [row for row in _plugin(report, name).rows if row.code == code]
    return row


EXPECTED = [
    # plugin, code, level, check, what its line says
    ("segfault", "SGLD-P014", "bad", "import", "killed by SIGSEGV (at {folder}/plugin.py:1)"),
    ("hook-segfault", "SGLD-P014", "bad", "describe", "a hook was killed by SIGSEGV"),
    ("hang", "SGLD-P015", "bad", "import", "not done within 8 s (at {folder}/plugin.py:1)"),
    ("leaves", "SGLD-P001", "bad", "import", "left the process with exit code 3"),
    ("exits", "SGLD-P001", "bad", "import", "tried to leave the process (exit 'enough')"),
    ("hook-leaves", "SGLD-P003", "bad", "describe", "a hook left the process with exit code 0"),
    ("lacks", "SGLD-P001", "bad", "import", "No module named 'no_such_library_x'"),
    ("floods", "SGLD-P017", "note", "import", "and 23983616 more bytes"),
    ("heavy", "SGLD-P008", "note", "import", "numpy at {folder}/plugin.py:1"),
    ("slow", "SGLD-P018", "note", "import", "slows every command"),
    ("fickle", "SGLD-P016", "bad", "describe", "different stage records"),
    ("typo", "SGLD-P007", "bad", "targets", "module 'typo_dist.net', which is not there"),
    ("hook-name", "SGLD-P002", "bad", "hooks", "sgld_pipeline"),
    ("unmarked", "SGLD-P002", "bad", "hooks", "sgld_pipelines of module"),
    ("raises", "SGLD-P003", "bad", "describe", "boom"),
    ("future", "SGLD-P004", "bad", "contract", "pipeline contract 99"),
    ("loader", "SGLD-P013", "bad", "find", "sgld.plugins.v99"),
    ("01.badname", "SGLD-P012", "bad", "find", "01.badname"),
    ("twin-a-dist", "SGLD-P005", "bad", "find", "twin-a-dist 1.0 and twin-b-dist 1.0"),
    ("twin-b-dist", "SGLD-P005", "bad", "find", "twin-a-dist 1.0 and twin-b-dist 1.0"),
    ("claim-a", "SGLD-P005", "bad", "resolve", "claim-a-dist 1.0 and claim-b-dist 1.0"),
    ("claim-b", "SGLD-P005", "bad", "resolve", "claim-a-dist 1.0 and claim-b-dist 1.0"),
    ("needy", "SGLD-P009", "bad", "needs", "needs plugin segfault"),
    ("packages", "SGLD-P019", "note", "packages", "'k-any' requires package 'no_such_package_x'"),
    ("probes", "SGLD-P007", "bad", "probe", "'my-torch' imports torch"),
    ("cold", "SGLD-P022", "note", "bytecode", "cold_dist.plugin"),
    ("outside_crash", "SGLD-P014", "bad", "import", "SIGSEGV"),
]


@pytest.mark.parametrize(("name", "code", "level", "check", "part"), EXPECTED)
def test_each_gets_its_code(
    report: Report, site: Any, name: str, code: str, level: str, check: str, part: str
) -> None:
    row = _one(report, name, code)
    assert (row.level, row.check) == (level, check)
    folder = site.folder / _plugin(report, name).found.dist.replace("-", "_")
    assert part.replace("{folder}", str(folder)) in row.message
    assert "\n" not in row.message
    assert row.remedy


def test_a_contract_without_a_record_is_told_for_each_kind(report: Report) -> None:
    rows = [row for row in _plugin(report, "boasts").rows if row.check == "contract"]
    assert [(row.level, row.code) for row in rows] == [("bad", "SGLD-P004")] * 2
    assert "states a contract for kind 'stage' and brings no record of it" in rows[0].message
    assert "sgld_kernels (marked with hookimpl)" in rows[1].remedy


def test_a_look_that_imports_no_target_says_so(report: Report) -> None:
    def last(shown: Report) -> str:
        return show.text(shown, strict=False).splitlines()[-1]

    part = "No target was imported; --deep does that"
    assert part in last(report._replace(plugins=()))
    model = report.plugins[0]._replace(rows=(Row("ok", "models", "model 'a:b': whole"),))
    part = "No target was imported but those of carried models; --deep does that"
    assert part in last(report._replace(plugins=(model,)))
    assert "was imported" not in last(report._replace(deep=True))


def test_noise_is_told_stream_by_stream(report: Report) -> None:
    rows = [row for row in _plugin(report, "prints").rows if row.code == "SGLD-P017"]
    text = " ".join(row.message for row in rows)
    assert len(rows) == 4
    for part in (
        "standard output: 'hello'",
        "standard error: 'raw words'",
        "UserWarning: old ways",
    ):
        assert part in text


def test_what_is_left_behind_in_the_process_is_told(report: Report) -> None:
    rows = [row for row in _plugin(report, "behind").rows if row.code == "SGLD-P017"]
    assert [row.level for row in rows] == ["note", "note"]
    assert "'acme-poll', which keeps every command from ending" in rows[0].message
    assert "set the handler of SIGTERM" in rows[1].message


def test_one_that_replaces_what_the_examination_writes_with_is_examined(report: Report) -> None:
    assert _plugin(report, "dirty").rows
    assert all(row.level == "ok" for row in _plugin(report, "dirty").rows)


def test_what_is_named_and_not_there(report: Report) -> None:
    rows = [row for row in _plugin(report, "dangling").rows if row.code == "SGLD-P006"]
    text = " ".join(row.message for row in rows)
    assert len(rows) == 3
    assert all(row.level == "note" for row in rows)
    for part in ("replaces that of 'nobody'", "'no-such-cache'", "'no.such_op'"):
        assert part in text


def test_a_package_for_a_device_that_is_not_here_is_no_fault(report: Report) -> None:
    rows = [row for row in _plugin(report, "packages").rows if row.check == "packages"]
    assert [row.level for row in rows] == ["note", "ok"]
    assert "'k-far'" in rows[1].message


def test_what_the_wheel_asks_for(report: Report) -> None:
    rows = [row for row in _plugin(report, "wheel").rows if row.code == "SGLD-P020"]
    assert [row.check for row in rows] == ["wheel"] * 4
    text = " ".join(row.message for row in rows)
    for part in (
        "sgld-core>=99",
        "no-such-dist-x>=2, which is not installed",
        "'???'",
        "Python <3",
    ):
        assert part in text
    assert "not-asked-for" not in text


def test_probes_that_fail_or_die_are_told_and_the_others_still_asked(report: Report) -> None:
    rows = [row for row in _plugin(report, "probes").rows if row.code == "SGLD-P010"]
    text = " ".join(row.message for row in rows)
    assert len(rows) == 2
    assert "'my-crash' was killed by SIGSEGV" in text
    assert "'my-raises' failed: OSError: no such bus" in text


def test_a_tie_is_told_for_every_op_that_it_stops(report: Report) -> None:
    machine = report.machine
    assert machine is not None
    assert machine.platform
    rows = [row for row in machine.rows if row.code == "SGLD-P021"]
    assert {row.message.partition(":")[0] for row in rows} == {
        "op attention.self",
        "op attention.cross",
        "op attention.masked",
    }
    assert all("tied-a and tied-b are equally good" in row.message for row in rows)
    told = {row.op: row for row in machine.decisions}
    assert told["attention.self"].choice is None
    choice = told["norm.rms"].choice
    assert choice is not None
    assert choice.id == "reference"
    assert dict(choice.losers)["k-any"] == "package no_such_package_x is missing"


def test_the_good_ones_are_fine(report: Report) -> None:
    for name in ("good", "outside"):
        assert _plugin(report, name).level == "ok", _plugin(report, name)
    assert _plugin(report, "builtin").level == "ok"


def test_what_is_left_out_is_not_examined(report: Report) -> None:
    rows = _plugin(report, "denied").rows
    assert [(row.level, row.check) for row in rows] == [("ok", "find")]
    assert [row.code for row in report.general] == ["SGLD-P006"]
    assert "'nobody-has-this'" in report.general[0].message


def test_no_code_comes_where_it_is_not_expected(report: Report) -> None:
    told = {(p.found.name, row.code) for p in report.plugins for row in p.rows if row.code}
    known = {(name, code) for name, code, *_ in EXPECTED}
    known |= {("twin", "SGLD-P005"), ("prints", "SGLD-P017"), ("dangling", "SGLD-P006")}
    known |= {("boasts", "SGLD-P004"), ("behind", "SGLD-P017")}
    known |= {("wheel", "SGLD-P020"), ("probes", "SGLD-P010")}
    fakes = {row.found.name for row in report.plugins if row.found.dist.endswith("-dist")}
    assert {row for row in told if row[0] in fakes} <= known


def test_exit_codes(report: Report) -> None:
    assert report.exit_code(strict=False) == 2
    notes = [row for row in report.plugins if row.level == "note"]
    mild = report._replace(plugins=tuple(notes), machine=None, general=())
    assert {row.found.name for row in notes} >= {"heavy", "prints", "floods", "slow", "cold"}
    assert (mild.exit_code(strict=False), mild.exit_code(strict=True)) == (0, 1)
    fine = mild._replace(plugins=(_plugin(report, "good"),))
    assert (fine.exit_code(strict=False), fine.exit_code(strict=True)) == (0, 0)


def test_text_and_json_tell_the_same(report: Report) -> None:
    text = show.text(report, strict=False)
    plain = json.loads(json.dumps(show.as_json(report, strict=False)))
    assert plain["exit_code"] == 2
    keys = {"name", "distribution", "version", "module", "source", "level", "rows"}
    for plugin in plain["plugins"]:
        assert set(plugin) == keys
        for row in plugin["rows"]:
            assert set(row) == {
                "level",
                "check",
                "message",
                "code",
                "remedy",
                "seconds",
                "section",
            }
            if row["code"]:
                assert row["section"] == f"docs/plugin-errors.md#{row['code'].lower()}"
                owner = f"{plugin['distribution']} {plugin['version']}".strip()
                assert f"{row['code']} {owner}: " in text
    assert set(plain["machine"]) == {"platform", "facts", "rows", "decisions"}
    for row in plain["machine"]["decisions"]:
        assert set(row) == {"op", "chosen", "distribution", "why", "losers"}
    (op,) = [row for row in plain["machine"]["decisions"] if row["op"] == "norm.rms"]
    assert {"id": "k-any", "why": "package no_such_package_x is missing"} in op["losers"]
    levels = [row["level"] for plugin in plain["plugins"] for row in plugin["rows"]]
    levels += [row["level"] for row in [*plain["machine"]["rows"], *plain["general"]]]
    counted = {"ok": levels.count("ok"), "notes": levels.count("note"), "bad": levels.count("bad")}
    assert counted.items() <= plain["summary"].items()
    assert "docs/plugin-errors.md" in text.splitlines()[-1]


def test_the_command(report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """One plugin by its distribution; only the named and what is needed to judge it is told."""
    for name, value in {"SGLD_PLUGINS": "good,fickle", "SGLD_EXTERNAL_MODEL_PACKAGE": ""}.items():
        monkeypatch.setenv(name, value)
    assert main(["plugins", "check", "good-dist", "--strict", "--no-deep"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("good (good-dist 1.0): ok\n")
    assert "fickle" not in told
    assert main(["plugins", "check", "fickle", "--json"]) == 2
    plain = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in plain["plugins"]] == ["fickle"]
    assert plain["machine"] is None
    assert plain["deep"] is True


def test_a_named_plugin_is_looked_at_deeply(
    report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("SGLD_PLUGINS", "good")
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "")
    assert main(["plugins", "check", "good"]) == 2
    told = capsys.readouterr().out
    assert "pipeline 'good-t2v': target 'os:sep' is str" in told
    assert "No target was imported" not in told
    assert main(["plugins", "check", "good", "--deep", "--no-deep"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_forbidden_bytecode_is_one_note_and_not_one_for_each(
    new_site: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site()
    site.add("one")
    site.add("two")
    monkeypatch.syspath_prepend(site.folder)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    told = check({"SGLD_PLUGINS": "one,two"})
    assert [row.found.name for row in told.plugins if row.level == "note"] == []
    (row,) = told.general
    assert (row.level, row.code) == ("note", "SGLD-P022")
    assert "for one, two" in row.message.replace("builtin, ", "")
    assert not list(site.folder.rglob("*.pyc"))


def test_wrong_usage(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("SGLD_PLUGINS", "")
    assert main(["plugins", "check", "buildin"]) == 2
    assert "Did you mean 'builtin'?" in capsys.readouterr().err
    for value in ("0", "-1", "soon", "nan", "inf"):
        assert main(["plugins", "check", "--timeout", value]) == 2
        assert f"timeout='{value}': must be a number" in capsys.readouterr().err
