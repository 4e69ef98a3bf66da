"""Values handed from chunk to chunk, and keys and values of a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sgld.causal.cross import CrossCache, CrossShape, cross_bytes
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.kept import Kept, kept_bytes

NAMES = st.sampled_from(["a", "b", "c"])
PLAIN = st.one_of(
    st.none(), st.integers(), st.text(max_size=3), st.lists(st.booleans(), max_size=2)
)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


class Values(RuleBasedStateMachine):
    """Against dictionaries. A fork is made at times, and the one that was left is looked at too."""

    @initialize(undo=st.integers(0, 3))
    def make(self, undo: int) -> None:
        self.kept, self.undo = Kept("cpu", undo), undo
        self.now: dict[str, Any] = {}
        self.base: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []
        self.left: tuple[Kept, dict[str, Any]] | None = None

    @rule(name=NAMES, value=PLAIN)
    def set_plain(self, name: str, value: Any) -> None:
        self.kept.set(name, value)
        self.now[name] = value

    @rule(name=NAMES, value=st.integers(0, 99), size=st.integers(0, 3))
    def set_tensor(self, name: str, value: int, size: int) -> None:
        self.kept.set(name, torch.full((size,), value))
        self.now[name] = [value] * size

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.kept.drop(name)
        self.now.pop(name, None)

    @rule()
    def commit(self) -> None:
        self.kept.commit()
        self.log = [*self.log, self.base][-self.undo :] if self.undo else []
        self.base = dict(self.now)

    @rule(chunks=st.integers(0, 4))
    def rollback(self, chunks: int) -> None:
        if chunks > len(self.log):
            with pytest.raises(StateError) as caught:
                self.kept.rollback(chunks)
            assert caught.value.code == "not_remembered"
            return
        try:
            self.kept.rollback(chunks)
        except StateError:
            assert not self.undo
            assert self.base
            return
        for _ in range(chunks):
            self.base = self.log.pop()
        self.now = dict(self.base)

    @rule(keep=st.booleans())
    def fork(self, keep: bool) -> None:
        other = self.kept.fork()
        self.left = (other if keep else self.kept, dict(self.now))
        self.kept = self.kept if keep else other

    @rule()
    def write_down(self) -> None:
        if self.now != self.base:
            return
        try:
            values, tensors = self.kept.dump()
        except StateError:
            return  # set again to what it was
        self.kept = Kept("cpu", self.undo)
        self.kept.set("other", 1)
        self.kept.load(values, tensors)
        self.log = []

    @rule()
    def reset(self) -> None:
        self.kept.reset()
        self.now, self.base, self.log = {}, {}, []

    @invariant()
    def same(self) -> None:
        for kept, now in ((self.kept, self.now), *([self.left] if self.left else [])):
            assert {name: plain(kept.get(name)) for name in kept} == now
            assert kept.nbytes() == sum(
                kept.get(name).nbytes for name in kept if isinstance(kept.get(name), torch.Tensor)
            )
        assert self.undo or self.kept.host_nbytes() == 0


TestValues: Any = Values.TestCase
TestValues.settings = settings(
    max_examples=150, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)


def test_a_piece_of_a_tensor_does_not_keep_the_rest() -> None:
    kept = Kept("cpu")
    big = torch.arange(1000.0)
    kept.set("piece", big[:10])
    kept.set("turned", torch.ones(2, 3).T)
    kept.set("whole", big)
    assert kept.get("piece").untyped_storage().nbytes() == 40
    assert kept.get("whole").data_ptr() == big.data_ptr()
    assert kept.get("turned").is_contiguous()
    assert kept.nbytes() == 40 + 24 + 4000
    kept.set("same", kept.get("whole"))
    assert kept.nbytes() == 40 + 24 + 4000  # one storage, counted once


def test_declared_tensors_make_the_budget_exact() -> None:
    shapes = {"text": ((1, 4, 8), torch.bfloat16), "latents": ((2, 3), torch.float32)}
    kept = Kept("cpu", shapes=shapes)
    for name, (size, dtype) in shapes.items():
        kept.set(name, torch.zeros(size, dtype=dtype))
    kept.set("prompt", "a word is free")
    assert kept.nbytes() == kept_bytes(shapes) == 64 + 24
    with pytest.raises(StateError, match=r"text is \[1, 4, 9\] torch.bfloat16, and should be"):
        kept.set("text", torch.zeros(1, 4, 9, dtype=torch.bfloat16))
    with pytest.raises(StateError, match="there are: latents, text"):
        kept.set("more", torch.zeros(1))
    kept.commit()
    values, tensors = kept.dump()
    other = Kept("cpu", shapes={"text": shapes["text"], "latents": ((9,), torch.float32)})
    with pytest.raises(SnapshotError, match="latents is"):
        other.load(values, tensors)
    assert list(other) == []


def test_a_fork_has_versions_of_its_own() -> None:
    """Where one of them retires a version to the host, the other's stays on the device."""
    kept = Kept("cpu", undo=1)
    kept.set("x", torch.zeros(3))
    kept.commit()
    twin = kept.fork()
    assert twin.get("x").data_ptr() == kept.get("x").data_ptr()
    assert twin._now["x"] is twin._base["x"] is not kept._now["x"]


