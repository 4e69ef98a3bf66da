"""Models that a plugin carries: what the doctor and commands say of whole and broken ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sgld.api.errors import ModelError
from sgld.bundled import refuse_unknown
from sgld.cli.main import main
from sgld.plugins.catalog import collect
from sgld.plugins.doctor.check import check
from sgld.plugins.doctor.rows import Report, Row
from sgld.testing import toy_checkpoint, toy_plugin

HOOKS = """
@hookimpl
def sgld_models():
    for name, more in {more!r}.items():
        fields = dict(id=f"acme:{{name}}", folder=f"rooms_dist:{{name}}", pipeline="toy-world")
        yield ModelSpec(**{{**fields, **more}})
"""
ROOMS: dict[str, tuple[dict[str, Any], str]] = {
    "good": ({"defaults": {"width": 64}}, ""),
    "gone": ({"folder": "rooms_dist:elsewhere"}, "its folder 'rooms_dist:elsewhere' is not there"),
    "half": ({}, "is truncated"),
    "image": ({"pipeline": "toy-image"}, "one of 'toy-world', not of 'toy-image'"),
    "range": ({"defaults": {"width": -64}}, "width=-64"),
    "field": ({"defaults": {"colour": 3}}, "colour=3: is unknown"),
    "picture": ({"picture": "no.png"}, "its picture 'no.png' is not there"),
}
"""Name → what its record says, and what must be said of it."""
ENVIRON = {"SGLD_PLUGINS": "rooms", "SGLD_EXTERNAL_MODEL_PACKAGE": toy_plugin.__name__}


@pytest.fixture(scope="module")
def site(new_site: Callable[[], Any]) -> Path:
    """A distribution with all of them."""
    made = new_site()
    more = {name: record for name, (record, _) in ROOMS.items()}
    made.add("rooms", HOOKS.format(more=more), needs=("toy",))
    for name in ROOMS:
        toy_checkpoint.write_world(made.folder / "rooms_dist" / name)
    broken = made.folder / "rooms_dist" / "half" / "vae" / "diffusion_pytorch_model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-9])
    return made.folder


@pytest.fixture
def here(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def report(site: Path) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        return check(ENVIRON, name="rooms", timeout=60)


@pytest.mark.parametrize("name", ROOMS)
def test_each_model_has_its_row(report: Report, name: str) -> None:
    [plugin] = report.plugins
    rows = [row for row in plugin.rows if row.check == "models" and f"'acme:{name}'" in row.message]
    [row] = rows
    part = ROOMS[name][1]
    if part:
        assert (row.level, row.code) == ("bad", "SGLD-P023")
        assert part in row.message
        assert row.remedy
    else:
        assert row.level == "ok"
        assert "0.0 MB in rooms_dist:good" in row.message
        assert "whole, recognised as toy-world" in row.message


def test_no_other_check_is_bad(report: Report) -> None:
    bad: list[Row] = [row for row in report.rows() if row.level == "bad"]
    assert {row.check for row in bad} == {"models"}


@pytest.mark.usefixtures("here")
def test_why_tells_who_carries_and_who_serves_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "why", "acme:good", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["taken"] == "toy-world"
    assert answer["answer"].endswith("rooms-dist 1.0 carries it")
    assert main(["plugins", "why", "acme:gone"]) == 1
    assert "SGLD-P023" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_lists_show_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plugins", "list", "--kind", "model"])
    assert "acme:good,acme:gone" in capsys.readouterr().out
    main(["plugins", "show", "rooms"])
    assert "rooms_dist:good, served by toy-world" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", [["plugins", "why"], ["generate", "--prompt", "x"]])
def test_a_misspelled_name_gets_the_nearest_and_all(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    option = [] if "why" in command else ["--model-path"]
    assert main([*command, *option, "acme:goood"]) == 2
    shown = capsys.readouterr().err
    assert "no installed distribution carries such a model. Did you mean 'acme:good'?" in shown
    assert "There are: acme:field, acme:gone, acme:good" in shown


def test_without_any_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = collect({"SGLD_PLUGINS": ""})
    with pytest.raises(ModelError, match="No installed distribution carries one") as caught:
        refuse_unknown("demo:world", catalog)
    assert caught.value.code == "model_not_found"
    monkeypatch.chdir(tmp_path)
    Path("demo:world").mkdir()
    for path in ("demo:world", "acme/video-1b", "tiny", os.sep, "C:\\models", "s3://acme/x"):
        refuse_unknown(path, catalog)
