"""The Wan VAE chunk by chunk: golden numbers, the whole clip to the bit, streams beside streams."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from sgld.api.errors import FeatureError
from sgld.testing.parity import relative_l2
from sgld.testing.randomness import reinitialise
from sgld_wan import configs
from sgld_wan.models.vae import Vae
from sgld_wan.models.vae_slots import (
    decoder_history_bytes,
    decoder_slots,
    encoder_slots,
    settled_latents,
    slot_bytes,
)
from sgld_wan.models.vae_stream import FIRST_ONLY, History

DATA = Path(__file__).parent / "data"
GOLDEN = ("wan21_vae_stream", "wan22_vae_stream")
TINY: dict[str, dict[str, Any]] = {
    "2.1": configs.vae_21_config(base_dim=4),
    "2.2": configs.vae_22_config(base_dim=4, decoder_base_dim=6),
}
STRIDES = {"2.1": 8, "2.2": 16}
both = pytest.mark.parametrize("layout", TINY)
golden = pytest.mark.parametrize("name", GOLDEN)


class Golden(NamedTuple):
    facts: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    vae: Vae


@cache
def read(name: str) -> Golden:
    facts = json.loads((DATA / name / "fixture.json").read_text(encoding="utf-8"))
    vae = Vae(facts["config"]).eval()
    vae.model.load_state_dict(load_file(DATA / name / "weights.safetensors"))
    return Golden(facts, load_file(DATA / name / "fixture.safetensors"), vae)


@cache
def tiny_vae(layout: str, dtype: torch.dtype = torch.float32) -> Vae:
    vae = Vae(TINY[layout])
    reinitialise(vae.model, 7)
    return vae.to(dtype).eval()


@pytest.fixture(autouse=True)
def plain_torch() -> Any:
    """No gradients, and one thread: for tensors as small as these more only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def decoded(vae: Vae, latents: torch.Tensor, cuts: Sequence[int]) -> tuple[torch.Tensor, History]:
    """All frames of latents that come in chunks of the sizes `cuts`, and the history at the end."""
    history: History | None = None
    frames: list[torch.Tensor] = []
    for chunk in latents.split(list(cuts), dim=2):
        piece, history = vae.decode_chunk(chunk, history)
        frames.append(piece)
    assert history is not None
    return torch.cat(frames, dim=2), history


def encoded(vae: Vae, video: torch.Tensor, cuts: Sequence[int]) -> tuple[torch.Tensor, History]:
    """The same for latents of a video; `cuts` counts latent frames."""
    history: History | None = None
    latents: list[torch.Tensor] = []
    sizes = [4 * cut - 3 * (number == 0) for number, cut in enumerate(cuts)]
    for chunk in video.split(sizes, dim=2):
        piece, history = vae.encode_chunk(chunk, history)
        latents.append(piece)
    assert history is not None
    return torch.cat(latents, dim=2), history


def held(history: History) -> int:
    return sum(t.untyped_storage().nbytes() for t in history if isinstance(t, torch.Tensor))


def frames_and_latents(cuts: Sequence[int]) -> tuple[int, int]:
    return 4 * sum(cuts) - 3, sum(cuts)


# Golden numbers


@golden
def test_decodes_the_reference_frames_whole_and_in_chunks(name: str) -> None:
    facts, tensors, vae = read(name)
    expected = torch.cat([tensors["frames_chunk0"], tensors["frames_chunk1"]], dim=2)
    whole = vae.decode(tensors["latents"])
    chunked, _ = decoded(vae, tensors["latents"], facts["chunk_latent_frames"])
    tolerance = {"atol": facts["tolerance"]["atol"], "rtol": facts["tolerance"]["rtol"]}
    torch.testing.assert_close(whole, expected, **tolerance)
    assert torch.equal(whole, chunked)
    assert expected.abs().max() > 0.1, "grey frames would prove nothing"


