"""A toy causal family: a small transformer over a ring of keys and values, and a decoder with a
history, so that sessions can be tested in milliseconds.

It is a real causal pipeline on `sgld.causal`: rolling window and sink, a pass over clean latents,
text that may change between chunks, a first frame, and hooks that make trouble.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import nn

from sgld.causal.blocks import BlockPlan
from sgld.causal.kept import Kept, kept_bytes, kept_host_bytes
from sgld.causal.kv import KvCache, KvShape, attend, kv_bytes, kv_host_bytes
from sgld.causal.policies import Policy, Rolling
from sgld.causal.state import CausalState
from sgld.engine.cache_policy import remake
from sgld.engine.call import Call, StageRun
from sgld.engine.causal import CausalPipeline
from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media
from sgld.engine.stage import Stage
from sgld.ops.table import Ops
from sgld.testing.toy import WIDTH, ToyText
from sgld.testing.toy_pipelines import CRASH, GRID, SHORTAGE
from sgld.testing.toy_world_params import CHUNK, STRIDE, TOKENS, ToyWorldParams

LAYERS: Final = 2
HEADS: Final = 2


class ToyWorldLayer(nn.Module):
    """Self-attention over the cache, then a residual mix with text and action."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.attention, self.gate = ops["attention.self"], ops["residual.gate"]
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.text = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: torch.Tensor, shift: torch.Tensor, text: torch.Tensor, cache: KvCache, layer: int
    ) -> torch.Tensor:
        """x [1, N, WIDTH], shift [1, N, WIDTH], text [1, WIDTH]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(2)
        cache.write(layer, k, v)
        seen = attend(q, cache.read(layer), self.attention).flatten(2)
        branch = torch.tanh(self.mix(x + seen) + shift + self.text(text)[:, None])
        return self.gate(x, branch, None)


class ToyWorldTransformer(nn.Module):
    """Noisy latents of a chunk [1, F, N, WIDTH] → velocity, with a cache as its memory."""

    def __init__(self, ops: Ops | None = None) -> None:
        super().__init__()
        ops = ops or Ops.torch()
        self.inlet = nn.Linear(WIDTH, WIDTH)
        self.action = nn.Linear(len(TOKENS.allowed), WIDTH)
        self.blocks = nn.ModuleList([ToyWorldLayer(ops) for _ in range(LAYERS)])
        self.outlet = nn.Linear(WIDTH, WIDTH)

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        actions: torch.Tensor,
        text: torch.Tensor,
        cache: KvCache,
    ) -> torch.Tensor:
        """timestep [1]; actions [1, F, A] of 0 and 1; writes every layer of `cache`."""
        _, frames, tokens, _ = hidden_states.shape
        places = torch.tensor(cache.positions, device=hidden_states.device)
        waves = torch.sin(places[:, None] * torch.arange(1, WIDTH + 1, device=places.device) / 3)
        shift = self.action(actions) + waves[None] + timestep[:, None, None]
        shift = shift[:, :, None].expand(-1, -1, tokens, -1).flatten(1, 2)
        x = self.inlet(hidden_states).flatten(1, 2)
        for layer, block in enumerate(self.blocks):
            x = block(x, shift, text, cache, layer)
        return self.outlet(x).unflatten(1, (frames, tokens))


class ToyWorldVae(nn.Module):
    """Latent frames to pixels; what lies between two of them is their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 3)

    def decode_chunk(
        self, latents: torch.Tensor, last: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents [1, F, N, WIDTH] and the latent frame before them → pixels [frames, N, 3] in
        0..1, and the last latent frame."""
        rows: list[torch.Tensor] = []
        for latent in latents[0]:
            if last is not None:
                rows.append((last + latent) / 2)
            rows.append(latent)
            last = latent
        return torch.sigmoid(self.out(torch.stack(rows))), latents[0, -1].clone()


class OpenWorld(Stage):
    """Text, first frame and empty caches.

    Args:
        policy: of the ring of keys and values.
    """

    id = "open"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ("state",)
    uses: ClassVar[tuple[str, ...]] = ("text_encoder",)

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def run(self, job: Job) -> StageRun:
        params, undo = job.params, job.slots.undo if "undo" in job.slots else 0
        cond = Kept(job.device, undo, shapes=_condition_shapes(params))
        state = CausalState(
            {
                "kv": KvCache(_shape(params, job.device), self._policy, undo),
                "condition": cond,
                "decoder": Kept(job.device, undo, shapes=_decoder_shapes(params)),
            },
            job.generator,
            undo=undo,
        )
        job.slots.state = state
        cond.set("prompt", params.prompt)
        cond.set("text", (yield _text(job, params.prompt)))
        cond.set("picture", _small(job.request.images, params).to(job.device))
        if params.fail_at_chunk and params.fail_in == "open":
            raise ValueError("told to fail while it opens")


class MakeChunk(Stage):
    """Denoises a chunk by Euler steps from noise."""

    id = "denoise"
    reads: ClassVar[tuple[str, ...]] = ("state", "chunk", "controls")
    writes: ClassVar[tuple[str, ...]] = ("latents",)
    uses: ClassVar[tuple[str, ...]] = ("text_encoder", "transformer")

    def run(self, job: Job) -> StageRun:
        params, state, chunk = job.params, job.slots.state, job.slots.chunk
        _trouble(params, chunk.index, "chunk")
        cond: Kept = state["condition"]
        prompt = job.slots.controls.get("prompt", params.prompt)
        if prompt != cond.get("prompt"):
            cond.set("text", (yield _text(job, prompt)))
            cond.set("prompt", prompt)
        tokens = (params.height // GRID) * (params.width // GRID)
        latents = job.noise((1, chunk.frames, tokens, WIDTH))
        latents = latents + cond.get("picture")
        state["kv"].begin(chunk.frames)
        steps = params.num_inference_steps
        for step in range(steps):
            _step_trouble(params, step + 1)
            velocity = yield _forward(job, latents, 1 - step / steps)
            latents = latents - velocity / steps
            if step + 1 == params.inf_at_step:
                latents = latents * torch.inf
            job.progress(step + 1, steps, latents)
        job.slots.latents = latents


class CommitChunk(Stage):
    """The pass over the clean latents."""

    id = "commit"
    reads: ClassVar[tuple[str, ...]] = ("state", "latents")
    uses: ClassVar[tuple[str, ...]] = ("transformer",)

    def run(self, job: Job) -> StageRun:
        _trouble(job.params, job.slots.chunk.index, "commit")
        job.slots.state["kv"].clean()
        yield _forward(job, job.slots.latents, 0.0)


class DecodeFrames(Stage):
    """Latents to pixels, each token a square of `GRID` pixels."""

    id = "decode"
    reads: ClassVar[tuple[str, ...]] = ("state", "latents")
    writes: ClassVar[tuple[str, ...]] = ("frames",)
    uses: ClassVar[tuple[str, ...]] = ("vae",)

    def run(self, job: Job) -> StageRun:
        params, history = job.params, job.slots.state["decoder"]
        _sleep(params.decode_delay)
        _trouble(params, job.slots.chunk.index, "frames")
        inputs = {"latents": job.slots.latents, "last": history.get("last")}
        pixels, last = yield Call("vae", inputs, method="decode_chunk")
        history.set("last", last)
        grid = pixels.unflatten(1, (params.height // GRID, params.width // GRID))
        job.slots.frames = grid.repeat_interleave(GRID, 1).repeat_interleave(GRID, 2)


class ToyWorldPipeline(CausalPipeline):
    """A world that is steered while it is made; also clips of it."""

    batch_tokens: ClassVar[int] = 64
    float32_groups: ClassVar[tuple[str, ...]] = ("text_encoder", "dit", "vae")
    frame_parts: ClassVar[tuple[str, ...]] = ("decoder",)
    frames_per_latent: ClassVar[int] = STRIDE
    frame_dim: ClassVar[int] = 1
    state_fields: ClassVar[tuple[str, ...]] = (
        "realtime_causal_kv_cache_num_frames",
        "width",
        "height",
    )

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        time.sleep(loader.located["transformer"].config.get("load_delay", 0.0))
        builders: dict[str, Callable[[], nn.Module]] = {
            "text_encoder": ToyText,
            "transformer": partial(ToyWorldTransformer, loader.ops),
            "vae": ToyWorldVae,
        }
        return Loaded({name: loader.module(name, build) for name, build in builders.items()})

    def plan(self, params: ToyWorldParams) -> BlockPlan:
        return params.blocks

    def open_stages(self, params: ToyWorldParams) -> Sequence[Stage]:
        return (OpenWorld(self._policy(params)),)

    def chunk_stages(self, params: ToyWorldParams) -> Sequence[Stage]:
        return (MakeChunk(),)

    def frame_stages(self, params: ToyWorldParams) -> Sequence[Stage]:
        return (DecodeFrames(),)

    def commit_stages(self, params: ToyWorldParams) -> Sequence[Stage]:
        return (CommitChunk(),)

    def state_bytes(self, params: ToyWorldParams, *, undo: int = 0) -> int:
        shapes = {**_condition_shapes(params), **_decoder_shapes(params)}
        shape = _shape(params, torch.device("cpu"))
        return kv_bytes(shape, self._policy(params), undo) + kept_bytes(shapes)

    def undo_bytes(self, params: ToyWorldParams, *, undo: int, device: torch.device) -> int:
        shapes = {**_condition_shapes(params), **_decoder_shapes(params)}
        del shapes["picture"]  # is never replaced
        rows = kept_host_bytes(shapes, undo, device)
        return kv_host_bytes(_shape(params, device), CHUNK, undo) + rows

    def _policy(self, params: ToyWorldParams) -> Policy:
        return remake(self.cache_policy, _policy(params))

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, job.params.fps, job.slots.latents)


def world_modules(seed: int = 0) -> dict[str, nn.Module]:
    """The toy world's modules with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        modules = {
            "text_encoder": ToyText(),
            "transformer": ToyWorldTransformer(),
            "vae": ToyWorldVae(),
        }
    return {name: module.eval().requires_grad_(False) for name, module in modules.items()}


