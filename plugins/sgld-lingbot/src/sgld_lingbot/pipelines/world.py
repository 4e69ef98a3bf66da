"""LingBot World's pipeline: a picture, a text and keys to an endless world, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import torch

from sgld.api.errors import ParameterError, Problem
from sgld.causal.blocks import BlockPlan, Chunk
from sgld.causal.cache import Part
from sgld.causal.cross import CrossCache, CrossShape, cross_bytes, cross_host_bytes
from sgld.causal.kept import Kept, Shapes, kept_bytes
from sgld.causal.kv import KvCache, KvShape, kv_bytes, kv_host_bytes
from sgld.causal.policies import Policy, Rolling
from sgld.engine.cache_policy import remake
from sgld.engine.causal import CausalPipeline
from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media
from sgld.engine.stage import Stage
from sgld_lingbot.actions import controls_of
from sgld_lingbot.models.config import LingBotConfig
from sgld_lingbot.models.dit import camera_bytes
from sgld_lingbot.models.steering import Steering
from sgld_lingbot.params import window_findings
from sgld_lingbot.pipelines.loading import load_lingbot
from sgld_lingbot.schedules import FALLBACK, make_schedule
from sgld_lingbot.stages.chunk import CAMERA, CommitChunk, DenoiseChunk, ShowFirstFrame, Steer
from sgld_lingbot.stages.condition import CONDITION, LATENTS, EncodeFirstFrame, Still
from sgld_lingbot.stages.renoise import ScheduledRenoise
from sgld_wan.models.vae_history import DecoderHistory, decoder_undo_bytes
from sgld_wan.models.vae_slots import decoder_history_bytes, settled_latents
from sgld_wan.schedulers import stored_shift
from sgld_wan.stages.causal import KV, TEXT, FollowPrompt
from sgld_wan.stages.causal_open import OpenState
from sgld_wan.stages.stream import DECODER, DecodeChunk

HOST: Final = torch.device("cpu")


class Memory(NamedTuple):
    """What of the past is seen, with the checkpoint's own numbers filled in.

    Args:
        chunk: latent frames of a chunk.
        window: latent frames in all, sink and chunk included.
        sink: first latent frames that stay for ever.
    """

    chunk: int
    window: int
    sink: int


class LingBotWorldCausalDMDPipeline(CausalPipeline):
    """LingBot World v1 and v2 in few steps."""

    float32_groups: ClassVar[tuple[str, ...]] = ("vae",)
    frame_parts: ClassVar[tuple[str, ...]] = (DECODER,)
    frames_per_latent: ClassVar[int] = 4
    state_fields: ClassVar[tuple[str, ...]] = (
        "num_frames",
        "realtime_causal_kv_cache_num_frames",
        "width",
        "height",
    )

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_lingbot(loader)

    def plan(self, params: Any) -> BlockPlan:
        chunk = self.memory(params).chunk
        latents = (params.num_frames - 1) // self.frames_per_latent + 1
        return BlockPlan(chunk, total=max(latents - latents % chunk, chunk))

    def clip_part(self, params: Any, chunk: Chunk) -> slice:
        """All, or of a clip of one frame the last one: the first shows what was given."""
        return slice(-1, None) if params.num_frames == 1 else slice(None)

    def open_stages(self, params: Any) -> Sequence[Stage]:
        self.memory(params)
        return (
            OpenState(self._parts),
            EncodeFirstFrame(lambda job: self._still(job.params)),
        )

    def chunk_stages(self, params: Any) -> Sequence[Stage]:
        mask = self._network.mask_channels
        return (FollowPrompt(), Steer(), ShowFirstFrame(mask), DenoiseChunk(self._sampler))

    def frame_stages(self, params: Any) -> Sequence[Stage]:
        return (DecodeChunk(),)

    def commit_stages(self, params: Any) -> Sequence[Stage]:
        return (CommitChunk(),)

    def controls(self, params: Any, index: int) -> Mapping[str, Any]:
        chunk = self.plan(params).chunk(index)
        moves = controls_of(params.camera_actions, chunk.first, chunk.frames)
        return {"prompt": params.prompt, **moves}

    def state_bytes(self, params: Any, *, undo: int = 0) -> int:
        height, width, memory = params.height, params.width, self.memory(params)
        tokens = memory.chunk * self._frame_tokens(params)
        decoder = decoder_history_bytes(
            self.parts["vae_config"], height, width, self.parts["vae_dtype"]
        )
        return (
            kv_bytes(self._kv_shape(params, HOST), self._policy(memory), undo)
            + cross_bytes(self._text_shape(HOST))
            + decoder
            + kept_bytes(self._condition_shapes(params))
            + camera_bytes(self._network.wan, tokens, self.parts["compute_dtype"].itemsize)
        )

    def undo_bytes(self, params: Any, *, undo: int, device: torch.device) -> int:
        kv = kv_host_bytes(self._kv_shape(params, device), self.memory(params).chunk, undo)
        # The condition is never replaced, and of the camera only a few numbers are remembered.
        return (
            kv
            + cross_host_bytes(self._text_shape(device), undo)
            + decoder_undo_bytes(
                self.parts["vae_config"],
                params.height,
                params.width,
                dtype=self.parts["vae_dtype"],
                device=device,
                undo=undo,
            )
        )

    def used(self, job: Job) -> Mapping[str, Any]:
        """What the request left to the checkpoint, and the length in whole chunks."""
        params, memory = job.params, self.memory(job.params)
        whole = (self.plan(params).total - 1) * self.frames_per_latent + 1
        return {
            "num_frames": 1 if params.num_frames == 1 else whole,
            "flow_shift": self._shift(params),
            "chunk_latents": memory.chunk,
            "realtime_causal_kv_cache_num_frames": memory.window,
            "realtime_causal_sink_size": memory.sink,
        }

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, job.params.fps, job.slots.latents)

    def memory(self, params: Any) -> Memory:
        """Chunk, window and sink of these parameters.

        Raises ParameterError when the request and the checkpoint's own numbers do not go together.
        """
        network = self._network
        memory = Memory(
            _first(params.chunk_latents, network.chunk, FALLBACK.chunk),
            _first(params.realtime_causal_kv_cache_num_frames, network.window, FALLBACK.window),
            _first(params.realtime_causal_sink_size, network.sink, FALLBACK.sink),
        )
        findings = window_findings(*memory)
        if findings:
            raise ParameterError(
                [Problem(f.name, getattr(params, f.name), f.message, f.remedy) for f in findings]
            )
        return memory

    @property
    def _network(self) -> LingBotConfig:
        return self.parts["network"]

    def _shift(self, params: Any) -> float:
        if params.flow_shift is not None:
            return params.flow_shift
        return stored_shift(self.parts["scheduler"])

    def _sampler(self, job: Job) -> ScheduledRenoise:
        params = job.params
        schedule = make_schedule(
            params.dmd_denoising_steps, self._shift(params), params.timestep_table
        )
        return ScheduledRenoise(schedule, job.noise, job.device)

    def _parts(self, job: Job) -> Mapping[str, Part]:
        params, undo, device = job.params, job.slots.undo, job.device
        policy = self._policy(self.memory(params))
        return {
            KV: KvCache(self._kv_shape(params, device), policy, undo),
            TEXT: CrossCache(self._text_shape(device), undo),
            CONDITION: Kept(device, undo, shapes=self._condition_shapes(params)),
            CAMERA: Steering(undo),
            DECODER: DecoderHistory.of(
                self.parts["vae_config"],
                params.height,
                params.width,
                dtype=self.parts["vae_dtype"],
                device=device,
                undo=undo,
            ),
        }

    def _still(self, params: Any) -> Still:
        """Enough of the still picture that the piece which is shown over and over does not hold
        the mask of the first frame."""
        chunk = self.memory(params).chunk
        latents = (params.num_frames - 1) // self.frames_per_latent + 1
        frames = max(latents, 2 * chunk)
        return Still(frames, min(frames, settled_latents(self.parts["vae_config"])))

    def _policy(self, memory: Memory) -> Policy:
        return remake(self.cache_policy, Rolling(window=memory.window, sink=memory.sink))

    def _latent_size(self, params: Any) -> tuple[int, int]:
        _, stride = self.parts["vae_stride"]
        return params.height // stride, params.width // stride

    def _frame_tokens(self, params: Any) -> int:
        height, width = self._latent_size(params)
        _, high, wide = self._network.wan.patch_size
        return (height // high) * (width // wide)

    def _kv_shape(self, params: Any, device: torch.device) -> KvShape:
        wan = self._network.wan
        return KvShape(
            wan.num_layers,
            wan.num_attention_heads,
            wan.attention_head_dim,
            self._frame_tokens(params),
            self.parts["compute_dtype"],
            device,
        )

    def _text_shape(self, device: torch.device) -> CrossShape:
        wan = self._network.wan
        return CrossShape(
            wan.num_layers,
            wan.num_attention_heads,
            wan.attention_head_dim,
            self._network.text_length,
            self.parts["compute_dtype"],
            device,
        )

    def _condition_shapes(self, params: Any) -> Shapes:
        size = (1, self.parts["latent_channels"], self._still(params).kept)
        return {LATENTS: ((*size, *self._latent_size(params)), torch.float32)}


def _first(*values: int | None) -> int:
    """The first value that is given."""
    return next(value for value in values if value is not None)
