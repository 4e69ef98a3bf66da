"""What is refused before a weight is read: names that nothing here has, and wishes that the
pipeline does not fulfil. Torch-free.

    check_options(options, catalog)            device, attention backends, pins, model id
    check_early(spec, options, refused)        what needs no checkpoint to be refused
    check_features(spec, options, residency)   what the pipeline does not list as a feature
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from sgld.api import features
from sgld.api.errors import DeviceError, FeatureError, ParameterError, Problem
from sgld.api.specs import PipelineSpec
from sgld.params.nearest import did_you_mean
from sgld.params.sampling import SamplingParams
from sgld.params.serving import ServingOptions, resolve_residency
from sgld.plugins.catalog import Catalog
from sgld.plugins.choose import choose_platform


def check_options(options: ServingOptions, catalog: Catalog) -> None:
    """Refuse, all at once, names that nothing here has: device, attention, pins, model id."""
    problems = [*_device_problems(options, catalog), *_pin_problems(options, catalog)]
    for role, name in options.attention.items():
        if name != "auto" and name not in catalog.attention:
            shown = name if role == "all" else f"{role}={name}"
            remedy = f"There are: auto, {', '.join(sorted(catalog.attention))}."
            problems.append(Problem("attention", shown, "there is no such backend.", remedy))
    if options.model_id and not _is_claimed(options.model_id, catalog):
        claimed = {name for entry in catalog.pipelines.values() for name in entry.spec.claims.repos}
        remedy = did_you_mean(options.model_id, claimed) or "`sgld models list` shows families."
        message = "no plugin knows this id, so it would change nothing."
        problems.append(Problem("model_id", options.model_id, message, remedy))
    if problems:
        raise ParameterError(problems)


def _device_problems(options: ServingOptions, catalog: Catalog) -> list[Problem]:
    """Whether the named device is there; asked of the driver, without torch."""
    name, _, index = options.device.partition(":")
    if name == "auto":
        return [Problem("device", options.device, "auto takes no number.")] if index else []
    names = ", ".join(["auto", *sorted(catalog.platforms)])
    if name not in catalog.platforms:
        message = "there is no such platform."
        return [Problem("device", options.device, message, f"There are: {names}.")]
    try:
        devices = choose_platform(catalog.platforms.values(), prefer=name).probe.devices
    except DeviceError as error:
        remedy = "Use device=auto to take what there is."
        return [Problem("device", options.device, error.message, remedy)]
    if index and int(index) >= len(devices):
        last = f"{name}:{len(devices) - 1}"
        return [Problem("device", options.device, f"the last one here is {last}.")]
    return []


def _pin_problems(options: ServingOptions, catalog: Catalog) -> list[Problem]:
    dists = sorted({row.dist for row in catalog.plugins})
    problems: list[Problem] = []
    for key, dist in options.prefer.items():
        kind, _, name = key.partition(":")
        records = catalog.entries.get(kind, {})
        shown = f"{key}={dist}"
        if name not in records:
            message = f"no plugin brings {kind} {name!r}."
            remedy = did_you_mean(name, records) if records else "`sgld plugins list` shows all."
            problems.append(Problem("prefer", shown, message, remedy))
        elif dist not in dists:
            message = f"no distribution {dist!r} brings a plugin."
            problems.append(Problem("prefer", shown, message, did_you_mean(dist, dists)))
    return problems


def _is_claimed(model_id: str, catalog: Catalog) -> bool:
    """Whether an id, with or without its organisation, is one that some plugin names."""
    wanted = model_id.lower()
    for entry in catalog.pipelines.values():
        claims = entry.spec.claims
        repos = [name for preset in entry.spec.presets for name in preset.repos]
        for name in (*claims.repos, *claims.aliases, *repos):
            if wanted in (name.lower(), name.lower().rpartition("/")[2]):
                return True
        short = wanted.rpartition("/")[2]
        if any(fnmatchcase(short, pattern.lower()) for pattern in claims.patterns):
            return True
    return False


def component_problems(spec: PipelineSpec, options: ServingOptions) -> list[Problem]:
    """Overrides of components that no checkpoint of this pipeline has."""
    tables = {
        "component_path": options.component_paths,
        "component_weights_path": options.component_weights_paths,
        "component_precision": options.component_precisions,
    }
    return [
        Problem(
            f"{table}.{name}",
            value,
            f"this model has no component {name!r}.",
            did_you_mean(name, spec.components),
            "unknown_component",
        )
        for table, values in tables.items()
        for name, value in values.items()
        if spec.components and name not in spec.components
    ]


def check_early(spec: PipelineSpec, options: ServingOptions, refused: Sequence[str] = ()) -> None:
    """Refuse, all at once, what needs no checkpoint to be refused: before files are looked for, and
    before a tiny one is written. `refused` are reasons that were found elsewhere.

    Raises:
        ParameterError: nothing is wrong but overrides of components that the pipeline lacks.
        FeatureError: everything else, with such overrides.
    """
    problems = component_problems(spec, options)
    if spec.inspect and not problems:
        return  # the checkpoint may give further reasons, and all are told at once
    reasons = [*feature_reasons(spec, options, _asked_residency(spec, options)), *refused]
    if problems and not reasons:
        raise ParameterError(problems)
    refuse(spec, [*(str(problem).rstrip(".") for problem in problems), *reasons])


def _asked_residency(spec: PipelineSpec, options: ServingOptions) -> dict[str, str]:
    """The modes that are asked for; selectors that fit no component of the family are left out."""
    if not spec.components:
        return dict(options.residency)
    names = {*spec.components, *spec.components.values(), "all"}
    known = {key: mode for key, mode in options.residency.items() if key in names}
    return resolve_residency(known, spec.components)


def feature_reasons(
    spec: PipelineSpec, options: ServingOptions, residency: Mapping[str, str]
) -> list[str]:
    """What is asked for and not listed as a feature of the pipeline, in words; docs/plugins.md has
    the table."""
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
    if options.trust_remote_code:
        asked.append(("--trust-remote-code", features.REMOTE_CODE))
    reasons = [
        f"{flag}: pipeline {spec.id} does not list {feature!r}"
        for flag, feature in asked
        if feature not in spec.features
    ]
    if spec.max_running and (options.max_running or 0) > spec.max_running:
        most = f"pipeline {spec.id} runs at most {spec.max_running} at once"
        reasons.append(f"--max-running {options.max_running}: {most}")
    return reasons


def guidance_reasons(spec: PipelineSpec, params: type[SamplingParams]) -> list[str]:
    """Guidance by two passes that the parameters offer and the pipeline does not."""
    if params.guidance != "cfg" or features.CFG in spec.features:
        return []
    text = f"pipeline {spec.id} does not list {features.CFG!r}, though its parameters offer it"
    return [f"guidance_scale: {text} (for {spec.id}'s author to mend)"]


def check_features(
    spec: PipelineSpec,
    options: ServingOptions,
    residency: Mapping[str, str],
    refusals: Sequence[str] = (),
) -> None:
    """Refuse, all at once, what the pipeline did not list as a feature, and what it or others found
    that cannot be had (`refusals`)."""
    refuse(spec, [*feature_reasons(spec, options, residency), *refusals])


def refuse(spec: PipelineSpec, reasons: Sequence[str]) -> None:
    """Raise FeatureError with all reasons; nothing when there is none."""
    if reasons:
        listed = ", ".join(sorted(spec.features)) or "none"
        raise FeatureError(
            f"{spec.id} cannot be served like this: " + "; ".join(reasons) + ".",
            remedy=f"Features of {spec.id}: {listed}.",
        )
