"""Pipelines, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BeforeValidator

from sgld.api import Claims, Plugin, Preset, features, hookimpl
from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.params.options import option
from sgld.plugins.catalog import load_target
from sgld.stages.denoise import Denoise
from sgld.stages.latents import InitialNoise
from sgld.testing import toy_checkpoint, toy_plugin
from sgld.testing.toy import EncodePrompt, ToyTransformer, ToyVae
from sgld.testing.toy_params import ToyImageParams
from sgld.testing.toy_pipelines import (
    Enlarge,
    ToyEditPipeline,
    ToyImagePipeline,
    TroubledDenoiser,
    _latents,
)
from sgld.testing.toy_world import ToyWorldPipeline

TOYS = {spec.id: spec for spec in toy_plugin.sgld_pipelines()}


class Bad(NamedTuple):
    """What finds a fault, and what the record says in place of the toy's."""

    found_by: set[str]
    record: dict[str, Any] = {}  # noqa: RUF012
    toy: str = "toy-image"


class Swapped(ToyImagePipeline):
    """The toy, with other stages in place of those with the same ids."""

    def stages(self, params: Any) -> list[Stage]:
        others = {stage.id: stage for stage in self.others()}
        return [others.get(stage.id, stage) for stage in super().stages(params)]

    def others(self) -> list[Stage]:
        return []


def denoising(denoiser: type[TroubledDenoiser]) -> type[Swapped]:
    """The toy with this denoiser."""

    class Other(Swapped):
        def others(self) -> list[Stage]:
            return [Denoise(denoiser())]

    return Other


