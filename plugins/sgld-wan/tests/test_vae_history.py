"""The decoder's history as a part of causal state, and the stages that use it."""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sgld.causal.blocks import BlockPlan
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.state import CausalState
from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.messages import Request
from sgld.stages.latent_scale import ChannelScale
from sgld.testing.parity import relative_l2
from sgld.testing.randomness import reinitialise
from sgld_wan import configs
from sgld_wan.models.vae import Vae
from sgld_wan.models.vae_history import DecoderHistory, VaeHistory
from sgld_wan.models.vae_slots import decoder_history_bytes, decoder_slots, settled_latents
from sgld_wan.models.vae_stream import FIRST_ONLY, History
from sgld_wan.stages.decode import Decode
from sgld_wan.stages.image import to_pixels
from sgld_wan.stages.stream import (
    DECODER,
    DecodeChunk,
    encoded_stream,
    first_frame_latents,
    video_pieces,
)

CPU = torch.device("cpu")
TINY: dict[str, dict[str, Any]] = {
    "2.1": configs.vae_21_config(base_dim=4),
    "2.2": configs.vae_22_config(base_dim=4, decoder_base_dim=6),
}
STRIDES = {"2.1": 8, "2.2": 16}
both = pytest.mark.parametrize("layout", TINY)


@cache
def tiny_vae(layout: str, dtype: torch.dtype = torch.float32) -> Vae:
    vae = Vae(TINY[layout])
    reinitialise(vae.model, 7)
    # Half weights in front of the pixels, so that clamping hides nothing.
    with torch.no_grad():
        vae.model.decoder.conv_out.weight.mul_(0.5)
    return vae.to(dtype).eval()


