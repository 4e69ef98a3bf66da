"""`ModelFiles`: what a model path became, and safe ways to look into it. Torch-free.

Everything that recognises or loads a model asks this object instead of touching paths itself, so a
local folder, a hub snapshot and a single weight file look alike.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sgld.api.errors import ModelError

Origin = Literal["local", "hub"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model.

    Args:
        root: folder holding the files; for a single weight file, the folder it lies in.
        name: last part of what the user wrote, never empty; the default served model name.
        repo_id: hub id these files are taken for, if any is known.
        revision: commit of the hub snapshot, or the revision asked for.
        file: the weight file, when the user named one file; its neighbours are then invisible,
            because they may belong to another model.
        origin: `hub` when the files lie in the hub cache.
    """

    root: Path
    name: str
    repo_id: str | None = None
    revision: str | None = None
    file: Path | None = None
    origin: Origin = "local"

    def path(self, relative: str) -> Path:
        """The path of `relative` inside the model; nothing is checked."""
        return self.root / relative

    def exists(self, relative: str) -> bool:
        """Whether `relative` is there and readable as a target; a dangling symlink is not."""
        return self._visible(self.root / relative) and os.path.exists(self.root / relative)

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """The JSON object in `relative`, None when the file is missing.

        Raises:
            ModelError: the file is there but is not a JSON object (`checkpoint_incomplete`).
        """
        if not self.exists(relative):
            return None
        return read_json(self.root / relative)

    def glob(self, pattern: str) -> list[Path]:
        """Paths matching `pattern` below the root, sorted; dangling symlinks are left out."""
        found = (path for path in self.root.glob(pattern) if self._visible(path))
        return sorted(path for path in found if os.path.exists(path))

    def _visible(self, path: Path) -> bool:
        return self.file is None or path == self.file


def is_offline() -> bool:
    """Whether the hub's offline mode is on (`HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`)."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        ModelError: unreadable, not JSON, or not an object (`checkpoint_incomplete`).
    """
    remedy = "The file is damaged or half downloaded; fetch it again."
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        message = f"{path}: not valid JSON ({error})."
        raise ModelError(message, code="checkpoint_incomplete", remedy=remedy) from None
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror or error})."
        raise ModelError(message, code="checkpoint_incomplete", remedy=remedy) from None
    if not isinstance(value, dict):
        message = f"{path}: holds a JSON {type(value).__name__}, an object was expected."
        raise ModelError(message, code="checkpoint_incomplete", remedy=remedy)
    return value
