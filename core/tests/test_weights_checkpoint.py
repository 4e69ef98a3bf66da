"""Checkpoints are known from headers, and every kind of damage is named with its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from sgld.api.errors import ModelError
from sgld.weights.checkpoint import Checkpoint, CheckpointError
from sgld.weights.header import BrokenFile, read_header

INDEX = "diffusion_pytorch_model.safetensors.index.json"
SHARD = "diffusion_pytorch_model-0000{}-of-00002.safetensors"


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "a.bias": np.arange(3, dtype=np.float16),
        "b.ids": np.arange(6, dtype=np.int64).reshape(1, 6),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
    }


def sharded(folder: Path, *, index: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = arrays()
    names = list(values)
    split = {SHARD.format(1): names[:2], SHARD.format(2): names[2:]}
    for file, part in split.items():
        save_file({name: values[name] for name in part}, folder / file)
    if index:
        weight_map = {name: file for file, part in split.items() for name in part}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def raw_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = (len(text) if length is None else length).to_bytes(8, "little")
    path.write_bytes(prefix + text + data)
    return path


def one(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def test_headers_give_everything_but_the_data(tmp_path: Path) -> None:
    values = arrays()
    save_file(values, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint) == set(values)
    assert checkpoint.metadata == {"format": "pt"}
    assert checkpoint.total_bytes == sum(value.nbytes for value in values.values())
    content = (tmp_path / "model.safetensors").read_bytes()
    for name, value in values.items():
        tensor = checkpoint[name]
        assert tensor.shape == value.shape
        assert tensor.bytes == value.nbytes
        assert content[tensor.start : tensor.end] == value.tobytes()


@pytest.mark.parametrize("index", [True, False])
def test_shards_with_and_without_an_index(tmp_path: Path, index: bool) -> None:
    sharded(tmp_path, index=index)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.shapes == {name: value.shape for name, value in arrays().items()}
    assert [path.name for path in checkpoint.files] == [SHARD.format(1), SHARD.format(2)]
    assert checkpoint["b.ids"].file.name == SHARD.format(2)


def test_index_file_weight_file_and_list_are_accepted(tmp_path: Path) -> None:
    sharded(tmp_path)
    assert len(Checkpoint.open(tmp_path / INDEX)) == 5
    assert len(Checkpoint.open(tmp_path / SHARD.format(1))) == 2
    assert len(Checkpoint.open([tmp_path / SHARD.format(n) for n in (1, 2)])) == 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.write_bytes(b""), "truncated: 0 bytes"),
        (lambda p: p.write_bytes(b"1234567"), "truncated: 7 bytes"),
        (lambda p: raw_file(p, b"{}", length=50), "truncated: 10 bytes, the header alone needs 58"),
        (lambda p: raw_file(p, b"{}", length=2**63), "not a safetensors file"),
        (lambda p: p.write_bytes(b"<!doctype html>" * 99), "not a safetensors file"),
        (lambda p: raw_file(p, b"\xff\xfe"), "damaged header"),
        (lambda p: raw_file(p, b"[" * 90000), "damaged header"),
        (lambda p: raw_file(p, [1]), "not a JSON object"),
        (lambda p: raw_file(p, one(), b"\0" * 7), "truncated: .* 1 of 1 tensors"),
        (lambda p: raw_file(p, one(), b"\0" * 9), "1 bytes after its last tensor"),
        (lambda p: raw_file(p, one(dtype="F31"), b"\0" * 8), "unknown dtype 'F31'"),
        (lambda p: raw_file(p, one(dtype=[1]), b"\0" * 8), "unknown dtype"),
        (lambda p: raw_file(p, one(shape=[-2]), b"\0" * 8), "shape"),
        (lambda p: raw_file(p, one(shape=[True]), b"\0" * 8), "shape"),
        (lambda p: raw_file(p, one(shape=None), b"\0" * 8), "shape"),
        (lambda p: raw_file(p, one(shape=[3]), b"\0" * 8), "8 bytes for F32"),
        (lambda p: raw_file(p, one(data_offsets=[8, 0]), b"\0" * 8), "data_offsets"),
        (lambda p: raw_file(p, one(data_offsets=[0]), b"\0" * 8), "data_offsets"),
        (lambda p: raw_file(p, one(data_offsets=[4, 12]), b"\0" * 12), "leaves a hole"),
        (lambda p: raw_file(p, one() | {"y": one()["x"]}, b"\0" * 8), "overlaps"),
        (lambda p: raw_file(p, {"x": 3}), "no description"),
        (lambda p: raw_file(p, b'{"x": 1, "x": 2}'), "'x' occurs twice"),
        (lambda p: p.symlink_to("gone"), "broken link to gone"),
        (lambda p: p.mkdir(), "cannot be read"),
    ],
)
def test_damaged_files(tmp_path: Path, make: Callable[[Path], Any], words: str) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    with pytest.raises(BrokenFile, match=words):
        read_header(path)
    with pytest.raises(ModelError, match=words) as caught:
        Checkpoint.open(tmp_path, field="vae")
    assert caught.value.code == "checkpoint_incomplete"
    assert "vae" in str(caught.value)
    assert "model.safetensors" in str(caught.value)


@given(data=st.data())
def test_no_cut_and_no_flip_passes_as_another_checkpoint(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.safetensors"
    save_file(arrays(), path)
    whole = path.read_bytes()
    header = read_header(path)
    cut = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:cut])
    with pytest.raises(BrokenFile):
        read_header(path)
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, header.tensors["a.weight"].start - 1))] ^= 1
    path.write_bytes(bytes(flipped))
    try:
        again = read_header(path)
    except BrokenFile:
        return
    # A flipped bit in a name cannot be noticed here; sizes always fit the file.
    assert sum(t.bytes for t in again.tensors.values()) == sum(
        t.bytes for t in header.tensors.values()
    )


def remove_shard(folder: Path) -> None:
    (folder / SHARD.format(2)).unlink()


def rewrite_index(**names: str | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        for name, file in names.items():
            index["weight_map"][name.replace("__", ".")] = file
        (folder / INDEX).write_text(json.dumps(index))

    return change


def double(folder: Path) -> None:
    values = arrays()
    save_file({name: values[name] for name in list(values)[1:]}, folder / SHARD.format(2))


def dangle(folder: Path) -> None:
    (folder / SHARD.format(2)).unlink()
    (folder / SHARD.format(2)).symlink_to("../blobs/gone")


def truncate_both(folder: Path) -> None:
    for number in (1, 2):
        path = folder / SHARD.format(number)
        path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove_shard, [SHARD.format(2), "is missing: 3 tensors"]),
        (rewrite_index(extra=SHARD.format(1)), ["'extra' is not in", SHARD.format(1)]),
        (rewrite_index(a__weight=SHARD.format(2)), ["'a.weight' is not in", SHARD.format(2)]),
        (rewrite_index(x="../secret.safetensors"), ["'../secret.safetensors'"]),
        (rewrite_index(x="/etc/x.safetensors"), ["/etc/x.safetensors"]),
        (rewrite_index(x=None), ["'x'", "None"]),
        (rewrite_index(x="x.bin"), ["'x.bin', not a .safetensors file"]),
        (double, ["'a.bias' is in two files", SHARD.format(1), SHARD.format(2)]),
        (dangle, [SHARD.format(2), "broken link to ../blobs/gone"]),
        (truncate_both, [SHARD.format(1), SHARD.format(2), "truncated"]),
        (lambda folder: (folder / INDEX).write_text("{"), [INDEX, "not valid JSON"]),
        (lambda folder: (folder / INDEX).write_text("{}"), [INDEX, "no weight_map"]),
    ],
)
def test_damaged_shard_sets(
    tmp_path: Path, change: Callable[[Path], Any], words: list[str]
) -> None:
    sharded(tmp_path)
    change(tmp_path)
    with pytest.raises(ModelError) as caught:
        Checkpoint.open(tmp_path, field="transformer")
    assert caught.value.code == "checkpoint_incomplete"
    for word in ("transformer", *words):
        assert word in str(caught.value)


def test_a_shard_lost_without_an_index(tmp_path: Path) -> None:
    sharded(tmp_path, index=False)
    remove_shard(tmp_path)
    with pytest.raises(CheckpointError, match=f"{SHARD.format(2)} is missing"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("names", "variant", "expected"),
    [
        (["model.safetensors", "model.fp16.safetensors"], "", "model.safetensors"),
        (["model.safetensors", "model.fp16.safetensors"], "fp16", "model.fp16.safetensors"),
        (["model.safetensors"], "fp16", "model.safetensors"),
        (["x.safetensors", "model.safetensors"], "", "model.safetensors"),
        (
            ["model.safetensors", "diffusion_pytorch_model.safetensors"],
            "",
            "diffusion_pytorch_model.safetensors",
        ),
        (["model.safetensors", "model-00001-of-00009.safetensors"], "", "model.safetensors"),
        (["wan2.1_t2v.safetensors"], "", "wan2.1_t2v.safetensors"),
        (["model.safetensors", "model.bin", "training_args.bin"], "", "model.safetensors"),
        (
            ["model.safetensors", "model.fp16-00001-of-00001.safetensors"],
            "fp16",
            "model.fp16-00001-of-00001.safetensors",
        ),
    ],
)
def test_which_file_is_taken(tmp_path: Path, names: list[str], variant: str, expected: str) -> None:
    for name in names:
        save_file({name: np.zeros(1)}, tmp_path / name)
    assert list(Checkpoint.open(tmp_path, variant=variant)) == [expected]


@pytest.mark.parametrize(
    "index",
    [
        "model.fp16.safetensors.index.json",
        "model.safetensors.index.fp16.json",
    ],
)
def test_sharded_variants(tmp_path: Path, index: str) -> None:
    save_file({"x": np.zeros(1, np.float16)}, tmp_path / "model.fp16-00001-of-00001.safetensors")
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    weight_map = {"x": "model.fp16-00001-of-00001.safetensors"}
    (tmp_path / index).write_text(json.dumps({"weight_map": weight_map}))
    assert Checkpoint.open(tmp_path, variant="fp16")["x"].dtype == "F16"
    assert Checkpoint.open(tmp_path)["x"].dtype == "F32"


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        ([], "checkpoint_incomplete", ["no weights in"]),
        (["model.fp16.safetensors"], "checkpoint_incomplete", ["fp16", "--component-weights-path"]),
        (
            ["a.safetensors", "b.safetensors"],
            "checkpoint_incomplete",
            ["a.safetensors", "b.safetensors", "--component-weights-path"],
        ),
        (
            ["model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors"],
            "checkpoint_incomplete",
            ["several weight files"],
        ),
        (["pytorch_model.bin"], "unsafe_file", ["pytorch_model.bin", "--allow-pickle"]),
        (["x.pth"], "unsafe_file", ["x.pth"]),
        (["x.pt", "y.ckpt"], "unsafe_file", ["x.pt, y.ckpt"]),
    ],
)
def test_folders_without_a_choice(
    tmp_path: Path, names: list[str], code: str, words: list[str]
) -> None:
    for name in names:
        save_file({"x": np.zeros(1)}, tmp_path / name)
    with pytest.raises(ModelError) as caught:
        Checkpoint.open(tmp_path, field="transformer")
    assert caught.value.code == code
    for word in ("transformer", *words):
        assert word in str(caught.value)


def test_an_index_decides_among_unrelated_files(tmp_path: Path) -> None:
    for name in ("x", "y", "lora"):
        save_file({name: np.zeros(1)}, tmp_path / f"{name}.safetensors")
    weight_map = {"x": "x.safetensors", "y": "y.safetensors"}
    (tmp_path / "z.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert set(Checkpoint.open(tmp_path)) == {"x", "y"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.safetensors"):
        Checkpoint.open(tmp_path / "gone.safetensors")


def test_an_empty_checkpoint_is_an_error(tmp_path: Path) -> None:
    raw_file(tmp_path / "model.safetensors", {})
    with pytest.raises(ModelError, match="no tensors"):
        Checkpoint.open(tmp_path)


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_])


@given(
    st.dictionaries(st.text(min_size=1, max_size=12), st.tuples(SHAPES, DTYPES), max_size=8),
    st.integers(1, 4),
)
def test_any_tensors_over_any_shards(
    tmp_path_factory: pytest.TempPathFactory,
    described: dict[str, tuple[tuple[int, ...], Any]],
    count: int,
) -> None:
    described.pop("__metadata__", None)
    random = np.random.default_rng(0)
    values = {
        name: random.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in described.items()
    } | {"always": np.ones(2, np.float32)}
    folder = tmp_path_factory.mktemp("shards")
    weight_map: dict[str, str] = {}
    for number in range(count):
        part = dict(list(values.items())[number::count])
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
        assert {name: t.shape for name, t in read_header(folder / file).tensors.items()} == {
            name: value.shape for name, value in load_file(folder / file).items()
        }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.shapes == {name: value.shape for name, value in values.items()}
    for name, value in values.items():
        tensor = checkpoint[name]
        assert tensor.file.read_bytes()[tensor.start : tensor.end] == value.tobytes()


def test_verify_lists_every_tensor(tmp_path: Path) -> None:
    stored = {f"extra.{i}": np.zeros(1) for i in range(12)} | {"good": np.zeros(2)}
    save_file(stored | {"bad": np.zeros((2, 3))}, tmp_path / "model.safetensors")
    expected = {f"lost.{i}": (1,) for i in range(15)} | {"good": (2,), "bad": (3, 2)}
    problems = Checkpoint.open(tmp_path).verify(expected)
    assert set(problems.missing) == {f"lost.{i}" for i in range(15)}
    assert set(problems.unexpected) == {f"extra.{i}" for i in range(12)}
    assert problems.shapes == (("bad", (3, 2), (2, 3)),)
    with pytest.raises(CheckpointError) as caught:
        problems.raise_if_any("transformer")
    text = str(caught.value)
    assert caught.value.code == "checkpoint_incomplete"
    assert caught.value.problems is problems
    assert "missing (15)" in text
    assert "and 5 more" in text
    assert "unexpected (12)" in text
    assert "bad is [2, 3], needed [3, 2]" in text
    assert text.count("lost.") == 10
