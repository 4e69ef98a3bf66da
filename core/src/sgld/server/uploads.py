"""Pictures that clients sent, kept until the job that needs them has ended.

    uploads = Uploads(state / "uploads")
    name = uploads.save(data, ".png")      # 32 hexadecimal digits and the ending
    uploads.read(name); uploads.delete(name)

Names are made here: what a client calls its file never reaches the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sgld.api.errors import RequestError, UserError

NAME: Final = re.compile(r"[0-9a-f]{32}\.[a-z0-9]{1,8}")
SUFFIX: Final = re.compile(r"\.?([a-z0-9]{1,8})", re.ASCII)
PARTIAL: Final = ".partial"


class Uploads:
    """A folder of uploads that only the server's own user can read; see the module's text."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(
                f"The folder for uploads {self._folder} cannot be made: {error.strerror}.",
                remedy="Choose another --state-path.",
            ) from error

    def save(self, data: bytes, suffix: str = ".bin") -> str:
        """Keep `data` and return its name. `suffix` such as `.png` must be the server's finding;
        anything that does not look like one becomes `.bin`.

        Raises:
            RequestError: `upload_failed`, the file could not be written; nothing was left.
        """
        fitting = SUFFIX.fullmatch(suffix.lower())
        name = f"{uuid.uuid4().hex}.{fitting[1] if fitting else 'bin'}"
        partial = self._folder / f"{name}{PARTIAL}"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise RequestError(
                f"An upload could not be kept: {error.strerror}.",
                code="upload_failed",
                remedy="The server's state folder needs space.",
            ) from error
        return name

    def read(self, name: str) -> bytes:
        """What was saved under `name`; `ValueError` for a name that was not made here.

        Raises:
            RequestError: `upload_missing`, the file is gone or cannot be read.
        """
        try:
            return self._path(name).read_bytes()
        except OSError as error:
            raise RequestError(
                f"The upload {name} cannot be read: {error.strerror}.",
                code="upload_missing",
                remedy="Send the request again.",
            ) from error

    def delete(self, name: str) -> None:
        """Delete one upload; nothing happens when it is not there."""
        self._path(name).unlink(missing_ok=True)

    def remove_orphans(self, in_use: Collection[str], before: float) -> int:
        """Delete uploads that are not in `in_use` and were written before that time (seconds
        since 1970), and what is left of broken writes; returns how many files went."""
        count = 0
        for entry in list(os.scandir(self._folder)):
            name = entry.name.removesuffix(PARTIAL)
            if not NAME.fullmatch(name) or entry.name in in_use or not entry.is_file():
                continue
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)
                    count += 1
        return count

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an upload")
        return self._folder / name