@golden
def test_chunks_have_the_reference_numbers_of_frames(name: str) -> None:
    facts, tensors, vae = read(name)
    history: History | None = None
    counts: list[int] = []
    for chunk in tensors["latents"].split(facts["chunk_latent_frames"], dim=2):
        frames, history = vae.decode_chunk(chunk, history)
        counts.append(frames.shape[2])
    assert counts == facts["frames_per_chunk"]


@golden
def test_history_has_the_reference_shapes(name: str) -> None:
    facts, tensors, vae = read(name)
    first = facts["chunk_latent_frames"][0]
    _, history = vae.decode_chunk(tensors["latents"][:, :, :first])
    shapes = [list(slot.shape) for slot in history if isinstance(slot, torch.Tensor)]
    assert shapes == [shape for shape in facts["decoder_cache_shapes_after_chunk0"] if shape]


@golden
def test_a_first_latent_alone_is_the_reference_frame(name: str) -> None:
    facts, tensors, vae = read(name)
    frame, history = vae.decode_chunk(tensors["latents"][:, :, :1])
    torch.testing.assert_close(
        frame, tensors["frame_single"], atol=facts["tolerance"]["atol"], rtol=1e-4
    )
    marks = [slot for slot in history if not isinstance(slot, torch.Tensor)]
    assert marks == [FIRST_ONLY] * 2, "one per layer that doubles frames"


@golden
def test_encodes_the_reference_latents_whole_and_in_chunks(name: str) -> None:
    facts, tensors, vae = read(name)
    video, tolerance = tensors["enc_video"], facts["tolerance"]["atol"]
    pictures = video.clone()
    pictures[:, :, 1:] = 0
    for clip, expected in (
        (video, tensors["enc_mean"]),
        (pictures, tensors["enc_image_then_zeros_mean"]),
    ):
        whole = vae.encode(clip)
        torch.testing.assert_close(whole, expected, atol=tolerance, rtol=1e-4)
        for cuts in ((1, 1, 1), (1, 2), (2, 1)):
            assert torch.equal(encoded(vae, clip, cuts)[0], whole)


@golden
def test_whole_clips_agree_with_diffusers(name: str) -> None:
    _, tensors, vae = read(name)
    theirs = vae.model.decode(tensors["latents"], return_dict=False)[0]
    torch.testing.assert_close(vae.decode(tensors["latents"]), theirs, atol=1e-5, rtol=1e-5)
    theirs = vae.model.encode(tensors["enc_video"]).latent_dist.mode()
    torch.testing.assert_close(vae.encode(tensors["enc_video"]), theirs, atol=1e-5, rtol=1e-5)


# Any cut


@both
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_any_cut_of_the_latents_decodes_to_the_same_bits(
    layout: str, cuts: list[int], seed: int
) -> None:
    vae = tiny_vae(layout)
    latents = noise(1, TINY[layout]["z_dim"], sum(cuts), 2, 3, seed=seed)
    frames, _ = decoded(vae, latents, cuts)
    assert torch.equal(frames, vae.decode(latents))
    assert frames.shape[2] == 4 * sum(cuts) - 3


@both
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(1, 3), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_any_cut_of_a_video_encodes_to_the_same_bits(
    layout: str, cuts: list[int], seed: int
) -> None:
    vae, side = tiny_vae(layout), 2 * STRIDES[layout]
    video = noise(1, 3, 4 * sum(cuts) - 3, side, side, seed=seed).clamp(-1, 1)
    latents, _ = encoded(vae, video, cuts)
    assert torch.equal(latents, vae.encode(video))
    assert latents.shape[2] == sum(cuts)


@both
def test_channels_innermost_change_rounding_only(layout: str) -> None:
    plain, vae = tiny_vae(layout), Vae(TINY[layout])
    vae.load_state_dict(plain.state_dict())
    vae.requires_grad_(False).eval().lay_out()
    latents = noise(1, TINY[layout]["z_dim"], 4, 2, 3)
    frames, history = decoded(vae, latents, (1, 2, 1))
    assert torch.equal(frames, vae.decode(latents))
    assert relative_l2(frames, plain.decode(latents)) < 1e-5
    kept = [slot for slot in history if isinstance(slot, torch.Tensor)]
    assert any(slot.is_contiguous(memory_format=torch.channels_last_3d) for slot in kept)


