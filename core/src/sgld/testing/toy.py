"""A toy image family: three small modules and the usual stages, for tests of whoever drives stages.

It is a real pipeline on the shared stages, with guidance, text and per-row time, so that batching,
cancellation and residency can be tested in milliseconds and without any checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.ops.table import Ops
from sgld.stages.denoise import Denoise, Frames, guide
from sgld.stages.latents import InitialNoise
from sgld.stages.timesteps import Timesteps

WIDTH = 8


@dataclass(frozen=True)
class ToyParams:
    """Parameters of the toy family."""

    prompt: str = "a lamp"
    negative_prompt: str = ""
    num_inference_steps: int = 4
    guidance_scale: float = 3.0
    size: int = 4

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> ToyParams:
        """The parameters from JSON values."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**known)


class ToyText(nn.Module):
    """Bytes → one vector: the mean of byte embeddings [B, L] → [B, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeds [B, L] byte values."""
        return self.embed(ids).mean(1)


class ToyLayer(nn.Module):
    """A residual layer that mixes latents with text and time."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.gate = ops["residual.gate"]
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.text = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """x [B, N, WIDTH], text [B, WIDTH], time [B]."""
        shift = self.text(text) + time[:, None]
        return self.gate(x, torch.tanh(self.mix(x) + shift[:, None]), None)


class ToyTransformer(nn.Module):
    """A stack of layers, [B, N, WIDTH] → [B, N, WIDTH]."""

    def __init__(self, layers: int = 3, ops: Ops | None = None) -> None:
        super().__init__()
        ops = ops or Ops.torch()
        self.inlet = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([ToyLayer(ops) for _ in range(layers)])
        self.outlet = nn.Linear(WIDTH, WIDTH)

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        return self.blocks

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        """Predicts a velocity for each row at its own time."""
        x = self.inlet(hidden_states)
        for block in self.blocks:
            x = block(x, text, timestep)
        return self.outlet(x)


class ToyVae(nn.Module):
    """Latents [B, N, WIDTH] → pixels [B, N, 3] in 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 3)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pixels in 0..1."""
        return torch.sigmoid(self.out(latents))


class EulerSampler:
    """Flow-matching Euler from 1 to 0 in equal steps."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._sigmas = torch.linspace(1, 0, steps + 1).to(device)
        self.times: Sequence[float] = tuple(torch.linspace(1, 0, steps + 1)[:-1].tolist())

    def time(self, index: int) -> torch.Tensor:
        """The noise level of step `index`."""
        return self._sigmas[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """One Euler step."""
        return latents + (self._sigmas[index + 1] - self._sigmas[index]) * output

    def estimate(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """Where a straight line from here ends."""
        return latents - self._sigmas[index] * output


class EncodePrompt(Stage):
    """Embeds the prompt and, when guidance is on, the negative prompt."""

    id = "text"
    writes = ("text", "negative")
    uses = ("text_encoder",)

    def run(self, job: Job) -> StageRun:
        calls = [
            Call(
                "text_encoder",
                {"ids": torch.tensor([list(text.encode()) or [0]], device=job.device)},
                batch_key="text",
                memo=("text", text),
            )
            for text in (job.params.prompt, job.params.negative_prompt)
        ]
        job.slots.text, job.slots.negative = yield calls


class ToyDenoiser:
    """Guidance in two passes when the scale is above 1."""

    reads: ClassVar[tuple[str, ...]] = ("text", "negative")
    uses: ClassVar[tuple[str, ...]] = ("transformer", "vae")

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """One call per guidance pass."""
        slots = job.slots
        texts = [slots.text]
        if job.params.guidance_scale > 1:
            texts.append(slots.negative)
        return [
            Call(
                "transformer",
                {
                    "hidden_states": slots.latents,
                    "timestep": slots.sampler.time(index).expand(1),
                    "text": text,
                },
                batch_key="toy",
                tokens=slots.latents.shape[1],
            )
            for text in texts
        ]

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """Guided velocity."""
        if len(results) == 1:
            return results[0]
        return guide(results[0], results[1], job.params.guidance_scale)

    def finish(self, job: Job) -> torch.Tensor:
        """The latents as they are."""
        return job.slots.latents

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The picture of an estimate."""
        return decoded(job, clean)


def decoded(job: Job, latents: torch.Tensor) -> Frames:
    """The picture [1, size, size, 3] of latents."""
    pixels = yield Call("vae", {"latents": latents}, method="decode")
    side = job.params.size
    return pixels.view(1, side, side, 3)


class Decode(Stage):
    """Latents to pixels."""

    id = "decode"
    reads = ("latents",)
    writes = ("frames",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from decoded(job, job.slots.latents)


class ToyPipeline(Pipeline):
    """Text, noise, denoise, decode on the toy modules."""

    batch_tokens = 64

    @classmethod
    def load(cls, loader: Any) -> Loaded:
        """Builds the modules from a seed; there is no checkpoint."""
        return Loaded(modules=toy_modules())

    def stages(self, params: ToyParams) -> Sequence[Stage]:
        """The usual order."""
        return (
            EncodePrompt(),
            Timesteps(lambda job: EulerSampler(job.params.num_inference_steps, job.device)),
            InitialNoise(lambda job: (1, job.params.size**2, WIDTH)),
            Denoise(ToyDenoiser()),
            Decode(),
        )

    def media(self, job: Job) -> Media:
        """The decoded picture."""
        return Media("image", job.slots.frames, 0, job.slots.latents)


def toy_modules(seed: int = 0) -> dict[str, nn.Module]:
    """The toy family's modules with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        modules = {"text_encoder": ToyText(), "transformer": ToyTransformer(), "vae": ToyVae()}
    return {name: module.eval().requires_grad_(False) for name, module in modules.items()}
