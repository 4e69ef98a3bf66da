"""Models that a distribution carries: found, complete or refused, and used when none is named."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image
from typer.testing import CliRunner

from sgld import bundled
from sgld.api import ModelSpec, ParameterError, Plugin, PluginError, hookimpl
from sgld.carried import examine
from sgld.cli.generate import generate
from sgld.cli.models import app as models
from sgld.cli.serve import serve
from sgld.cli.unnamed import with_model
from sgld.params.merge import Layer
from sgld.params.requests import prepare
from sgld.params.server import ServerOptions
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.plugins.catalog import Catalog, build
from sgld.plugins.check import problems
from sgld.plugins.find import Discovery, Found
from sgld.server.bodies import Body, Kind, Limits
from sgld.server.inputs import load_inputs
from sgld.server.launch import Server, bind, page_address
from sgld.server.openapi import request_body
from sgld.server.parameters import ModelFacts, prepare_request
from sgld.server.realtime.model import capabilities
from sgld.server.realtime.opening import RealtimeModel, read_init
from sgld.testing import toy_checkpoint
from sgld.testing.toy_world_params import ToyWorldAdapter, ToyWorldParams

ROOM = ModelSpec(
    "acme:room", "toy-world", "acme_room:files/room", {"width": 64, "prompt": "a room"}, "first.png"
)


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package that carries a toy world; its folder."""
    package = tmp_path / "acme_room"
    folder = package / "files" / "room"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nothing needs to import it')")
    WRITE(folder)
    Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(folder / "first.png")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


WRITE: Callable[[Path], None] = toy_checkpoint.write_world


def catalog_of(monkeypatch: pytest.MonkeyPatch, *models: ModelSpec) -> Catalog:
    module = types.ModuleType("fake_acme")

    def sgld_plugin() -> Plugin:
        return Plugin("acme", {"model": 1})

    def sgld_models() -> list[ModelSpec]:
        return list(models)

    vars(module).update(sgld_plugin=hookimpl(sgld_plugin), sgld_models=hookimpl(sgld_models))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    toys = Found("toy", "sgld.testing.toy_plugin", "sgld-core", "1", "local")
    core = Found("builtin", "sgld.builtin", "sgld-core", "1", "builtin")
    acme = Found("acme", module.__name__, "acme-room", "1.2", "installed")
    rows = build(Discovery((core, toys, acme), (), ()), {})
    assert not rows.failures
    return rows


def options(**given: Any) -> ServingOptions:
    return ServingOptions.model_validate({"model_path": "acme:room", "device": "cpu", **given})


