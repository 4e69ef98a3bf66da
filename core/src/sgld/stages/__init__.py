"""Stages that families share; a family's own stages live in its plugin.

The usual order of a family that denoises whole latents: `EncodePrompt`, `Timesteps`,
`InitialNoise`, `Denoise`, `Decode`.
"""

from sgld.stages.decode import Decode
from sgld.stages.denoise import Denoise, Denoiser, Frames, guide
from sgld.stages.flow import FlowSampler
from sgld.stages.guidance import Guidance
from sgld.stages.latents import InitialNoise
from sgld.stages.renoise import RenoiseSampler
from sgld.stages.sampler import Sampler, SchedulerSampler
from sgld.stages.text import EncodePrompt
from sgld.stages.timesteps import Timesteps

__all__ = [
    "Decode",
    "Denoise",
    "Denoiser",
    "EncodePrompt",
    "FlowSampler",
    "Frames",
    "Guidance",
    "InitialNoise",
    "RenoiseSampler",
    "Sampler",
    "SchedulerSampler",
    "Timesteps",
    "guide",
]
