"""Configuration files: both formats, all spellings, every kind of fault with its line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError, UserError
from sgld.params.files import read_config
from sgld.params.merge import build
from sgld.params.serving import ServingOptions


def written(folder: Path, text: str, name: str = "f.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [("f.yaml", "model_path: m\nseed: 5\ncomponent_paths: {vae: x}\n"),
     ("f.json", '{"model_path": "m",\n"seed": 5,\n"component_paths": {"vae": "x"}}'),
     ("f.json", '{\t"model-path": "m",\n\t"seed": 5,\n\t"vae-path": "x"}'),
     ("f.yaml", "model-path: m\nseed: 5\ncomponent-path.vae: x\n"),
     ("f.yml", "\ufeffmodel_path: m\nseed: 5\nvae_path: x\n"),
     ("f.yaml", "# note\n---\n'model_path': \"m\"\nseed: 5\ncomponent-paths.vae: x")],
)  # fmt: skip
def test_both_formats_and_all_spellings(tmp_path: Path, name: str, text: str):
    layer = read_config(written(tmp_path, text, name))
    assert layer.values == {"model_path": "m", "seed": 5, "component_paths": {"vae": "x"}}
    assert layer.lines["seed"] == 2 + text.startswith("#") * 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("off", "off"), ("on", "on"), ("no", "no"), ("true", True), ("null", None), ("~", None),
     ("", None), ("5", 5), ("-5", -5), ("1.5", 1.5), ("1e3", 1000.0), ("0x10", "0x10"),
     ("1:30", "1:30"), ("2026-11-29", "2026-11-29"), ("'5'", "5"), ("[1, 2]", [1, 2]),
     ("1_000", "1_000")],
)  # fmt: skip
def test_words_mean_what_they_say(tmp_path: Path, text: str, value: Any):
    got = read_config(written(tmp_path, f"key: {text}\n")).values["key"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "code", "message"),
    [("f.yaml", "", "empty", "empty"),
     ("f.yaml", "# only a comment\n", "empty", "empty"),
     ("f.json", "  \n", "empty", "empty"),
     ("f.yaml", "seed: 1\nseed: 2\n", "duplicate_key", r":2: seed is given twice, first in line 1"),
     ("f.yaml", "num-frames: 1\n\nnum_frames: 2\n", "duplicate_key", r":3: num_frames is given"),
     ("f.json", '{"seed": 1,\n"seed": 1}', "duplicate_key", ":2: seed"),
     ("f.yaml", "a:\n  vae: 1\n  vae: 2\n", "duplicate_key", ":3: vae"),
     ("f.yaml", "vae-path: 1\ncomponent_paths: {vae: 2}\n", "duplicate_key", ":2: "),
     ("f.yaml", "- a\n- b\n", "not_a_mapping", ":1: .*NAME: VALUE"),
     ("f.json", "[1]", "not_a_mapping", "NAME: VALUE"),
     ("f.yaml", "just words", "not_a_mapping", "NAME: VALUE"),
     ("f.yaml", "a: 1\nb: [1\n", "broken", "not YAML"),
     ("f.yaml", "a: 1\n\tb: 2\n", "broken", ":2: "),
     ("f.json", '{"a": 1,\n}', "broken", "not JSON"),
     ("f.json", "a: 1", "broken", ":1: this is not JSON"),
     ("f.yaml", "a: !!python/object/apply:os.getcwd []\n", "broken", ":1: "),
     ("f.yaml", "? [1, 2]\n: 3\n", "broken", "plain word"),
     ("f.yaml", "a: *nothing\n", "broken", "nothing")],
)  # fmt: skip
def test_faults_are_named_with_their_line(
    tmp_path: Path, name: str, text: str, code: str, message: str
):
    with pytest.raises(UserError, match=message) as caught:
        read_config(written(tmp_path, text, name))
    assert caught.value.code == f"config_{code}"
    assert caught.value.exit_code == 2
    assert name in str(caught.value)


def test_missing_files_folders_and_bytes(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "b.yaml")
    (tmp_path / "big.yaml").write_bytes(b"a: " + b"x" * (1 << 20))
    with pytest.raises(UserError, match="larger than"):
        read_config(tmp_path / "big.yaml")


def test_anchors_do_not_explode(tmp_path: Path):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert len(read_config(written(tmp_path, "\n".join(lines))).values) == 40


def test_an_unknown_key_has_line_and_near_match(tmp_path: Path):
    layer = read_config(written(tmp_path, "model_path: m\n\ndevcie: cpu\n"))
    with pytest.raises(
        ParameterError, match=r"devcie='cpu': is unknown\. Did you mean device\?.*:3\)"
    ):
        build(ServingOptions, [layer])


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: Any, text: str):
    folder = tmp_path_factory.getbasetemp()
    for name in ("any.yaml", "any.json"):
        path = folder / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with suppress(UserError):
            assert read_config(path).kind == "file"
