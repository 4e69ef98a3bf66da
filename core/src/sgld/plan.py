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
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sgld import bundled
from sgld.admission import check_early, check_features, check_options, guidance_reasons
from sgld.api.errors import ModelError, PluginError
from sgld.api.specs import CacheSpec, ModelSpec, PipelineSpec, RealtimeSpec
from sgld.blueprints import backend_of, blueprint_of, inside, is_made, write
from sgld.decisions import Wishes, choose_wishes, only_of, refuse_other, repeat, write_down
from sgld.params.inspected import Inspected
from sgld.params.merge import Built, Layer, build
from sgld.params.sampling import SamplingParams
from sgld.params.serving import MAX_RUNNING, ServingOptions, resolve_residency
from sgld.plugins.backends import AUTO
from sgld.plugins.catalog import Catalog, load_catalog, load_target, refuse_failures
from sgld.plugins.lock import Lock, read_lock, write_lock
from sgld.plugins.match import NameOnly
from sgld.plugins.recognise import Recognition
from sgld.plugins.report import summary_line
from sgld.plugins.resolve import Entry
from sgld.weights.complete import check_complete
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located, diffusers_layout
from sgld.weights.overrides import ComponentOverrides
from sgld.weights.resolve import resolve


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
        carried: the record of a model that a distribution brings along.
        picture: file that a session begins with when it names no picture; empty: there is none.
        blank: file that stands for no picture, and that a request without one begins with.
        located: component name → its configuration and weights.
        residency: component name → mode.
        precisions: component name → precision word.
        cache_policy: what the user picked; None: the family's own.
        lock: the decision as data, for the engine's process and for repeating the run.
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
    cache_policy: Entry[CacheSpec] | None
    lock: Lock
    carried: ModelSpec | None = None
    picture: str = ""
    blank: str = ""
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
    def tasks(self) -> tuple[str, ...]:
        """What this checkpoint can do, such as `text-to-video`."""
        own = self.carried.tasks if self.carried else ()
        return own or (self.params_class.tasks if self.spec.inspect else self.spec.tasks)

    @property
    def max_running(self) -> int:
        """Requests that are driven at once."""
        return self.options.max_running or min(self.spec.max_running or MAX_RUNNING, MAX_RUNNING)

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
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with plugins that this model does without, one line each."""
        broken = [str(row.failure) for row in self.recognition.tried if row.failure is not None]
        notes = [str(row) for row in self.catalog.failures if row.code == "SGLD-P006"]
        return tuple(line for line in (summary_line(self.catalog), *notes, *broken) if line)

    @property
    def components(self) -> Mapping[str, str]:
        """Component name → residency group."""
        return {name: where.group for name, where in self.located.items()}

    @property
    def preset_layer(self) -> Layer:
        """The checkpoint's defaults as the weakest layer."""
        return Layer("preset", dict(self.preset_defaults), source=self.spec.id)

    @property
    def local_layer(self) -> Layer:
        """The same with the model's own picture, for requests that may name files of this
        machine."""
        return self._with_picture(self.blank or self.picture)

    @property
    def session_layer(self) -> Layer:
        """The same for sessions."""
        return self._with_picture(self.picture or self.blank)

    def _with_picture(self, path: str) -> Layer:
        layer = self.preset_layer
        more = {"image_path": path} if path else {}
        return layer._replace(values={**layer.values, **more})

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

    @property
    def local_layer(self) -> Layer:
        """Such a model has no picture of its own."""
        return self.preset_layer


def sketch(options: ServingOptions, *, environ: Mapping[str, str] | None = None) -> Sketch | None:
    """The parameters of a `tiny:` or `config:` model; None for every other model, which is planned
    without being written. Raises as `make_plan` does for what needs no checkpoint.
    """
    if not is_made(options.model_path):
        return None
    environ = os.environ if environ is None else environ
    catalog, lock = _plugins(options, environ, None)
    entry, _ = blueprint_of(options, catalog)
    if entry.spec.inspect:
        return None  # only the written checkpoint can say
    check_options(options, catalog)
    _wishes(entry, options, catalog, lock)
    known = NameOnly(options.model_id or "")
    defaults = catalog.preset(entry.spec, known, model_id=options.model_id or "")
    layer = Layer("preset", defaults, source=entry.spec.id)
    return Sketch(load_target(entry.spec.params, entry), layer)


def _wishes(
    entry: Entry[PipelineSpec], options: ServingOptions, catalog: Catalog, lock: Lock | None
) -> Wishes:
    """What is decided without a checkpoint; raises for what can be refused without one."""
    if lock is not None:
        refuse_other(entry.spec, lock)
    wishes, spec = choose_wishes(entry.spec, options, catalog, lock), entry.spec
    own = [] if spec.inspect else guidance_reasons(spec, load_target(spec.params, entry))
    check_early(spec, options, (*own, *wishes.refused))
    return wishes


