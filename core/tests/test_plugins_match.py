"""From a checkpoint to its pipeline: scores, ties, pins, hints, and presets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api import Claims, ModelError, PipelineSpec, Plugin, PluginError, Preset, Where
from sgld.plugins.catalog import Catalog
from sgld.plugins.describe import Described
from sgld.plugins.failures import failure
from sgld.plugins.find import Found
from sgld.plugins.match import Evidence, NameOnly, holds, merge_presets, score
from sgld.plugins.resolve import resolve
from sgld.plugins.rows import PluginRow

INDEX = "model_index.json"


class Folder:
    """A checkpoint held in memory."""

    def __init__(
        self,
        files: Mapping[str, Any] | None = None,
        *,
        name: str = "model",
        repo_id: str | None = None,
        root: str = "/models/model",
    ) -> None:
        self.files = dict(files or {})
        self.name, self.repo_id, self.root = name, repo_id, Path(root)
        self.reads: list[str] = []

    def exists(self, relative: str) -> bool:
        return relative in self.files

    def read_json(self, relative: str) -> dict[str, Any] | None:
        self.reads.append(relative)
        return self.files.get(relative)


def class_rule(name: str, *more: Where) -> tuple[Where, ...]:
    return (Where(INDEX, "_class_name", "==", name), *more)


def spec(name: str, claims: Claims, **more: Any) -> PipelineSpec:
    return PipelineSpec(
        name, f"m:{name.title().replace('-', '')}", "m:Q", ("text-to-video",), claims, **more
    )


def catalog(*specs: PipelineSpec, plugins: Any = (), failures: Any = ()) -> Catalog:
    rows = [
        Described(
            Found(f"p{index}", "m", f"dist-{index}", "1.0", "installed"),
            Plugin(f"p{index}", {}),
            {"pipeline": (row,)},
        )
        for index, row in enumerate(specs)
    ]
    resolved = resolve(rows, {})
    return Catalog(resolved, plugins, [*failures, *resolved.failures])


def wan_index(**more: Any) -> dict[str, Any]:
    return {INDEX: {"_class_name": "WanPipeline", **more}}


# Conditions --------------------------------------------------------------------------------------

DATA = {
    "text": "WanPipeline",
    "empty": "",
    "zero": 0,
    "no": False,
    "yes": True,
    "none": None,
    "list": ["diffusers", "WanTransformer3DModel"],
    "absent": [None, None],
    "hollow": {},
    "nested": {"patch": [1, 2, 2]},
}
CONDITIONS = [
    ("text", "==", "WanPipeline", True),
    ("text", "==", "wanpipeline", False),
    ("list", "==", ("diffusers", "WanTransformer3DModel"), True),
    ("nested.patch", "==", (1, 2, 2), True),
    ("nested.patch.1", "==", 2, True),
    ("nested.patch.9", "==", 2, False),
    ("list.1", "==", "WanTransformer3DModel", True),
    ("text.x", "==", None, False),
    ("missing", "==", None, False),
    ("none", "==", None, True),
    ("text", "!=", "Other", True),
    ("missing", "!=", "Other", True),
    ("text", "!=", "WanPipeline", False),
    ("text", "in", ("A", "WanPipeline"), True),
    ("text", "in", ("A",), False),
    ("missing", "in", (None,), False),
    ("text", "set", None, True),
    ("zero", "set", None, True),
    ("yes", "set", None, True),
    ("empty", "set", None, False),
    ("no", "set", None, False),
    ("none", "set", None, False),
    ("hollow", "set", None, False),
    ("absent", "set", None, False),
    ("missing", "set", None, False),
    ("missing", "unset", None, True),
    ("absent", "unset", None, True),
    ("text", "unset", None, False),
]


@pytest.mark.parametrize(("key", "test", "value", "wanted"), CONDITIONS)
def test_conditions(key: str, test: str, value: Any, wanted: bool) -> None:
    files = Folder({"c.json": json.loads(json.dumps(DATA))})
    assert holds(Where("c.json", key, test, value), Evidence(files)) is wanted


@pytest.mark.parametrize("test", ["==", "!=", "in", "set", "unset"])
@pytest.mark.parametrize("optional", [False, True])
def test_a_missing_file_fails_every_test_but_an_optional_unset(test: str, optional: bool) -> None:
    where = Where("no.json", "k", test, (None,), optional)
    assert holds(where, Evidence(Folder())) is (optional and test == "unset")


def test_each_file_is_read_once() -> None:
    files = Folder(wan_index())
    several = [spec(f"p{index}", Claims(rules=(class_rule("X"),))) for index in range(5)]
    with pytest.raises(ModelError):
        catalog(*several).recognise(files)
    assert files.reads.count(INDEX) == 1


# Scores ------------------------------------------------------------------------------------------

SCORES = [
    (Claims(repos=("Wan-AI/T2V",)), Folder(repo_id="wan-ai/t2v"), "", 100),
    (
        Claims(repos=("Wan-AI/T2V",)),
        Folder(root="/hub/models--Wan-AI--T2V/snapshots/abc"),
        "",
        100,
    ),
    (Claims(repos=("Wan-AI/T2V",)), Folder(), "Wan-AI/T2V", 100),
    (Claims(repos=("Wan-AI/T2V",)), Folder(), "T2V", 90),
    (Claims(repos=("Wan-AI/T2V",)), Folder(name="T2V"), "", 0),
    (Claims(repos=("Wan-AI/T2V",)), Folder(repo_id="Wan-AI/T2V"), "Other/X", 0),
    (Claims(aliases=("wan-t2v",)), Folder(name="Wan-T2V"), "", 90),
    (Claims(aliases=("wan-t2v",)), Folder(), "wan-t2v", 90),
    (Claims(rules=(class_rule("WanPipeline"),)), Folder(wan_index()), "", 80),
    (
        Claims(rules=(class_rule("WanPipeline", Where(INDEX, "x", "unset")),)),
        Folder(wan_index()),
        "",
        81,
    ),
    (
        Claims(rules=(class_rule("WanPipeline", *[Where(INDEX, "x", "unset")] * 20),)),
        Folder(wan_index()),
        "",
        89,
    ),
    (Claims(files=("a.bin", "b.bin")), Folder({"b.bin": 1}), "", 70),
    (Claims(files=("a.bin",)), Folder(), "", 0),
]


@pytest.mark.parametrize(("claims", "files", "model_id", "points"), SCORES)
def test_scores(claims: Claims, files: Folder, model_id: str, points: int) -> None:
    assert score(claims, Evidence(files, model_id))[0] == points


PATTERNS = [
    (("wan*",), "Wan2.1-x", 24),
    (("wan*", "wan2.1-*"), "wan2.1-x", 28),
    (
        ("*" * 3 + "abcdefghijklmnopqrstuvwxyz0123456789*",),
        "abcdefghijklmnopqrstuvwxyz0123456789",
        50,
    ),
]


@pytest.mark.parametrize(("patterns", "name", "points"), PATTERNS)
def test_name_patterns(patterns: tuple[str, ...], name: str, points: int) -> None:
    found = catalog(spec("a", Claims(patterns=patterns))).recognise(Folder(name=name))
    assert found.score == points


def test_the_best_evidence_wins_and_all_are_listed() -> None:
    rows = catalog(
        spec("by-name", Claims(patterns=("*wan*",))),
        spec("by-class", Claims(rules=(class_rule("WanPipeline"),))),
        spec("by-repo", Claims(repos=("a/wan",))),
    )
    found = rows.recognise(Folder(wan_index(), name="wan", repo_id="a/wan"))
    assert (found.entry.spec.id, found.score) == ("by-repo", 100)
    assert [(row.pipeline, row.score) for row in found.tried] == [
        ("by-repo", 100),
        ("by-class", 80),
        ("by-name", 0),
    ]


def test_the_narrower_rule_wins() -> None:
    wide = spec("wan", Claims(rules=(class_rule("WanPipeline"),)))
    narrow = spec("wan-two", Claims(rules=(class_rule("WanPipeline", Where(INDEX, "b", "set")),)))
    rows = catalog(wide, narrow)
    assert rows.recognise(Folder(wan_index(b=0.9))).entry.spec.id == "wan-two"
    assert rows.recognise(Folder(wan_index())).entry.spec.id == "wan"


def test_a_tie_is_an_error_that_says_how_to_pin() -> None:
    rows = catalog(
        spec("one", Claims(rules=(class_rule("WanPipeline"),))),
        spec("two", Claims(rules=(class_rule("WanPipeline"),))),
    )
    with pytest.raises(ModelError) as caught:
        rows.recognise(Folder(wan_index()))
    assert caught.value.code == "model_ambiguous"
    text = str(caught.value)
    assert "one (dist-0" in text
    assert "two (dist-1" in text
    assert "--pipeline-class-name one" in text


# Detectors ---------------------------------------------------------------------------------------


def detected(value: Any) -> Catalog:
    def detect(files: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    globals()["_detector"] = detect
    return catalog(spec("a", Claims(detect=f"{__name__}:_detector")))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of this file are found here, whatever pytest named the module."""
    monkeypatch.setattr(
        "sgld.plugins.catalog.importlib.import_module",
        lambda name: type("Module", (), {"_detector": staticmethod(globals()["_detector"])}),
    )


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize(("value", "points"), [(60, 60), (1, 1), (400, 60)])
def test_detectors(value: int, points: int) -> None:
    assert detected(value).recognise(Folder()).score == points


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("value", [0, -5])
def test_a_detector_that_says_no(value: int) -> None:
    with pytest.raises(ModelError, match="no plugin serves"):
        detected(value).recognise(Folder())


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("value", ["yes", True, None, 0.5, ValueError("boom")])
def test_p007_a_broken_detector(value: Any) -> None:
    with pytest.raises(PluginError) as caught:
        detected(value).recognise(Folder())
    assert caught.value.failures[0].code == "SGLD-P007"


