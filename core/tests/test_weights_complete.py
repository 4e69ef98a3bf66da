"""Checkpoints that only look complete are named before anything is loaded (case A20)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from sgld.api.errors import ModelError
from sgld.weights.components import ComponentOverrides
from sgld.weights.resolve import check_complete, resolve

SHA = "89abcdef0123456789abcdef0123456789abcdef"
INDEX = {
    "_class_name": "TinyPipeline",
    "_diffusers_version": "0.30.0",
    "scheduler": ["diffusers", "EulerScheduler"],
    "text_encoder": ["transformers", "TinyEncoder"],
    "tokenizer": ["transformers", "TinyTokenizerFast"],
    "transformer": ["diffusers", "TinyTransformer"],
    "vae": ["diffusers", "TinyVae"],
    "image_encoder": [None, None],
    "boundary_ratio": 0.9,
}


def whole() -> dict[str, bytes]:
    weights = save({"a": np.ones((2, 3), np.float32)})
    other = save({"b": np.ones((4,), np.float32)})
    shard = "diffusion_pytorch_model-0000{}-of-00002.safetensors"
    shards = {"a": shard.format(1), "b": shard.format(2)}
    return {
        "model_index.json": json.dumps(INDEX).encode(),
        "scheduler/scheduler_config.json": b"{}",
        "text_encoder/config.json": b"{}",
        "text_encoder/model.safetensors": weights,
        "tokenizer/tokenizer_config.json": b"{}",
        "transformer/config.json": b"{}",
        "transformer/diffusion_pytorch_model.safetensors.index.json": json.dumps(
            {"weight_map": shards}
        ).encode(),
        f"transformer/{shards['a']}": weights,
        f"transformer/{shards['b']}": other,
        "vae/config.json": b"{}",
        "vae/diffusion_pytorch_model.safetensors": weights,
    }


def write_cache(hub: Path, content: dict[str, bytes]) -> Path:
    """A hub cache with `acme/tiny`: blobs, and a snapshot of links to them."""
    repo = hub / "models--acme--tiny"
    snapshot = repo / "snapshots" / SHA
    (repo / "refs").mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "refs" / "main").write_text(SHA)
    for name, data in content.items():
        blob = repo / "blobs" / hashlib.sha256(name.encode() + data).hexdigest()
        blob.write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def only_index(content: dict[str, bytes]) -> None:
    for name in list(content):
        if name != "model_index.json":
            del content[name]


def without(*names: str) -> Callable[[dict[str, bytes]], None]:
    def change(content: dict[str, bytes]) -> None:
        for name in names:
            del content[name]

    return change


def nothing(content: dict[str, bytes]) -> None:
    pass


SHARD = "transformer/diffusion_pytorch_model-00002-of-00002.safetensors"
CASES = [
    pytest.param(
        only_index,
        "",
        [
            *("'scheduler'", "scheduler/scheduler_config.json", "'vae'", "vae/config.json"),
            *("'tokenizer'", "tokenizer/tokenizer_config.json"),
            *("'text_encoder'", "text_encoder/model.safetensors"),
        ],
        id="only-the-index",
    ),
    pytest.param(
        without("vae/diffusion_pytorch_model.safetensors"),
        "",
        ["'vae'", "vae/diffusion_pytorch_model.safetensors is missing"],
        id="config-without-weights",
    ),
    pytest.param(
        nothing,
        "vae/diffusion_pytorch_model.safetensors",
        ["'vae'", "vae/diffusion_pytorch_model.safetensors is a broken link"],
        id="dangling-blob",
    ),
    pytest.param(nothing, SHARD, ["'transformer'", SHARD, "broken link"], id="dangling-shard"),
    pytest.param(nothing, "vae/config.json", ["'vae'", "vae/config.json is a broken link"], id="c"),
    pytest.param(without(SHARD), "", ["'transformer'", SHARD, "1 tensors"], id="missing-shard"),
    pytest.param(
        without("scheduler/scheduler_config.json"),
        "",
        ["'scheduler'", "scheduler_config.json is missing"],
        id="scheduler",
    ),
    pytest.param(
        without("tokenizer/tokenizer_config.json"),
        "",
        ["'tokenizer'", "tokenizer_config.json is missing"],
        id="tokenizer",
    ),
]


def break_link(snapshot: Path, name: str) -> None:
    if name:
        (snapshot / name).resolve().unlink()


@pytest.mark.parametrize(("change", "dangling", "words"), CASES)
def test_what_is_missing_is_named(
    tmp_path: Path,
    change: Callable[[dict[str, bytes]], None],
    dangling: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = whole()
    change(content)
    snapshot = write_cache(tmp_path, content)
    break_link(snapshot, dangling)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = resolve(str(snapshot))
    with pytest.raises(ModelError) as caught:
        check_complete(files)
    text = str(caught.value)
    assert caught.value.code == "checkpoint_incomplete"
    for word in ("acme/tiny", "offline mode is on", "hf download acme/tiny", *words):
        assert word in text
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(ModelError) as caught:
        check_complete(files)
    assert "offline" not in str(caught.value)


def test_a_whole_snapshot_passes(tmp_path: Path) -> None:
    check_complete(resolve(str(write_cache(tmp_path, whole()))))


RUN = """
import socket, sys, time
def refuse(*a, **k): raise SystemExit("network use")
socket.socket.connect = refuse; socket.create_connection = refuse; socket.getaddrinfo = refuse
from sgld.api.errors import ModelError
from sgld.weights.resolve import check_complete, resolve
try:
    files = resolve("acme/tiny")
    check_complete(files)
