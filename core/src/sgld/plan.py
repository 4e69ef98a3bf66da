"""From options to a decision, before anything heavy is imported or read: which plugin, which files,
which components, what is refused.

    plan = make_plan(ServingOptions.model_validate({"model_path": "..."}))
    plan.build(layers)          validated parameters of a request
    plan.describe(params)       memory and schedule, for --dry-run

Torch-free. A plan owns the temporary folder of a `tiny:` or `config:` model; close it after use.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgld.api import features
from sgld.api.errors import FeatureError, UserError
from sgld.api.specs import PipelineSpec
from sgld.params.merge import Built, Layer, build
from sgld.params.sampling import SamplingParams
from sgld.params.serving import ServingOptions, resolve_residency
from sgld.plugins.catalog import Catalog, load_catalog, load_target
from sgld.plugins.recognise import Recognition
from sgld.weights.complete import check_complete
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located, diffusers_layout
from sgld.weights.overrides import ComponentOverrides
from sgld.weights.resolve import resolve

TINY = "tiny:"
CONFIG = "config:"


@dataclass(frozen=True)
class ModelPlan:
    """Everything decided about a model before it is loaded.

    Args:
        options: as validated.
        catalog: the plugins.
        files: the checkpoint.
        recognition: the pipeline and why it was chosen.
        params_class: the family's parameters.
        preset_defaults: this checkpoint's defaults.
        located: component name → its configuration and weights.
        residency: component name → mode.
        precisions: component name → precision word.
    """

    options: ServingOptions
    catalog: Catalog
    files: ModelFiles
    recognition: Recognition
    params_class: type[SamplingParams]
    preset_defaults: Mapping[str, Any]
    located: Mapping[str, Located]
    residency: Mapping[str, str]
    precisions: Mapping[str, str]
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    @property
    def spec(self) -> PipelineSpec:
        """The chosen pipeline's record."""
        return self.recognition.entry.spec

    @property
    def components(self) -> Mapping[str, str]:
        """Component name → residency group."""
        return {name: where.group for name, where in self.located.items()}

    @property
    def preset_layer(self) -> Layer:
        """The checkpoint's defaults as the weakest layer."""
        return Layer("preset", dict(self.preset_defaults), source=self.spec.id)

    def build(self, layers: Sequence[Layer]) -> Built[SamplingParams]:
        """Validated parameters of one prompt; `layers` strongest first, the preset is added."""
        return build(self.params_class, [*layers, self.preset_layer])

    def describe(self, params: SamplingParams | None = None) -> dict[str, Any]:
        """What would be loaded and run, as JSON values; reads headers only."""
        from sgld.memory import memory_plan  # noqa: PLC0415  (may need torch for dummy weights)

        entry = self.recognition.entry
        plan: dict[str, Any] = {
            "model": self.files.name,
            "path": str(self.files.root),
            "pipeline": entry.spec.id,
            "plugin": f"{entry.dist} {entry.version}".strip(),
            "evidence": self.recognition.evidence,
            "components": memory_plan(self),
        }
        if params is not None:
            plan["request"] = params.model_dump(mode="json")
            plan["schedule"] = {
                "steps": params.num_inference_steps,
                "forwards_per_step": 2 if params.uses_cfg else 1,
            }
        return plan

    def close(self) -> None:
        """Remove the temporary checkpoint, if there is one. Safe to call again."""
        if self._folder is not None:
            self._folder.cleanup()


def make_plan(options: ServingOptions, *, environ: Mapping[str, str] | None = None) -> ModelPlan:
    """Decide how `options.model_path` is served.

    Raises:
        ModelError: the model is not found, not recognised, ambiguous or incomplete.
        FeatureError: something asked for is not offered; all reasons at once.
        ParameterError: an option names a component that the model does not have.
        PluginError: the plugin that serves the model is broken.
    """
    environ = os.environ if environ is None else environ
    catalog = load_catalog(environ, prefer=options.prefer, strict=options.strict_plugins)
    folder = _blueprint(options, catalog)
    try:
        return _decide(options, catalog, folder)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise


def _blueprint(
    options: ServingOptions, catalog: Catalog
) -> tempfile.TemporaryDirectory[str] | None:
    """Write the checkpoint of `tiny:NAME` or `config:NAME` into a temporary folder."""
    path = options.model_path
    if path.startswith(TINY):
        entry, target = catalog.blueprint(path.removeprefix(TINY), "tiny")
    elif path.startswith(CONFIG):
        entry, target = catalog.blueprint(path.removeprefix(CONFIG))
        if options.load_format != "dummy":
            raise UserError(
                f"model_path={path!r}: this is a configuration without weights.",
                remedy="Add --load-format dummy to run it with random weights.",
            )
    else:
        return None
    write = load_target(target, entry)
    folder = tempfile.TemporaryDirectory(prefix="sgld-")
    try:
        write(_inside(folder, path))
    except BaseException:
        folder.cleanup()
        raise
    return folder


def _inside(folder: tempfile.TemporaryDirectory[str], path: str) -> Path:
    return Path(folder.name) / path.partition(":")[2].replace(":", "-")


def _decide(
    options: ServingOptions, catalog: Catalog, folder: tempfile.TemporaryDirectory[str] | None
) -> ModelPlan:
    if folder is not None:
        files = resolve(str(_inside(folder, options.model_path)))
    else:
        files = resolve(options.model_path, revision=options.revision, model_id=options.model_id)
    recognition = catalog.recognise(
        files, pipeline=options.pipeline_class_name or "", model_id=options.model_id or ""
    )
    entry = recognition.entry
    overrides = ComponentOverrides.build(
        options.component_paths, options.component_weights_paths, options.component_precisions
    )
    if options.load_format != "dummy":
        check_complete(files, overrides)
    if entry.spec.layout:
        located = load_target(entry.spec.layout, entry)(files, overrides)
    else:
        located = diffusers_layout(files, entry.spec.components, overrides)
    by_name = {where.name: where for where in located}
    residency = resolve_residency(
        options.residency, {name: where.group for name, where in by_name.items()}
    )
    _refuse(entry.spec, options, residency)
    return ModelPlan(
        options=options,
        catalog=catalog,
        files=files,
        recognition=recognition,
        params_class=load_target(entry.spec.params, entry),
        preset_defaults=catalog.preset(entry.spec, files, model_id=options.model_id or ""),
        located=by_name,
        residency=residency,
        precisions={name: overrides.precision(name, options.dtype) for name in by_name},
        _folder=folder,
    )


def _refuse(spec: PipelineSpec, options: ServingOptions, residency: Mapping[str, str]) -> None:
    """Refuse, all at once, what the pipeline did not list as a feature."""
    asked: list[tuple[str, str]] = []
    for name, mode in residency.items():
        if mode == "component-offload":
            asked.append((f"--residency {name}={mode}", features.COMPONENT_OFFLOAD))
        if mode == "layerwise-offload":
            asked.append((f"--residency {name}={mode}", features.LAYERWISE_OFFLOAD))
    if options.load_format == "dummy":
        asked.append(("--load-format dummy", features.DUMMY_WEIGHTS))
    if isinstance(options.batching, int) and options.batching > 1:
        asked.append((f"--batching {options.batching}", features.STEP_BATCHING))
    if options.vae_tiling:
        asked.append(("--vae-tiling", features.VAE_TILING))
    reasons = [
        f"{flag}: pipeline {spec.id} does not list {feature!r}"
        for flag, feature in asked
        if feature not in spec.features
    ]
    if reasons:
        listed = ", ".join(sorted(spec.features)) or "none"
        raise FeatureError(
            f"{spec.id} cannot be served like this: " + "; ".join(reasons) + ".",
            remedy=f"Features of {spec.id}: {listed}.",
        )