def test_detectors_are_not_asked_when_something_stronger_fits() -> None:
    rows = catalog(
        spec("a", Claims(detect="no.such.module:f")),
        spec("b", Claims(rules=(class_rule("WanPipeline"),))),
    )
    assert rows.recognise(Folder(wan_index())).entry.spec.id == "b"


# Pins --------------------------------------------------------------------------------------------

FAMILY = (
    spec("wan-t2v", Claims(rules=(class_rule("WanPipeline", Where(INDEX, "five", "unset")),))),
    spec("wan-5b", Claims(rules=(class_rule("WanPipeline", Where(INDEX, "five", "set")),))),
    spec("flux-one", Claims(rules=((Where(INDEX, "_class_name", "in", ("FluxA", "FluxB")),),))),
)
PINS = [
    ("wan-t2v", {}, "wan-t2v"),
    ("wan-t2v", wan_index(five=1), "wan-t2v"),
    ("WanT2V", {}, "wan-t2v"),
    ("WanPipeline", wan_index(five=1), "wan-5b"),
    ("WanPipeline", wan_index(), "wan-t2v"),
    ("FluxB", {}, "flux-one"),
]


@pytest.mark.parametrize(("pin", "files", "wanted"), PINS)
def test_pins(pin: str, files: dict[str, Any], wanted: str) -> None:
    pin = {"WanT2V": "WanT2V"}.get(pin, pin)
    found = catalog(*FAMILY).recognise(Folder(files), pipeline=pin)
    assert found.entry.spec.id == wanted


