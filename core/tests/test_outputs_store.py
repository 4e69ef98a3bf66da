"""What holds for every output store (`TestOutputStore`, here on a folder), keys and settings."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import RequestError, UserError
from sgld.server.outputs.local import LocalOutputs
from sgld.server.outputs.store import OutputStore, check_key, output_key, output_store
from sgld.server.uploads import Uploads

KEY = "video_0123/0.mp4"
BAD_KEYS = [
    "",
    "a",
    "a/0",
    "/a/0.mp4",
    "../0.mp4",
    "a/../b/0.mp4",
    "a/b/0.mp4",
    "a/0.mp4/",
    "a/0.mp4\n",
    "a\x00/0.mp4",
    "a/0.MP4",
    "a/x.mp4",
    ".partial/0.mp4",
    "a\\0.mp4",
    "ä/0.mp4",
    "a/٣.mp4",
]


@pytest.fixture
def store(tmp_path: Path) -> OutputStore:
    return LocalOutputs(tmp_path / "outputs")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.mp4"
    path.write_bytes(bytes(range(256)) * 8)
    return path


class TestOutputStore:
    """What holds for every store."""

    def test_put_read_delete(self, store: OutputStore, made: Path) -> None:
        store.check()
        assert store.size(KEY) is None
        store.put(KEY, made, "video/mp4")
        content = made.read_bytes()
        made.unlink()
        assert store.size(KEY) == len(content)
        assert store.read(KEY) == content
        store.delete(KEY)
        assert store.size(KEY) is None
        with pytest.raises(RequestError) as caught:
            store.read(KEY)
        assert caught.value.code == "output_store_failed"
        store.delete(KEY)

    def test_a_second_put_replaces(self, store: OutputStore, made: Path, tmp_path: Path) -> None:
        store.put(KEY, made, "video/mp4")
        store.put(KEY, made, "video/mp4")
        other = tmp_path / "other"
        other.write_bytes(b"other")
        store.put(KEY, other, "video/mp4")
        store.put("video_0123/1.mp4", made, "video/mp4")
        assert store.read(KEY) == b"other"
        assert made.exists()
        store.delete(KEY)
        assert store.size("video_0123/1.mp4") == 2048
        store.delete("video_0123/1.mp4")

    def test_an_empty_file(self, store: OutputStore, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        store.put(KEY, tmp_path / "empty", "video/mp4")
        assert store.size(KEY) == 0
        store.delete(KEY)

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_other_keys_are_refused(self, store: OutputStore, made: Path, key: str) -> None:
        for call in (store.delete, store.size, store.open_path, store.url, store.read):
            with pytest.raises(ValueError, match="no key"):
                call(key)
        with pytest.raises(ValueError, match="no key"):
            store.put(key, made, "video/mp4")

    def test_a_missing_file_is_an_error(self, store: OutputStore, tmp_path: Path) -> None:
        with pytest.raises(RequestError) as caught:
            store.put(KEY, tmp_path / "nothing", "video/mp4")
        assert caught.value.code == "output_store_failed"
        assert store.size(KEY) is None

    def test_threads(self, store: OutputStore, made: Path) -> None:
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                for i in range(4):
                    key = output_key("video_shared", number * 10 + i, ".mp4")
                    store.put(key, made, "video/mp4")
                    assert store.size(key) == 2048
                    store.delete(key)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


def test_local_layout(store: LocalOutputs, made: Path, tmp_path: Path) -> None:
    store.put(KEY, made, "video/mp4")
    path = store.open_path(KEY)
    assert path == tmp_path / "outputs" / "video_0123" / "0.mp4"
    assert store.url(KEY, "x.mp4", 60) is None
    # Linked, not copied: a big result costs no second write.
    assert path.stat().st_ino == made.stat().st_ino
    store.delete(KEY)
    assert store.open_path(KEY) is None
    assert list((tmp_path / "outputs").rglob("*")) == []


def test_local_copies_across_disks(
    store: LocalOutputs, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    store.put(KEY, made, "video/mp4")
    made.write_bytes(b"changed")
    assert store.size(KEY) == 2048


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_local_failure_leaves_nothing(
    store: LocalOutputs, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    if broken == "replace":  # only needed where a file cannot have two names
        monkeypatch.setattr(os, "link", full)
    with pytest.raises(RequestError, match=r"keep video_0123/0.mp4: No space left") as caught:
        store.put(KEY, made, "video/mp4")
    assert caught.value.code == "output_store_failed"
    assert [p for p in (tmp_path / "outputs").rglob("*") if p.is_file()] == []


def test_local_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="--output-path"):
        LocalOutputs(tmp_path / "file")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / ".partial").write_text("in the way")
    with pytest.raises(UserError, match="File exists"):
        LocalOutputs(tmp_path / "outputs").check()


def test_relative_folder_stays_where_it_was(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalOutputs("out")
    monkeypatch.chdir("/")
    store.put(KEY, made, "video/mp4")
    assert (tmp_path / "out" / KEY).exists()


@given(st.text(max_size=40))
def test_a_key_is_two_plain_parts(text: str) -> None:
    try:
        check_key(text)
    except ValueError:
        return
    folder, _, name = text.partition("/")
    assert text.isascii()
    assert folder.replace("_", "").replace("-", "").isalnum()
    assert name.split(".")[0].isdigit()


@pytest.mark.parametrize(("suffix", "key"), [(".mp4", "a/3.mp4"), ("png", "a/3.png")])
def test_output_key(suffix: str, key: str) -> None:
    assert output_key("a", 3, suffix) == key


@pytest.mark.parametrize("arguments", [("../a", 0, ".mp4"), ("a", -1, ".mp4"), ("a", 0, "")])
def test_output_key_refuses(arguments: tuple[str, int, str]) -> None:
    with pytest.raises(ValueError, match="no key"):
        output_key(*arguments)


S3 = {"SGLD_CLOUD_STORAGE_TYPE": "s3", "SGLD_S3_BUCKET_NAME": "b"}
OLD = {"SGLANG_CLOUD_STORAGE_TYPE": "s3", "SGLANG_S3_BUCKET_NAME": "old"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SGLD_CLOUD_STORAGE_TYPE": "gcs"}, r"'gcs' is unknown. Use local or s3"),
        ({"SGLANG_CLOUD_STORAGE_TYPE": "azure"}, "Use local or s3"),
        ({"SGLD_CLOUD_STORAGE_TYPE": "s3"}, "Set SGLD_S3_BUCKET_NAME"),
        (S3 | {"SGLD_S3_BUCKET_NAME": " "}, "Set SGLD_S3_BUCKET_NAME"),
        (S3 | {"SGLD_S3_ENDPOINT_URL": "minio:9000"}, "Use https://HOST"),
        (S3 | {"SGLD_S3_ENDPOINT_URL": "file:///etc"}, "Use https://HOST"),
        (S3 | {"SGLD_S3_ENDPOINT_URL": "http://[::1"}, "Use https://HOST"),
        (S3 | {"SGLD_S3_ACCESS_KEY_ID": "a"}, "Set SGLD_S3_SECRET_ACCESS_KEY too"),
        (S3 | {"SGLD_S3_SECRET_ACCESS_KEY": "hidden"}, "Set SGLD_S3_ACCESS_KEY_ID too"),
    ],
)
def test_wrong_settings(tmp_path: Path, environ: dict[str, str], said: str) -> None:
    options = SimpleNamespace(output_path=str(tmp_path / "outputs"))
    with pytest.raises(UserError, match=said) as caught:
        output_store(options, environ)
    assert "hidden" not in str(caught.value)
    # No falling back: nothing local is made either.
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("environ", "kind", "bucket"),
    [
        ({}, "LocalOutputs", None),
        ({"SGLD_CLOUD_STORAGE_TYPE": ""}, "LocalOutputs", None),
        (OLD | {"SGLD_CLOUD_STORAGE_TYPE": "local"}, "LocalOutputs", None),
        ({"SGLD_CLOUD_STORAGE_TYPE": "S3", "SGLD_S3_BUCKET_NAME": "b"}, "S3Outputs", "b"),
        (OLD, "S3Outputs", "old"),
        (OLD | {"SGLD_S3_BUCKET_NAME": "new"}, "S3Outputs", "new"),
        (OLD | {"SGLD_S3_BUCKET_NAME": ""}, "S3Outputs", "old"),
    ],
)
def test_settings(tmp_path: Path, environ: dict[str, str], kind: str, bucket: str | None) -> None:
    where = {"SGLD_S3_ENDPOINT_URL": "http://127.0.0.1:1"}
    store = output_store(SimpleNamespace(output_path=str(tmp_path)), environ | where)
    assert type(store).__name__ == kind
    assert getattr(store, "_bucket", None) == bucket
    store.close()


def test_s3_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UserError, match=r"pip install sgld-core\[s3\]"):
        output_store(SimpleNamespace(output_path=str(tmp_path)), S3)


def test_uploads(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "uploads"
    uploads = Uploads(folder)
    names = [uploads.save(b"one", ".png"), uploads.save(b"two", "JPG")]
    assert names[0].endswith(".png")
    assert names[1].endswith(".jpg")
    assert [uploads.read(name) for name in names] == [b"one", b"two"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / names[0]).stat().st_mode) == 0o600
    uploads.delete(names[0])
    uploads.delete(names[0])
    assert {p.name for p in folder.iterdir()} == {names[1]}
    with pytest.raises(RequestError) as caught:
        uploads.read(names[0])
    assert caught.value.code == "upload_missing"


@pytest.mark.parametrize("suffix", ["", "../../x", ".png/../..", ".p\x00ng", "." + "x" * 99, "ä"])
def test_an_uploads_ending_never_leads_elsewhere(tmp_path: Path, suffix: str) -> None:
    uploads = Uploads(tmp_path / "uploads")
    name = uploads.save(b"x", suffix)
    assert name.endswith(".bin")
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [name]


@pytest.mark.parametrize("name", ["", "..", "../jobs.sqlite3", "/etc/hostname", "0" * 32, "a.png"])
def test_uploads_know_their_names_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobs.sqlite3").write_text("x")
    uploads = Uploads(tmp_path / "uploads")
    for call in (uploads.read, uploads.delete):
        with pytest.raises(ValueError, match="no name"):
            call(name)
    assert (tmp_path / "jobs.sqlite3").exists()


def test_an_upload_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(tmp_path / "uploads")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RequestError, match="No space left") as caught:
        uploads.save(b"x" * 100)
    assert caught.value.code == "upload_failed"
    assert list((tmp_path / "uploads").iterdir()) == []


def test_uploads_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="--state-path"):
        Uploads(tmp_path / "file" / "uploads")
