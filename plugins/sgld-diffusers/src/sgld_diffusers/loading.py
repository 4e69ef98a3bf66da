"""Loads a checkpoint's components one by one, and the pipeline object around them."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog
import torch
from torch import nn

from sgld.api.errors import ModelError, SgldError
from sgld.engine.loading import Loader
from sgld.weights.components import Listed
from sgld.weights.layout import Located
from sgld_diffusers.blank import blank
from sgld_diffusers.checkpoint import ClassPlace, modules_of, pipeline_class
from sgld_diffusers.inspecting import wanted_class

WEIGHTS: Final = re.compile(
    r"(?:diffusion_pytorch_)?model(?:\.(?P<variant>[a-z]\w*))?(?:-\d+-of-\d+)?\.safetensors"
)

log = structlog.get_logger("sgld.diffusers")


def load_pipeline(loader: Loader) -> tuple[Any, dict[str, nn.Module]]:
    """The pipeline object and its components that have weights, each where its residency wants it.

    Raises ModelError with the reason when diffusers cannot load it.
    """
    place = pipeline_class(loader.files, wanted_class(loader.pipeline_class))
    pipeline = _class(place)
    listed = modules_of(loader.files)
    modules: dict[str, nn.Module] = {}
    with _quiet():
        for name, where in loader.located.items():
            with _said(f"component {name!r}"):
                modules[name] = _component(loader, listed[name], where)
    if loader.vae_tiling:
        for name, module in modules.items():
            tile: Any = getattr(module, "enable_tiling", None)
            if tile is not None and loader.located[name].group == "vae":
                tile()
    trust = {"trust_remote_code": True} if loader.trust_remote_code else {}
    with _quiet(), _said(f"pipeline {place.name}"):
        made = pipeline.from_pretrained(
            str(loader.files.root), local_files_only=True, **modules, **trust
        )
    return made, modules


def _class(place: ClassPlace) -> Any:
    """The pipeline class; only now is its module imported."""
    with _said(f"pipeline class {place.name}"):
        if place.file is None:
            return getattr(importlib.import_module(place.module), place.name)
        # Allowed by --trust-remote-code, or `inspect` had refused the checkpoint.
        name = f"sgld_diffusers_remote_{place.file.stem}"
        spec = importlib.util.spec_from_file_location(name, place.file)
        if spec is None or spec.loader is None:
            raise ModelError(f"{place.file} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return getattr(module, place.name)


def _component(loader: Loader, listed: Listed, where: Located) -> nn.Module:
    """One component in its precision, on the device or on the host."""
    name, dtype = where.name, loader.dtypes[where.name]
    cls = component_class(listed)
    if loader.dummy:
        return loader.module(name, blank(cls, where)).eval()
    total = _bytes(where)
    if loader.progress is not None:
        loader.progress(name, 0, total)
    arguments: dict[str, Any] = {"local_files_only": True}
    if not loader.allow_pickle:
        arguments["use_safetensors"] = True
    if loader.trust_remote_code:
        arguments["trust_remote_code"] = True
    if variant := _variant(where):
        arguments["variant"] = variant
    word = "torch_dtype" if listed.library == "diffusers" else "dtype"
    module, told = cls.from_pretrained(
        str(where.folder), **{word: dtype}, output_loading_info=True, **arguments
    )
    _check_told(name, told, module)
    module = module.eval().to(loader.home(name))
    if loader.progress is not None:
        loader.progress(name, total, total)
    return module


def _variant(where: Located) -> str:
    """The variant of the weight files (`fp16` of `model.fp16.safetensors`) where no others are
    there; empty where the usual ones are."""
    names = [path.name for path in where.folder.iterdir()] if where.folder is not None else []
    found = [match for match in map(WEIGHTS.fullmatch, names) if match is not None]
    variants = sorted({match["variant"] or "" for match in found})
    return variants[0] if variants else ""


def _check_told(name: str, told: Mapping[str, Any], module: nn.Module) -> None:
    """Both libraries fill what a checkpoint lacks with random numbers, and only mention it."""
    lacking = _untied({str(key) for key in told.get("missing_keys") or ()}, module)
    unfit = [str(row) for row in told.get("mismatched_keys") or ()]
    if lacking or unfit:
        parts = [f"{len(lacking)} tensors are missing" if lacking else "",
                 f"{len(unfit)} have another shape" if unfit else ""]  # fmt: skip
        some = ", ".join((lacking + unfit)[:5])
        raise ModelError(
            f"component {name!r}: {' and '.join(part for part in parts if part)}: {some}.",
            code="checkpoint_incomplete",
            remedy="Fetch the component again; it does not belong to this class.",
        )


def _untied(missing: set[str], module: nn.Module) -> list[str]:
    """The missing tensors that are not another name of one that is there."""
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    there = {id(tensor) for name, tensor in tensors.items() if name not in missing}
    return sorted(name for name in missing if id(tensors.get(name)) not in there)


def component_class(listed: Listed) -> Any:
    """The class of a component: of a library, or of the module of a diffusers pipeline."""
    if listed.library in ("diffusers", "transformers"):
        return getattr(importlib.import_module(listed.library), listed.class_name)
    folder = importlib.import_module("diffusers.pipelines")
    if hasattr(folder, listed.library):
        return getattr(getattr(folder, listed.library), listed.class_name)
    return getattr(importlib.import_module(listed.library), listed.class_name)


def _bytes(where: Located) -> int:
    sources = [where.weights] if isinstance(where.weights, Path) else list(where.weights)
    files = [path for path in sources if path.is_file()]
    folders = [path for path in sources if path.is_dir()]
    files += [path for folder in folders for path in folder.iterdir() if path.is_file()]
    return sum(path.stat().st_size for path in files)


class _said:
    """Turns whatever a library raises while loading into a ModelError that names the part."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        fatal = (SgldError, MemoryError, torch.OutOfMemoryError)
        if error is None or not isinstance(error, Exception) or isinstance(error, fatal):
            return
        said = str(error).rstrip(". \n")
        raise ModelError(
            f"{self._what} cannot be loaded: {type(error).__name__}: {said}.",
            remedy="Check that the installed diffusers and transformers know this checkpoint.",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' progress bars: loading is reported by the engine."""
    from diffusers.utils import logging as ours  # noqa: PLC0415  (seconds, only when loading)
    from transformers.utils import logging as theirs  # noqa: PLC0415

    shown = [lib for lib in (ours, theirs) if lib.is_progress_bar_enabled()]
    for lib in shown:
        lib.disable_progress_bar()
    try:
        yield
    finally:
        for lib in shown:
            lib.enable_progress_bar()
