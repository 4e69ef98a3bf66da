"""One chunk of a causal Wan model: its prompt, its noise, its steps, and what it leaves behind.

    FollowPrompt → RefillHistory → DenoiseChunk         the chunk stages
    CommitChunk                                       the commit stage

What outlives a chunk are parts of `state`: `kv` and `text` (keys and values of the frames and of
the prompt), the same with `negative_` in front where guidance runs, and `clean` (latents of the
frames in `kv`) where history is filled again after a change of prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import torch

from sgld.causal.cross import KEY, CrossCache
from sgld.causal.kept import Kept
from sgld.causal.kv import KvCache
from sgld.causal.policies import Frame
from sgld.causal.state import CausalState
from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import guide
from sgld.stages.sampler import Sampler
from sgld_wan.stages.text import prompt_call

KV: Final = "kv"
TEXT: Final = "text"
NEGATIVE: Final = "negative_"
"""In front of the names of the parts that guidance needs twice."""
CLEAN: Final = "clean"


class FollowPrompt(Stage):
    """Takes over the prompt of `controls`: keys and values of another text are dropped, and the new
    one is encoded.

    Writes `texts`, text states by name of the parts that are to be filled, and `switched`, whether
    there was another prompt before.
    """

    id = "text"
    reads = ("state", "controls")
    writes = ("texts", "switched")
    uses = ("text_encoder",)

    def run(self, job: Job) -> StageRun:
        slots = job.slots
        wanted = {TEXT: slots.controls["prompt"]}
        if NEGATIVE + TEXT in slots.state.parts:
            wanted[NEGATIVE + TEXT] = job.params.negative_prompt or ""
        before = text_cache(slots.state).get(KEY)
        missing = [name for name, text in wanted.items() if slots.state[name].use(text)]
        states: list[torch.Tensor] = []
        if missing:
            states = yield [prompt_call(job, wanted[name]) for name in missing]
        slots.texts = dict(zip(missing, states, strict=True))
        slots.switched = before not in (None, wanted[TEXT])


class RefillHistory(Stage):
    """After a change of prompt: the kept frames run through the network again, chunk by chunk from
    the oldest one, so that their keys and values are those of the new prompt.

    Frames stay where they are and keep their positions; a chunk of which the beginning is gone
    already is run without it (LongLive, arXiv 2509.22622, "KV-recache").
    """

    id = "refill"
    reads = ("state", "texts", "switched")
    uses = ("transformer",)

    def run(self, job: Job) -> StageRun:
        slots = job.slots
        if not slots.switched or CLEAN not in slots.state.parts:
            return
        kv, clean = kv_cache(slots.state), cast("Kept", slots.state[CLEAN])
        places = {frame: place for place, frame in enumerate(clean.get("frames"))}
        for frames in chunks_of(kv.kept):
            kv.reopen(frames)
            first = places[frames[0]]
            latents = clean.get("latents")[:, :, first : first + len(frames)]
            times = torch.zeros(1, len(frames), device=job.device)
            yield _call(job, "", latents, times, "remember")
            kv.seal()


class DenoiseChunk(Stage):
    """Opens the chunk in the caches and denoises it; writes `latents` [1, C, f, h, w], clean.

    A fresh sampler for each chunk: history of a multistep solver does not cross chunks. The slot
    `pin`, if it is there, holds latents [1, C, n, h, w] that the first frames of chunk 0 are held
    at, at time zero.

    Args:
        sampler: makes the sampler of one chunk.
        tail: (C, h, w) of the latents of a job.
    """

    id = "denoise"
    reads = ("state", "chunk", "controls", "texts")
    writes = ("latents",)
    uses = ("transformer",)

    def __init__(
        self, sampler: Callable[[Job], Sampler], tail: Callable[[Job], tuple[int, int, int]]
    ) -> None:
        self._sampler = sampler
        self._tail = tail

    def run(self, job: Job) -> StageRun:
        slots = job.slots
        frames, shot = slots.chunk.frames, slots.controls.get("shot", 0)
        for prefix in prefixes(slots.state):
            kv_cache(slots.state, prefix).begin(frames, shot=shot)
        channels, height, width = self._tail(job)
        sampler, total = self._sampler(job), 0
        pin = slots.pin if "pin" in slots and slots.chunk.index == 0 else None
        latents = _pinned(frame_noise(job, (1, channels, frames, height, width)), pin)
        total = len(sampler.times)
        for index in range(total):
            times = sampler.time(index).float().expand(1, frames)
            if pin is not None:
                times = times.clone()
                times[:, : pin.shape[2]] = 0
            velocity = yield from predicted(job, latents, times)
            latents = _pinned(sampler.step(velocity, index, latents), pin)
            self._report(job, index + 1, total, latents)
        slots.latents = latents

    def _report(self, job: Job, step: int, total: int, latents: torch.Tensor) -> None:
        """Steps are counted over the whole clip where it has an end."""
        slots = job.slots
        if "chunk_count" in slots and slots.chunk_count:
            step, total = step + total * slots.chunk.index, total * slots.chunk_count
        job.progress(step, total, latents)


class CommitChunk(Stage):
    """Runs the clean chunk through the network at time zero for its keys and values."""

    id = "commit"
    reads = ("state", "latents", "texts")
    uses = ("transformer",)

    def run(self, job: Job) -> StageRun:
        yield from remembered(job, job.slots.latents)


def remembered(job: Job, latents: torch.Tensor) -> StageRun:
    """The pass over clean latents [1, C, f, h, w] of the chunk that is open."""
    state = job.slots.state
    times = torch.zeros(1, latents.shape[2], device=job.device)
    calls: list[Call] = []
    for prefix in prefixes(state):
        kv_cache(state, prefix).clean()
        calls.append(_call(job, prefix, latents, times, "remember"))
    yield calls
    if CLEAN in state.parts:
        _keep(cast("Kept", state[CLEAN]), kv_cache(state), latents)


def predicted(job: Job, latents: torch.Tensor, times: torch.Tensor) -> Any:
    """Generator of the velocity of the open chunk, guided where the request asks for it."""
    calls = [_call(job, prefix, latents, times, "forward") for prefix in prefixes(job.slots.state)]
    results = yield calls
    if len(results) == 1:
        return results[0]
    return guide(results[0], results[1], job.params.guidance_scale)


def _call(job: Job, prefix: str, latents: torch.Tensor, times: torch.Tensor, method: str) -> Call:
    state, texts = job.slots.state, job.slots.texts
    return Call(
        "transformer",
        {
            "hidden_states": latents.to(job.parts["compute_dtype"]),
            "timestep": times,
            "encoder_hidden_states": texts.get(prefix + TEXT),
            "cache": kv_cache(state, prefix),
            "text_cache": text_cache(state, prefix),
        },
        method=method,
    )


def frame_noise(job: Job, shape: tuple[int, ...]) -> torch.Tensor:
    """Normal noise [1, C, f, h, w], drawn frame by frame: a chunk's numbers follow those of the
    chunk before, and [1, f, C, h, w] is the order of the public causal code."""
    rows, channels, frames, height, width = shape
    return job.noise((rows, frames, channels, height, width)).transpose(1, 2).contiguous()


def prefixes(state: CausalState) -> tuple[str, ...]:
    """What stands in front of the names of the caches: one set, or two with guidance."""
    return ("", NEGATIVE) if NEGATIVE + KV in state.parts else ("",)


def kv_cache(state: CausalState, prefix: str = "") -> KvCache:
    """Keys and values of the frames."""
    return cast("KvCache", state[prefix + KV])


def text_cache(state: CausalState, prefix: str = "") -> CrossCache:
    """Keys and values of the text."""
    return cast("CrossCache", state[prefix + TEXT])


def chunks_of(kept: Sequence[Frame]) -> Iterator[tuple[int, ...]]:
    """Indices of kept frames, chunk by chunk: a frame that is not the next of its chunk begins a
    new one."""
    group: list[Frame] = []
    for frame in kept:
        last = group[-1] if group else None
        if last and (frame.index, frame.nth) != (last.index + 1, last.nth + 1):
            yield tuple(one.index for one in group)
            group = []
        group.append(frame)
    if group:
        yield tuple(one.index for one in group)


def _pinned(latents: torch.Tensor, pin: torch.Tensor | None) -> torch.Tensor:
    if pin is None:
        return latents
    return torch.cat([pin.to(latents), latents[:, :, pin.shape[2] :]], dim=2)


def _keep(clean: Kept, kv: KvCache, latents: torch.Tensor) -> None:
    """Keep the latents of exactly those frames that the cache keeps."""
    old = clean.get("latents")
    if old is not None:
        held = {frame: place for place, frame in enumerate(clean.get("frames"))}
        stay = [held[frame.index] for frame in kv.kept if frame.index in held]
        latents = torch.cat([old[:, :, stay], latents], dim=2)
    clean.set("frames", [frame.index for frame in kv.kept])
    clean.set("latents", latents)
