"""Modules are checked as a whole, then filled tensor by tensor; nothing is random by accident."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from sgld.api.errors import ModelError
from sgld.weights import reading
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.dtypes import stored_name, torch_dtype
from sgld.weights.loading import CheckpointError, Target, dummy_module, load_module


class Rotary(nn.Module):
    """A module with a table that no checkpoint holds."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", self._compute(None), persistent=False)

    def _compute(self, device: torch.device | None) -> torch.Tensor:
        return torch.arange(4, device=device).float().outer(torch.ones(2, device=device))

    def materialise_buffers(self, device: torch.device) -> None:
        self.table = self._compute(device)


class Net(nn.Module):
    """Linear, norm, embedding, a persistent integer buffer and a rotary table."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.embedding = nn.Embedding(5, 4)
        self.gain = nn.Parameter(torch.ones(1, 2, 3))
        self.register_buffer("ids", torch.arange(5)[None])
        self.rotary = Rotary()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.gain[:, 0]


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    module = Net()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def write(folder: Path, tensors: dict[str, torch.Tensor], **options: Any) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return Checkpoint.open(folder, field="net", **options)


def test_a_loaded_module_computes_the_same(tmp_path: Path, net: Net) -> None:
    checkpoint = write(tmp_path, net.state_dict())
    seen: list[tuple[int, int]] = []
    loaded = load_module(
        Net, checkpoint, device="cpu", progress=lambda done, total: seen.append((done, total))
    )
    x = torch.randn(2, 4)
    assert torch.equal(loaded(x), net(x))
    assert torch.equal(loaded.state_dict()["ids"], net.get_buffer("ids"))
    assert torch.equal(loaded.get_buffer("rotary.table"), net.rotary.table)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert isinstance(loaded.get_parameter("gain"), nn.Parameter)
    assert seen[-1] == (checkpoint.total_bytes, checkpoint.total_bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_islands_stay_in_float32_and_integers_as_they_are(tmp_path: Path, net: Net) -> None:
    checkpoint = write(tmp_path, net.state_dict())
    loaded = load_module(
        Net,
        checkpoint,
        device="cpu",
        dtype=lambda name: torch.float32 if name.startswith("norm.") else torch.bfloat16,
    )
    dtypes = {name: tensor.dtype for name, tensor in loaded.state_dict().items()}
    assert dtypes["norm.weight"] == torch.float32
    assert dtypes["linear.weight"] == torch.bfloat16
    assert dtypes["ids"] == torch.int64
    assert torch.equal(loaded.state_dict()["linear.weight"], net.linear.weight.bfloat16())


def test_auto_keeps_what_is_stored(tmp_path: Path, net: Net) -> None:
    half = {k: v.half() if v.is_floating_point() else v for k, v in net.state_dict().items()}
    loaded = load_module(Net, write(tmp_path, half), device="cpu", dtype=torch_dtype("auto"))
    assert loaded.state_dict()["linear.bias"].dtype == torch.float16


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("wanted", [None, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pieces", [8, 64, 2**20])
def test_pieces_join_without_a_seam(
    tmp_path: Path,
    stored: torch.dtype,
    wanted: torch.dtype | None,
    pieces: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "STAGE_BYTES", pieces)
    weight = torch.randn(7, 11).to(stored)
    checkpoint = write(tmp_path, {"weight": weight})
    loaded = load_module(
        lambda: nn.Linear(11, 7, bias=False), checkpoint, device="cpu", dtype=wanted
    )
    assert torch.equal(loaded.state_dict()["weight"], weight.to(wanted or stored))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_shards_reload_equal(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], count: int
) -> None:
    layers = nn.ModuleList([nn.Linear(a, b) for a, b in shapes])
    folder = tmp_path_factory.mktemp("net")
    tensors = layers.state_dict()
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        save_file(dict(list(tensors.items())[number::count]), folder / name)
    loaded = load_module(
        lambda: nn.ModuleList([nn.Linear(a, b) for a, b in shapes]),
        Checkpoint.open(folder),
        device="cpu",
    )
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in tensors.items())


def test_rename_ignore_and_drop(tmp_path: Path, net: Net) -> None:
    tensors = {f"model.{name}": value for name, value in net.state_dict().items()}
    tensors |= {"model.unused.weight": torch.ones(1), "optimizer": torch.ones(1)}
    checkpoint = write(tmp_path, tensors)
    loaded = load_module(
        Net,
        checkpoint,
        rename=lambda name: None if name == "optimizer" else name.removeprefix("model."),
        ignore=["unused.*"],
        device="cpu",
    )
    assert torch.equal(loaded.state_dict()["gain"], net.gain)


def test_several_to_one_and_one_to_several(tmp_path: Path) -> None:
    q, k, v, gate_up = torch.randn(2, 4), torch.randn(3, 4), torch.randn(1, 4), torch.randn(6, 4)
    checkpoint = write(tmp_path, {"q": q, "k": k, "v": v, "gate_up": gate_up})

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(torch.empty(6, 4))
            self.gate = nn.Parameter(torch.empty(2, 4))
            self.up = nn.Parameter(torch.empty(4, 4))

    convert = [
        Target("qkv", ("q", "k", "v"), torch.cat),
        Target("gate", ("gate_up",), lambda sources: sources[0][:2]),
        Target("up", ("gate_up",), lambda sources: sources[0][2:]),
    ]
    loaded = load_module(
        Fused, checkpoint, convert=convert, device="cpu", dtype=torch.bfloat16
    ).state_dict()
    assert torch.equal(loaded["qkv"], torch.cat([q, k, v]).bfloat16())
    assert torch.equal(loaded["gate"], gate_up[:2].bfloat16())
    assert torch.equal(loaded["up"], gate_up[2:].bfloat16())
    for tensor in loaded.values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    wrong = [Target("qkv", ("q", "k"), torch.cat), *convert[1:]]
    with pytest.raises(CheckpointError) as caught:
        load_module(Fused, checkpoint, convert=wrong, device="cpu")
    assert "qkv is [5, 4], needed [6, 4]" in str(caught.value)
    assert caught.value.problems.unexpected == ("v",)
    wrong[0] = Target("qkv", ("q", "k", "v"), lambda sources: torch.cat(list(sources), dim=1))
    with pytest.raises(CheckpointError, match=r"qkv is \[\], needed"):
        load_module(Fused, checkpoint, convert=wrong, device="cpu")


Tensors = dict[str, torch.Tensor]


def remove(tensors: Tensors) -> None:
    del tensors["linear.bias"], tensors["ids"]


def add(tensors: Tensors) -> None:
    tensors["lora.weight"] = torch.ones(2)


def reshape(tensors: Tensors) -> None:
    tensors["linear.weight"] = tensors["linear.weight"].T


def quantise(tensors: Tensors) -> None:
    tensors["linear.weight"] = tensors["linear.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove, ["missing (2)", "linear.bias", "ids"]),
        (add, ["unexpected (1)", "lora.weight"]),
        (reshape, ["linear.weight is [4, 3], needed [3, 4]"]),
        (quantise, ["linear.weight is floating point", "I8"]),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_reading(
    tmp_path: Path,
    net: Net,
    change: Callable[[Tensors], None],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = dict(net.state_dict())
    change(tensors)
    checkpoint = write(tmp_path, tensors)

    def refuse(*args: Any) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr(reading.Reader, "read", refuse)
    with pytest.raises(CheckpointError) as caught:
        load_module(Net, checkpoint, device="cpu")
    assert caught.value.code == "checkpoint_incomplete"
    for word in ("net", *words):
        assert word in str(caught.value)


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(5, 4)
        self.encoder = nn.Module()
        self.encoder.embed = nn.Embedding(5, 4)
        self.encoder.embed.weight = self.shared.weight


@pytest.mark.parametrize("kept", ["shared.weight", "encoder.embed.weight", "both"])
def test_tied_weights_need_one_name(tmp_path: Path, kept: str) -> None:
    weight = torch.randn(5, 4)
    names = ("shared.weight", "encoder.embed.weight")
    tensors = {name: weight.clone() for name in names if kept in (name, "both")}
    loaded = load_module(Tied, write(tmp_path, tensors), device="cpu")
    assert torch.equal(loaded.get_parameter("shared.weight"), weight)
    assert loaded.get_parameter("shared.weight") is loaded.get_parameter("encoder.embed.weight")
    dummy = dummy_module(Tied, device="cpu", dtype=torch.float32, seed=0)
    assert dummy.get_parameter("shared.weight") is dummy.get_parameter("encoder.embed.weight")


def test_an_optional_tensor_is_provided_by_finish(tmp_path: Path, net: Net) -> None:
    tensors = dict(net.state_dict())
    del tensors["gain"]
    checkpoint = write(tmp_path, tensors)
    with pytest.raises(ModelError, match=r"net: 1 tensors have no data after loading: gain\."):
        load_module(Net, checkpoint, optional=["gain"], device="cpu")

    def finish(module: nn.Module) -> None:
        module.gain = nn.Parameter(torch.full((1, 2, 3), 7.0))

    loaded = load_module(Net, checkpoint, optional=["gain"], finish=finish, device="cpu")
    assert loaded.get_parameter("gain").unique().tolist() == [7.0]


def test_a_buffer_left_on_meta_is_an_error(tmp_path: Path) -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("positions", torch.arange(3), persistent=False)

    checkpoint = write(tmp_path, {"weight": torch.ones(1)})
    with pytest.raises(ModelError, match=r"positions.*materialise_buffers") as caught:
        load_module(Forgetful, checkpoint, device="cpu")
    assert caught.value.code == "checkpoint_incomplete"
    with pytest.raises(ModelError, match="positions"):
        dummy_module(Forgetful, device="cpu", dtype=None)

    def finish(module: nn.Module) -> None:
        module.positions = torch.arange(3)

    loaded = load_module(Forgetful, checkpoint, device="cpu", finish=finish)
    assert loaded.get_buffer("positions").tolist() == [0, 1, 2]
    assert "positions" not in loaded.state_dict()


def test_a_file_that_shrinks_while_loading_is_an_error(tmp_path: Path, net: Net) -> None:
    checkpoint = write(tmp_path, net.state_dict())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="changed while loading"):
        load_module(Net, checkpoint, device="cpu")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("old_format", [False, True])
def test_pickles_only_when_allowed(
    tmp_path: Path, net: Net, wrapped: bool, old_format: bool
) -> None:
    content = {"state_dict": net.state_dict(), "step": 3} if wrapped else net.state_dict()
    path = tmp_path / "weights.pth"
    torch.save(content, path, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(ModelError, match=r"weights\.pth") as caught:
        Checkpoint.open(path)
    assert caught.value.code == "unsafe_file"
    checkpoint = Checkpoint.open(path, allow_pickle=True)
    assert checkpoint.shapes == {k: tuple(v.shape) for k, v in net.state_dict().items()}
    assert checkpoint["ids"].dtype == "I64"
    loaded = load_module(Net, checkpoint, device="cpu", dtype=torch.float32)
    path.write_bytes(b"")
    x = torch.randn(2, 4)
    assert torch.equal(loaded(x), net(x))


class Bomb:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("boom",))


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ({"x": Bomb()}, "unsafe_file", "run code"),
        ([torch.ones(1)], "checkpoint_incomplete", "holds a list"),
        ({"a": {"x": torch.ones(1)}, "b": 1}, "checkpoint_incomplete", "keys: 'a', 'b'"),
        (b"garbage", "checkpoint_incomplete", "not a readable weight file"),
        (b"", "checkpoint_incomplete", "not a readable weight file"),
    ],
)
def test_pickles_are_data_even_when_allowed(
    tmp_path: Path, content: Any, code: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ModelError, match=words) as caught:
        Checkpoint.open(path, allow_pickle=True)
    assert caught.value.code == code
    assert "boom" not in capsys.readouterr().out


def test_dummy_weights_are_real_random_and_repeatable() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(400, 300)
            self.conv = nn.Conv2d(16, 64, 3)
            self.norm = nn.LayerNorm(300)
            self.gamma = nn.Parameter(torch.ones(64, 1, 1))
            self.empty = nn.Parameter(torch.ones(0, 4))
            self.scalar = nn.Parameter(torch.tensor(1.0))
            self.net = Net()

    first = dummy_module(Wide, device="cpu", dtype=torch.float32, seed=1)
    again = dummy_module(Wide, device="cpu", dtype=torch.float32, seed=1).state_dict()
    other = dummy_module(Wide, device="cpu", dtype=torch.float32, seed=2).state_dict()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again[name])
        if tensor.is_floating_point() and tensor.numel():
            assert not torch.equal(tensor, other[name])
            assert (tensor != 0).all()
    weights = first.state_dict()
    assert weights["linear.weight"].std().item() == pytest.approx(1 / math.sqrt(400), rel=0.05)
    assert weights["conv.weight"].std().item() == pytest.approx(1 / math.sqrt(16 * 9), rel=0.05)
    assert weights["norm.weight"].mean().item() == pytest.approx(1, abs=0.01)
    assert weights["gamma"].mean().item() == pytest.approx(1, abs=0.02)
    assert weights["norm.bias"].mean().item() == pytest.approx(0, abs=0.01)
    assert not torch.equal(weights["norm.weight"], weights["norm.bias"] + 1)
    assert first.get_buffer("net.rotary.table")[3].tolist() == [3, 3]
    assert torch.isfinite(first.get_submodule("net")(torch.randn(2, 4))).all()
    assert not first.training


def test_dummy_precisions() -> None:
    def dtype(name: str) -> torch.dtype:
        return torch.float32 if "norm" in name else torch.float8_e4m3fn

    module = dummy_module(Net, device="cpu", dtype=dtype)
    dtypes = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    assert dtypes["norm.weight"] == torch.float32
    assert dtypes["linear.weight"] == torch.float8_e4m3fn
    assert dtypes["ids"] == torch.int64


def test_dtype_names() -> None:
    assert torch_dtype("bf16") == torch.bfloat16
    assert torch_dtype("auto") is None
    assert stored_name(torch.float16) == "F16"
    with pytest.raises(ValueError, match="complex128"):
        stored_name(torch.complex128)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("wanted", [None, torch.float32, torch.bfloat16])
def test_device_copies_are_exact(
    tmp_path: Path, wanted: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "STAGE_BYTES", 2**16)
    weight = torch.randn(1000, 777)
    checkpoint = write(tmp_path, {"weight": weight, "bias": torch.randn(1000)})
    loaded = load_module(lambda: nn.Linear(777, 1000), checkpoint, device="cuda", dtype=wanted)
    assert loaded.get_parameter("weight").device.type == "cuda"
    expected = weight.to(wanted or torch.float32)
    assert torch.equal(loaded.get_parameter("weight").cpu(), expected)
