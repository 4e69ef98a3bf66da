"""`LocalOutputs`: results in a folder, `<folder>/<job id>/<index>.<ending>`.

A file appears whole or not at all: it is written under `.partial` first and then renamed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import structlog

from sgld.api.errors import UserError
from sgld.server.outputs.store import KEY, check_key, failed

PARTIAL: Final = ".partial"
OWNER: Final = ".sgld-job-store"
"""Names the job store whose files these are; a second one must not take them for orphans."""
JOB_FOLDER: Final = re.compile(r"(image|video)_[0-9a-f]{32}")
"""What may be an orphan: folders as this server names them, not what else a user keeps here."""

log = structlog.get_logger("sgld.server")


class LocalOutputs:
    """An output store in a local folder; see the module's text."""

    remote = False

    def __init__(self, folder: Path | str) -> None:
        # Absolute, so that a change of the working folder moves nothing.
        self._folder = Path(folder).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def check(self) -> None:
        """Write and delete a small file; `UserError` when the folder cannot be used."""
        try:
            partial = self._partial()
            partial.write_bytes(b"sgld")
            partial.unlink()
        except OSError as error:
            raise self._unusable(error) from error

    def put(self, key: str, path: Path, media_type: str, *, flush: bool = True) -> None:
        """Keep the file at `path`; on the same disk it is linked, not copied.

        Raises:
            RequestError: `output_store_failed`; nothing was left.
        """
        target = self._path(key)
        partial = None
        try:
            source = path.resolve(strict=True)
            if flush:
                _flush(source)
            if not _linked(source, target):
                partial = self._partial()
                _link_or_copy(source, partial)
                if flush:
                    _flush(partial)
                self._place(partial, target)
            if flush:
                _flush(target.parent)
        except OSError as error:
            raise failed(f"keep {key}", error) from error
        finally:
            # Still there after an error, or when it is the very file that was there before.
            if partial is not None:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)

    def url(self, key: str, filename: str = "", expires: float = 3600) -> str | None:
        """None: the server sends local files itself."""
        check_key(key)
        return None

    def open_path(self, key: str) -> Path | None:
        """The file of `key`, or None."""
        path = self._path(key)
        return path if path.is_file() else None

    def read(self, key: str) -> bytes:
        """The file of `key`; `RequestError` (`output_store_failed`) when it cannot be read."""
        try:
            return self._path(key).read_bytes()
        except OSError as error:
            raise failed(f"read {key}", error) from error

    def size(self, key: str) -> int | None:
        """Bytes of the file of `key`, or None."""
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        """Delete the file of `key`, and its folder if that was the last one."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failed(f"delete {key}", error) from error
        with contextlib.suppress(OSError):  # not empty, or gone already
            path.parent.rmdir()

    def remove_orphans(self, job_ids: Collection[str], before: float, owner: str) -> int:
        """Delete old files of unknown jobs and of broken writes; returns how many.

        The first job store that asks owns the folder; for another one nothing is deleted.
        """
        if not self._owned_by(owner):
            log.info("leftovers are not looked for: another job store uses the folder",
                     folder=str(self._folder))  # fmt: skip
            return 0
        count = 0
        for path, job_id in self._files():
            if job_id in job_ids:
                continue
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    count += 1
                    if job_id:
                        path.parent.rmdir()
        return count

    def close(self) -> None:
        """Nothing is held."""

    def _files(self) -> Iterator[tuple[Path, str]]:
        """Every file that this class made, with its job; unfinished ones belong to none."""
        for entry in list(os.scandir(self._folder)):
            if not entry.is_dir(follow_symlinks=False):
                continue
            unfinished = entry.name == PARTIAL
            if not unfinished and not JOB_FOLDER.fullmatch(entry.name):
                continue
            for file in list(os.scandir(entry.path)):
                if unfinished or KEY.fullmatch(f"{entry.name}/{file.name}"):
                    yield Path(file.path), "" if unfinished else entry.name

    def _owned_by(self, owner: str) -> bool:
        marker = self._folder / OWNER
        try:
            with marker.open("x") as file:
                file.write(owner)
            return True
        except FileExistsError:
            return marker.read_text().strip() == owner
        except OSError:
            return False

    def _path(self, key: str) -> Path:
        return self._folder / check_key(key)

    def _partial(self) -> Path:
        folder = self._folder / PARTIAL
        folder.mkdir(exist_ok=True)
        return folder / uuid.uuid4().hex

    def _place(self, partial: Path, target: Path) -> None:
        # The folder may vanish at any moment: someone deletes the last other file in it. Then
        # renaming finds none, and making it finds one that is gone when looked at.
        for attempt in range(100):
            try:
                target.parent.mkdir(exist_ok=True)
                os.replace(partial, target)
                return
            except (FileNotFoundError, FileExistsError):
                if attempt == 99:
                    raise

    def _unusable(self, error: OSError) -> UserError:
        return UserError(
            f"The folder for outputs {self._folder} cannot be used: {error.strerror}.",
            remedy="Choose another --output-path.",
        )


def _linked(source: Path, target: Path) -> bool:
    """Give a file its second name at once, if the disk can and nothing is there yet."""
    try:
        target.parent.mkdir(exist_ok=True)
        os.link(source, target)
    except OSError:
        return False
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def _flush(path: Path) -> None:
    """Have the disk write it now: a job that is noted as completed has its file after a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