def test_a_class_name_of_several_pipelines_without_evidence_is_ambiguous() -> None:
    with pytest.raises(ModelError) as caught:
        catalog(*FAMILY).recognise(Folder(), pipeline="WanPipeline")
    assert caught.value.code == "model_ambiguous"


def test_an_unknown_pin_suggests_the_nearest() -> None:
    with pytest.raises(ModelError) as caught:
        catalog(*FAMILY).recognise(Folder(), pipeline="wan-t2w")
    assert caught.value.code == "model_not_recognised"
    assert "Did you mean 'wan-t2v'?" in str(caught.value)


# Nothing fits ------------------------------------------------------------------------------------


def unrecognised(rows: Catalog, files: Any, **more: str) -> str:
    with pytest.raises(ModelError) as caught:
        rows.recognise(files, **more)
    assert caught.value.code == "model_not_recognised"
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_no_match_lists_what_was_tried_and_the_near_miss() -> None:
    rows = catalog(
        spec("wan", Claims(repos=("Wan-AI/Wan2.1-T2V",))), spec("b", Claims(repos=("b/b",)))
    )
    text = unrecognised(rows, NameOnly("Wan-AI/Wan2.1-T2W"))
    assert "'Wan-AI/Wan2.1-T2W'" in text
    assert "Tried: b, wan." in text
    assert "Did you mean 'Wan-AI/Wan2.1-T2V'?" in text


