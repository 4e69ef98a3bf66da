"""What training computes is what a server computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from demo_world import data, looks, network, pool, rollout, train_dit, vae
from demo_world.optim import Muon, orthogonal
from torch import Tensor, nn

from sgld.causal.blocks import Chunk
from sgld.causal.cross import CrossCache, CrossShape
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Rolling
from sgld.causal.positions import Positions
from sgld_lingbot.stages.condition import piece_of
from sgld_wan.models.vae_stream import decode_chunk, encode_chunk, new_history

SIZE = (32, 48)
SIZES = network.Sizes(heads=2, layers=2, inner=64, window=12, sink=3)
CHUNKS = 6


@dataclass(frozen=True)
class Later(Positions):
    """As in a long session: everything after the first chunk is so many frames later."""

    frames: int

    def place(self, index: int, shot: int) -> float:
        return float(index if index < 3 else index + self.frames)


@pytest.fixture(scope="module")
def world() -> network.World:
    torch.manual_seed(0)
    made = network.World(SIZES, size=SIZE)
    network.initialise(made, 1)
    with torch.no_grad():
        for parameter in made.parameters():  # none is zero, so that everything counts
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


@pytest.mark.parametrize("later", [0, 700])
def test_all_chunks_at_once_are_the_cached_chunks(world: network.World, later: int) -> None:
    torch.manual_seed(1)
    clean, noisy = torch.randn(2, 1, CHUNKS, 16, 3, 4, 6)
    shown = torch.randn(1, CHUNKS, 20, 3, 4, 6)
    times = torch.rand(1, CHUNKS) * 1000
    said = ("day fog", "night", "night low", "cold zzz", "a b", "mono")
    ids = torch.tensor([looks.token_ids(caption) for caption in said])[None]
    clips = data.sample(1, CHUNKS, 5, torch.device("cpu"))
    moves = clips.told.moves.unflatten(1, (CHUNKS, 3))
    known = torch.tensor([[False, True, True, True, True, True]])
    with torch.no_grad():
        at_once = world(
            noisy, clean, shown, times, torch.zeros(1, CHUNKS), ids, moves, known, 3 + later
        )
    shape = KvShape(2, 2, 64, world.rows * world.columns, torch.float32, "cpu")
    cache = KvCache(shape, Rolling(window=12, sink=3), positions=Later(later))
    text = CrossCache(CrossShape(2, 2, 64, looks.TEXT_LENGTH, torch.float32, "cpu"))
    script = rollout.Script(shown[0], ids[0], moves[0], known[0])
    net, zero = world.transformer, torch.zeros(1, 3)
    for chunk in range(CHUNKS):
        text.use(str(chunk))
        with torch.no_grad():
            states = world.texts(ids[0, chunk][None])
        camera = rollout.chunk_camera(script, chunk, SIZE)
        cache.begin(3)
        time = times[:, chunk : chunk + 1].expand(1, 3)
        given = torch.cat([noisy[:, chunk], shown[:, chunk]], 1)
        one = net(given, time, states, cache, text, camera)
        assert one.abs().mean() > 0.1
        torch.testing.assert_close(one, at_once[:, chunk], atol=1e-5, rtol=0)
        cache.clean()
        given = torch.cat([clean[:, chunk], shown[:, chunk]], 1)
        net.remember(given, zero, states, cache, text, camera)
        cache.commit()
        text.commit()


def test_every_weight_learns(world: network.World) -> None:
    one = torch.randn(1, 3, 16, 3, 4, 6)
    ids = torch.tensor([[looks.token_ids("misty evening")] * 3])
    moves = torch.randn(1, 3, 3, 3, 4)
    zero = torch.zeros(1, 3)
    shown = torch.zeros(1, 3, 20, 3, 4, 6)
    made = world(one, one, shown, zero + 500, zero, ids, moves, zero == 0, 3)
    (made * torch.randn_like(made)).sum().backward()
    silent = [name for name, p in world.named_parameters() if p.grad is None or not p.grad.any()]
    world.zero_grad(set_to_none=True)
    assert silent == []


@pytest.mark.parametrize("cuts", [(1, 4), (3, 6)])
def test_a_whole_clip_is_the_stream(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    model = vae.build(8, 16).requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.02)
    clip = vae.ClipVae(model)
    video = torch.randn(2, 3, 25, 16, 24).clamp(-1, 1)
    mean, _ = clip.encode(video)
    streamed, _ = encode_chunk(model, video, new_history(model.encoder))
    torch.testing.assert_close(mean, streamed, atol=1e-5, rtol=0)
    history, frames = new_history(model.decoder), []
    for part in streamed.tensor_split(cuts, dim=2):
        made, history = decode_chunk(model, part, history)
        frames.append(made)
    whole = clip.decode(mean).clamp(-1, 1)
    assert whole.std() > 0.05
    torch.testing.assert_close(whole, torch.cat(frames, 2), atol=1e-5, rtol=0)


def test_chunks_are_shown_what_a_session_shows_them() -> None:
    torch.manual_seed(3)
    still = torch.randn(1, 16, pool.SHOWN, 2, 2)
    pieces = still.unflatten(2, (2, 3)).transpose(1, 2)
    numbers = torch.tensor([[0, 1, 2, 9]])
    shown = pool.shown_pieces(pieces, None, numbers)[0]
    for place, number in enumerate(numbers[0].tolist()):
        served = piece_of(Chunk(number, 3 * number, 3), still, pool.SHOWN)
        assert torch.equal(shown[place, 4:], served[0])
        mask = torch.zeros(4, 3, 2, 2)
        mask[:, 0] = number == 0
        assert torch.equal(shown[place, :4], mask)


def _pool(clips: int, chunks: int, size: tuple[int, int] = (2, 2)) -> pool.Pool:
    def numbered(*shape: int) -> Tensor:
        return torch.zeros(clips, chunks, *shape)

    latents = numbered(16, 3, *size) + torch.arange(chunks)[None, :, None, None, None, None]
    return pool.Pool(
        latents, torch.ones(clips, 2, 16, 3, *size), torch.zeros(2, 16, 3, *size),
        torch.full((16, 3, *size), 7.0), numbered(looks.TEXT_LENGTH).long(), numbered(3, 3, 4),
        numbered() == 0,
    )  # fmt: skip


def test_a_step_takes_the_first_chunk_and_successive_ones() -> None:
    draw, seen = torch.Generator().manual_seed(1), set()
    for _ in range(30):
        batch = pool.take(_pool(5, 9), 4, 4, draw)
        numbers = batch.clean[:, :, 0, 0, 0, 0].long()
        assert (numbers[:, 0] == 0).all()
        assert (numbers[:, 1:].diff(dim=1) == 1).all()
        seen.add(batch.gap)
        assert batch.sure[:, 2:].all()
        assert batch.sure[:, 1].tolist() == [not batch.gap] * 4
        grey = batch.shown[:, 0, 4:].amax((1, 2, 3, 4)) == 0
        assert torch.equal(batch.sure[:, 0], ~grey)
        if batch.gap:
            assert (numbers[:, 1] > 1).all()
            assert 3 < batch.begin <= 3 + pool.FARTHEST
        else:
            assert (numbers[:, 1] == 1).all()
            assert batch.begin == 3
    assert seen == {True, False}


def test_memory_holds_what_the_network_made(world: network.World) -> None:
    """Most chunks of most steps, with no trace of it where what comes before leaves them open."""
    some, draw = _pool(6, 8, (4, 6)), torch.Generator().manual_seed(3)
    replaced, distances = [], set()
    for _ in range(8):
        batch = pool.take(some, 5, 6, draw)
        with torch.no_grad():
            memory = train_dit._own(world, batch, draw)
        other = (memory != batch.clean).flatten(2).any(2)
        assert memory.isfinite().all()
        assert not (other & ~batch.sure).any()
        replaced.append(float(other.float().mean()))
        distances.add(round(float((memory - batch.clean)[other].abs().mean()), 3))
    assert 0.4 < sum(replaced) / 8 < 0.8
    assert len(distances) > 4  # made from noise or from itself, once or several times


def test_a_step_of_muon_is_orthogonal() -> None:
    torch.manual_seed(4)
    update = orthogonal(torch.randn(3, 24, 40))
    values = torch.linalg.svdvals(update)
    assert values.max() < 1.3
    assert values.min() > 0.5


def test_muon_finds_a_linear_map() -> None:
    torch.manual_seed(5)
    layers = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 6, bias=False))
    wanted, x = torch.randn(6, 8), torch.randn(256, 8)
    muon = Muon([p for p in layers.parameters() if isinstance(p, nn.Parameter)])
    losses: list[float] = []
    for step in range(150):
        muon.clear()
        loss = (layers(x) - x @ wanted.T).square().mean()
        loss.backward()
        muon.step(0.1 * (1 - step / 150))
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.02 * losses[0]


def test_weights_of_another_network_are_refused(world: network.World) -> None:
    tensors: dict[str, Any] = dict(world.named_parameters())
    tensors.pop("transformer.proj_out.weight")
    with pytest.raises(ValueError, match="not the weights"):
        world.fill(tensors)