@both
def test_half_precision_streams_equal_the_half_precision_clip(layout: str) -> None:
    vae, dtype = tiny_vae(layout, torch.bfloat16), torch.bfloat16
    latents = noise(1, TINY[layout]["z_dim"], 5, 2, 3, dtype=dtype)
    frames, history = decoded(vae, latents, (1, 3, 1))
    assert torch.equal(frames, vae.decode(latents))
    assert {slot.dtype for slot in history if isinstance(slot, torch.Tensor)} == {dtype}
    size = (2 * STRIDES[layout], 3 * STRIDES[layout])
    assert held(history) == decoder_history_bytes(TINY[layout], *size, dtype)
    assert held(history) * 2 == decoder_history_bytes(TINY[layout], *size, torch.float32)
    error = relative_l2(frames.float(), tiny_vae(layout).decode(latents.float()))
    assert 0 < error < 0.05


# Nothing stays on the module, and nothing is written into


@both
def test_a_history_can_be_continued_twice(layout: str) -> None:
    vae, channels = tiny_vae(layout), TINY[layout]["z_dim"]
    _, history = vae.decode_chunk(noise(1, channels, 2, 2, 3))
    before = [slot.clone() if isinstance(slot, torch.Tensor) else slot for slot in history]
    kept = list(history)
    later = noise(1, channels, 2, 2, 3, seed=1)
    once, _ = vae.decode_chunk(later, list(kept))
    again, _ = vae.decode_chunk(later, list(kept))
    other, _ = vae.decode_chunk(noise(1, channels, 2, 2, 3, seed=2), list(kept))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    for slot, copy in zip(kept, before, strict=True):
        assert isinstance(slot, torch.Tensor)
        assert isinstance(copy, torch.Tensor)
        assert torch.equal(slot, copy)


@both
def test_interleaved_streams_do_not_see_each_other(layout: str) -> None:
    vae, channels = tiny_vae(layout), TINY[layout]["z_dim"]
    streams = [noise(1, channels, 4, 2, 3, seed=seed) for seed in range(3)]
    alone = [vae.decode(latents) for latents in streams]
    histories: list[History | None] = [None] * 3
    frames: list[list[torch.Tensor]] = [[], [], []]
    for step in range(4):
        for number, latents in enumerate(streams):
            piece, histories[number] = vae.decode_chunk(
                latents[:, :, step : step + 1], histories[number]
            )
            frames[number].append(piece)
        vae.decode(noise(1, channels, 2, 2, 3, seed=9))
    for expected, pieces in zip(alone, frames, strict=True):
        assert torch.equal(torch.cat(pieces, dim=2), expected)


@both
def test_the_module_keeps_nothing(layout: str) -> None:
    vae = tiny_vae(layout)
    before = set(vars(vae.model))
    vae.model.__dict__["_feat_map"] = marker = object()
    try:
        side = 2 * STRIDES[layout]
        vae.decode_chunk(noise(1, TINY[layout]["z_dim"], 2, 2, 2))
        vae.encode_chunk(noise(1, 3, 5, side, side))
        vae.decode(noise(1, TINY[layout]["z_dim"], 2, 2, 2))
        vae.encode(noise(1, 3, 5, side, side))
        assert vars(vae.model)["_feat_map"] is marker
    finally:
        del vae.model.__dict__["_feat_map"]
    assert set(vars(vae.model)) == before