INSTALL = [
    (Folder(wan_index()), "pip install sgld-wan"),
    (NameOnly("Wan-AI/Wan2.1-T2V-1.3B-Diffusers"), "pip install sgld-wan"),
    (NameOnly("black-forest-labs/FLUX.1-dev"), "pip install sgld-flux"),
    (Folder({INDEX: {"_class_name": "SanaVideoPipeline"}}), "pip install sgld-sana"),
    (NameOnly("robbyant/lingbot-world"), "pip install sgld-lingbot"),
    (Folder({INDEX: {"_class_name": "KandinskyPipeline"}}), "pip install sgld-diffusers"),
    (Folder(), "`sgld models list`"),
]


@pytest.mark.parametrize(("files", "hint"), INSTALL)
def test_with_the_core_alone_the_error_says_what_to_install(files: Any, hint: str) -> None:
    text = unrecognised(catalog(), files)
    assert "no plugin serves model" in text
    assert hint in text


def test_the_plugin_that_should_serve_it_has_failed() -> None:
    row = failure("SGLD-P001", "wan", "import failed.", dist="sgld-wan", version="0.1")
    with pytest.raises(PluginError) as caught:
        catalog(failures=[row]).recognise(Folder(wan_index()))
    assert "Plugin wan failed: SGLD-P001 sgld-wan 0.1: import failed." in str(caught.value)
    assert caught.value.failures == (row,)


def test_another_failed_plugin_is_mentioned() -> None:
    row = failure("SGLD-P001", "acme", "import failed.", dist="acme", version="0.1")
    assert "Plugin acme failed: SGLD-P001" in unrecognised(catalog(failures=[row]), Folder())


def test_a_plugin_left_out_by_the_user_is_mentioned() -> None:
    row = PluginRow(
        "wan", "sgld-wan", "1", "installed", "m", "", {}, {}, "denied", "left out by X", 0.0
    )
    text = unrecognised(catalog(plugins=[row]), Folder(wan_index()))
    assert "Plugin wan is installed but left out by X" in text
    assert "pip install" not in text


@pytest.mark.parametrize("pipeline", ["", "old-one"])
def test_a_retired_pipeline_says_which_version_had_it(pipeline: str) -> None:
    rows = catalog(spec("old-one", Claims(repos=("a/old",)), retired="0.4"))
    text = unrecognised(rows, NameOnly("a/old"), pipeline=pipeline)
    assert "dist-0 0.4 was the last" in text
    assert "'dist-0<=0.4'" in text


# Presets -----------------------------------------------------------------------------------------

