"""Throw-away plugins as real wheels, installed by a real installer, seen by a real `sgld` process.

One broken plugin must not take anything down: every row is listed with its reason, and the good
ones go on working, also in spawned processes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import programs
import pytest
from programs import python

pytestmark = pytest.mark.multi_process

V1 = "sgld.plugins.v1"
HEAD = "from sgld.api import Claims, PipelineSpec, Plugin, StageSpec, hookimpl\n"


def plugin(
    name: str,
    pipeline: str = "",
    *,
    contract: int = 1,
    replaces: str = "",
    first: str = "",
    last: str = "",
) -> str:
    """The text of a plugin module that brings one pipeline."""
    text = f"{first}\n{HEAD}\n@hookimpl\ndef sgld_plugin():\n"
    text += f"    return Plugin({name!r}, {{'pipeline': {contract}, 'stage': 1}})\n"
    if pipeline:
        text += (
            f"@hookimpl\ndef sgld_pipelines():\n    yield PipelineSpec({pipeline!r}, 'm:P', 'm:Q',"
            f" ('text-to-video',), Claims(repos=('acme/{name}',)), replaces={replaces!r})\n"
        )
    return text + last


def wheel(
    folder: Path,
    dist: str,
    body: str | None,
    *,
    name: str = "",
    group: str = V1,
    version: str = "1.0",
) -> Path:
    """Write a wheel as a build tool does: package, METADATA, WHEEL, RECORD, entry points."""
    package = dist.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
        "Requires-Dist: sgld-core>=0.1,<0.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[{group}]\n{name} = {package}.plugin\n",
    }
    if body is not None:
        files[f"{package}/plugin.py"] = body
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        lines.append(f"{path},sha256={digest.decode()},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    target = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return target


SLOW = "import time\ntime.sleep(0.6)"
PRINTS = "import os, warnings\nprint('hello')\nos.write(1, b'raw hello\\n')\nwarnings.warn('old')"
UNKNOWN_HOOK = "@hookimpl\ndef sgld_pipeline():\n    return []\n"
UNKNOWN_ARGUMENT = "@hookimpl\ndef sgld_stages(registry):\n    return []\n"
RAISES = "@hookimpl\ndef sgld_stages():\n    raise RuntimeError('boom')\n"
WRONG_RECORD = "@hookimpl\ndef sgld_stages():\n    return [{'id': 'x'}]\n"
MALFORMED = "@hookimpl\ndef sgld_stages():\n    yield StageSpec('Bad Id', 'm:S')\n"

WHEELS: list[tuple[str, str, str | None, str]] = [
    ("good-dist", "good", plugin("good", "good-t2v"), V1),
    ("broken-dist", "broken", plugin("broken", first="import missing_lib_x"), V1),
    ("exits-dist", "exits", plugin("exits", first="import sys; sys.exit(3)"), V1),
    ("contract-dist", "contract", plugin("contract", "c-t2v", contract=99), V1),
    ("loader-dist", "loader", plugin("loader"), "sgld.plugins.v99"),
    ("twin-a-dist", "twin", plugin("twin", "twin-a"), V1),
    ("twin-b-dist", "twin", plugin("twin", "twin-b"), V1),
    ("claim-a-dist", "claim-a", plugin("claim-a", "tiny"), V1),
    ("claim-b-dist", "claim-b", plugin("claim-b", "tiny"), V1),
    ("old-dist", "old", plugin("old", "shared-t2v"), V1),
    ("fast-dist", "fast", plugin("fast", "shared-t2v", replaces="old-dist"), V1),
    ("slow-dist", "slow", plugin("slow", "slow-t2v", first=SLOW), V1),
    ("prints-dist", "prints", plugin("prints", "prints-t2v", first=PRINTS), V1),
    ("nomodule-dist", "nomodule", None, V1),
    ("badname-dist", "01.badname", plugin("badname"), V1),
    ("hook-dist", "hook", plugin("hook", last=UNKNOWN_HOOK), V1),
    ("argument-dist", "argument", plugin("argument", last=UNKNOWN_ARGUMENT), V1),
    ("raises-dist", "raises", plugin("raises", "r-t2v", last=RAISES), V1),
    ("record-dist", "record", plugin("record", "w-t2v", last=WRONG_RECORD), V1),
    ("malformed-dist", "malformed", plugin("malformed", last=MALFORMED), V1),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which an installer put all wheels, and bare packages beside it."""
    root = tmp_path_factory.mktemp("plugins")
    wheels = [
        str(wheel(root, dist, body, name=name, group=group)) for dist, name, body, group in WHEELS
    ]
    installed = root / "site"
    uv = shutil.which("uv")
    installer = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    subprocess.run(
        [
            *installer,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            installed,
            *wheels,
        ],
        check=True,
        timeout=300,
    )
    bare = root / "bare"
    for name in ("outside", "outside_broken"):
        (bare / name).mkdir(parents=True)
    (bare / "outside" / "__init__.py").write_text("__version__ = '3.1'\n")
    (bare / "outside" / "plugin.py").write_text(
        plugin("outside", "shared-t2v", replaces="*")
        + "    yield PipelineSpec('outside-t2v', 'm:P',"
        " 'm:Q', ('text-to-video',), Claims())\n"
    )
    (bare / "outside_broken" / "__init__.py").write_text("raise RuntimeError('not today')\n")
    return root


