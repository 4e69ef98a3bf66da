"""Drives the network and the pipeline's stages by hand, for tests that look inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgld.causal.cross import CrossCache, CrossShape
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Policy
from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.messages import Request
from sgld.ops import Ops
from sgld.weights.files import ModelFiles
from sgld_lingbot.layout import locate
from sgld_lingbot.models.config import LingBotConfig
from sgld_lingbot.models.dit import ChunkCamera, LingBotTransformer
from sgld_lingbot.pipelines.world import LingBotWorldCausalDMDPipeline
from sgld_lingbot.schedules import Schedule
from sgld_lingbot.stages.renoise import ScheduledRenoise
from sgld_wan.weights import name_map


def network(config: LingBotConfig, state: Mapping[str, Tensor]) -> LingBotTransformer:
    """The network with these tensors, which have their original names."""
    rename = name_map("transformer").rename
    with torch.device("meta"):
        model = LingBotTransformer(config.wan, Ops.torch())
    model.load_state_dict(
        {str(rename(name)): tensor.clone() for name, tensor in state.items()}, assign=True
    )
    return model


class Chunk(NamedTuple):
    """What was computed of a chunk: clean latents, the first velocity and that at time zero."""

    latents: Tensor
    first: Tensor
    clean: Tensor


class Generation:
    """A generation by the network alone: caches, and chunk after chunk.

    `noise`, `shown`, `plucker` have no batch dimension, as in the golden tensors.
    """

    def __init__(
        self, model: LingBotTransformer, policy: Policy, tokens: int, text: Tensor, rows: int
    ) -> None:
        config = model.config
        sizes = config.num_layers, config.num_attention_heads, config.attention_head_dim
        self.model = model
        self.kv = KvCache(KvShape(*sizes, tokens, torch.float32, "cpu"), policy)
        self.cross = CrossCache(CrossShape(*sizes, rows, torch.float32, "cpu"))
        self.text = torch.zeros(1, rows, text.shape[1])
        self.text[0, : len(text)] = text

    def chunk(
        self,
        noise: Sequence[Tensor],
        shown: Tensor,
        plucker: Tensor | None,
        schedule: Schedule,
    ) -> Chunk:
        """The next chunk; `noise` is what is drawn, in order."""
        latents, drawn = noise[0][None], iter(noise[1:])
        sampler = ScheduledRenoise(schedule, lambda _: next(drawn)[None], torch.device("cpu"))
        camera = None if plucker is None else ChunkCamera(plucker[None])
        frames = latents.shape[2]
        self.kv.begin(frames)
        first = None
        for step in range(len(schedule.times)):
            times = sampler.time(step).expand(1, frames)
            flow = self.forward(latents, shown, times, camera)
            first = flow if first is None else first
            latents = sampler.step(flow, step, latents)
        zero = torch.zeros(1, frames)
        clean = self.forward(latents, shown, zero, camera)
        inputs = torch.cat([latents, shown[None]], dim=1)
        self.model.remember(inputs, zero, self.text, self.kv, self.cross, camera)
        self.kv.commit()
        assert first is not None
        return Chunk(latents, first, clean)

    def forward(
        self, latents: Tensor, shown: Tensor, times: Tensor, camera: ChunkCamera | None
    ) -> Tensor:
        """Velocity of the open chunk."""
        inputs = torch.cat([latents, shown[None]], dim=1)
        return self.model(inputs, times, self.text, self.kv, self.cross, camera)


def drawn(start: Tensor, later: Tensor) -> list[Tensor]:
    """Initial noise and that of later steps, as one list."""
    return [start, *later]


def run(stages: Sequence[Any], job: Any, modules: Mapping[str, Any]) -> list[str]:
    """Run stages over a job as the engine does, one call at a time; what was called."""
    called: list[str] = []

    def answer(call: Any) -> Any:
        called.append(f"{call.component}.{call.method}")
        module = modules[call.component]
        method = module if call.method == "forward" else getattr(module, call.method)
        with torch.no_grad():
            return method(**call.inputs)

    for stage in stages:
        running, result = stage.run(job), None
        try:
            while True:
                wish = running.send(result)
                single = not isinstance(wish, list | tuple)
                result = answer(wish) if single else [answer(call) for call in wish]
        except StopIteration:
            continue
    return called


class Opened(NamedTuple):
    """A pipeline without an engine."""

    pipeline: LingBotWorldCausalDMDPipeline
    modules: Mapping[str, Any]

    def job(
        self, params: Any, image: Any, *, seed: int = 1, undo: int = 0, device: str = "cpu"
    ) -> Job:
        """A job whose open stages have run."""
        request = Request("job", params.model_dump(), (seed,), (image,))
        job = Job(
            id="job#0",
            request=request,
            index=0,
            params=params,
            device=torch.device(device),
            parts=self.pipeline.parts,
        )
        job.slots.undo = undo
        run(self.pipeline.open_stages(params), job, self.modules)
        job.slots.state.opened()
        job.generator = job.slots.state.generator
        return job

    def chunk(
        self, job: Job, index: int, controls: Mapping[str, Any], *, frames: bool = False
    ) -> tuple[Tensor, list[str]]:
        """Latents of the next chunk, committed, and what was called; `frames` decodes, too."""
        slots, params, pipeline = job.slots, job.params, self.pipeline
        slots.chunk = pipeline.plan(params)._replace(total=0).chunk(index)
        slots.controls = controls
        called = run(pipeline.chunk_stages(params), job, self.modules)
        if frames:
            called += run(pipeline.frame_stages(params), job, self.modules)
        called += run(pipeline.commit_stages(params), job, self.modules)
        slots.state.advance(slots.chunk)
        return slots.latents, called


def open_pipeline(folder: Path) -> Opened:
    """The pipeline of a checkpoint, in float32."""
    files = ModelFiles(folder, folder.name)
    located = {where.name: where for where in locate(files)}
    loader = Loader(
        files=files,
        located=located,
        device=torch.device("cpu"),
        modes={},
        dtypes=dict.fromkeys(located, torch.float32),
        allow_pickle=True,
    )
    loaded = LingBotWorldCausalDMDPipeline.load(loader)
    return Opened(LingBotWorldCausalDMDPipeline(loaded.parts), loaded.modules)
