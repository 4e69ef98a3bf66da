"""Causal Wan: a clip chunk by chunk, each attending to the keys and values of what came before.

The state of one generation has the parts `kv` and `text` (keys and values of frames and prompt, the
same once more with `negative_` in front where guidance runs), `decoder` (what the VAE remembers)
and, where history is filled again after a change of prompt, `clean`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from sgld.causal.blocks import BlockPlan
from sgld.causal.cache import Part
from sgld.causal.cross import CrossCache, CrossShape, cross_bytes, cross_host_bytes
from sgld.causal.kept import Kept, kept_host_bytes
from sgld.causal.kv import KvCache, KvShape, kv_bytes, kv_host_bytes
from sgld.causal.policies import Policy, Rolling
from sgld.causal.positions import Absolute, Positions
from sgld.engine.cache_policy import remake
from sgld.engine.causal import CausalPipeline
from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media
from sgld.engine.stage import Stage
from sgld.ops import Ops
from sgld.stages.renoise import RenoiseSampler, warped
from sgld.stages.sampler import Sampler
from sgld_wan.models.causal_config import CausalConfig
from sgld_wan.models.causal_dit import CausalWanTransformer
from sgld_wan.models.vae_history import DecoderHistory, decoder_undo_bytes
from sgld_wan.models.vae_slots import decoder_history_bytes
from sgld_wan.pipelines.loading import load_wan
from sgld_wan.stages.causal import (
    CLEAN,
    KV,
    NEGATIVE,
    TEXT,
    CommitChunk,
    DenoiseChunk,
    FollowPrompt,
    RefillHistory,
    frame_noise,
)
from sgld_wan.stages.causal_open import GivenFrames, OpenState
from sgld_wan.stages.stream import DECODER, DecodeChunk


class Chunking(NamedTuple):
    """How a clip is cut and what a chunk sees, all in latent frames.

    Args:
        chunk: of an ordinary chunk.
        first: of chunk 0; 0: like the others.
        total: of the clip, given frames included.
        window: seen by a chunk, sink and itself included; -1: all.
        sink: that stay in the window for ever.
    """

    chunk: int
    first: int
    total: int
    window: int
    sink: int


class CausalWanPipeline(CausalPipeline):
    """What the causal Wan families share: everything but the sampler."""

    batch_tokens: ClassVar[int] = 16_384
    float32_groups: ClassVar[tuple[str, ...]] = ("vae", "image_encoder")
    frame_parts: ClassVar[tuple[str, ...]] = (DECODER,)
    frames_per_latent: ClassVar[int] = 4
    state_fields: ClassVar[tuple[str, ...]] = ("num_frames", "window_latents", "width", "height")

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        found: list[CausalConfig] = []

        def build(config: Mapping[str, Any], ops: Ops) -> nn.Module:
            causal = CausalConfig.from_json(config)
            found.append(causal)
            return CausalWanTransformer(causal.wan, ops)

        loaded = load_wan(loader, build, experts=False)
        loaded.parts["causal"] = found[0]
        return loaded

    # -- how the clip is cut ----------------------------------------------------------------------

    def chunking(self, params: Any) -> Chunking:
        """The request's own numbers, else the checkpoint's, else the family's usual ones."""
        config: CausalConfig = self.parts["causal"]
        alone = getattr(params, "independent_first_frame", None)
        return Chunking(
            chunk=_first(params.chunk_latents, config.chunk, params.usual_chunk),
            first=1 if _first(alone, config.first_alone, False) else 0,
            total=(params.num_frames - 1) // self.parts["vae_stride"][0] + 1,
            window=_first(params.window_latents, config.window, params.usual_window),
            sink=_first(params.sink_latents, config.sink, params.usual_sink),
        )

    def plan(self, params: Any) -> BlockPlan:
        cut = self.chunking(params)
        return BlockPlan(cut.chunk, cut.first, cut.total)

    def controls(self, params: Any, index: int) -> Mapping[str, Any]:
        return {"prompt": params.shot(index).prompt}

    # -- stages -----------------------------------------------------------------------------------

    def open_stages(self, params: Any) -> Sequence[Stage]:
        cut = self.chunking(params)
        given = GivenFrames(
            cut.chunk, first=cut.first, controls=self.controls, pins=params.holds_picture
        )
        return (OpenState(self.state_parts), given)

    def chunk_stages(self, params: Any) -> Sequence[Stage]:
        return (FollowPrompt(), RefillHistory(), DenoiseChunk(self.sampler, self.latent_tail))

    def frame_stages(self, params: Any) -> Sequence[Stage]:
        return (DecodeChunk(),)

    def commit_stages(self, params: Any) -> Sequence[Stage]:
        return (CommitChunk(),)

    @abstractmethod
    def sampler(self, job: Job) -> Sampler:
        """The sampler of one chunk."""

    def latent_tail(self, job: Job) -> tuple[int, int, int]:
        """Channels, rows and columns of the latents of a job."""
        return (self.parts["latent_channels"], *self._latent_size(job.params))

    # -- state ------------------------------------------------------------------------------------

    def state_parts(self, job: Job) -> dict[str, Part]:
        """The parts of a job's state, empty."""
        params, device, undo = job.params, job.device, job.slots.undo
        kv, policy, positions = self._history(params, device)
        parts: dict[str, Part] = {}
        for prefix in self._passes(params):
            parts[prefix + KV] = KvCache(kv, policy, undo, positions=positions)
            parts[prefix + TEXT] = CrossCache(self._text(params, device), undo)
        if self._refills(params):
            parts[CLEAN] = Kept(device, undo)
        parts[DECODER] = DecoderHistory.of(
            self.parts["vae_config"],
            params.height,
            params.width,
            dtype=self.parts["vae_dtype"],
            device=device,
            undo=undo,
        )
        return parts

    def state_bytes(self, params: Any, *, undo: int = 0) -> int:
        kv, kept, _ = self._history(params, torch.device("cpu"))
        text = self._text(params, torch.device("cpu"))
        passes = len(self._passes(params))
        total = passes * (kv_bytes(kv, kept, undo) + cross_bytes(text))
        if self._refills(params):
            rows, columns = self._latent_size(params)
            frame = self.parts["latent_channels"] * rows * columns * torch.float32.itemsize
            total += kept.capacity * frame
        config, dtype = self.parts["vae_config"], self.parts["vae_dtype"]
        return total + decoder_history_bytes(config, params.height, params.width, dtype)

    def undo_bytes(self, params: Any, *, undo: int, device: torch.device) -> int:
        kv, kept, _ = self._history(params, device)
        refills, passes = self._refills(params), len(self._passes(params))
        cut = self.chunking(params)
        rewritten = kept.capacity if refills else max(cut.chunk, cut.first)
        texts = cross_host_bytes(self._text(params, device), undo)
        total = passes * (kv_host_bytes(kv, rewritten, undo) + texts)
        if refills:
            size = (1, self.parts["latent_channels"], kept.capacity, *self._latent_size(params))
            total += kept_host_bytes({CLEAN: (size, torch.float32)}, undo, device)
        return total + decoder_undo_bytes(
            self.parts["vae_config"],
            params.height,
            params.width,
            dtype=self.parts["vae_dtype"],
            device=device,
            undo=undo,
        )

    def policy(self, params: Any) -> Policy:
        """Which frames the cache keeps, where the user picked no other policy."""
        cut = self.chunking(params)
        if cut.window < 0 or cut.window >= cut.total:
            return Rolling(0, limit=cut.total)
        return Rolling(cut.window, cut.sink)

    def positions(self, params: Any) -> Positions:
        """Where in time a frame stands."""
        return Absolute()

    def _history(self, params: Any, device: torch.device) -> tuple[KvShape, Policy, Positions]:
        config = self.parts["causal"].wan
        rows, columns = self._latent_size(params)
        _, high, wide = config.patch_size
        shape = KvShape(
            config.num_layers,
            config.num_attention_heads,
            config.attention_head_dim,
            (rows // high) * (columns // wide),
            self.parts["compute_dtype"],
            device,
        )
        policy = remake(self.cache_policy, self.policy(params))
        return shape, policy, self.positions(params)

    def _text(self, params: Any, device: torch.device) -> CrossShape:
        config = self.parts["causal"].wan
        return CrossShape(
            config.num_layers,
            config.num_attention_heads,
            config.attention_head_dim,
            params.max_sequence_length,
            self.parts["compute_dtype"],
            device,
        )

    def _latent_size(self, params: Any) -> tuple[int, int]:
        space = self.parts["vae_stride"][1]
        return params.height // space, params.width // space

    def _passes(self, params: Any) -> tuple[str, ...]:
        """What stands in front of the names of the caches."""
        return ("", NEGATIVE) if params.uses_cfg else ("",)

    def _refills(self, params: Any) -> bool:
        several = params.shot_prompts is not None and len(params.shot_prompts) > 1
        return several and getattr(params, "refill_history", False)

    # -- the result -------------------------------------------------------------------------------

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, job.params.fps, job.slots.latents)

    def used(self, job: Job) -> Mapping[str, Any]:
        """Chunk, window and sink, where they came from the checkpoint or a rule."""
        cut, params = self.chunking(job.params), job.params
        used = {
            "chunk_latents": cut.chunk,
            "window_latents": cut.window,
            "sink_latents": cut.sink,
            "independent_first_frame": bool(cut.first),
        }
        return {name: value for name, value in used.items() if getattr(params, name, 0) is None}


class WanCausalDMDPipeline(CausalWanPipeline):
    """Causal Wan 2.1 as Self-Forcing distils it."""

    def sampler(self, job: Job) -> Sampler:
        """A few fixed steps; between them clean latents get fresh noise."""
        params, shift = job.params, job.params.flow_shift
        steps = params.dmd_denoising_steps
        times = warped(steps, shift) if params.warp_denoising_step else steps
        return RenoiseSampler(times, shift, lambda shape: frame_noise(job, shape), job.device)


def _first(*values: Any) -> Any:
    """The first value that is not None."""
    return next(value for value in values if value is not None)


__all__ = ["CausalWanPipeline", "Chunking", "WanCausalDMDPipeline"]