def make_plan(
    options: ServingOptions,
    *,
    environ: Mapping[str, str] | None = None,
    isolate: bool = False,
    catalog: Catalog | None = None,
    lock: Lock | None = None,
) -> ModelPlan:
    """Decide how `options.model_path` is served.

    With `isolate` a `tiny:` checkpoint is written by a process of its own, so that this one does
    not load torch for it. `catalog`: these plugins instead of those that are installed. `lock`:
    what a parent process decided, which is obeyed; no variable is read and no plugin looked for.

    Raises:
        ModelError: the model is not found, not recognised, ambiguous or incomplete.
        FeatureError: something asked for is not offered; all reasons at once.
        ParameterError: an option names a component that the model does not have.
        PluginError: the plugin that serves the model is broken, or a lock does not fit.
    """
    environ = os.environ if environ is None else environ
    if catalog is None:
        catalog, lock = _plugins(options, environ, lock)
    check_options(options, catalog)
    folder = None
    if is_made(options.model_path):
        entry, target = blueprint_of(options, catalog)
        _wishes(entry, options, catalog, lock)
        folder = write(options, entry, target, isolate=isolate)
    try:
        plan = _decide(options, catalog, folder, environ, lock)
        if options.write_lock is not None:
            write_lock(plan.lock, options.write_lock)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise
    return plan


def _plugins(
    options: ServingOptions, environ: Mapping[str, str], lock: Lock | None
) -> tuple[Catalog, Lock | None]:
    """The plugins, and the lock that names them if there is one: a parent's or the user's."""
    if lock is not None:
        return repeat(lock, options), lock
    if options.lock is None:
        catalog = load_catalog(environ, prefer=options.prefer, strict=options.strict_plugins)
        return catalog, None
    lock = read_lock(options.lock)
    catalog = repeat(lock, options, environ)
    refuse_failures(catalog, environ, strict=options.strict_plugins)
    return catalog, lock


def _decide(
    options: ServingOptions,
    catalog: Catalog,
    folder: tempfile.TemporaryDirectory[str] | None,
    environ: Mapping[str, str],
    lock: Lock | None,
) -> ModelPlan:
    carried = bundled.entry_of(options.model_path, catalog)
    if folder is not None:
        files = resolve(str(inside(folder, options.model_path)))
    elif carried is not None:
        files = bundled.files_of(carried, options)
    else:
        bundled.refuse_unknown(options.model_path, catalog)
        files = resolve(options.model_path, revision=options.revision, model_id=options.model_id)
    try:
        recognition = catalog.recognise(
            files,
            pipeline=options.pipeline_class_name or (carried.spec.pipeline if carried else ""),
            model_id=options.model_id or "",
            backend=_backend(options, catalog, lock),
        )
    except ModelError as error:
        if lock is not None:
            error.remedy = f"{error.remedy} {only_of(lock)}".strip()
        raise
    if carried is not None and not options.pipeline_class_name:
        recognition = recognition._replace(evidence=f"carried by {carried.owner}")
    entry = recognition.entry
    wishes = _wishes(entry, options, catalog, lock)
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
    inspected = _inspect(entry, files, options)
    check_features(
        entry.spec,
        options,
        residency,
        (*guidance_reasons(entry.spec, inspected.params), *inspected.refusals, *wishes.refused),
    )
    decisions = wishes.granted()
    return ModelPlan(
        options=options,
        catalog=catalog,
        files=files,
        recognition=recognition,
        params_class=inspected.params,
        preset_defaults={
            **catalog.preset(entry.spec, files, model_id=options.model_id or ""),
            **(carried.spec.defaults if carried else {}),
        },
        located=by_name,
        residency=residency,
        precisions={name: overrides.precision(name, options.dtype) for name in by_name},
        cache_policy=decisions.cache,
        lock=write_down(catalog, entry.spec, decisions, options, environ, lock),
        carried=carried.spec if carried else None,
        picture=bundled.picture_of(carried) if carried else "",
        blank=bundled.blank_of(carried) if carried else "",
        _folder=folder,
    )


def _inspect(entry: Entry[PipelineSpec], files: ModelFiles, options: ServingOptions) -> Inspected:
    """The parameters of this checkpoint: the family's, unless the pipeline asks each one."""
    if entry.spec.inspect:
        return load_target(entry.spec.inspect, entry)(files, options)
    return Inspected(load_target(entry.spec.params, entry))


def _backend(options: ServingOptions, catalog: Catalog, lock: Lock | None) -> str:
    """The backend to ask: that of the lock's pipeline, if there is a lock."""
    if options.backend == AUTO and lock is not None and lock.pipeline in catalog.pipelines:
        return catalog.pipelines[lock.pipeline].spec.backend
    return backend_of(options, catalog)
