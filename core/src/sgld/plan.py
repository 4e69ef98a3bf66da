"""From options to a decision, before anything heavy is imported or read: which plugin, which files,
which components, what is refused.

    plan = make_plan(ServingOptions.model_validate({"model_path": "..."}))
    plan.build(layers)          validated parameters of a request
    sketch(options)             the parameters of a `tiny:` or `config:` model, before it is written
    plan.describe(params)       memory and schedule, for --dry-run

Torch-free. A plan owns the temporary folder of a `tiny:` or `config:` model; close it after use.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sgld.admission import check_cache, check_components, check_features, check_options
from sgld.api.errors import PluginError, UserError
from sgld.api.specs import CacheSpec, PipelineSpec, RealtimeSpec
from sgld.params.merge import Built, Layer, build
from sgld.params.sampling import SamplingParams
from sgld.params.serving import ServingOptions, resolve_residency
from sgld.plugins.catalog import Catalog, load_catalog, load_target
from sgld.plugins.match import NameOnly
from sgld.plugins.recognise import Recognition
from sgld.plugins.resolve import Entry
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
        cache_policy: what the user picked; None: the family's own.
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
    cache_policy: Entry[CacheSpec] | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    @property
    def temporary(self) -> bool:
        """Whether the checkpoint was written for this plan and goes with it."""
        return self._folder is not None

    @property
    def spec(self) -> PipelineSpec:
        """The chosen pipeline's record."""
        return self.recognition.entry.spec

    @property
    def adapters(self) -> dict[str, Entry[RealtimeSpec]]:
        """Realtime adapters of the chosen pipeline by id; none: it holds no sessions."""
        rows = sorted(self.catalog.realtime.items())
        return {name: entry for name, entry in rows if entry.spec.pipeline == self.spec.id}

    @property
    def adapter(self) -> Entry[RealtimeSpec] | None:
        """The adapter that sessions use.

        Raises PluginError when several plugins bring one and nobody said which.
        """
        found = self.adapters
        if len(found) > 1:
            names = ", ".join(f"{name} ({entry.dist})" for name, entry in found.items())
            raise PluginError(
                f"{self.spec.id} has several realtime adapters: {names}.",
                remedy="Leave one of these plugins out with SGLD_PLUGINS.",
            )
        return next(iter(found.values()), None)

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
        from sgld.memory import device_bytes, memory_plan  # noqa: PLC0415  (opens every file)

        components = memory_plan(self)
        entry = self.recognition.entry
        plan: dict[str, Any] = {
            "model": self.files.name,
            "path": str(self.files.root),
            "pipeline": entry.spec.id,
            "plugin": f"{entry.dist} {entry.version}".strip(),
            "evidence": self.recognition.evidence,
            "components": components,
            "device_bytes": device_bytes(components),
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


class Sketch(NamedTuple):
    """What is known of a model whose checkpoint is still to be written: enough to refuse a request
    before anything heavy is imported."""

    params_class: type[SamplingParams]
    preset_layer: Layer


def sketch(options: ServingOptions, *, environ: Mapping[str, str] | None = None) -> Sketch | None:
    """The parameters of a `tiny:` or `config:` model; None for every other model, which is planned
    without being written. Raises as `make_plan` does for what needs no checkpoint.
    """
    if not options.model_path.startswith((TINY, CONFIG)):
        return None
    environ = os.environ if environ is None else environ
    catalog = load_catalog(environ, prefer=options.prefer, strict=options.strict_plugins)
    entry, _ = _blueprint_of(options, catalog)
    check_options(options, catalog)
    check_components(entry.spec, options)
    known = NameOnly(options.model_id or "")
    defaults = catalog.preset(entry.spec, known, model_id=options.model_id or "")
    layer = Layer("preset", defaults, source=entry.spec.id)
    return Sketch(load_target(entry.spec.params, entry), layer)


def make_plan(
    options: ServingOptions,
    *,
    environ: Mapping[str, str] | None = None,
    isolate: bool = False,
) -> ModelPlan:
    """Decide how `options.model_path` is served.

    With `isolate` a `tiny:` checkpoint is written by a process of its own, so that this one does
    not load torch for it.

    Raises:
        ModelError: the model is not found, not recognised, ambiguous or incomplete.
        FeatureError: something asked for is not offered; all reasons at once.
        ParameterError: an option names a component that the model does not have.
        PluginError: the plugin that serves the model is broken.
    """
    environ = os.environ if environ is None else environ
    catalog = load_catalog(environ, prefer=options.prefer, strict=options.strict_plugins)
    check_options(options, catalog)
    folder = _blueprint(options, catalog, isolate)
    try:
        return _decide(options, catalog, folder)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise


def _blueprint(
    options: ServingOptions, catalog: Catalog, isolate: bool
) -> tempfile.TemporaryDirectory[str] | None:
    """Write the checkpoint of `tiny:NAME` or `config:NAME` into a temporary folder."""
    path = options.model_path
    if not path.startswith((TINY, CONFIG)):
        return None
    entry, target = _blueprint_of(options, catalog)
    write = partial(_write_apart, target) if isolate else load_target(target, entry)
    folder = tempfile.TemporaryDirectory(prefix="sgld-")
    try:
        write(_inside(folder, path))
    except BaseException:
        folder.cleanup()
        raise
    return folder


WRITER = """
import sys
from pathlib import Path
from sgld.plugins.catalog import load_target
load_target(sys.argv[1])(Path(sys.argv[2]))
"""


def _write_apart(target: str, folder: Path) -> None:
    """Write a checkpoint in another process, which imports what this one should not."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)}
    command = [sys.executable, "-c", WRITER, target, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise UserError(f"the checkpoint {folder.name} could not be written: {last}")


def _blueprint_of(options: ServingOptions, catalog: Catalog) -> tuple[Entry[PipelineSpec], str]:
    """The pipeline and the writing function of a `tiny:` or `config:` path."""
    path = options.model_path
    if path.startswith(TINY):
        return catalog.blueprint(path.removeprefix(TINY), "tiny")
    found = catalog.blueprint(path.removeprefix(CONFIG))
    if options.load_format != "dummy":
        raise UserError(
            f"model_path={path!r}: this is a configuration without weights.",
            remedy="Add --load-format dummy to run it with random weights.",
        )
    return found


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
    check_components(entry.spec, options)
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
    check_features(entry.spec, options, residency)
    cache_policy = check_cache(entry.spec, options, catalog)
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
        cache_policy=cache_policy,
        _folder=folder,
    )