except ModelError as error:
    print(error); code = error.exit_code
else:
    print(files.name, files.revision); code = 0
assert time.process_time() < 2, time.process_time()
sys.exit(code)
"""


@pytest.mark.multi_process
@pytest.mark.parametrize(
    ("change", "dangling", "words"), [*(CASES[i] for i in range(3)), pytest.param(nothing, "", [])]
)
def test_offline_from_the_hub_id_in_a_fresh_process(
    tmp_path: Path, change: Callable[[dict[str, bytes]], None], dangling: str, words: list[str]
) -> None:
    content = whole()
    change(content)
    break_link(write_cache(tmp_path / "home" / "hub", content), dangling)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE"))}
    environment = inherited | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if words else 0), done.stdout + done.stderr
    for word in [*words, "offline mode is on"] if words else ["tiny", SHA]:
        assert word in done.stdout


def write_folder(root: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def test_a_local_folder_gets_another_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    content = whole()
    del content["vae/config.json"]
    files = resolve(str(write_folder(tmp_path / "my model", content)))
    with pytest.raises(
        ModelError, match=r"(?s)'my model' is incomplete.*Copy the missing"
    ) as caught:
        check_complete(files)
    assert "offline" not in str(caught.value)


def test_overrides_stand_in_for_missing_parts(tmp_path: Path) -> None:
    content = whole()
    vae = {name: content.pop(name) for name in list(content) if name.startswith("vae/")}
    del content["text_encoder/model.safetensors"]
    files = resolve(str(write_folder(tmp_path / "model", content)))
    other = write_folder(tmp_path / "other", vae)
    weights = other / "encoder.safetensors"
    save_file({"x": np.zeros(3, np.float32)}, weights)
    overrides = ComponentOverrides.build(
        paths={"vae": str(other / "vae"), "text_encoder": str(weights)}
    )
    check_complete(files, overrides)
    with pytest.raises(ModelError) as caught:
        check_complete(files)
    assert "vae/config.json" in str(caught.value)
    assert "text_encoder/model.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "is empty"),
        (
            {"a.safetensors.index.json": b'{"weight_map": {"x": "a-1.safetensors"}}'},
            "a-1.safetensors is missing",
        ),
        ({"expert/a.safetensors.index.json": b"{}"}, "no weight_map"),
        ({"model_index.json": b"{"}, "not valid JSON"),
    ],
)
def test_folders_without_components(tmp_path: Path, content: dict[str, bytes], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        check_complete(resolve(str(write_folder(tmp_path, content))))
    assert caught.value.code == "checkpoint_incomplete"


def test_an_original_layout_passes(tmp_path: Path) -> None:
    content = {"config.json": b"{}", "x.safetensors": save({"a": np.zeros(1)}), "vae.pth": b""}
    check_complete(resolve(str(write_folder(tmp_path, content))))


def test_a_variant_nobody_has_is_an_error(tmp_path: Path) -> None:
    content = whole()
    content["vae/diffusion_pytorch_model.fp16.safetensors"] = save({"a": np.zeros(1)})
    files = resolve(str(write_folder(tmp_path, content)))
    check_complete(files, variant="fp16")
    with pytest.raises(ModelError, match="no component has the variant 'bf16'"):
        check_complete(files, variant="bf16")
