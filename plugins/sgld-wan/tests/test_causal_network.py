"""The causal denoiser against diffusers' `WanTransformer3DModel` with a mask.

One masked pass over a whole clip, where every row sees what its chunk saw, must give what the
cached run gives chunk by chunk: it knows nothing of caches, slots or eviction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import causal_drive as drive
import pytest
import torch
from diffusers.models.transformers.transformer_wan import (
    WanAttnProcessor,
    WanTransformer3DModel,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sgld.api.errors import ModelError, ParameterError
from sgld.causal.cross import CrossCache, CrossShape
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Policy, Rolling
from sgld.causal.positions import Absolute, AtRead, Positions, ShotOffset
from sgld.ops import Ops, rope
from sgld.testing.host_sync import no_host_sync
from sgld.testing.randomness import reinitialise
from sgld_wan.models.causal_dit import CausalBlock, CausalWanTransformer
from sgld_wan.models.config import WanConfig

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT, ROWS, COLUMNS = 7, 4, 6
TOKENS = ROWS * COLUMNS // 4


class Case(NamedTuple):
    """A network and how its clip is cut: latent frames per chunk, window (0: all) and sink."""

    heads: int
    head_dim: int
    sizes: tuple[int, ...]
    window: int
    sink: int
    layers: int = 2


CASES = {
    "everything": Case(2, 16, (3, 3, 3), 0, 0, layers=3),
    "single frames": Case(3, 20, (1, 1, 1, 1, 1), 3, 1),
    "window no multiple": Case(5, 12, (2, 2, 2, 2), 5, 1),
    "window of one chunk": Case(1, 32, (3, 3, 3), 3, 0),
    "first alone, rest short": Case(4, 10, (1, 4, 4, 2), 6, 1),
    "sink beyond a chunk": Case(2, 24, (2, 2, 2, 2, 2), 6, 3),
}


def config_of(case: Case) -> WanConfig:
    return WanConfig(
        num_attention_heads=case.heads,
        attention_head_dim=case.head_dim,
        in_channels=8,
        out_channels=8,
        text_dim=12,
        freq_dim=32,
        ffn_dim=20,
        num_layers=case.layers,
    )


def theirs(config: WanConfig) -> Any:
    model = WanTransformer3DModel(
        num_attention_heads=config.num_attention_heads,
        attention_head_dim=config.attention_head_dim,
        in_channels=config.in_channels,
        out_channels=config.out_channels,
        text_dim=config.text_dim,
        freq_dim=config.freq_dim,
        ffn_dim=config.ffn_dim,
        num_layers=config.num_layers,
    )
    return reinitialise(model, 3)


def ours(model: nn.Module, config: WanConfig) -> CausalWanTransformer:
    network = drive.build(config)
    network.load_state_dict(model.state_dict(), strict=True, assign=True)
    return network


class Masked(WanAttnProcessor):
    """Self-attention where each query sees the keys that `mask` allows."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def __call__(
        self, attn: Any, x: Tensor, text: Any, mask: Any, rotary: Any, **rest: Any
    ) -> Tensor:
        return super().__call__(attn, x, text, self.mask, rotary, **rest)


def seen_frames(sizes: tuple[int, ...], window: int, sink: int) -> list[list[int]]:
    """For each chunk the frames it sees, by the rule in words: the oldest that are not in the sink
    go when a chunk does not fit."""
    kept: list[int] = []
    result: list[list[int]] = []
    first = 0
    for size in sizes:
        chunk = list(range(first, first + size))
        over = max(0, len(kept) + size - window) if window else 0
        kept = kept[:sink] + kept[sink + over :] + chunk
        result.append(list(kept))
        first += size
    return result


def masked_velocity(
    model: Any, case: Case, clean: Tensor, noisy: Tensor, text: Tensor, time: float
):
    """What the last chunk's velocity must be: one pass over clean chunks and the noisy last one."""
    frames = sum(case.sizes)
    allowed = torch.zeros(frames, frames, dtype=torch.bool)
    first = 0
    for size, seen in zip(case.sizes, seen_frames(case.sizes, case.window, case.sink), strict=True):
        allowed[first : first + size, seen] = True
        first += size
    mask = allowed.repeat_interleave(TOKENS, 0).repeat_interleave(TOKENS, 1)
    for block in model.blocks:
        block.attn1.processor = Masked(mask)
    last = case.sizes[-1]
    times = torch.zeros(1, frames * TOKENS)
    times[:, -last * TOKENS :] = time
    video = torch.cat([clean[:, :, : frames - last], noisy], dim=2)
    with torch.no_grad():
        return model(video, times, text, return_dict=False)[0][:, :, -last:]