@both
def test_threads_share_one_module(layout: str) -> None:
    vae, channels, side = tiny_vae(layout), TINY[layout]["z_dim"], 2 * STRIDES[layout]
    latents = [noise(1, channels, 6, 2, 2, seed=seed) for seed in range(2)]
    video = noise(1, 3, 13, side, side).clamp(-1, 1)
    expected = [vae.decode(latents[0]), vae.decode(latents[1]), vae.encode(video)]
    results: list[list[torch.Tensor]] = [[], [], []]
    together = threading.Barrier(3)

    def work(number: int) -> None:
        with torch.inference_mode():
            together.wait()
            for _ in range(3):
                if number == 2:
                    results[number].append(encoded(vae, video, (1, 2, 1))[0])
                else:
                    results[number].append(decoded(vae, latents[number], (2, 2, 2))[0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, wanted in enumerate(expected):
        assert len(results[number]) == 3
        assert all(torch.equal(result, wanted) for result in results[number])


@both
def test_the_old_history_is_freed_while_the_new_one_grows(layout: str) -> None:
    """At the last convolution everything before it must be gone already."""
    vae, channels = tiny_vae(layout), TINY[layout]["z_dim"]
    _, history = vae.decode_chunk(noise(1, channels, 2, 2, 3))
    old = [weakref.ref(slot) for slot in history[:-1] if isinstance(slot, torch.Tensor)]
    assert len(old) == len(history) - 1
    alive: list[int] = []
    hook = vae.model.decoder.conv_out.register_forward_pre_hook(
        lambda *_: alive.append(sum(ref() is not None for ref in old))
    )
    try:
        vae.decode_chunk(noise(1, channels, 2, 2, 3, seed=1), history)
    finally:
        hook.remove()
    assert alive == [0, 0]


# Bytes


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    levels = draw(st.integers(2, 4))
    residual = draw(st.booleans())
    changes = {
        "base_dim": draw(st.sampled_from((2, 4))),
        "dim_mult": [draw(st.sampled_from((1, 2))) for _ in range(levels)],
        "num_res_blocks": draw(st.integers(1, 2)),
        "temperal_downsample": draw(
            st.lists(st.booleans(), min_size=levels - 1, max_size=levels - 1)
        ),
        "z_dim": draw(st.integers(1, 5)),
    }
    if not residual:
        return configs.vae_21_config(**changes)
    # The encoder's last shortcut cannot make channels out of nothing.
    changes["dim_mult"][-1] = changes["dim_mult"][-2]
    return configs.vae_22_config(decoder_base_dim=draw(st.sampled_from((4, 8))), **changes)


@settings(max_examples=25)
@given(
    config=configurations(),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    later=st.lists(st.integers(1, 2), min_size=1, max_size=2),
)
def test_decoder_bytes_are_known_beforehand(
    config: dict[str, Any], rows: int, columns: int, later: list[int]
) -> None:
    vae = Vae(config).eval()
    stride = (config.get("patch_size") or 1) << (len(config["dim_mult"]) - 1)
    formula = decoder_history_bytes(config, rows * stride, columns * stride, torch.float32)
    frames, history = vae.decode_chunk(torch.zeros(1, config["z_dim"], 1, rows, columns))
    assert frames.shape[-2:] == (rows * stride, columns * stride)
    assert held(history) < formula
    for count in later:
        _, history = vae.decode_chunk(
            torch.zeros(1, config["z_dim"], count, rows, columns), history
        )
        assert held(history) == formula
    slots = decoder_slots(config, rows * stride, columns * stride)
    assert [tuple(slot.shape) for slot in history if isinstance(slot, torch.Tensor)] == [
        (1, slot.channels, slot.frames, slot.height, slot.width) for slot in slots
    ]


@both
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 2)])
def test_encoder_bytes_are_known_beforehand(layout: str, size: tuple[int, int]) -> None:
    vae, stride = tiny_vae(layout), STRIDES[layout]
    height, width = size[0] * stride, size[1] * stride
    _, history = vae.encode_chunk(noise(1, 3, 9, height, width))
    slots = encoder_slots(TINY[layout], height, width)
    assert held(history) == slot_bytes(slots, 4)
    assert [tuple(slot.shape) for slot in history if isinstance(slot, torch.Tensor)] == [
        (1, slot.channels, slot.frames, slot.height, slot.width) for slot in slots
    ]