@pytest.fixture(autouse=True)
def plain_torch() -> Any:
    """No gradients, and one thread: for tensors as small as these more only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def new(layout: str = "2.1", undo: int = 0, dtype: torch.dtype = torch.float32) -> DecoderHistory:
    side = STRIDES[layout] * 2
    return DecoderHistory.of(TINY[layout], side, side, dtype=dtype, device=CPU, undo=undo)


def step(history: VaeHistory, latents: torch.Tensor, layout: str = "2.1") -> torch.Tensor:
    """Decode and commit one chunk."""
    frames, after = tiny_vae(layout).decode_chunk(latents, history.take())
    history.put(after)
    history.commit()
    return frames


def chunks(count: int, layout: str = "2.1", seed: int = 0) -> list[torch.Tensor]:
    return list(noise(1, TINY[layout]["z_dim"], 2 * count, 2, 2, seed=seed).split(2, dim=2))


# One stream


@both
def test_a_stream_taken_back_goes_on_as_if_nothing_had_been(layout: str) -> None:
    latents, history = chunks(5, layout), new(layout, undo=2)
    frames = [step(history, chunk, layout) for chunk in latents]
    for back in (2, 1, 2):
        history.rollback(back)
        again = [step(history, chunk, layout) for chunk in latents[-back:]]
        for one, other in zip(again, frames[-back:], strict=True):
            assert torch.equal(one, other)
    history.rollback(0)
    with pytest.raises(StateError, match=r"3 chunks cannot be taken back: 2 .*undo=2"):
        history.rollback(3)
    history.rollback(1)
    assert torch.equal(step(history, latents[-1], layout), frames[-1])


def test_a_stream_shorter_than_what_it_could_remember_forgets_nothing() -> None:
    latents, history = chunks(3), new(undo=5)
    frames = [step(history, chunk) for chunk in latents]
    history.rollback(3)
    assert history.nbytes() == 0
    for chunk, expected in zip(latents, frames, strict=True):
        assert torch.equal(step(history, chunk), expected)


def test_back_to_the_beginning_is_a_stream_that_has_not_begun() -> None:
    latents, history = chunks(2), new(undo=2)
    first, _ = step(history, latents[0]), step(history, latents[1])
    history.rollback(2)
    assert history.nbytes() == 0
    assert torch.equal(step(history, latents[0]), first)
    history.reset()
    assert history.nbytes() == 0
    with pytest.raises(StateError, match="1 chunks cannot be taken back"):
        history.rollback(1)
    assert torch.equal(step(history, latents[0]), first)


def test_a_chunk_that_was_not_decoded_counts_when_going_back() -> None:
    latents, history = chunks(3), new(undo=2)
    step(history, latents[0])
    second = step(history, latents[1])
    history.commit()
    history.rollback(2)
    assert torch.equal(step(history, latents[1]), second)


def test_a_decode_that_failed_leaves_nothing_half_done() -> None:
    latents, history, vae = chunks(3), new(undo=1), tiny_vae("2.1")
    step(history, latents[0])
    twin = history.fork()
    expected = step(twin, latents[1])

    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    hook = vae.model.decoder.norm_out.register_forward_hook(fail)
    try:
        with pytest.raises(MemoryError):
            vae.decode_chunk(latents[1], history.take())
    finally:
        hook.remove()
    for attempt in (history.take, history.fork, history.dump):
        with pytest.raises(StateError, match="open"):
            attempt()
    history.rollback(0)
    assert torch.equal(step(history, latents[1]), expected)
    history.take()
    history.rollback(1)  # the open chunk and the one before it
    assert torch.equal(step(history, latents[1]), expected)


def test_without_undo_an_open_chunk_cannot_be_dropped() -> None:
    history = new()
    history.take()
    with pytest.raises(StateError, match="undo=0") as caught:
        history.rollback(0)
    assert caught.value.code == "not_remembered"


@both
def test_forks_share_memory_and_go_their_own_ways(layout: str) -> None:
    latents, other, history = chunks(3, layout), chunks(3, layout, seed=5), new(layout, undo=1)
    step(history, latents[0], layout)
    fork = history.fork()
    pointers = {t.data_ptr() for t in history.dump()[1].values()}
    assert pointers == {t.data_ptr() for t in fork.dump()[1].values()}
    alone = new(layout)
    step(alone, latents[0], layout)
    expected = [step(alone, chunk, layout) for chunk in latents[1:]]
    for mine, theirs, wanted in zip(latents[1:], other[1:], expected, strict=True):
        assert torch.equal(step(history, mine, layout), wanted)
        assert not torch.equal(step(fork, theirs, layout), wanted)
    fork.free()
    history.rollback(1)
    assert torch.equal(step(history, latents[2], layout), expected[1])


@both
@pytest.mark.parametrize("decoded", [0, 1, 3])
def test_a_dump_goes_on_in_another_stream(layout: str, decoded: int) -> None:
    latents = noise(1, TINY[layout]["z_dim"], 5, 2, 2).split(1, dim=2)
    history = new(layout)
    for chunk in latents[:decoded]:
        step(history, chunk, layout)
    values, tensors = history.dump()
    held = [kind for kind in values["slots"] if kind == FIRST_ONLY]
    assert len(held) == (2 if decoded == 1 else 0)
    twin = new(layout, undo=1)
    step(twin, noise(1, TINY[layout]["z_dim"], 2, 2, 2, seed=3), layout)
    twin.load(values, tensors)
    assert twin.nbytes() == history.nbytes()
    with pytest.raises(StateError):
        twin.rollback(1)
    for chunk in latents[decoded:]:
        assert torch.equal(step(twin, chunk, layout), step(history, chunk, layout))


def test_a_dump_that_does_not_fit_changes_nothing() -> None:
    latents, history = chunks(3), new()
    step(history, latents[0])
    values, tensors = history.dump()
    expected = step(history.fork(), latents[1])
    kinds = values["slots"]
    larger = DecoderHistory.of(TINY["2.1"], 16, 24, dtype=torch.float32, device=CPU)
    step(larger, noise(1, 16, 2, 2, 3))
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    first = next(iter(tensors))
    wrong: list[tuple[dict[str, Any], dict[str, torch.Tensor]]] = [
        ({}, {}),
        ({"slots": kinds[:-1]}, dict(tensors)),
        ({"slots": ["nothing", *kinds[1:]]}, {k: v for k, v in tensors.items() if k != first}),
        ({"slots": [FIRST_ONLY, *kinds[1:]]}, {k: v for k, v in tensors.items() if k != first}),
        ({"slots": ["frames", *kinds[1:]]}, {k: v for k, v in tensors.items() if k != first}),
        ({"slots": [7, *kinds[1:]]}, dict(tensors)),
        (dict(values), {**tensors, "99": tensors[first]}),
        (dict(values), half),
        (dict(values), dict(larger.dump()[1])),
    ]
    for bad_values, bad_tensors in wrong:
        with pytest.raises(SnapshotError, match="does not fit") as caught:
            history.load(bad_values, bad_tensors)
        assert caught.value.code == "snapshot_mismatch"
    history.load(values, tensors)
    assert torch.equal(step(history, latents[1]), expected)


def test_a_freed_stream_holds_nothing_and_takes_nothing_back() -> None:
    history, vae = new(undo=2), tiny_vae("2.1")
    step(history, chunks(1)[0])
    lent = history.take()
    history.free()
    history.free()
    assert history.nbytes() == 0
    _, after = vae.decode_chunk(chunks(1)[0], lent)
    history.put(after)
    assert history.nbytes() == 0
    with pytest.raises(StateError, match="freed"):
        history.take()


def test_a_result_that_comes_after_a_reset_is_dropped() -> None:
    history, vae = new(), tiny_vae("2.1")
    first = step(history, chunks(1)[0])
    _, after = vae.decode_chunk(chunks(1)[0], history.take())
    history.reset()
    history.put(after)
    assert torch.equal(step(history, chunks(1)[0]), first)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_equal_the_formula_from_the_second_latent_on(layout: str, dtype: torch.dtype) -> None:
    vae, history, side = tiny_vae(layout, dtype), new(layout, undo=3, dtype=dtype), STRIDES[layout]
    formula = decoder_history_bytes(TINY[layout], 2 * side, 2 * side, dtype)
    assert history.nbytes() == 0
    sizes = [0]
    for number, chunk in enumerate(noise(1, TINY[layout]["z_dim"], 5, 2, 2).split(1, dim=2)):
        frames, after = vae.decode_chunk(chunk, history.take())
        history.put(after)
        history.commit()
        assert frames.dtype == dtype
        assert history.host_nbytes() == sum(sizes[-3:])
        sizes.append(history.nbytes())
        assert (history.nbytes() == formula) == (number > 0)
        assert history.nbytes() <= formula


# Against a list of versions


class Versions(RuleBasedStateMachine):
    """Any order of operations against plain lists of numbers. Every version is told apart by the
    number that a stand-in for the decoder writes into all slots."""

    layout = decoder_slots(configs.vae_21_config(base_dim=1, z_dim=1), 8, 8)

    @initialize(undo=st.integers(0, 3))
    def begin(self, undo: int) -> None:
        self.undo, self.count = undo, 0
        self.pairs = [(VaeHistory(self.layout, dtype=torch.float32, device=CPU, undo=undo), [0])]
        self.open: set[int] = set()

    def chosen(self, which: int) -> tuple[int, VaeHistory, list[int]]:
        index = which % len(self.pairs)
        return index, *self.pairs[index]

    @rule(which=st.integers(0, 9), put=st.sampled_from((True, True, True, False)))
    def chunk(self, which: int, put: bool) -> None:
        """A chunk is decoded and committed, or fails half way."""
        index, history, versions = self.chosen(which)
        if index in self.open:
            with pytest.raises(StateError):
                history.take()
            return
        lent = history.take()
        self.count += 1
        slots: History = [
            torch.full((1, s.channels, s.frames, s.height, s.width), float(self.count))
            for s in self.layout
        ]
        if not put:
            lent[: len(lent) // 2] = slots[: len(lent) // 2]
            self.open.add(index)
            return
        lent[:] = slots
        history.put(lent)
        history.commit()
        versions.append(self.count)
        del versions[: -self.undo - 1]

    @rule(which=st.integers(0, 9), back=st.integers(0, 4))
    def take_back(self, which: int, back: int) -> None:
        index, history, versions = self.chosen(which)
        possible = back < len(versions) and (index not in self.open or self.undo > 0)
        if not possible:
            with pytest.raises(StateError):
                history.rollback(back)
            return
        history.rollback(back)
        self.open.discard(index)
        del versions[len(versions) - back :]

    @rule(which=st.integers(0, 9))
    def skip(self, which: int) -> None:
        index, history, versions = self.chosen(which)
        if index not in self.open:
            history.commit()
            versions.append(versions[-1])
            del versions[: -self.undo - 1]

    @precondition(lambda self: len(self.pairs) < 4)
    @rule(which=st.integers(0, 9))
    def split(self, which: int) -> None:
        index, history, versions = self.chosen(which)
        if index in self.open:
            with pytest.raises(StateError):
                history.fork()
            return
        self.pairs.append((history.fork(), list(versions)))

    @rule(which=st.integers(0, 9), into=st.integers(0, 9))
    def copy(self, which: int, into: int) -> None:
        index, history, versions = self.chosen(which)
        other, receiver, theirs = self.chosen(into)
        if index in self.open:
            with pytest.raises(StateError):
                history.dump()
            return
        receiver.load(*history.dump())
        theirs[:] = [versions[-1]]
        self.open.discard(other)

    @rule(which=st.integers(0, 9))
    def forget(self, which: int) -> None:
        index, history, versions = self.chosen(which)
        history.reset()
        versions[:] = [0]
        self.open.discard(index)

    @invariant()
    def every_stream_is_where_its_list_says(self) -> None:
        for index, (history, versions) in enumerate(self.pairs):
            if index in self.open:
                continue
            _, tensors = history.dump()
            found = {float(value) for tensor in tensors.values() for value in tensor.unique()}
            assert found == ({float(versions[-1])} if versions[-1] else set())
            assert len(tensors) == (len(self.layout) if versions[-1] else 0)


Versions.TestCase.settings = settings(max_examples=100, stateful_step_count=30)


class TestVersions(Versions.TestCase):
    """Runs the machine."""


# The stages


def make_job(layout: str, dtype: torch.dtype = torch.float32, image: bool = False) -> Job:
    config, side = TINY[layout], 2 * STRIDES[layout]
    picture = np.random.default_rng(3).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    return Job(
        id="a#0",
        request=Request("a", {}, (0,), images=(picture,) if image else ()),
        index=0,
        params=SimpleNamespace(height=side, width=side),
        device=CPU,
        parts={
            "latent_scale": ChannelScale(config["latents_mean"], config["latents_std"]),
            "vae_dtype": dtype,
            "vae_config": config,
            "vae_stride": (4, STRIDES[layout]),
        },
    )


def drive(run: Generator[Any, Any, Any], vae: Vae) -> tuple[Any, list[Call]]:
    """Run a stage to its end, answering its calls: what it returned, and the calls."""
    calls: list[Call] = []
    answer: Any = None
    while True:
        try:
            wish = run.send(answer)
        except StopIteration as end:
            return end.value, calls
        assert isinstance(wish, Call)
        assert wish.component == "vae"
        assert wish.merge_key() is None, "streams must not share a forward"
        calls.append(wish)
        answer = getattr(vae, wish.method)(**wish.inputs)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_chunk_by_chunk_gives_the_frames_of_the_whole(
    layout: str, dtype: torch.dtype
) -> None:
    vae, job, plan = tiny_vae(layout, dtype), make_job(layout, dtype), BlockPlan(3, total=8)
    latents = noise(1, TINY[layout]["z_dim"], 8, 2, 2)
    job.slots.latents = latents
    drive(Decode().run(job), vae)
    whole, pieces = job.slots.frames, []
    state = CausalState({DECODER: new(layout, dtype=dtype)}, torch.Generator())
    job.slots.state = state
    for chunk in plan.chunks():
        job.slots.latents = latents[:, :, chunk.first : chunk.first + chunk.frames]
        drive(DecodeChunk().run(job), vae)
        pieces.append(job.slots.frames)
        state.advance(chunk)
    assert [len(piece) for piece in pieces] == [9, 12, 8]
    assert torch.equal(torch.cat(pieces), whole)
    assert whole.dtype == torch.float32
    assert whole.std() > 0.05
    side = 2 * STRIDES[layout]
    assert state.nbytes() == decoder_history_bytes(TINY[layout], side, side, dtype)
    state.free()
    assert state.nbytes() == 0


@both
@pytest.mark.parametrize("frames", [1, 2, 5, 32])
def test_a_first_frame_is_encoded_as_if_all_its_grey_frames_had_been(
    layout: str, frames: int
) -> None:
    vae, job, side = tiny_vae(layout), make_job(layout, image=True), 2 * STRIDES[layout]
    image = to_pixels(job.request.images[0], side, side)
    condition, calls = drive(first_frame_latents(job, image, frames), vae)
    video = torch.zeros(1, 3, 4 * frames - 3, side, side)
    video[:, :, :1] = image
    assert torch.equal(condition, job.parts["latent_scale"].normalise(vae.encode(video)))
    encoded = sum(call.inputs["video"].shape[2] for call in calls)
    assert encoded == 4 * min(frames, settled_latents(TINY[layout])) - 3
    assert all(call.inputs["video"].shape[2] <= 16 for call in calls)


@both
def test_fewer_frames_encoded_are_an_approximation_that_gets_better(layout: str) -> None:
    vae, job, side = tiny_vae(layout), make_job(layout, image=True), 2 * STRIDES[layout]
    image = to_pixels(job.request.images[0], side, side)
    exact, _ = drive(first_frame_latents(job, image, 34), vae)
    errors: list[float] = []
    for encoded in (2, 12, 20, 30, 40):
        near, calls = drive(first_frame_latents(job, image, 34, encoded=encoded), vae)
        count = min(encoded, 30)
        assert sum(call.inputs["video"].shape[2] for call in calls) == 4 * count - 3
        assert torch.equal(near[:, :, :count], exact[:, :, :count])
        assert torch.equal(
            near[:, :, count:], near[:, :, count - 1 : count].expand(-1, -1, 34 - count, -1, -1)
        )
        errors.append(relative_l2(near, exact))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[1] > errors[2] > errors[3] == errors[4] == 0


def test_a_picture_may_be_stretched_to_the_size() -> None:
    """Grey, black, white, grey, from left to right: a cut square loses the grey."""
    picture = np.zeros((8, 32, 3), dtype=np.uint8)
    picture[:, 16:] = 255
    picture[:, :8] = picture[:, 24:] = 128
    cut, stretched = to_pixels(picture, 16, 16), to_pixels(picture, 16, 16, "stretch")
    grey = 2 * 128 / 255 - 1
    assert stretched[0, :, 0, :, 0].unique().tolist() == pytest.approx([grey], abs=1e-6)
    assert cut[0, :, 0, :, :4].max() < -0.9
    assert stretched.shape == cut.shape == (1, 3, 1, 16, 16)


def test_a_first_frame_needs_a_frame() -> None:
    vae, job = tiny_vae("2.1"), make_job("2.1")
    image = torch.zeros(1, 3, 1, 16, 16)
    with pytest.raises(ValueError, match="frames=0, encoded=None: both must be 1 or more"):
        drive(first_frame_latents(job, image, 0), vae)
    with pytest.raises(ValueError, match="frames=3, encoded=0"):
        drive(first_frame_latents(job, image, 3, encoded=0), vae)


@both
@pytest.mark.parametrize("latents", [1, 4, 5, 9])
def test_a_video_is_encoded_in_pieces(layout: str, latents: int) -> None:
    vae, job, side = tiny_vae(layout), make_job(layout), 2 * STRIDES[layout]
    video = noise(1, 3, 4 * latents - 3, side, side).clamp(-1, 1)
    found, calls = drive(encoded_stream(job, video_pieces(video, 4)), vae)
    assert torch.equal(found, job.parts["latent_scale"].normalise(vae.encode(video)))
    assert len(calls) == -(-latents // 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@both
def test_on_a_gpu_older_versions_wait_in_host_memory(layout: str) -> None:
    device, side = torch.device("cuda"), 2 * STRIDES[layout]
    vae = Vae(TINY[layout])
    reinitialise(vae.model, 7)
    vae = vae.to(device).eval()
    history = DecoderHistory.of(
        TINY[layout], side, side, dtype=torch.float32, device=device, undo=2
    )
    latents = [chunk.to(device) for chunk in chunks(5, layout)]

    def advance(chunk: torch.Tensor) -> torch.Tensor:
        frames, after = vae.decode_chunk(chunk, history.take())
        history.put(after)
        history.commit()
        return frames

    frames = [advance(chunk) for chunk in latents]
    assert torch.equal(torch.cat(frames, dim=2), vae.decode(torch.cat(latents, dim=2)))
    assert history.nbytes() == decoder_history_bytes(TINY[layout], side, side, torch.float32)
    kept = [slot for version in history._kept for slot in version]
    assert all(slot.is_pinned() for slot in kept if isinstance(slot, torch.Tensor))
    for back in (2, 1):
        history.rollback(back)
        again = [advance(chunk) for chunk in latents[-back:]]
        assert all(torch.equal(a, b) for a, b in zip(again, frames[-back:], strict=True))