def caches(
    config: WanConfig, policy: Policy, positions: Positions | None = None
) -> tuple[KvCache, CrossCache]:
    heads, dim, layers = config.num_attention_heads, config.attention_head_dim, config.num_layers
    kv = KvShape(layers, heads, dim, TOKENS, torch.float32, "cpu")
    cross = CrossShape(layers, heads, dim, TEXT, torch.float32, "cpu")
    return KvCache(kv, policy, positions=positions or Absolute()), CrossCache(cross)


def cached_velocity(
    network: CausalWanTransformer,
    case: Case,
    clean: Tensor,
    noisy: Tensor,
    text: Tensor,
    time: float,
) -> Tensor:
    policy = Rolling(case.window, case.sink, limit=sum(case.sizes))
    cache, words = caches(network.config, policy)
    first = 0
    for size in case.sizes[:-1]:
        chunk = clean[:, :, first : first + size]
        cache.begin(size)
        # An earlier step of the same chunk, whose keys the clean pass must overwrite.
        network(chunk + 1, torch.full((1, size), 500.0), text, cache, words)
        network.remember(chunk, torch.zeros(1, size), None, cache, words)
        cache.commit()
        first += size
    last = case.sizes[-1]
    cache.begin(last)
    return network(noisy, torch.full((1, last), time), text, cache, words)


def check(case: Case, seed: int = 0) -> None:
    config = config_of(case)
    model = theirs(config)
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randn(1, 8, sum(case.sizes), ROWS, COLUMNS, generator=draw)
    noisy = torch.randn(1, 8, case.sizes[-1], ROWS, COLUMNS, generator=draw)
    text = torch.randn(1, TEXT, 12, generator=draw)
    wanted = masked_velocity(model, case, clean, noisy, text, 625.0)
    found = cached_velocity(ours(model, config), case, clean, noisy, text, 625.0)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_cached_chunks_equal_one_masked_pass(name: str) -> None:
    check(CASES[name])


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    more=st.integers(0, 6),
    sink=st.integers(0, 3),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_any_cut_equals_one_masked_pass(sizes: list[int], more: int, sink: int, seed: int) -> None:
    check(Case(2, 12, tuple(sizes), max(sizes) + sink + more, sink), seed)


def test_the_pass_that_only_remembers_leaves_the_same_keys_and_text() -> None:
    case = CASES["everything"]
    config = config_of(case)
    network = ours(theirs(config), config)
    latents, text = torch.randn(1, 8, 2, ROWS, COLUMNS), torch.randn(1, TEXT, 12)
    times = torch.zeros(1, 2)
    full, all_words = caches(config, Rolling(4))
    short, few_words = caches(config, Rolling(4))
    full.begin(2)
    network(latents, times, text, full, all_words)
    short.begin(2)
    assert network.remember(latents, times, text, short, few_words) is None
    for layer in range(config.num_layers):
        for one, other in zip(full.read(layer).dense(), short.read(layer).dense(), strict=True):
            assert torch.equal(one, other)
        for one, other in zip(all_words.read(layer), few_words.read(layer), strict=True):
            assert torch.equal(one, other)


def test_text_is_projected_once_until_it_changes() -> None:
    config = config_of(CASES["everything"])
    network = ours(theirs(config), config)
    cache, words = caches(config, Rolling(4))
    counted: list[int] = []
    network.condition_embedder.text_embedder.register_forward_hook(lambda *_: counted.append(1))
    latents, times = torch.randn(1, 8, 2, ROWS, COLUMNS), torch.full((1, 2), 500.0)
    text = torch.randn(1, TEXT, 12)
    words.use("one")
    cache.begin(2)
    first = network(latents, times, text, cache, words)
    assert torch.equal(network(latents, times, None, cache, words), first)
    assert len(counted) == 1
    words.use("another")
    with pytest.raises(ParameterError, match="encoder_hidden_states"):
        network(latents, times, None, cache, words)
    assert not torch.allclose(network(latents, times, text + 1, cache, words), first)
    assert len(counted) == 2