def _tokens(params: ToyWorldParams) -> int:
    return (params.height // GRID) * (params.width // GRID)


def _shape(params: ToyWorldParams, device: torch.device) -> KvShape:
    return KvShape(LAYERS, HEADS, WIDTH // HEADS, _tokens(params), torch.float32, device)


def _policy(params: ToyWorldParams) -> Policy:
    window = params.realtime_causal_kv_cache_num_frames
    return Rolling(window=window, sink=params.realtime_causal_sink_size)


def _condition_shapes(params: ToyWorldParams) -> Mapping[str, Any]:
    shapes = {"text": ((1, WIDTH), torch.float32)}
    return {**shapes, "picture": ((1, 1, _tokens(params), WIDTH), torch.float32)}


def _decoder_shapes(params: ToyWorldParams) -> Mapping[str, Any]:
    return {"last": ((_tokens(params), WIDTH), torch.float32)}


def _text(job: Job, prompt: str) -> Call:
    ids = torch.tensor([list(prompt.encode()) or [0]], device=job.device)
    return Call("text_encoder", {"ids": ids}, batch_key="text", memo=("text", prompt))


def _forward(job: Job, latents: torch.Tensor, time_left: float) -> Call:
    state, chunk = job.slots.state, job.slots.chunk
    levels = job.slots.controls.get("actions") or [()] * chunk.frames
    actions = [[float(token in level) for token in TOKENS.allowed] for level in levels]
    return Call(
        "transformer",
        {
            "hidden_states": latents,
            "timestep": torch.tensor([time_left], device=job.device),
            "actions": torch.tensor([actions], device=job.device),
            "text": state["condition"].get("text"),
            "cache": state["kv"],
        },
    )


def _small(pictures: Sequence[Any], params: ToyWorldParams) -> torch.Tensor:
    """The first picture as something to add to latents, [1, 1, tokens, WIDTH]; zeros without."""
    if not pictures:
        return torch.zeros(1, 1, _tokens(params), WIDTH)
    pixels = torch.from_numpy(pictures[0]).float() / 255
    rows = torch.arange(params.height // GRID) * pixels.shape[0] // (params.height // GRID)
    columns = torch.arange(params.width // GRID) * pixels.shape[1] // (params.width // GRID)
    grid = pixels[rows][:, columns].flatten(0, 1).mean(-1, keepdim=True)
    return grid.expand(-1, WIDTH)[None, None].contiguous()


def _sleep(seconds: float) -> None:
    # Even a sleep of no length gives the other threads a turn, which is measurable here.
    if seconds:
        time.sleep(seconds)


def _trouble(params: ToyWorldParams, index: int, where: str) -> None:
    if index + 1 == params.fail_at_chunk and where == params.fail_in:
        raise ValueError(f"told to fail in {where} {index}")


def _step_trouble(params: ToyWorldParams, step: int) -> None:
    _sleep(params.step_delay + (params.warmup_delay if step == 1 else 0.0))
    if step == params.exit_at_step:
        os._exit(CRASH)
    if step == params.oom_at_step:
        raise torch.OutOfMemoryError(SHORTAGE)
    if step == params.fail_at_step:
        raise ValueError(f"told to fail at step {step}")


__all__ = ["CHUNK", "ToyWorldPipeline", "world_modules"]
