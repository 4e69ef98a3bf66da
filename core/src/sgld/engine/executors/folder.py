"""A temporary folder for one owner that does not outlive it for long.

A process that is killed cannot tidy up, so whoever makes such a folder next removes those without
an owner. An owner holds a file lock, which the kernel drops however the owner ends; process ids
would not do, since containers that share a folder do not share those. Torch-free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "sgld-engine-"


class OwnedFolder:
    """A private folder, removed by `close`. `parent` is the system's temporary folder if None."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self._sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def empty(self) -> None:
        """Remove what is inside."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder. Safe to call again."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _sweep(self) -> None:
        for path in self._parent.glob(f"{PREFIX}*"):
            with suppress(OSError):  # another user's, or already gone
                lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                finally:
                    os.close(lock)