def test_shot_offsets_and_reading_rotation_move_the_result() -> None:
    config = config_of(CASES["everything"])
    network = ours(theirs(config), config)
    latents, text = torch.randn(1, 8, 2, ROWS, COLUMNS), torch.randn(1, TEXT, 12)
    results: list[Tensor] = []
    for positions in (Absolute(), ShotOffset(2.5), AtRead()):
        cache, words = caches(config, Rolling(4), positions)
        for shot, shift in enumerate((0.0, 1.0, 2.0)):
            cache.begin(2, shot=shot)
            made = network(latents + shift, torch.zeros(1, 2), text, cache, words)
            cache.commit()
        results.append(made)
    absolute, offset, at_read = results
    assert not torch.allclose(absolute, offset, atol=1e-3)
    # The window is full of neighbours: turned anew from zero they stand as far apart as before.
    torch.testing.assert_close(absolute, at_read, atol=1e-4, rtol=1e-4)


def test_tables_of_any_positions() -> None:
    cos, sin = rope.at(20, [3.0, 4.0, 5.0], 2, 3)
    same_cos, same_sin = rope.grid(20, 3, 2, 3, first_frame=3)
    assert torch.equal(cos, same_cos)
    assert torch.equal(sin, same_sin)
    half = rope.at(20, [0.5], 1, 1)[0]
    wanted = torch.cos(0.5 / 10000 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8)).float()
    assert torch.equal(half[0, :4], wanted)


class Doubling(CausalBlock):
    """A family that adds its condition."""

    def inject(self, x: Tensor, camera: Tensor) -> Tensor:
        return x + camera


class WithCamera(CausalWanTransformer):
    block_type = Doubling

    def conditions(self, camera: Any, grid: tuple[int, int, int]) -> Any:
        return camera


def test_a_condition_is_added_in_every_block_or_refused() -> None:
    config = config_of(CASES["everything"])
    model = theirs(config)
    latents, text = torch.randn(1, 8, 2, ROWS, COLUMNS), torch.randn(1, TEXT, 12)
    times = torch.full((1, 2), 500.0)
    plain = ours(model, config)
    with torch.device("meta"):
        taking = WithCamera(config, Ops.torch())
    taking.load_state_dict(model.state_dict(), strict=True, assign=True)

    def run(network: CausalWanTransformer, camera: Any) -> Tensor:
        cache, words = caches(config, Rolling(4))
        cache.begin(2)
        return network(latents, times, text, cache, words, camera)

    nothing = torch.zeros(1, 2 * TOKENS, config.width)
    torch.testing.assert_close(run(taking, nothing), run(plain, None), atol=1e-6, rtol=1e-6)
    assert not torch.allclose(run(taking, torch.randn_like(nothing)), run(plain, None), atol=1e-3)
    assert torch.equal(run(taking, None), run(plain, None))
    with pytest.raises(ParameterError, match="camera"):
        run(plain, nothing)


@pytest.mark.parametrize(
    ("shape", "times", "field"),
    [
        ((1, 8, 2, ROWS, COLUMNS), (1,), "timestep"),
        ((1, 8, 2, ROWS, COLUMNS), (1, 2 * TOKENS), "timestep"),
        ((1, 8, 3, ROWS, COLUMNS), (1, 3), "cache"),
        ((1, 4, 2, ROWS, COLUMNS), (1, 2), "hidden_states"),
        ((1, 8, 2, 3, COLUMNS), (1, 2), "hidden_states"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_anything_is_written(
    shape: tuple[int, ...], times: tuple[int, ...], field: str
) -> None:
    config = config_of(CASES["everything"])
    network = ours(theirs(config), config)
    cache, words = caches(config, Rolling(4))
    cache.begin(2)
    with pytest.raises(ParameterError, match=field):
        network(torch.zeros(shape), torch.zeros(times), torch.zeros(1, TEXT, 12), cache, words)
    assert words.read(0) is None


def test_networks_with_a_picture_stream_are_no_causal_ones() -> None:
    config = WanConfig(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        ffn_dim=8,
        image_dim=8,
        added_kv_proj_dim=32,
    )
    with pytest.raises(ModelError, match="image_dim"):
        drive.build(config)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_forwards_never_wait_for_the_device() -> None:
    config = config_of(CASES["everything"])
    network = ours(theirs(config), config).cuda()
    kv = KvShape(3, 2, 16, TOKENS, torch.float32, "cuda")
    cache = KvCache(kv, Rolling(4))
    words = CrossCache(CrossShape(3, 2, 16, TEXT, torch.float32, "cuda"))
    latents = torch.randn(1, 8, 2, ROWS, COLUMNS, device="cuda")
    times, text = torch.full((1, 2), 500.0).cuda(), torch.randn(1, TEXT, 12).cuda()
    cache.begin(2)
    network(latents, times, text, cache, words)  # the first one of a chunk makes its tables
    with no_host_sync():
        network(latents, times, None, cache, words)
        network.remember(latents, times, None, cache, words)