@pytest.mark.parametrize(
    ("config", "height", "width"),
    [(configs.vae_21_config(), 480, 832), (configs.vae_22_config(), 704, 1280)],
    ids=["2.1", "2.2"],
)
def test_full_size_bytes_without_a_number_computed(
    config: dict[str, Any], height: int, width: int
) -> None:
    """The released VAEs on the meta device: shapes only."""
    with torch.device("meta"):
        vae = Vae(config).to(torch.bfloat16)
        stride = 2 ** (len(config["dim_mult"]) - 1) * (config.get("patch_size") or 1)
        latents = torch.zeros(1, config["z_dim"], 2, height // stride, width // stride)
        _, history = vae.decode_chunk(latents)
    values = sum(slot.numel() for slot in history if isinstance(slot, torch.Tensor))
    assert decoder_history_bytes(config, height, width, torch.bfloat16) == 2 * values


def test_bytes_of_a_size_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"width=830: must be a positive multiple of 8"):
        decoder_history_bytes(configs.vae_21_config(), 480, 830, torch.float32)
    with pytest.raises(ValueError, match=r"height=0: must be a positive multiple of 16"):
        encoder_slots(configs.vae_22_config(), 0, 64)


# What is the same for ever


@both
def test_a_still_picture_settles_when_the_configuration_says(layout: str) -> None:
    vae, side = tiny_vae(layout), STRIDES[layout]
    count = settled_latents(TINY[layout])
    assert count == 30
    video = torch.zeros(1, 3, 4 * (count + 2) - 3, side, side)
    video[:, :, 0] = noise(1, 3, side, side).clamp(-1, 1)
    latents = vae.encode(video)
    assert torch.equal(latents[:, :, count - 1 : count], latents[:, :, count : count + 1])
    assert torch.equal(latents[:, :, count - 1 : count], latents[:, :, count + 1 :])
    assert not torch.equal(latents[:, :, count - 2 : count - 1], latents[:, :, -1:])


# Refused


def test_tiles_are_refused_by_name() -> None:
    vae = Vae(TINY["2.1"], tiling=True)
    with pytest.raises(FeatureError, match="--vae-tiling"):
        vae.decode_chunk(noise(1, 16, 1, 2, 2))
    with pytest.raises(FeatureError, match="--vae-tiling"):
        vae.encode_chunk(noise(1, 3, 1, 16, 16))
    assert vae.decode(noise(1, 16, 1, 2, 2)).shape == (1, 3, 1, 16, 16)


@both
def test_frames_that_are_no_whole_latents_are_refused(layout: str) -> None:
    vae, side = tiny_vae(layout), STRIDES[layout]
    for count in (2, 4, 7):
        with pytest.raises(ValueError, match=rf"video has {count} frames; .* 4k \+ 1"):
            vae.encode_chunk(torch.zeros(1, 3, count, side, side))
    _, history = vae.encode_chunk(torch.zeros(1, 3, 1, side, side))
    for count in (1, 3, 5):
        with pytest.raises(ValueError, match=rf"video has {count} frames; .* multiple of 4"):
            vae.encode_chunk(torch.zeros(1, 3, count, side, side), list(history))


def test_inputs_that_do_not_fit_are_refused() -> None:
    vae = tiny_vae("2.1")
    with pytest.raises(ValueError, match=r"latents is \[1, 15, 1, 2, 2\]; must be \[batch, 16,"):
        vae.decode_chunk(torch.zeros(1, 15, 1, 2, 2))
    with pytest.raises(ValueError, match=r"latents is \[1, 16, 0, 2, 2\]"):
        vae.decode_chunk(torch.zeros(1, 16, 0, 2, 2))
    with pytest.raises(ValueError, match=r"video is \[3, 1, 16, 16\]"):
        vae.encode_chunk(torch.zeros(3, 1, 16, 16))
    with pytest.raises(ValueError, match="the history has 3 slots, the model 32"):
        vae.decode_chunk(torch.zeros(1, 16, 1, 2, 2), [None] * 3)
    _, history = vae.decode_chunk(torch.zeros(1, 16, 1, 2, 2))
    with pytest.raises(ValueError, match=r"1 × 2 × 3 .* in a stream of 1 × 2 × 2"):
        vae.decode_chunk(torch.zeros(1, 16, 1, 2, 3), history)