class Noise(InitialNoise):
    """Initial noise, with something added by `more`."""

    def __init__(self, more: Callable[[Job, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(_latents)
        self.more = more

    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.latents = self.more(job, job.slots.latents)


def noising(more: Callable[[Job, torch.Tensor], torch.Tensor]) -> type[Swapped]:
    """The toy with other noise."""

    class Other(Swapped):
        def others(self) -> list[Stage]:
            return [Noise(more)]

    return Other


def loading(transformer: Any = ToyTransformer, vae: Any = ToyVae) -> type[ToyImagePipeline]:
    """The toy with other networks."""

    class Other(ToyImagePipeline):
        @classmethod
        def load(cls, loader: Any) -> Loaded:
            loaded = super().load(loader)
            builders = {"transformer": transformer, "vae": vae}
            modules = {name: loader.module(name, build) for name, build in builders.items()}
            return Loaded({**loaded.modules, **modules})

    return Other


# -- the record -----------------------------------------------------------------------------------

NoPipeline = type(
    "NoPipeline",
    (),
    {
        **{name: value for name, value in vars(Pipeline).items() if not name.startswith("_")},
        **{name: v for name, v in vars(ToyImagePipeline).items() if not name.startswith("_")},
        "__init__": Pipeline.__init__,
        "load": classmethod(lambda cls, loader: ToyImagePipeline.load(loader)),
    },
)


def write_restless(folder: Path) -> None:
    toy_checkpoint.write_image(folder)
    (folder / "notes.txt").write_bytes(os.urandom(8))


def write_large(folder: Path) -> None:
    toy_checkpoint.write_image(folder)
    (folder / "notes.txt").write_bytes(bytes(6_000_000))


class DoublingParams(ToyImageParams):
    """Reads its own JSON as something else."""

    ratio: Annotated[float, BeforeValidator(lambda value: value * 2)] = option(1.0, "A ratio.")


# -- requests -------------------------------------------------------------------------------------


class WithFps(ToyImagePipeline):
    def media(self, job: Job) -> Media:
        return super().media(job).__class__("image", job.slots.frames, 8, job.slots.latents)


class OneSize(ToyImagePipeline):
    """Was tried at one size only."""

    def stages(self, params: Any) -> list[Stage]:
        if (params.width, params.height) != (48, 32):
            raise RuntimeError(f"no such size: {params.width}x{params.height}")
        return list(super().stages(params))


class TwoSteps(ToyImagePipeline):
    """Was tried with one and two steps only."""

    def stages(self, params: Any) -> list[Stage]:
        if params.num_inference_steps > 2:
            raise RuntimeError("too many steps")
        return list(super().stages(params))


class Brighter(Enlarge):
    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.frames = job.slots.frames * 1.5


class TooBright(Swapped):
    def others(self) -> list[Stage]:
        return [Brighter()]


class OneText(EncodePrompt):
    def run(self, job: Job) -> StageRun:
        texts = (b"x", job.params.negative_prompt.encode() or b"y")
        calls = [Call("text_encoder", {"ids": torch.tensor([list(text)])}) for text in texts]
        job.slots.text, job.slots.negative = yield calls


class Deaf(Swapped):
    def others(self) -> list[Stage]:
        return [OneText()]


class Blind(Enlarge):
    def run(self, job: Job) -> StageRun:
        request, job.request = job.request, job.request.__class__("x", {}, (1,))
        try:
            yield from super().run(job)
        finally:
            job.request = request


class BlindEdit(ToyEditPipeline):
    def stages(self, params: Any) -> list[Stage]:
        return [*list(super().stages(params))[:-1], Blind()]


def odd_seeds(job: Job, latents: torch.Tensor) -> torch.Tensor:
    seed = job.request.seeds[0] + 2 * job.index
    return torch.randn(latents.shape, generator=torch.Generator().manual_seed(seed))


def same_noise(job: Job, latents: torch.Tensor) -> torch.Tensor:
    return torch.randn(latents.shape, generator=torch.Generator().manual_seed(0))


class Grudge(ToyImagePipeline):
    """Is changed by a request that begins with a certain word, until the next one."""

    last = ""

    def stages(self, params: Any) -> list[Stage]:
        before, self.last = self.last, params.prompt
        shift = 1.0 if before.startswith("another") else 0.0
        first, times, _, *rest = super().stages(params)
        return [first, times, Noise(lambda job, latents: latents + shift), *rest]


class Newest(TroubledDenoiser):
    """Takes the request that began last for its own."""

    def __init__(self) -> None:
        self.seed = 0

    def calls(self, job: Job, index: int) -> Any:
        if index == 0:
            self.seed = job.seed
        return super().calls(job, index)

    def finish(self, job: Job) -> torch.Tensor:
        return job.slots.latents + self.seed


class OneDenoiser(ToyImagePipeline):
    """All requests share one stage, which has a memory."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        self.shared = Denoise(Newest())

    def stages(self, params: Any) -> list[Stage]:
        return [self.shared if s.id == "denoise" else s for s in super().stages(params)]


# -- features -------------------------------------------------------------------------------------


class Unguided(TroubledDenoiser):
    """Runs both passes, and takes the first."""

    def combine(self, job: Job, index: int, results: Any) -> torch.Tensor:
        return results[0]


class Gossip(ToyTransformer):
    """Rows see each other."""

    def forward(self, hidden_states: Any, timestep: Any, text: Any) -> torch.Tensor:
        mixed = (hidden_states + hidden_states.mean(0, keepdim=True)) / 2
        return super().forward(mixed, timestep, text)


class Alone(TroubledDenoiser):
    """Never shares a forward."""

    def calls(self, job: Job, index: int) -> Any:
        return [
            Call(call.component, call.inputs, method=call.method)
            for call in super().calls(job, index)
        ]


class Peeking(ToyImagePipeline):
    """A stage uses a weight outside of a call."""

    @classmethod
    def load(cls, loader: Any) -> Loaded:
        loaded = super().load(loader)
        return Loaded(loaded.modules, {"vae": loaded.modules["vae"]})

    def stages(self, params: Any) -> list[Stage]:
        first, times, _, *rest = super().stages(params)
        peek = Noise(lambda job, latents: latents + self.parts["vae"].out.bias.mean())
        return [first, times, peek, *rest]


class Early(ToyTransformer):
    """Uses a layer's weight before that layer has its turn."""

    def forward(self, hidden_states: Any, timestep: Any, text: Any) -> torch.Tensor:
        shift = self.blocks[2].mix.weight.mean()
        return super().forward(hidden_states + shift, timestep, text)


class NeedsFiles(ToyImagePipeline):
    @classmethod
    def load(cls, loader: Any) -> Loaded:
        if loader.dummy:
            raise FileNotFoundError("statistics.json")
        return super().load(loader)


class Restless(TroubledDenoiser):
    """Draws a random number for a preview."""

    def preview(self, job: Job, clean: torch.Tensor) -> Any:
        frames = yield from super().preview(job, clean)
        job.slots.latents = job.slots.latents + job.noise((1,))
        return frames


class Hidden(TroubledDenoiser):
    """Has no previews, and does not say so."""

    preview = None


# -- conduct --------------------------------------------------------------------------------------


class Scribble(Enlarge):
    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.scratch = 1


class Scribbling(Swapped):
    def others(self) -> list[Stage]:
        return [Scribble()]


class FromZero(Denoise):
    def run(self, job: Job) -> StageRun:
        progress = job.progress
        job.progress = lambda step, total, latents: progress(step - 1, total, latents)
        yield from super().run(job)


class CountsFromZero(Swapped):
    def others(self) -> list[Stage]:
        return [FromZero(TroubledDenoiser())]


class Clinging(Denoise):
    """Wants one more call when it is cancelled."""

    def run(self, job: Job) -> StageRun:
        try:
            yield from super().run(job)
        except GeneratorExit:
            yield Call("vae", {"latents": torch.zeros(1, 1, 8)}, method="decode")


class Cancelless(Swapped):
    def others(self) -> list[Stage]:
        return [Clinging(TroubledDenoiser())]


class Hoarder(ToyImagePipeline):
    """Keeps the last result."""

    def media(self, job: Job) -> Media:
        self.last = job.slots.latents
        return super().media(job)


ARCHIVE: list[torch.Tensor] = []


class Archive(Enlarge):
    """Keeps a copy of every result."""

    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        ARCHIVE.append(job.slots.frames.clone())


class Archiving(Swapped):
    def others(self) -> list[Stage]:
        return [Archive()]


class Modest(ToyWorldPipeline):
    """Promises half of what it takes."""

    def state_bytes(self, params: Any, *, undo: int = 0) -> int:
        return super().state_bytes(params, undo=undo) // 2


class Greedy(ToyWorldPipeline):
    """Reserves what it never takes."""

    def state_bytes(self, params: Any, *, undo: int = 0) -> int:
        return super().state_bytes(params, undo=undo) * 5


ALL = TOYS["toy-image"].features
CFG, BATCH = "test_cfg", "test_step_batching"
OTHERS = "test_other_sizes_and_steps"
BAD: dict[str, Bad] = {
    "no-pipeline": Bad({"test_targets_are_of_their_kind"}, {"target": NoPipeline}),
    "wrong-task": Bad({"test_tasks_fit_the_parameters"}, {"tasks": ("image-to-image",)}),
    "wrong-preset": Bad(
        {"test_presets_are_valid"},
        {"presets": (Preset("no-steps", {"num_inference_steps": 0}, repos=("acme/none",)),)},
    ),
    "restless-checkpoint": Bad({"test_tiny_checkpoint"}, {"blueprints": write_restless}),
    "large-checkpoint": Bad({"test_tiny_checkpoint"}, {"blueprints": write_large}),
    "claims-nothing": Bad({"test_recognises_its_checkpoint"}, {"claims": Claims()}),
    "doubling-params": Bad({"test_parameters_are_json"}, {"params": DoublingParams}),
    "with-fps": Bad({"test_makes_what_it_declares"}, {"target": WithFps}),
    "one-size": Bad({OTHERS}, {"target": OneSize}),
    "two-steps": Bad({OTHERS}, {"target": TwoSteps}),
    "too-bright": Bad({"test_values_are_finite_and_in_range"}, {"target": TooBright}),
    "process-seed": Bad(
        {"test_same_seed_same_bytes"},
        {
            "target": noising(
                lambda job, latents: latents + torch.initial_seed() % 999_983 / 150_000
            )
        },
    ),
    "same-noise": Bad({"test_other_seed_differs"}, {"target": noising(same_noise)}),
    "deaf": Bad({"test_prompt_has_an_effect"}, {"target": Deaf}),
    "blind": Bad({"test_picture_has_an_effect"}, {"target": BlindEdit}, "toy-edit"),
    "odd-seeds": Bad({"test_outputs_use_following_seeds"}, {"target": noising(odd_seeds)}),
    "grudge": Bad({"test_requests_share_no_state"}, {"target": Grudge}),
    "one-denoiser": Bad(
        {"test_interleaved_equals_alone"},
        {"target": OneDenoiser, "features": ALL - {features.STEP_BATCHING}},
    ),
    "unguided": Bad({CFG}, {"target": denoising(Unguided)}),
    "gossip": Bad({BATCH}, {"target": loading(Gossip)}),
    "alone": Bad({BATCH}, {"target": denoising(Alone)}),
    "peeking": Bad({"test_component_offload"}, {"target": Peeking}),
    "early": Bad({"test_layerwise_offload"}, {"target": loading(Early)}),
    "needs-files": Bad({"test_dummy_weights"}, {"target": NeedsFiles}),
    "no-tiles": Bad({"test_vae_tiling"}, {"features": ALL | {features.VAE_TILING}}),
    "restless-preview": Bad({"test_previews"}, {"target": denoising(Restless)}),
    "hidden-preview": Bad({"test_previews"}, {"target": denoising(Hidden)}),
    "scribbling": Bad({"test_stages_keep_their_word"}, {"target": Scribbling}),
    "from-zero": Bad({"test_progress_counts"}, {"target": CountsFromZero}),
    "cancelless": Bad({"test_cancels_between_steps"}, {"target": Cancelless}),
    "hoarder": Bad({"test_done_requests_are_freed"}, {"target": Hoarder}),
    "archiving": Bad({"test_nothing_piles_up"}, {"target": Archiving}),
    "modest": Bad({"test_state_is_as_large_as_it_says"}, {"target": Modest}, "toy-world"),
    "greedy": Bad({"test_state_is_as_large_as_it_says"}, {"target": Greedy}, "toy-world"),
}
GOOD = {"good": Bad(set())}


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin("bad-pipelines", contracts={"pipeline": 1}, summary="One fault each")


@hookimpl
def sgld_pipelines() -> Any:
    """The records; code in them is put into this module, and named."""
    for name, bad in {**BAD, **GOOD}.items():
        record: dict[str, Any] = {}
        for field, value in bad.record.items():
            record[field] = value
            if callable(value):
                attribute = f"{field}_{name}".replace("-", "_")
                globals()[attribute] = value
                record[field] = f"{__name__}:{attribute}"
        toy = TOYS[bad.toy]
        write = bad.record.get("blueprints") or load_target(toy.blueprints["tiny"])
        attribute = f"write_{name}".replace("-", "_")
        globals()[attribute] = partial(marked, write, name)
        record["blueprints"] = {"tiny": f"{__name__}:{attribute}"}
        yield toy._replace(id=name, **{"claims": Claims(files=(f"{name}.mark",)), **record})


def marked(write: Callable[[Path], None], name: str, folder: Path) -> None:
    """A toy's checkpoint that only one of the bad ones claims."""
    write(folder)
    (folder / f"{name}.mark").touch()
