"""The stage `dit`: the causal denoiser and its text encoder.

A step takes chunk 0 and ten successive chunks of many clips (`pool.take`). Every chunk is noised to
a level of its own and predicted from the clean chunks of its window, as a session does it. Some
of what stands in memory is noisy, and from a third of the time on much of it is what the network
itself made, so that it learns to go on from its own mistakes; the target stays the truth.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from demo_world import data, exported, metrics, pictures, rollout, train_vae, vae
from demo_world.network import Sizes, World, initialise
from demo_world.optim import Muon, split
from demo_world.pool import Batch, Pool, encode, script, take
from demo_world.run import Average, Run, count, load_half, memory, save_half, set_rate
from sgld_lingbot.schedules import make_schedule

STEM: Final = "world"
AFTER_GAP: Final = 0.2
"""Weight of a chunk whose memory lacks what it would have seen."""
OWN: Final = 0.45
"""How often memory holds what the network made, once it can."""
ROUNDS: Final = 3
"""How often at most a chunk is made, one time over the other."""
NEW: Final = make_schedule((1000, 500), rollout.SHIFT, "self-forcing").clean
SOFT: Final = [
    make_schedule((1000, step), rollout.SHIFT, "self-forcing").clean[1:]
    for step in (750, 667, 500, 333)
]
"""Noise levels from which a chunk is made over."""


class Settings(NamedTuple):
    """Args:
    sizes: of the network.
    size: height and width of the frames.
    clips: in the pool.
    chunks: of each of them.
    length: chunks of a training piece.
    batch: pieces of a step.
    muon: learning rate of the blocks' matrices at its highest.
    adam: of everything else.
    steps: at most so many, None: as many as the time allows.
    judged: held-out clips.
    judged_chunks: chunks of each.
    """

    sizes: Sizes = Sizes()
    size: tuple[int, int] = (96, 160)
    clips: int = 3072
    chunks: int = 16
    length: int = 11
    batch: int = 32
    muon: float = 1.5e-3
    adam: float = 1e-3
    steps: int | None = None
    judged: int = 12
    judged_chunks: int = 9


def levels(count: int, draw: torch.Generator) -> Tensor:
    """Noise levels [count]: half of them exactly those of the schedules of two to four steps that
    a server runs, the others between, by the same shift."""
    exact: list[float] = []
    for steps in ((1000, 750, 500, 250), (1000, 667, 333), (1000, 500)):
        exact += make_schedule(steps, rollout.SHIFT, "self-forcing").clean
    chosen = torch.tensor(exact)[torch.randint(0, len(exact), (count,), generator=draw)]
    u = torch.rand(count, generator=draw)
    between = rollout.SHIFT * u / (1 + (rollout.SHIFT - 1) * u)
    return torch.where(torch.rand(count, generator=draw) < 0.5, chosen, between)


def noised(clean: Tensor, level: Tensor, noise: Tensor) -> Tensor:
    """(1 - level)·clean + level·noise, level [B, C]."""
    level = level[..., None, None, None, None]
    return (1 - level) * clean + level * noise


def losses(
    world: World, batch: Batch, draw: torch.Generator, *, own: bool
) -> tuple[Tensor, Tensor]:
    """The loss of a step, and of each chunk [C] without weights.

    Args:
        own: put the network's own chunks into memory.
    """
    clean = batch.clean
    device, (size, chunks) = clean.device, clean.shape[:2]
    context = clean
    if own:
        context = _own(world, batch, draw)
    told = torch.zeros(size, chunks)
    lots = torch.rand(size, chunks, generator=draw)
    strength = torch.rand(size, chunks, generator=draw)
    told = torch.where(lots < 0.15, 0.2 * strength, told)
    untold = torch.where((lots > 0.15) & (lots < 0.4), 0.1 * strength, 0.0)
    context = noised(context, torch.maximum(told, untold).to(device), torch.randn_like(clean))
    level = levels(size * chunks, draw).view(size, chunks).to(device)
    noise = torch.randn_like(clean)
    velocity = world(
        noised(clean, level, noise), context, batch.shown, 1000 * level, 1000 * told.to(device),
        batch.ids, batch.moves, batch.known, batch.begin,
    )  # fmt: skip
    each = (velocity.float() - (noise - clean)).square().mean((0, 2, 3, 4, 5))
    weights = torch.ones(chunks, device=device)
    if batch.gap:
        weights[1] = AFTER_GAP
    return (each * weights).sum() / weights.sum(), each.detach()


def _own(world: World, batch: Batch, draw: torch.Generator) -> Tensor:
    """Memory in which three of four chunks are what the network makes, once or several times over,
    unless what comes before leaves open what they are.

    A third of the time a chunk is made of noise in two steps; else of its own noised self, so that
    it keeps what is in it and takes on only how the network draws. Every further round noises what
    was made and makes it anew, with what was made in memory: as soft, and as wrong in colour, as
    after so many chunks of a session. The target is the truth, so it learns to mend that.

    Nothing is learned here; gradients are only not switched off because the compiled block would
    have to be compiled anew for that.
    """
    clean, device = batch.clean, batch.clean.device
    size, chunks = clean.shape[:2]
    zero = torch.zeros(size, chunks, device=device)
    kept = (torch.rand(size, chunks, generator=draw) < 0.75).to(device) & batch.sure
    kept = kept[..., None, None, None, None]
    fresh, more, *places = torch.rand(2 + ROUNDS, generator=draw).tolist()
    made = context = clean
    for turn in range(1 + int(more * ROUNDS)):
        schedule = SOFT[int(places[turn] * len(SOFT))]
        latents = noised(made, zero + schedule[0], torch.randn_like(clean))
        if turn == 0 and fresh < 0.33:
            schedule, latents = NEW, torch.randn_like(clean)
        for level, after in pairwise((*schedule, 0.0)):
            velocity = world(latents, context, batch.shown, zero + 1000 * level, zero, batch.ids,
                             batch.moves, batch.known, batch.begin)  # fmt: skip
            made = latents - level * velocity.detach().float()
            del velocity
            if after:
                latents = noised(made, zero + after, torch.randn_like(made))
        context = torch.where(kept, made, clean)
    return context


def train(
    settings: Settings, source: Path, out: Path, minutes: float, device: torch.device, *,
    seed: int, compiled: bool, resume: Path | None,
) -> None:  # fmt: skip
    """The stage `dit`; reads the VAE in `source`, writes `world-*.safetensors`, `dit.json` and
    `dit.png`."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    facts = {"settings": settings._asdict(), "seed": seed, "resumed": resume is not None}
    run = Run("dit", out, minutes, facts)
    model, mean, std = train_vae.load(source, device)
    clip = vae.ClipVae(model)
    keep = torch.float16 if device.type == "cuda" else torch.float32
    lot = seed * 1000 + (507 if resume else 7)
    clips = data.sample(settings.clips, settings.chunks, lot, device)
    pool = encode(clips, clip, mean, std, device, settings.size, keep=keep)
    del clips
    run.say(f"{len(pool.latents)} clips in {run.elapsed:.0f} s, "
            f"latents {float(pool.latents[:64].float().mean()):.3f} ± "
            f"{float(pool.latents[:64].float().std()):.3f}")  # fmt: skip
    world = World(settings.sizes, size=settings.size)
    initialise(world, seed)
    if resume:
        world.fill(exported.world(resume) or load_half(resume, STEM))
    world = world.to(device)
    matrices, rest = split(world)
    run.log["parameters"] = count(world.parameters())
    peak = 0.6 if resume else 1.0
    muon = Muon(matrices)
    adam = torch.optim.AdamW(rest, lr=settings.adam, betas=(0.9, 0.95), weight_decay=0.0,
                             fused=device.type == "cuda")  # fmt: skip
    average = Average(world, 0.9985)
    world.compile_block(compiled)
    run.start()
    while not run.over(settings.steps):
        batch = take(pool, settings.batch, settings.length, draw)
        ready = run.share > (0.1 if resume else 0.35)
        own = bool(torch.rand(1, generator=draw) < OWN) and ready
        adam.zero_grad(set_to_none=True)
        muon.clear()
        try:
            with torch.autocast(device.type, torch.bfloat16):
                loss, each = losses(world, batch, draw, own=own)
            loss.backward()
        except Exception as error:
            if not world.compiled:
                raise
            run.say(f"goes on without torch.compile, which failed: {str(error)[:2000]}")
            world.compile_block(False)
            continue
        norm = nn.utils.clip_grad_norm_(world.parameters(), 1.0)
        set_rate(adam, run.rate(peak * settings.adam, 200))
        adam.step()
        muon.step(run.rate(peak * settings.muon, 200))
        average.update()
        if run.due():
            _save(run, average.tensors(), out)
        run.tell(loss=loss, first=each[0], last=each[-1], own=float(own), norm=norm,
                 memory=memory(device))  # fmt: skip
    run.finish()
    average.swap()
    _save(run, dict(world.named_parameters()), out)
    del pool
    _judge(run, settings, world, model, mean, std, device)