BASE = Preset("base", {"steps": 50, "fps": 16, "shift": 3})
BIG = Preset("big", {"shift": 5}, repos=("a/big",))
RULED = Preset("ruled", {"steps": 4}, rules=((Where("c.json", "fast", "set"),),))
NARROW = Preset(
    "narrow", {"steps": 8}, rules=((Where("c.json", "fast", "set"), Where("c.json", "x", "set")),)
)
PRESETS = [
    (Folder(), "", {"steps": 50, "fps": 16, "shift": 3}),
    (Folder(repo_id="A/Big"), "", {"steps": 50, "fps": 16, "shift": 5}),
    (Folder(), "big", {"steps": 50, "fps": 16, "shift": 5}),
    (Folder({"c.json": {"fast": 1}}), "", {"steps": 4, "fps": 16, "shift": 3}),
    (Folder({"c.json": {"fast": 1, "x": 1}}), "", {"steps": 8, "fps": 16, "shift": 3}),
    (
        Folder({"c.json": {"fast": 1, "x": 1}}, repo_id="a/big"),
        "",
        {"steps": 50, "fps": 16, "shift": 5},
    ),
]


@pytest.mark.parametrize(("files", "model_id", "wanted"), PRESETS)
def test_presets(files: Folder, model_id: str, wanted: dict[str, Any]) -> None:
    one = spec("a", Claims(), presets=(RULED, BIG, NARROW, BASE))
    assert catalog(one).preset(one, files, model_id=model_id) == wanted


def test_equal_presets_that_disagree_are_the_plugin_authors_fault() -> None:
    twin = RULED._replace(id="twin", defaults={"steps": 5})
    one = spec("a", Claims(), presets=(RULED, twin))
    with pytest.raises(PluginError, match="'ruled' and 'twin'"):
        merge_presets(one, Evidence(Folder({"c.json": {"fast": 1}})))
    same = spec("a", Claims(), presets=(RULED, RULED._replace(id="twin")))
    assert merge_presets(same, Evidence(Folder({"c.json": {"fast": 1}}))).defaults == {"steps": 4}


DEFAULTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(), max_size=3)


@given(DEFAULTS, DEFAULTS, st.permutations([0, 1]))
def test_a_fitting_preset_lies_over_the_base_in_any_order(
    base: dict[str, int], special: dict[str, int], order: list[int]
) -> None:
    presets = (Preset("base", base), Preset("own", special, repos=("a/b",)))
    one = spec("a", Claims(), presets=tuple(presets[index] for index in order))
    assert merge_presets(one, Evidence(Folder(repo_id="a/b"))).defaults == {**base, **special}
    assert merge_presets(one, Evidence(Folder(repo_id="a/c"))).defaults == base


EVIDENCE = st.fixed_dictionaries(
    {
        "repos": st.sampled_from([(), ("a/m",)]),
        "aliases": st.sampled_from([(), ("m",)]),
        "rules": st.sampled_from([(), (class_rule("WanPipeline"),)]),
        "files": st.sampled_from([(), (INDEX,)]),
        "patterns": st.sampled_from([(), ("m*",)]),
    }
)


@given(EVIDENCE, EVIDENCE)
def test_the_stronger_kind_of_evidence_always_wins(one: Any, two: Any) -> None:
    """A claim with strictly stronger best evidence wins, whichever comes first."""
    files = Folder(wan_index(), name="m", repo_id="a/m")
    order = ["repos", "aliases", "rules", "files", "patterns"]
    ranks = [next((i for i, key in enumerate(order) if row[key]), 9) for row in (one, two)]
    rows = catalog(spec("one", Claims(**one)), spec("two", Claims(**two)))
    if ranks[0] == ranks[1]:
        with pytest.raises(ModelError):
            rows.recognise(files)
    else:
        wanted = "one" if ranks[0] < ranks[1] else "two"
        assert rows.recognise(files).entry.spec.id == wanted
