"""`sgld plugins why`: each decision with everybody who was considered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from sgld import blueprints
from sgld.api import (
    AttentionSpec,
    CacheSpec,
    Claims,
    KernelSpec,
    PipelineSpec,
    PlatformSpec,
    PluginError,
    Preset,
    Requires,
    UserError,
    Where,
)
from sgld.api.specs import Failure
from sgld.cli import why_model as command
from sgld.cli.main import main
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.platforms.probe import Device, Probe
from sgld.plugins.catalog import Catalog
from sgld.plugins.describe import KINDS, record_id
from sgld.plugins.failures import failure
from sgld.plugins.match import Evidence, NameOnly
from sgld.plugins.report import why_text
from sgld.plugins.resolve import Entry, Resolved
from sgld.plugins.why import why_model
from sgld.plugins.why_machine import machine, ops_named, why_cache, why_op, why_platform
from sgld.testing import toy_checkpoint

PROBES: dict[str, Callable[[], Any]] = {}


def catalog(*specs: Any, failures: tuple[Failure, ...] = ()) -> Catalog:
    kinds = {
        PipelineSpec: "pipeline",
        PlatformSpec: "platform",
        AttentionSpec: "attention",
        KernelSpec: "kernel",
        CacheSpec: "cache",
    }
    entries: dict[str, dict[str, Entry[Any]]] = {kind: {} for kind in KINDS}
    for spec in specs:
        kind = kinds[type(spec)]
        entries[kind][record_id(kind, spec)] = Entry(spec, "acme", "acme-dist", "1.0")
    return Catalog(Resolved(entries, {}, ()), (), failures)


def pipeline(name: str, claims: Claims, **more: Any) -> PipelineSpec:
    return PipelineSpec(name, "m:P", "m:Q", ("text-to-video",), claims)._replace(**more)


WAN = pipeline(
    "wan-t2v",
    Claims(repos=("Wan-AI/Wan2.1-T2V",), aliases=("wan2.1",), patterns=("wan*",)),
    presets=(Preset("p", {}, repos=("org/wan-turbo-big",)),),
    blueprints={"tiny": "m:w", "wan-1b": "m:w"},
)
PLAIN = pipeline("other", Claims(patterns=("w*",)))
LAST = pipeline("any", Claims(files=("model_index.json",)), backend="fallback")
ROWS = catalog(WAN, PLAIN, LAST)


def ask(model: str, rows: Catalog = ROWS, **more: str) -> Any:
    return why_model(rows, model, Evidence(NameOnly(model)), **more)


def test_a_model_with_its_scores_and_those_that_were_not_asked() -> None:
    answer = ask("wan-ai/wan2.1-t2v")
    assert answer.taken == "wan-t2v"
    assert "is served by wan-t2v (acme-dist 1.0): repo id" in answer.text
    assert [(row.id, row.result) for row in answer.rows] == [
        ("wan-t2v", "100"),
        ("other", "-"),
        ("any", "-"),
    ]
    assert "the fallback fallback serves what no native" in answer.rows[2].reason
    assert answer.to_json()["facts"]["score"] == 100


def test_a_backend_leaves_the_others_out() -> None:
    answer = ask("wan-ai/wan2.1-t2v", backend="fallback")
    assert answer.taken == ""
    reasons = {row.id: row.reason for row in answer.rows}
    assert reasons["wan-t2v"] == "not asked: a native one, not fallback"
    assert reasons["any"] == "nothing fits"
    assert ask("x/y", backend="nobody").error.code


class Folder:
    """A checkpoint with these JSON files."""

    def __init__(self, **files: Any) -> None:
        self.root, self.name, self.repo_id = NameOnly("x").root, "x", None
        self._files = {f"{name}.json": value for name, value in files.items()}

    def exists(self, relative: str) -> bool:
        return relative in self._files

    def read_json(self, relative: str) -> Any:
        return self._files.get(relative)

    path = NameOnly.path
    glob = NameOnly.glob


def test_a_fallback_takes_what_no_native_pipeline_claims() -> None:
    answer = why_model(ROWS, "x", Evidence(Folder(model_index={})))
    assert answer.taken == "any"
    assert "the fallback fallback" in answer.text
    assert {row.result for row in answer.rows} == {"70", "-"}


def test_the_nearest_miss_of_a_rule_is_told() -> None:
    five = Where("model_index.json", "boundary", "set")
    rule = (Where("model_index.json", "_class_name", "==", "W"), five)
    rows = catalog(pipeline("a", Claims(rules=(rule,))), PLAIN)
    answer = why_model(rows, "x", Evidence(Folder(model_index={"_class_name": "W"})))
    (row,) = [row for row in answer.rows if row.id == "a"]
    assert row.reason == "not model_index.json:boundary is set; the other 1 of its rule holds"


NEAR = [
    ("Wan-AI/Wan2.1-T2W", "'Wan-AI/Wan2.1-T2V'"),
    ("wan2.1-t2v-", "'Wan-AI/Wan2.1-T2V'"),  # without its organisation
    ("wan2.l", "'wan2.1'"),
    ("other/wan-turbo-bag", "'org/wan-turbo-big'"),
    ("wan-t2v", "'tiny:wan-t2v' or 'config:wan-t2v:wan-1b'"),
]


@pytest.mark.parametrize(("typed", "meant"), NEAR)
def test_an_unknown_model_has_its_near_names(typed: str, meant: str) -> None:
    # Without patterns, which would claim these names.
    spec = WAN._replace(claims=WAN.claims._replace(patterns=()))
    answer = ask(typed, catalog(spec))
    assert answer.error is not None
    assert meant in str(answer.error)


def test_an_unknown_blueprint_has_its_near_names() -> None:
    answer = command.why_model(ROWS, "tiny:wan-t2w")
    assert (answer.taken, answer.question) == ("", "model tiny:wan-t2w")
    assert "no pipeline 'wan-t2w'. Did you mean 'wan-t2v'?" in str(answer.error)


def test_what_to_install_for_an_unknown_model() -> None:
    assert "pip install sgld-flux" in str(ask("me/my-flux", catalog()).error)
    assert "Any diffusers model: pip install sgld-diffusers" in str(ask("foo/bar").error)


def broken(name: str) -> Failure:
    return failure("SGLD-P001", name, "import failed.", dist=f"{name}-dist", version="1")


def test_the_plugin_that_shares_the_models_name_is_blamed_first() -> None:
    rows = catalog(failures=(broken("acme"), broken("other")))
    for answer in (ask("acme/video-1b", rows), command.why_model(rows, "tiny:acme-t2v")):
        assert answer.error is not None
        text = str(answer.error)
        assert answer.error.code == "plugin_failed"
        assert "Plugin acme failed: SGLD-P001 acme-dist 1: import failed." in text
        assert "other-dist" not in text
    many = catalog(failures=tuple(broken(f"p{n}") for n in range(9)))
    assert "9 failures of plugins; `sgld plugins list` shows them" in str(ask("x/y", many).error)


# Ops and platforms -------------------------------------------------------------------------------


def probe(name: str, priority: int, *devices: Device, reason: str = "no driver") -> PlatformSpec:
    PROBES[name] = lambda: Probe(bool(devices), "" if devices else reason, devices)
    return PlatformSpec(name, "m:P", f"m:probe_{name}", priority=priority)


def load(target: str, entry: Any = None) -> Any:
    """A probe of this file."""
    return PROBES[target.rpartition("_")[2]]


DEVICE = Device(0, "Box", 90, 1, frozenset({"float32", "bfloat16"}), frozenset({"graphs"}))
CPU = Device(0, "cpu", 0, 1, frozenset({"float32"}))
SDPA = AttentionSpec("sdpa", "m:s", can=frozenset({"mask"}))
FAST = AttentionSpec("fast", "m:f", Requires(device="box", dtypes=("bfloat16",)))
LOSSY = AttentionSpec("lossy", "m:l", Requires(device="box"), exact=False)
NORM = KernelSpec("norm-fast", "norm.rms", "m:n", Requires(device="box", abilities=("graphs",)))


def ops(*platforms: PlatformSpec) -> Catalog:
    return catalog(SDPA, FAST, LOSSY, NORM, *platforms)


def results(answer: Any) -> dict[str, str]:
    return {row.id: row.reason for row in answer.rows}


def test_an_op_on_this_machine() -> None:
    rows = ops(probe("cpu", 0, CPU), probe("box", 10))
    answer = why_op(rows, "attention.self", machine(rows, load=load))
    assert answer.taken == "sdpa"
    assert answer.rows[0][:2] == ("taken", "sdpa")
    assert results(answer)["fast"].startswith("needs box; this device is cpu")
    assert "is not exact" in results(answer)["lossy"]
    norm = why_op(rows, "norm.rms", machine(rows, load=load))
    assert norm.taken == "reference"
    assert "needs box" in results(norm)["norm-fast"]


def test_an_op_on_a_device_that_is_not_here() -> None:
    rows = ops(probe("cpu", 0, CPU), probe("box", 10))
    at = machine(rows, "box", load=load)
    assert "no such device is here" in at.note
    assert why_op(rows, "attention.self", at).taken == "fast"
    masked = why_op(rows, "attention.masked", at)
    assert masked.taken == "sdpa"
    assert results(masked)["fast"] == "cannot do 'mask'"
    norm = why_op(rows, "norm.rms", at)
    assert norm.taken == "norm-fast"
    assert "for when no kernel fits" in results(norm)["reference"]
    with pytest.raises(UserError, match=r"no platform 'bax'\. Did you mean 'box'"):
        machine(rows, "bax", load=load)


def test_an_op_that_two_do_equally_well_has_no_answer() -> None:
    rows = catalog(SDPA, SDPA._replace(id="twin"), probe("cpu", 0, CPU))
    answer = why_op(rows, "attention.self", machine(rows, load=load))
    assert answer.taken == ""
    assert "sdpa and twin are equally good" in str(answer.error)
    assert results(answer) == {"sdpa": "fits", "twin": "fits"}


def test_names_of_ops() -> None:
    assert ops_named("attention") == ["attention.self", "attention.cross", "attention.masked"]
    assert ops_named("norm.rms") == ["norm.rms"]
    with pytest.raises(UserError, match="Did you mean 'attention'"):
        ops_named("atention")


def test_the_platform_with_what_every_probe_says() -> None:
    rows = ops(probe("cpu", 0, CPU), probe("box", 10, DEVICE), probe("tpu", 5))
    answer = why_platform(rows, load=load)
    assert answer.taken == "box"
    assert results(answer) == {
        "box": "priority 10: 1 there (Box)",
        "tpu": "priority 5: no driver",
        "cpu": "priority 0: 1 there (cpu)",
    }


def test_a_probe_that_hangs_or_raises_is_told_and_decides_nothing() -> None:
    rows = ops(probe("cpu", 0, CPU), probe("hung", 10), probe("raises", 9))
    end = threading.Event()
    PROBES["hung"] = end.wait
    PROBES["raises"] = lambda: 1 / 0
    answer = why_platform(rows, limit_s=0.05, load=load)
    end.set()
    assert answer.taken == ""
    assert answer.error is not None
    assert "SGLD-P010" in str(answer.error)
    assert "did not answer within 0.05 s" in results(answer)["hung"]
    assert "ZeroDivisionError" in results(answer)["raises"]


def test_cache_policies_of_a_pipeline() -> None:
    rows = catalog(
        CacheSpec("rolling", "m:r", bounded=True),
        CacheSpec("all", "m:a", bounded=False),
        pipeline("few", Claims(), caches=("rolling", "gone")),
        pipeline("every", Claims(), caches=("*",)),
        pipeline("none", Claims()),
    )
    few = why_cache(rows, "few")
    assert [(row.result, row.id) for row in few.rows] == [
        ("offered", "rolling"),
        ("-", "all"),
        ("-", "gone"),
    ]
    assert few.text == "few chooses its own, or --cache-policy rolling"
    assert "all|rolling" in why_cache(rows, "every").text
    assert "takes no cache policy" in why_cache(rows, "none").text
    with pytest.raises(UserError, match="Did you mean 'few'"):
        why_cache(rows, "fex")
    for name in ("tiny:few", "config:few:big"):
        assert why_cache(rows, name) == few


def test_cache_policies_that_a_failed_plugin_may_bring() -> None:
    rows = catalog(pipeline("every", Claims(), caches=("*",)), failures=(broken("scenes"),))
    answer = why_cache(rows, "every")
    assert answer.to_json()["facts"]["failed_plugins"] == [
        "SGLD-P001 scenes-dist 1: import failed."
    ]
    last = why_text(answer).splitlines()[-1]
    assert last == "not usable: SGLD-P001 scenes-dist 1: import failed."
    assert why_cache(catalog(pipeline("every", Claims())), "every").facts == {}
    with pytest.raises(PluginError, match="Plugin scenes failed"):
        why_cache(rows, "scenes-world")


# The command -------------------------------------------------------------------------------------

WRONG = [
    ([], "give one of MODEL, --op OP"),
    (["x", "--platform"], "give one of"),
    (["x", "--device", "cpu"], "--device goes with --op"),
    (["--platform", "--backend", "native"], "go with MODEL"),
    (["--op", "nrm"], "Did you mean 'norm'"),
    (["--op", "norm", "--device", "gpu"], "no platform 'gpu'"),
    (["--cache", "zz"], "no pipeline 'zz'"),
]


@pytest.fixture
def only_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLD_PLUGINS", "")
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "sgld.testing.toy_plugin")


@pytest.mark.parametrize(("arguments", "part"), WRONG)
@pytest.mark.usefixtures("only_the_core")
def test_bad_questions(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "why", *arguments]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.usefixtures("only_the_core")
def test_the_command_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "why", "tiny:toy-image"]) == 0
    shown = capsys.readouterr().out
    assert "tiny:toy-image is served by toy-image" in shown
    assert "model_index.json:_class_name" in shown, "by its files, as `sgld generate` decides"
    assert "sgld.testing.toy_checkpoint:write_image of toy-image writes it" in shown
    assert main(["plugins", "why", "--op", "norm", "--device", "cpu", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["taken"] for row in rows] == ["reference"] * len(ops_named("norm"))
    assert main(["plugins", "why", "--cache", "toy-world"]) == 0
    assert "toy-world takes any policy" in capsys.readouterr().out
    assert main(["plugins", "why", "foo/bar", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["taken"] is None
    assert answer["error"]["code"] == "model_not_recognised"


@pytest.mark.parametrize("name", ["image", "edit", "video", "world"])
@pytest.mark.usefixtures("only_the_core")
def test_a_written_checkpoint_is_judged_by_its_files(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A blueprint that writes another family's checkpoint is served by that family."""
    monkeypatch.setattr(toy_checkpoint, "write_image", getattr(toy_checkpoint, f"write_{name}"))
    written = blueprints.write

    def here(*given: Any, isolate: bool) -> Any:
        assert isolate
        return written(*given, isolate=False)

    monkeypatch.setattr(blueprints, "write", here)
    assert main(["plugins", "why", "tiny:toy-image", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["taken"] == f"toy-{name}"
    options = ServingOptions.model_validate({"model_path": "tiny:toy-image", "device": "cpu"})
    with closing(make_plan(options)) as plan:
        assert plan.spec.id == f"toy-{name}"