def test_it_is_served_by_its_name(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = catalog_of(monkeypatch, ROOM)
    with_plan = make_plan(options(), environ={}, catalog=rows)
    assert with_plan.files.root == carried
    assert with_plan.files.name == "acme:room"
    assert with_plan.recognition.evidence == "carried by acme-room 1.2"
    assert not with_plan.temporary
    params = with_plan.build([Layer("call", {})]).params
    assert (params.prompt, params.width) == ("a room", 64)
    assert "image_path" not in with_plan.preset_layer.values
    assert with_plan.local_layer.values["image_path"] == str(carried / "first.png")
    assert "acme_room" not in sys.modules


def test_what_is_missing_is_named(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (carried / "first.png").unlink()
    with pytest.raises(PluginError, match=r"acme-room 1\.2.*its picture 'first\.png'.*again"):
        make_plan(options(), environ={}, catalog=catalog_of(monkeypatch, ROOM))
    shutil.rmtree(carried)
    with pytest.raises(PluginError, match="its folder 'acme_room:files/room' is not there"):
        make_plan(options(), environ={}, catalog=catalog_of(monkeypatch, ROOM))


def test_it_has_no_revision(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="revision"):
        make_plan(options(revision="main"), environ={}, catalog=catalog_of(monkeypatch, ROOM))


def test_a_folder_of_that_name_goes_before_it(
    carried: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(carried, tmp_path / "acme:room")
    monkeypatch.chdir(tmp_path)
    made = make_plan(options(), environ={}, catalog=catalog_of(monkeypatch, ROOM))
    assert made.files.root == tmp_path / "acme:room"
    assert made.picture == ""


def test_only_one_is_used_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bundled.only_model(catalog_of(monkeypatch, ROOM))
    assert one is not None
    assert one.spec.id == "acme:room"
    assert bundled.only_model(catalog_of(monkeypatch, ROOM, ROOM._replace(id="acme:hall"))) is None
    assert bundled.only_model(catalog_of(monkeypatch)) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", "room"), ("id", "acme:"), ("id", "acme/room:x"), ("folder", "acme_room"),
     ("folder", "acme_room:../other"), ("folder", "acme_room:/etc"), ("pipeline", "Toy World"),
     ("defaults", {"a-b": 1}), ("picture", None),
     ("blank", None), ("tasks", ("text-to-smell",)), ("tasks", "text-to-image")],
)  # fmt: skip
def test_a_record_that_cannot_be_right_is_refused(field: str, value: Any) -> None:
    assert not problems(ROOM)
    [text] = problems(ROOM._replace(**{field: value}))
    assert text.startswith(f"{field}=")


NAMED = ({"model_path": "x"}, {"model-path": "x"})


@pytest.mark.parametrize("values", NAMED)
def test_a_model_that_is_named_stays(
    values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgld.plugins.catalog.collect", lambda _: pytest.fail("was looked for"))
    layers = [Layer("flag", {"seed": "1"}), Layer("file", values)]
    assert with_model(layers) == (layers, "")


def test_commands_say_which_one_they_use(
    carried: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = catalog_of(monkeypatch, ROOM)
    monkeypatch.setattr("sgld.plugins.catalog.collect", lambda *_, **__: rows)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(serve, ["--print-config"])
    assert run.exit_code == 0
    assert "using acme:room, which acme-room 1.2 brings" in run.stderr
    row = json.loads(run.stdout)["model_path"]
    assert row == {"value": "acme:room", "origin": "model preset acme-room 1.2"}


@pytest.mark.usefixtures("carried")
def test_its_parameters_are_shown_with_its_own_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = catalog_of(monkeypatch, ROOM)
    monkeypatch.setattr("sgld.plugins.catalog.collect", lambda *_, **__: rows)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(models, ["show", "acme:room"])
    assert run.exit_code == 0, run.stderr
    assert "from acme-room 1.2; it is of this family" in run.stdout
    assert "toy-world" in run.stdout
    shown = {}
    for name in ("acme:room", "toy-world"):
        run = CliRunner().invoke(models, ["show", name, "--json"])
        parameters = json.loads(run.stdout)["parameters"]
        shown[name] = {row["name"]: (row["default"], row["required"]) for row in parameters}
    assert shown["acme:room"]["width"] == (64, False)
    assert shown["acme:room"]["prompt"] == ("a room", False)
    assert shown["toy-world"]["prompt"] == (None, True)


def test_without_one_a_model_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = catalog_of(monkeypatch)
    monkeypatch.setattr("sgld.plugins.catalog.collect", lambda *_, **__: rows)
    for command, words in ((serve, ["--print-config"]), (generate, ["--prompt", "x"])):
        run = CliRunner().invoke(command, words)
        assert run.exit_code == 2
        assert "--model-path: is required" in run.stderr


def test_a_session_and_a_clip_begin_with_its_picture(
    carried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(options(), environ={}, catalog=catalog_of(monkeypatch, ROOM))
    facts, limits = ModelFacts.of(plan, "acme:room"), Limits.of(ServerOptions())

    class Needy(ToyWorldAdapter):
        needs_first_frame = True

    model = RealtimeModel("toy-world", Needy, facts, limits)
    wanted = read_init({"type": "init"}, model)
    assert wanted.first_frame == (carried / "first.png").read_bytes()
    assert wanted.built.params.prompt == "a room"
    assert read_init({"first_frame": b"mine"}, model).first_frame == b"mine"
    shown = capabilities(model)
    assert shown is not None
    assert not shown["needs_first_frame"]
    assert str(carried) not in json.dumps(shown)
    bare = RealtimeModel("toy-world", Needy, dataclasses.replace(facts, picture=""), limits)
    with pytest.raises(ParameterError, match="first_frame"):
        read_init({"type": "init"}, bare)
    for one in (model, bare):
        resumed = read_init({"type": "init", "protocol": 2, "snapshot": b"state"}, one)
        assert resumed.first_frame is None, "a snapshot has its own"
    services: Any = SimpleNamespace(facts=facts, limits=limits)
    body: Any = SimpleNamespace(files={}, urls=())
    [picture] = asyncio.run(load_inputs(services, "video", body))
    assert (picture == 200).all()
    assert asyncio.run(load_inputs(services, "image", body)) == []


def test_a_request_without_a_picture_begins_with_the_blank_one(
    carried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(carried / "blank.png")
    tasks = ("image-to-video", "text-to-video", "text-to-image")
    record = ROOM._replace(blank="blank.png", tasks=tasks)
    assert not problems(record)
    plan = make_plan(options(), environ={}, catalog=catalog_of(monkeypatch, record))
    assert plan.tasks == tasks
    assert plan.local_layer.values["image_path"] == str(carried / "blank.png")
    assert plan.session_layer.values["image_path"] == str(carried / "first.png")
    facts, limits = ModelFacts.of(plan, "acme:room"), Limits.of(ServerOptions())
    assert set(facts.routes) == {"image", "video"}
    assert not facts.needs_image
    model = RealtimeModel("toy-world", ToyWorldAdapter, facts, limits)
    assert read_init({"type": "init"}, model).first_frame == (carried / "first.png").read_bytes()
    only = RealtimeModel("", ToyWorldAdapter, dataclasses.replace(facts, picture=""), limits)
    assert read_init({"type": "init"}, only).first_frame == (carried / "blank.png").read_bytes()
    services: Any = SimpleNamespace(facts=facts, limits=limits)
    bare: Any = SimpleNamespace(files={}, urls=())
    for kind, count in (("video", 1), ("image", 1), ("edit", 0)):
        pictures = asyncio.run(load_inputs(services, kind, bare))
        assert [int(one.max()) for one in pictures] == [9] * count


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({}, []),
        ({"picture": ""}, []),
        ({"tasks": ("text-to-image",)}, ["text-to-image"]),
        ({"tasks": ("text-to-video",)}, []),
        ({"tasks": ("text-to-video", "text-to-image"), "picture": ""},
         ["text-to-image", "text-to-video"]),
        ({"tasks": ("text-to-video", "text-to-image"), "picture": "", "blank": "first.png"}, []),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("carried")
def test_what_is_made_of_text_alone_needs_a_picture_to_begin_with(
    record: dict[str, Any], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyWorldParams, "needs_image", True)
    rows = catalog_of(monkeypatch, ROOM._replace(**record))
    faults = examine(rows.models["acme:room"], rows).faults
    assert [fault.text.split()[0] for fault in faults] == told
    assert {fault.part for fault in faults} <= {"start"}


def test_a_picture_by_a_family_of_clips_is_one_frame(
    carried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ROOM._replace(tasks=("image-to-video", "text-to-image"))
    plan = make_plan(options(), environ={}, catalog=catalog_of(monkeypatch, record))
    facts, limits = ModelFacts.of(plan, "acme:room"), Limits.of(ServerOptions())

    def asked(kind: Kind, **fields: Any) -> Any:
        return prepare_request(kind, Body(dict(fields)), facts, limits).prepared.params

    assert asked("image").num_frames == 1
    assert asked("video", num_frames=9).num_frames == 9
    for field in ("num_frames", "seconds", "fps"):
        with pytest.raises(ParameterError, match=f"{field}=8: .*/v1/videos makes clips"):
            asked("image", **{field: 8})
    known = {
        kind: request_body(kind, facts, limits)["requestBody"]["content"]["application/json"][
            "schema"
        ]["properties"].keys()
        for kind in ("image", "video")
    }
    assert not {"num_frames", "seconds", "fps"} & known["image"]
    assert {"num_frames", "seconds", "fps"} <= known["video"]


def test_a_request_with_a_picture_has_that_one_only() -> None:
    own = Layer("preset", {"image_path": "own.png", "prompt": "a room"})
    [mine] = prepare(ToyWorldParams, [Layer("call", {"image_path": "my.png"}), own])
    [none] = prepare(ToyWorldParams, [own])
    [held] = prepare(ToyWorldParams, [own], images_given=1)
    assert [one.image_paths for one in (mine, none, held)] == [("my.png",), ("own.png",), ()]


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:80/"), ("0.0.0.0", "http://127.0.0.1:80/"),
     ("::", "http://[::1]:80/"), ("fe80::1", "http://[fe80::1]:80/")],
)  # fmt: skip
def test_the_address_of_the_page(host: str, address: str) -> None:
    assert page_address(host, 80) == address


@pytest.mark.parametrize("wished", [True, False])
def test_the_page_is_opened_when_it_can_be_reached(
    wished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)

    async def start() -> int:
        config = uvicorn.Config(lambda *_: None, lifespan="off", log_config=None)  # pyright: ignore
        config.load()
        services: Any = SimpleNamespace(options=SimpleNamespace(open=wished))
        server = Server(config, services)
        server.lifespan = config.lifespan_class(config)
        with bind(ServerOptions.model_validate({"port": 0})) as listener:
            port = listener.getsockname()[1]
            await server.startup(sockets=[listener])
            for one in server.servers:
                one.close()
                await one.wait_closed()
        return port

    port = asyncio.run(start())
    assert opened == ([f"http://127.0.0.1:{port}/"] if wished else [])
