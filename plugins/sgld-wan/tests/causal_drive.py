"""Drives the stages of a causal pipeline without an engine, with golden tensors for everything
around them: text states, noise, and the latents of given pictures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from sgld.causal.blocks import Chunk
from sgld.engine.causal import CausalPipeline, left_over
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.messages import Request
from sgld.ops import Ops
from sgld.stages.latent_scale import ChannelScale
from sgld_wan import configs
from sgld_wan.models.causal_config import CausalConfig
from sgld_wan.models.causal_dit import CausalWanTransformer
from sgld_wan.models.config import WanConfig
from sgld_wan.weights import rename_dit

DATA = Path(__file__).parent / "data"


class Golden(NamedTuple):
    """A fixture: what it says about itself, its tensors, and the network with its weights."""

    about: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    network: CausalWanTransformer


def golden(name: str) -> Golden:
    """Read `tests/data/causal_<name>.safetensors`."""
    with safe_open(DATA / f"causal_{name}.safetensors", "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    config = about["config"]
    network = build(
        WanConfig(
            num_attention_heads=config["num_heads"],
            attention_head_dim=config["head_dim"],
            in_channels=config["in_dim"],
            out_channels=config["out_dim"],
            text_dim=config["text_dim"],
            freq_dim=config["freq_dim"],
            ffn_dim=config["ffn_dim"],
            num_layers=config["num_layers"],
        )
    )
    weights = {
        str(rename_dit(key.removeprefix("weights."))): tensor
        for key, tensor in tensors.items()
        if key.startswith("weights.")
    }
    network.load_state_dict(weights, strict=True, assign=True)
    return Golden(about, tensors, network.eval())


def build(config: WanConfig) -> CausalWanTransformer:
    """The network without memory, as the loader builds it."""
    with torch.device("meta"):
        return CausalWanTransformer(config, Ops.torch())


def parts_for(config: WanConfig, *, stride: int = 8, text: Any = None) -> dict[str, Any]:
    """Light parts of a pipeline around a network of this configuration."""
    channels = config.out_channels
    small = configs.vae_22_config(base_dim=4, decoder_base_dim=6)
    vae = configs.vae_21_config(base_dim=4) if stride == 8 else small
    return {
        "causal": CausalConfig(config),
        "compute_dtype": torch.float32,
        "latent_channels": channels,
        "latent_scale": ChannelScale([0.0] * channels, [1.0] * channels),
        "tokenizer": text or number_tokenizer,
        "vae_config": vae,
        "vae_dtype": torch.float32,
        "vae_stride": (4, stride),
    }


def number_tokenizer(texts: Sequence[str], **options: Any) -> dict[str, Tensor]:
    """A prompt's last character, a digit, as its only token."""
    ids = torch.tensor([[int(texts[0][-1])]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def text_states(table: Tensor) -> Callable[..., Tensor]:
    """A text encoder that looks prompts up in [prompts, L, D]."""
    return lambda input_ids, attention_mask: table[int(input_ids)][None]


class GivenVae:
    """A VAE whose encoder knows one clip, and whose frames are all grey."""

    def __init__(self, latents: Tensor | None = None) -> None:
        self._latents = latents

    def encode_chunk(self, video: Tensor, history: Any) -> tuple[Tensor, Any]:
        """The next latents of the clip."""
        done = 0 if history is None else history
        count = (video.shape[2] + 3) // 4
        assert self._latents is not None
        return self._latents[:, :, done : done + count], done + count

    def decode_chunk(self, latents: Tensor, history: list[Any]) -> tuple[Tensor, list[Any]]:
        """Grey frames."""
        return torch.zeros(1, 3, 1, 8, 8), history


def new_job(params: Any, parts: Mapping[str, Any], *, seed: int = 0, images: int = 0) -> Job:
    """A job outside of any engine."""
    pictures = tuple(
        np.zeros((params.height, params.width, 3), dtype=np.uint8) for _ in range(images)
    )
    request = Request("test", {}, (seed,), pictures, want_latents=True)
    job = Job(
        id="test#0",
        request=request,
        index=0,
        params=params,
        device=torch.device("cpu"),
        parts=parts,
    )
    job.slots.undo = 0
    return job


def run(stages: Sequence[Stage], job: Job, modules: Mapping[str, Any]) -> None:
    """Run stages one after the other, answering their calls."""
    for stage in stages:
        generator = stage.run(job)
        answer: Any = None
        while True:
            try:
                wish = generator.send(answer)
            except StopIteration:
                break
            calls = wish if isinstance(wish, list) else [wish]
            results = [call_module(modules[call.component], call) for call in calls]
            answer = results if isinstance(wish, list) else results[0]


def call_module(module: Any, call: Any) -> Any:
    """What the engine does with one call."""
    method = module if call.method == "forward" else getattr(module, call.method)
    return method(**call.inputs)


def chunks(
    pipeline: CausalPipeline, job: Job, modules: Mapping[str, Any], *, frames: bool = False
) -> Iterator[tuple[Chunk, Tensor]]:
    """Open the state and generate every chunk with its clean pass, and with its `frames` if they
    are wanted; yields its latents."""
    params, slots = job.params, job.slots
    run(pipeline.open_stages(params), job, modules)
    slots.state.opened()
    plan = left_over(pipeline.plan(params), slots.state.next_frame)
    for chunk in plan.chunks():
        slots.chunk = chunk._replace(first=slots.state.next_frame)
        slots.controls = pipeline.controls(params, chunk.index)
        run(pipeline.chunk_stages(params), job, modules)
        latents = slots.latents
        if frames:
            run(pipeline.frame_stages(params), job, modules)
        run(pipeline.commit_stages(params), job, modules)
        slots.state.advance(slots.chunk)
        yield slots.chunk, latents


def recorded(network: CausalWanTransformer) -> tuple[Any, list[Tensor]]:
    """The network, and a list that its velocities go to."""
    seen: list[Tensor] = []

    def forward(**inputs: Any) -> Tensor:
        seen.append(network(**inputs))
        return seen[-1]

    module = SimpleNamespace(remember=network.remember)
    return _Callable(forward, module), seen


class _Callable:
    def __init__(self, forward: Callable[..., Tensor], rest: Any) -> None:
        self._forward, self._rest = forward, rest

    def __call__(self, **inputs: Any) -> Tensor:
        return self._forward(**inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


def frames_first(latents: Sequence[Tensor]) -> Tensor:
    """Chunks [1, C, f, h, w] as the fixtures' [F, C, h, w]."""
    return torch.cat(list(latents), dim=2)[0].transpose(0, 1)


def assert_close(found: Tensor, wanted: Tensor, what: str) -> None:
    """Within the tolerance of the fixtures: abs 1e-4 + rel 1e-4."""
    torch.testing.assert_close(
        found, wanted, atol=1e-4, rtol=1e-4, msg=lambda text: f"{what}: {text}"
    )