def test_only_json_and_tensors_are_kept() -> None:
    kept = Kept("cpu")
    for value in (object(), {1, 2}, float("nan"), float("inf"), b"x"):
        with pytest.raises(StateError, match="thing is neither"):
            kept.set("thing", value)
    kept.set("pair", (1, [2]))
    assert kept.get("pair") == [1, [2]]  # as it will be after a restart
    assert kept.get("none") is None
    assert kept.get("none", 3) == 3
    assert "pair" in kept
    assert "none" not in kept
    kept.drop("none")


def test_what_was_not_committed_is_not_written_down() -> None:
    kept = Kept("cpu")
    kept.set("a", 1)
    with pytest.raises(StateError, match="since the last commit"):
        kept.dump()
    for values, tensors in (
        ({}, {}),
        ({"values": [], "tensors": []}, {}),
        ({"values": {}, "tensors": ["x"]}, {}),
        ({"values": {}, "tensors": []}, {"x": torch.zeros(1)}),
        ({"values": {"x": 1}, "tensors": ["x"]}, {"x": torch.zeros(1)}),
    ):
        with pytest.raises(SnapshotError):
            kept.load(values, tensors)
    assert kept.get("a") == 1
    kept.free()
    kept.free()
    assert kept.nbytes() == 0


SHAPE = CrossShape(3, 2, 4, 6, torch.float32, "cpu", batch=2)


def text(value: float, tokens: int = 6) -> torch.Tensor:
    return torch.full((2, tokens, 2, 4), value)


def test_a_text_is_computed_once_and_again_when_it_changes() -> None:
    cross = CrossCache(SHAPE, undo=2)
    assert cross.read(0) is None
    assert cross.use("one")
    assert not cross.use("one")
    for layer in range(3):
        cross.write(layer, text(1.0), text(2.0))
    assert cross.nbytes() == cross_bytes(SHAPE)
    cross.commit()
    assert not cross.use("one")
    k, v = cross.read(1) or (None, None)
    assert torch.equal(k, text(1.0))
    assert torch.equal(v, text(2.0))
    assert cross.use("two")
    assert cross.read(1) is None
    assert cross.nbytes() == 0
    assert cross.host_nbytes() == cross_bytes(SHAPE)
    cross.write(1, text(3.0, 5), text(4.0, 5))
    cross.commit()
    twin = cross.fork()
    cross.rollback(1)
    assert not cross.use("one")
    k, v = cross.read(1) or (None, None)
    assert torch.equal(k, text(1.0))
    assert torch.equal(v, text(2.0))
    assert cross.nbytes() == cross_bytes(SHAPE)
    assert cross.host_nbytes() == 0
    assert not twin.use("two")
    assert twin.read(0) is None
    other = CrossCache(SHAPE)
    other.load(*twin.dump())
    k, v = other.read(1) or (None, None)
    assert torch.equal(k, text(3.0, 5))
    assert torch.equal(v, text(4.0, 5))
    assert not other.use("two")


def test_a_text_of_another_shape_is_refused() -> None:
    cross = CrossCache(SHAPE)
    cross.use("one")
    for wrong in (text(0.0, 7), text(0.0)[:1], text(0.0).double(), text(0.0)[..., :3], text(0)[0]):
        with pytest.raises(StateError, match="at most 6"):
            cross.write(0, wrong, text(0.0))
    for layer in (-1, 3):
        with pytest.raises(StateError, match="there are 3 layers"):
            cross.write(layer, text(0.0), text(0.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_older_versions_wait_on_the_host() -> None:
    kept = Kept("cuda", undo=1)
    kept.set("x", torch.arange(1000.0))
    kept.commit()
    kept.set("x", torch.zeros(1000))
    kept.commit()
    assert kept.nbytes() == kept.host_nbytes() == 4000
    kept.rollback(1)
    assert kept.get("x").is_cuda
    assert torch.equal(kept.get("x").cpu(), torch.arange(1000.0))
    assert kept.nbytes() == 4000
    assert kept.host_nbytes() == 0
    twin = kept.fork()
    kept.set("x", torch.ones(1000))  # its older version goes to the host, the twin's stays
    assert twin.get("x").is_cuda
    assert twin.nbytes() == 4000
    assert twin.host_nbytes() == 0
