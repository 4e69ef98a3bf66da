"""From a plan to a running engine: choose the device, load, bind kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import structlog
import torch

from sgld.api import features
from sgld.engine.cache_policy import check_policy
from sgld.engine.causal import CausalPipeline
from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.kernels import bind_ops
from sgld.engine.loading import Loader, LoadProgress, Scale
from sgld.engine.pipeline import Pipeline
from sgld.engine.residency.movers import Mover, TorchMover
from sgld.engine.residency.store import ComponentStore, Mode
from sgld.engine.sessions.opening import SessionSettings
from sgld.memory import Weight
from sgld.messages import Event
from sgld.platforms.cpu import CpuPlatform
from sgld.platforms.platform import Platform
from sgld.plugins.catalog import load_target
from sgld.plugins.choose import choose_platform
from sgld.realtime.messages import SessionReport

if TYPE_CHECKING:
    from sgld.plan import ModelPlan

log = structlog.get_logger("sgld.engine")

SESSION_SHARE: Final = 0.75
"""Part of the memory that is free after loading which sessions may hold, unless the user says how
much; the rest is for what a forward needs while it runs."""
UNDO_SHARE: Final = 0.5
"""Part of the host memory that is available after loading which the chunks that sessions can take
back may hold; the rest is for frames, for weights on their way, and for everybody else."""


def build_engine(
    plan: ModelPlan,
    emit: Callable[[Event | SessionReport], None],
    progress: LoadProgress | None = None,
    mover: Mover | None = None,
    platform: Platform | None = None,
) -> Engine:
    """Load the plan's model on its device and make the engine that runs it.

    `mover` brings weights to the device and away from it; the device's own when None. `platform` is
    the device, where it is open already.
    """
    options, entry = plan.options, plan.recognition.entry
    platform = platform or open_platform(plan)
    pipeline_class: type[Pipeline] = load_target(entry.spec.target, entry)
    check_policy(plan.cache_policy)
    modes = cast("Mapping[str, Mode]", plan.residency)
    loader = Loader(
        files=plan.files,
        located=plan.located,
        device=platform.torch_device,
        modes=modes,
        dtypes=choose_dtypes(plan, platform, pipeline_class),
        ops=bind_ops(plan, platform),
        dummy=options.load_format == "dummy",
        allow_pickle=options.allow_pickle,
        vae_tiling=options.vae_tiling,
        pipeline_class=options.pipeline_class_name or "",
        trust_remote_code=options.trust_remote_code,
        progress=progress,
    )
    loader.check()
    loaded = pipeline_class.load(loader)
    log.info("model loaded", model=plan.files.name, pipeline=entry.spec.id, device=platform.id)
    store = ComponentStore(loaded.modules, modes, mover or TorchMover(platform.torch_device))
    together = features.STEP_BATCHING in plan.spec.features
    settings = EngineSettings(options.batching, plan.max_running, together=together)
    pipeline = pipeline_class(loaded.parts)
    if isinstance(pipeline, CausalPipeline):
        pipeline.cache_policy = plan.cache_policy
        settings = replace(settings, sessions=session_settings(plan, platform, loader.dtypes))
    return Engine(
        pipeline=pipeline,
        validate=plan.params_class.model_validate,
        store=store,
        device=platform.torch_device,
        emit=emit,
        settings=settings,
    )


def session_settings(
    plan: ModelPlan, platform: Platform, dtypes: Mapping[str, torch.dtype]
) -> SessionSettings:
    """How many sessions there is room for, now that the model is loaded, and who they are."""
    options = plan.options
    if options.session_memory is None:
        memory = int(platform.memory().free * SESSION_SHARE)
    else:
        memory = int(options.session_memory * 2**30)
    adapters = {
        name: load_target(entry.spec.target, entry) for name, entry in plan.adapters.items()
    }
    identity = {
        "model": plan.files.name,
        "pipeline": plan.spec.id,
        **{f"precision.{name}": str(dtype) for name, dtype in sorted(dtypes.items())},
    }
    undo = None  # on the CPU a state and its past are in the same memory
    if platform.torch_device.type != "cpu":
        undo = int(CpuPlatform().memory().free * UNDO_SHARE)
    return SessionSettings(adapters, identity, memory, options.max_sessions, undo)


def weigh(plan: ModelPlan) -> dict[str, Weight]:
    """What each component takes, counted on modules built without memory: for dummy weights, which
    have no files to ask."""
    entry = plan.recognition.entry
    pipeline_class: type[Pipeline] = load_target(entry.spec.target, entry)
    scale = Scale(
        files=plan.files,
        located=plan.located,
        device=torch.device("meta"),
        modes={},
        dtypes=choose_dtypes(plan, open_platform(plan), pipeline_class),
        dummy=True,
    )
    pipeline_class.load(scale)
    return dict(scale.weights)


def open_platform(plan: ModelPlan) -> Platform:
    """The platform object for `--device`.

    Raises what `sgld.plugins.choose.choose_platform` raises.
    """
    asked, _, index = plan.options.device.partition(":")
    choice = choose_platform(plan.catalog.platforms.values(), prefer=asked)
    entry = choice.entry
    for name, reason in choice.losers:
        if name in choice.present:
            log.warning("a device is not used", platform=name, reason=reason, used=entry.spec.id)
    platform_class = load_target(entry.spec.target, entry)
    # A platform without numbered devices takes no index, and the first one is the default.
    return platform_class(int(index)) if int(index or 0) else platform_class()


def choose_dtypes(
    plan: ModelPlan, platform: Platform, pipeline: type[Pipeline]
) -> dict[str, torch.dtype]:
    """One precision per component; `auto` is the device's own, except where the family keeps
    float32 as its reference does."""
    chosen: dict[str, torch.dtype] = {}
    for name, where in plan.located.items():
        word = plan.precisions[name]
        if word != "auto":
            chosen[name] = getattr(torch, word)
        elif where.group in pipeline.float32_groups:
            chosen[name] = torch.float32
        else:
            chosen[name] = platform.default_dtype()
    return chosen
