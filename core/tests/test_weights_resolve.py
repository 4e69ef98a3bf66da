"""A model path becomes files: the same model under every spelling (case A19), clear refusals."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ModelError
from sgld.weights.resolve import resolve

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "sgld case" / "my model"
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "Tiny"}')
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"network use: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None) -> Path:
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.mark.parametrize(
    "spelling",
    ["{}", "{}/", "{}//", "{}/.", "./my model", "./my model/", "../sgld case/my model", " {} "],
)
def test_every_spelling_of_a_folder_is_the_same_model(
    model: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    files = resolve(spelling.format(model))
    assert files.name == "my model"
    assert files.root.samefile(model)
    assert files.read_json("model_index.json") == {"_class_name": "Tiny"}
    assert (files.repo_id, files.revision, files.origin) == (None, None, "local")


def test_a_link_is_named_as_the_user_spelled_it(model: Path) -> None:
    link = model.parent / "my link"
    link.symlink_to(model, target_is_directory=True)
    for spelling in (str(link), f"{link}/"):
        assert resolve(spelling).name == "my link"
        assert resolve(spelling).exists("model_index.json")


def test_home_and_current_folder(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    monkeypatch.chdir(model)
    assert resolve("~/my model/").name == "my model"
    assert resolve(".").name == "my model"
    assert resolve("./").name == "my model"
    assert resolve("/").name == "model"


def test_a_folder_named_like_a_hub_id_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("acme/tiny").origin == "local"


def test_model_id_says_which_repository_the_files_are(model: Path) -> None:
    assert resolve(str(model), model_id="acme/tiny").repo_id == "acme/tiny"


def test_a_single_file_hides_its_neighbours(model: Path) -> None:
    weights = model / "some weights.safetensors"
    weights.write_bytes(b"")
    files = resolve(str(weights))
    assert files.name == "some weights.safetensors"
    assert files.file == weights
    assert files.exists("some weights.safetensors")
    assert not files.exists("model_index.json")
    assert files.read_json("model_index.json") is None
    assert files.glob("*") == [weights]


def test_a_folder_of_a_hub_cache_keeps_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    files = resolve(f"{snapshot}/")
    assert (files.repo_id, files.revision, files.origin) == ("acme/tiny", SHA, "hub")


@pytest.mark.parametrize(
    ("spelling", "code", "words"),
    [
        ("", "model_not_found", ["no model was named"]),
        ("   ", "model_not_found", ["no model was named"]),
        ("a\0b", "model_not_found", ["no model was named"]),
        ("my modle", "model_not_found", ["my modle", "Did you mean", "my model"]),
        ("./nothing/here", "model_not_found", ["./nothing/here", "does not exist"]),
        ("/no/such/folder", "model_not_found", ["/no/such/folder"]),
        ("a/b/c", "model_not_found", ["a/b/c"]),
        ("acme/..", "model_not_found", ["not a hub id"]),
        ("-acme/tiny", "model_not_found", ["not a hub id"]),
        ("acme/ti--ny", "model_not_found", ["not a hub id"]),
        ("x" * 5000, "model_not_found", ["no such file"]),
        ("broken", "model_not_found", ["broken link", "gone"]),
        ("weights.ckpt", "unsafe_file", ["weights.ckpt", "--allow-pickle"]),
        ("notes.txt", "model_not_found", ["notes.txt", "not a .safetensors file"]),
    ],
)
def test_what_cannot_be_a_model_is_refused_in_words(
    model: Path,
    spelling: str,
    code: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    no_network: None,
) -> None:
    monkeypatch.chdir(model.parent)
    (model.parent / "broken").symlink_to("gone")
    (model.parent / "weights.ckpt").write_bytes(b"")
    (model.parent / "notes.txt").write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        resolve(spelling)
    assert caught.value.code == code
    assert caught.value.remedy
    for word in words:
        assert word in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_gives_files_or_a_model_error(text: str) -> None:
    # Only texts that are not hub ids: those would ask the network.
    try:
        files = resolve(f"{text}/a/b/c/d")
    except ModelError as error:
        outcome = error.code
    else:
        outcome = files.name
    assert outcome


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid"),
        ("[1]", "JSON list"),
        ("\xff", "not valid"),
        ("[" * 99999, "not valid"),
    ],
)
def test_broken_json_is_named(model: Path, content: str, words: str) -> None:
    (model / "model_index.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=words) as caught:
        resolve(str(model)).read_json("model_index.json")
    assert caught.value.code == "checkpoint_incomplete"
    assert "model_index.json" in str(caught.value)


def test_offline_without_a_cached_copy(offline: Path) -> None:
    with pytest.raises(ModelError) as caught:
        resolve("acme/tiny")
    text = str(caught.value)
    assert caught.value.code == "model_not_found"
    for word in ("acme/tiny", "offline mode is on", str(offline), "hf download acme/tiny"):
        assert word in text


def test_offline_names_the_cached_revisions(offline: Path) -> None:
    refs = offline / "models--acme--tiny" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(SHA)
    (offline / "models--acme--tiny" / "snapshots" / SHA).mkdir(parents=True)
    with pytest.raises(ModelError) as caught:
        resolve("acme/tiny", revision="v2")
    text = str(caught.value)
    assert "revision 'v2'" in text
    assert "main" in text
    assert "--revision v2" in text
    files = resolve("acme/tiny", revision="main")
    assert (files.name, files.repo_id, files.revision) == ("tiny", "acme/tiny", SHA)
    assert resolve("acme/tiny", revision=SHA).root == files.root


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("RepositoryNotFoundError", ["no such local folder", "hf auth login"]),
        ("GatedRepoError", ["restricted"]),
        ("RevisionNotFoundError", ["revision 'v9'", "--revision"]),
        ("LocalEntryNotFoundError", ["did not deliver"]),
        ("OSError", ["No space left"]),
    ],
)
def test_what_the_hub_says_becomes_words(
    kind: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants, errors

    fault: Exception = OSError(28, "No space left on device")
    if kind != "OSError":
        wanted = getattr(errors, kind)
        fault = wanted.__new__(wanted, "the hub's own words")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def fail(*args: Any, **kwargs: Any) -> str:
        raise fault

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError) as caught:
        resolve("acme/tiny", revision="v9")
    assert caught.value.code == "model_not_found"
    assert caught.value.__cause__ is fault
    for word in ("acme/tiny", *words):
        assert word in str(caught.value)


def test_revision_and_cache_reach_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    seen: dict[str, Any] = {}

    def download(repo_id: str, **options: Any) -> str:
        seen.update(options, repo_id=repo_id)
        return str(tmp_path / SHA)

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    files = resolve("acme/tiny", revision="v2", model_id="acme/original")
    assert (seen["repo_id"], seen["revision"]) == ("acme/tiny", "v2")
    assert seen["local_files_only"] is False
    assert (files.name, files.repo_id, files.revision) == ("tiny", "acme/original", SHA)


def test_resolving_imports_nothing_heavy() -> None:
    code = (
        "import sys, sgld.weights.resolve, sgld.weights.components, sgld.weights.checkpoint\n"
        "sgld.weights.resolve.resolve('.')\n"
        "heavy = {'torch', 'huggingface_hub', 'numpy', 'safetensors', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