def environment(site: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SGLD_", "SGLANG_"))
    }
    return {**kept, "PYTHONPATH": os.pathsep.join([str(site / "site"), str(site / "bare")]), **more}


def sgld(site: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return programs.sgld(*arguments, environ=environment(site, **more))


@pytest.fixture(scope="module")
def listing(site: Path) -> dict[str, Any]:
    result = sgld(site, "plugins", "list", "--json")
    assert result.returncode == 1, result.stderr
    return json.loads(result.stdout)


STATES = {
    "good-dist": ("ok", ""),
    "broken-dist": ("failed", "SGLD-P001"),
    "exits-dist": ("failed", "SGLD-P001"),
    "contract-dist": ("failed", "SGLD-P004"),
    "loader-dist": ("failed", "SGLD-P013"),
    "twin-a-dist": ("failed", "SGLD-P005"),
    "twin-b-dist": ("failed", "SGLD-P005"),
    "claim-a-dist": ("partial", "SGLD-P005"),
    "claim-b-dist": ("partial", "SGLD-P005"),
    "old-dist": ("ok", ""),
    "fast-dist": ("ok", ""),
    "slow-dist": ("ok", ""),
    "prints-dist": ("ok", ""),
    "nomodule-dist": ("failed", "SGLD-P001"),
    "badname-dist": ("failed", "SGLD-P012"),
    "hook-dist": ("failed", "SGLD-P002"),
    "argument-dist": ("failed", "SGLD-P002"),
    "raises-dist": ("failed", "SGLD-P003"),
    "record-dist": ("failed", "SGLD-P003"),
    "malformed-dist": ("failed", "SGLD-P003"),
}


def test_every_wheel_has_an_expected_state() -> None:
    assert set(STATES) == {dist for dist, *_ in WHEELS}


@pytest.mark.parametrize("dist", STATES)
def test_state_and_reason(listing: dict[str, Any], dist: str) -> None:
    (row,) = [row for row in listing["plugins"] if row["dist"] == dist]
    state, code = STATES[dist]
    assert row["state"] == state, row
    assert row["reason"].startswith(code)
    assert row["version"] == "1.0"
    if row["module"]:
        assert row["core"] == ">=0.1,<0.2"


def test_a_clash_names_both(listing: dict[str, Any]) -> None:
    rows = [row for row in listing["failures"] if row["code"] == "SGLD-P005"]
    assert len(rows) == 4
    for row in rows:
        names = {"twin": "twin-a-dist 1.0 and twin-b-dist 1.0"}
        assert names.get(row["plugin"], "claim-a-dist 1.0 and claim-b-dist 1.0") in row["message"]
        assert row["hint"]


def test_prints_and_slowness_are_noted(listing: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in listing["plugins"]}
    assert any("'hello'" in note for note in rows["prints"]["notes"])
    assert any("UserWarning: old" in note for note in rows["prints"]["notes"])
    assert rows["slow"]["ms"] > 500
    assert any(note.startswith("took ") for note in rows["slow"]["notes"])
    assert rows["good"]["ms"] < 500


def test_the_text_form_tells_the_same(site: Path) -> None:
    result = sgld(site, "plugins", "list")
    assert result.returncode == 1
    for dist, (_, code) in STATES.items():
        assert dist in result.stdout
        if code:
            assert f"{code} {dist} 1.0" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_the_doctor_comes_to_the_same(site: Path) -> None:
    result = sgld(site, "plugins", "check", "--json")
    assert result.returncode == 2, result.stderr
    told = {
        row["distribution"]: {finding["code"] for finding in row["rows"]}
        for row in json.loads(result.stdout)["plugins"]
    }
    for dist, (_, code) in STATES.items():
        assert dist in told
        assert not code or code in told[dist], dist
    assert "SGLD-P017" in told["prints-dist"]


def test_help_version_and_models_work_in_a_broken_environment(site: Path) -> None:
    assert sgld(site, "--help").returncode == 0
    assert sgld(site, "--version").returncode == 0
    result = sgld(site, "models", "list")
    assert result.returncode == 0
    assert "good-t2v" in result.stdout
    assert "not fully usable" in result.stderr


def served(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert result.returncode == 0, result.stderr
    return {row["id"]: row["distribution"] for row in json.loads(result.stdout)}


def test_who_serves_what(site: Path) -> None:
    models = served(sgld(site, "models", "list", "--json"))
    assert models["good-t2v"] == "good-dist"
    assert models["shared-t2v"] == "fast-dist"
    assert {"tiny", "twin-a", "twin-b", "r-t2v", "w-t2v", "c-t2v"} & set(models) == set()
    pinned = served(
        sgld(site, "models", "list", "--json", SGLD_PREFER="pipeline:tiny=claim-b-dist")
    )
    assert pinned["tiny"] == "claim-b-dist"


def test_a_replacement_is_recognised_by_the_claims_of_the_replaced(site: Path) -> None:
    result = sgld(site, "plugins", "why", "acme/old")
    assert "acme/old is served by shared-t2v (fast-dist 1.0)" in result.stdout


def test_external_packages(site: Path) -> None:
    for variable in ("SGLD_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MODEL_PACKAGE"):
        more = {variable: "outside_broken,outside", "SGLD_PLUGINS": "old,fast"}
        result = sgld(site, "plugins", "list", "--json", **more)
        assert result.returncode == 1
        rows = {row["dist"]: row for row in json.loads(result.stdout)["plugins"]}
        assert (rows["outside"]["state"], rows["outside"]["version"]) == ("ok", "3.1")
        assert rows["outside"]["source"] == "local"
        assert rows["outside_broken"]["reason"].startswith("SGLD-P001")
        assert "not today" in rows["outside_broken"]["reason"]
        models = served(sgld(site, "models", "list", "--json", **more))
        assert models == {"shared-t2v": "outside", "outside-t2v": "outside"}


def test_allow_deny_and_rescue(site: Path) -> None:
    result = sgld(site, "plugins", "list", "--json", SGLD_PLUGINS="good,fast,old")
    assert result.returncode == 0
    rows = json.loads(result.stdout)["plugins"]
    assert {row["name"] for row in rows if row["state"] == "ok"} == {
        "builtin",
        "good",
        "fast",
        "old",
    }
    result = sgld(site, "plugins", "list", "--json", SGLD_PLUGINS="")
    assert result.returncode == 0
    rows = json.loads(result.stdout)["plugins"]
    assert [row["name"] for row in rows if row["state"] == "ok"] == ["builtin"]


def test_strict_makes_any_failure_fatal(site: Path) -> None:
    program = "from sgld.plugins.catalog import load_catalog; print(len(load_catalog().plugins))"
    for strict, code in (("", 0), ("1", 1)):
        result = python("-c", program, environ=environment(site, SGLD_STRICT=strict))
        assert result.returncode == code, result.stderr
    assert "SGLD-P001 broken-dist 1.0" in result.stderr


SPAWN = """
import multiprocessing, sys
from sgld.plugins.lock import Lock, make_lock, verify

def work(text, queue):
    catalog = verify(Lock.from_json(text))
    queue.put((sorted(catalog.pipelines), "slow_dist" in sys.modules, "torch" in sys.modules))

if __name__ == "__main__":
    from sgld.plugins.catalog import load_catalog
    import os
    os.environ["SGLD_PLUGINS"] = "good,old,fast"
    lock = make_lock(load_catalog(), pipeline="good-t2v", platform="cpu")
    del os.environ["SGLD_PLUGINS"]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(lock.to_json(), queue))
    process.start()
    print(queue.get(timeout=120))
    process.join()
"""


def test_a_spawned_worker_takes_exactly_the_plugins_of_the_lock(site: Path, tmp_path: Path) -> None:
    program = tmp_path / "spawn.py"
    program.write_text(SPAWN)
    result = python(str(program), environ=environment(site))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "(['good-t2v', 'shared-t2v'], False, False)"
