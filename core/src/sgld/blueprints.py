"""Models that are made on the spot: `tiny:NAME` is a small random checkpoint, `config:NAME` the
configuration of a real size without weights. Torch-free.

    is_made(path)                    whether a model path names one
    blueprint_of(options, catalog)   the pipeline, and the target that writes it
    backend_of(options, catalog)     the backend that serves it
    write(options, entry, target)    the checkpoint in a temporary folder
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sgld.api.errors import UserError
from sgld.api.specs import PipelineSpec
from sgld.plugins.backends import AUTO
from sgld.plugins.catalog import Catalog, load_target
from sgld.plugins.resolve import Entry

if TYPE_CHECKING:
    from sgld.params.serving import ServingOptions  # pydantic; only those who serve need it

TINY: Final = "tiny:"
CONFIG: Final = "config:"
Folder = tempfile.TemporaryDirectory[str]


def is_made(path: str) -> bool:
    """Whether a model path names a checkpoint that is still to be written."""
    return path.startswith((TINY, CONFIG))


def blueprint_of(options: ServingOptions, catalog: Catalog) -> tuple[Entry[PipelineSpec], str]:
    """The pipeline and the writing function of a `tiny:` or `config:` path.

    Raises UserError when there is none, or when it needs another load format.
    """
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


def backend_of(options: ServingOptions, catalog: Catalog) -> str:
    """The backend to ask: the user's choice, else that of whoever writes the checkpoint."""
    if options.backend != AUTO or not is_made(options.model_path):
        return options.backend
    return blueprint_of(options, catalog)[0].spec.backend


def write(
    options: ServingOptions, entry: Entry[PipelineSpec], target: str, *, isolate: bool
) -> Folder:
    """Write the checkpoint into a temporary folder, which the caller removes.

    With `isolate` a process of its own does it, so that this one does not load torch for it.
    """
    put = partial(_write_apart, target) if isolate else load_target(target, entry)
    folder = tempfile.TemporaryDirectory(prefix="sgld-")
    try:
        put(inside(folder, options.model_path))
    except BaseException:
        folder.cleanup()
        raise
    return folder


def inside(folder: Folder, path: str) -> Path:
    """Where in the folder the checkpoint lies; its name is the model's."""
    return Path(folder.name) / path.partition(":")[2].replace(":", "-")


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
