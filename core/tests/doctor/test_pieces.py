"""Pieces of the doctor: records on the wire, finding without importing, runs and their ends."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api import specs
from sgld.api.ops import OPS
from sgld.ops.table import Ops
from sgld.plugins.capture import MOST, Head
from sgld.plugins.catalog import collect
from sgld.plugins.describe import HOOKS
from sgld.plugins.doctor import process, targets
from sgld.plugins.doctor.examine import Settings, examine
from sgld.plugins.doctor.findings import totals
from sgld.plugins.doctor.rows import CHECKS, OF_PHASE, Report, Row, from_failure, in_order, worst
from sgld.plugins.doctor.wire import KEY, RECORDS, pack, unpack
from sgld.plugins.failures import CODES, failure
from sgld.plugins.find import Found

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.frozensets(st.text() | st.integers(), max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.tuples(st.text(), inner).map(lambda pair: specs.Preset(pair[0], {"x": pair[1]}))
    ),
    max_leaves=20,
)


@given(VALUES)
def test_values_arrive_as_they_were_sent(value: Any) -> None:
    again = unpack(json.loads(json.dumps(pack(value))))
    assert again == value
    assert type(again) is type(value)


def test_real_records_arrive_as_they_were_sent() -> None:
    for kind in collect({"SGLD_PLUGINS": ""}, path=[]).entries.values():
        for entry in kind.values():
            assert unpack(json.loads(json.dumps(pack(entry.spec)))) == entry.spec


def test_every_kind_of_record_can_be_sent() -> None:
    assert {record for _, record in HOOKS.values()} <= set(RECORDS.values())


def test_a_value_that_is_no_plain_data_arrives_as_text() -> None:
    preset = specs.Preset("p", {"a": object, "b": {KEY: "map", "items": 3}})
    again = unpack(json.loads(json.dumps(pack(preset))))
    assert again.defaults == {"a": "<class 'object'>", "b": {KEY: "map", "items": 3}}


class Text(str):
    """A text that is more than a text."""


def test_a_subclass_of_a_plain_type_does_not_pass_for_one() -> None:
    assert unpack(json.loads(json.dumps(pack(Text("x"))))) == repr("x")


@pytest.mark.parametrize("value", [{}, {KEY: "odd", "items": []}, {KEY: "map"}])
def test_what_was_not_packed_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="packed value"):
        unpack(value)


def test_modules_are_found_without_importing_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "never_import_me" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "leaf.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("never_import_me", "never_import_me.inner", "never_import_me.inner.leaf"):
        assert targets.locate(name) is not None
    for name in ("never_import_me.gone", "never_import_me.inner.leaf.below", "no_such_module_x"):
        assert targets.locate(name) is None
    assert not any(name.startswith("never_import_me") for name in sys.modules)


def test_modules_that_are_there_are_found_where_they_are() -> None:
    assert targets.locate("os.path") is not None
    assert targets.locate("sgld.plugins.doctor.targets") is not None


def test_the_ops_that_are_told_are_the_ops_that_there_are() -> None:
    assert tuple(Ops.reference()) == OPS


def test_a_flood_of_text_keeps_its_beginning() -> None:
    head = Head()
    for _ in range(3 * MOST):
        assert head.write("ab") == 2
    assert head.getvalue() == "ab" * (MOST // 2)


def test_rows_come_in_the_order_of_the_checks() -> None:
    rows = [Row("ok", name, "") for name in reversed(CHECKS)]
    assert [row.check for row in in_order(rows)] == list(CHECKS)


def test_every_phase_in_which_a_catalog_fails_belongs_to_a_check() -> None:
    for code, row in CODES.items():
        if row.phase in OF_PHASE:
            assert from_failure(failure(code, "p", "m")).check in CHECKS


@pytest.mark.parametrize(
    ("levels", "strict", "code"),
    [
        ((), True, 0),
        (("ok",), True, 0),
        (("ok", "note"), False, 0),
        (("ok", "note"), True, 1),
        (("note", "bad"), False, 2),
        (("bad", "ok"), True, 2),
    ],
)
def test_exit_code(levels: tuple[Any, ...], strict: bool, code: int) -> None:
    rows = tuple(Row(level, "find", "") for level in levels)
    assert Report((), None, rows, False, 0.0).exit_code(strict) == code
    assert worst(rows) in ("ok", "note", "bad")


PLUGIN = "from sgld.api import *\nfrom sgld.api import hookimpl\n@hookimpl\ndef sgld_plugin():\n"


@pytest.fixture
def run_one(
    new_site: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., process.Ended]:
    """Run the worker over a bare package with this `plugin` module."""
    site = new_site()

    def run(text: str, *, stop: bool = False) -> process.Ended:
        site.package("run_me_dist", plugin=text)
        monkeypatch.syspath_prepend(site.folder)
        found = Found("run-me", "run_me_dist.plugin", "run-me-dist", "1", "installed")
        event = threading.Event()
        if stop:
            event.set()
        return process.run({"found": pack(found), "deep": False, "skip": []}, 60, event)

    return run


def test_a_stop_ends_a_run_at_once(run_one: Callable[..., process.Ended]) -> None:
    ended = run_one("import threading; threading.Event().wait()", stop=True)
    assert ended.how == "timeout"


def test_threads_and_exit_handlers_of_a_plugin_do_not_keep_its_process(
    run_one: Callable[..., process.Ended],
) -> None:
    stubborn = (
        "import atexit, threading\natexit.register(threading.Event().wait)\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
    )
    ended = run_one(f"{stubborn}{PLUGIN}    return Plugin('run-me', {{}})\n")
    assert (ended.how, ended.stderr) == ("", "")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_child_that_a_plugin_leaves_behind_is_ended(
    run_one: Callable[..., process.Ended], tmp_path: Path
) -> None:
    """It holds the streams of its parent open; waiting for it would take for ever."""
    note = tmp_path / "pid"
    leave = (
        "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', "
        "'import threading; threading.Event().wait()'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
    )
    ended = run_one(f"{leave}{PLUGIN}    return Plugin('run-me', {{}})\n")
    assert ended.how == ""
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(int(note.read_text()))
        assert select.select([watched], [], [], 60)[0], "it lives on"
        os.close(watched)


def test_lines_that_are_no_answers_are_dropped_and_told(
    new_site: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin writes into the file of answers, which the worker has open."""
    foreign = (
        "import json\nfrom pathlib import Path\nimport sys\n"
        "job = json.loads(Path(sys.argv[1]).read_text())\n"
        "with open(job['answers'], 'a') as file: file.write('\"text\"\\n[1]\\n{]\\n')\n"
    )
    site = new_site()
    text = f"{foreign}{PLUGIN}    return Plugin('run-me', {{}})\n"
    site.package("run_me_dist", plugin=text)
    monkeypatch.syspath_prepend(site.folder)
    found = Found("run-me", "run_me_dist.plugin", "run-me-dist", "1", "installed")
    rows = examine(found, Settings(60, threading.Event()), deep=False).rows
    (bad,) = [row for row in rows if row.level == "bad"]
    assert (bad.code, bad.check) == ("SGLD-P003", "describe")
    assert bad.message.startswith("3 lines among the answers")


def test_a_plugin_that_reads_standard_input_finds_its_end(
    run_one: Callable[..., process.Ended],
) -> None:
    ended = run_one(f"answer = input()\n{PLUGIN}    return Plugin('run-me', {{}})\n")
    (outcome,) = [row["outcome"] for row in ended.answers if "outcome" in row]
    assert "EOFError" in unpack(outcome["failure"]).message


def test_the_asking_process_imports_neither_torch_nor_a_plugin(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom sgld.cli.main import main\n"
        "assert main(['plugins', 'check', '--json']) == 0\n"
        "bad = [name for name in ('torch', 'numpy', 'pydantic', 'sgld.builtin') "
        "if name in sys.modules]\nassert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "", "SGLD_PLUGINS": "", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["bad"] == 0


def test_targets_that_are_not_there_are_not_said_to_import() -> None:
    missing = Row("bad", "targets", "names module 'x', which is not there")
    facts = {"targets": 2}
    assert [row.check for row in totals([], facts, deep=True)] == ["targets", "deep"]
    assert totals([missing], facts, deep=True) == []