def _save(run: Run, tensors: dict[str, Tensor], out: Path) -> None:
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise SystemExit("weights are not finite any more: what was saved before stays.")
    save_half(tensors, out, STEM)
    run.write()


def load(out: Path, settings: Settings, device: torch.device) -> World:
    """The trained network of a folder."""
    world = World(settings.sizes, size=settings.size)
    world.fill(load_half(out, STEM))
    return world.to(device).requires_grad_(False)


@torch.no_grad()
def _judge(
    run: Run, settings: Settings, world: World, model: Any, mean: Tensor, std: Tensor,
    device: torch.device,
) -> None:  # fmt: skip
    """Generate held-out walks from their first frames and compare, chunk by chunk."""
    chunks = settings.judged_chunks
    clips = data.sample(settings.judged, chunks, 4242, device, switch=0.0, plain=True)
    truth = clips.draw(torch.float32, size=settings.size)
    pool: Pool = encode(clips, vae.ClipVae(model), mean, std, device, settings.size)
    edges = [0, *(9 + 12 * n for n in range(chunks))]
    made, ceiling = [], []
    for clip in range(settings.judged):
        latents = rollout.generate(world, script(pool, clip, chunks), 100 + clip,
                                   size=settings.size)  # fmt: skip
        made.append(rollout.decoded(model, latents, mean, std))
        exact = pool.latents[clip].transpose(0, 1).flatten(1, 2)
        ceiling.append(rollout.decoded(model, exact, mean, std))
        if clip == 3 or clip == settings.judged - 1:
            rows = [frames for n in range(min(clip + 1, 6)) for frames in
                    (truth[n].transpose(0, 1)[::12], made[n][::12])]  # fmt: skip
            pictures.strip(run.out / "dit.png", rows)
            held = _by_chunk(truth, made, ceiling, edges)
            run.note(held_out=held, memory=round(memory(device), 2))
    for number, values in enumerate(held):
        run.say(f"chunk {number}: {values}")


def _by_chunk(
    truth: Tensor, made: list[Tensor], ceiling: list[Tensor], edges: list[int]
) -> list[dict[str, float]]:
    result: list[dict[str, float]] = []
    for first, end in pairwise(edges):
        drawn = torch.cat([truth[n].transpose(0, 1)[first:end] for n in range(len(made))])
        values = metrics.table(torch.cat([frames[first:end] for frames in made]), drawn)
        exact = torch.cat([frames[first:end] for frames in ceiling])
        result.append({**values, "ceiling": round(metrics.psnr(exact, drawn), 2)})
    return result
