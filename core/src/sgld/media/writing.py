"""Whole files or none: write beside the target, then move into place in one step.

    with replacing(path) as temporary: ...          a file
    with replacing_folder(path) as temporary: ...   a folder
    write_bytes(path, data)
    output_folder(folder)                           make it, or say why not
    check_folder(folder)                            say why not, without making it

Any exception, KeyboardInterrupt included, removes the temporary and leaves the target as it was.
Operating-system errors become `SgldError`s that say what to do (code `disk_full` or
`write_failed`), or `ParameterError`s where another folder or name would help.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sgld.api.errors import SgldError
from sgld.media.formats import refuse

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PLACE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
}


def explain(error: OSError, path: Path) -> SgldError:
    """Turn an error of the operating system about `path` into one for people."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return SgldError(
            f"cannot write {path.name} in {path.parent}: {reason}.",
            code="disk_full",
            remedy="Free some space or choose another output_path; nothing partial was left.",
        )
    if error.errno == errno.ENAMETOOLONG:
        return refuse("output_file_name", path.name, f"{reason}.", "Choose a shorter name.")
    if error.errno in _PLACE:
        return refuse(
            "output_path",
            str(path.parent),
            f"cannot be written: {reason}.",
            "Choose another folder.",
        )
    return SgldError(f"cannot write {path}: {reason}.", code="write_failed")


def check_folder(folder: Path) -> None:
    """Refuse a folder that could not be written to, before there is anything to write.

    Only tries what leaves no trace; a file system may still refuse later.
    """
    if "\0" in str(folder):
        message = "a path cannot hold a NUL character."
        raise refuse("output_path", str(folder), message, "Choose another folder.")
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise explain(error, folder / "output") from error
    if not there.is_dir():
        reason = f"{there} is not a folder" if there != folder else "is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        reason = f"{there} may not be written to" if there != folder else "may not be written to"
    else:
        return
    raise refuse("output_path", str(folder), f"{reason}.", "Choose another folder.")


def output_folder(folder: Path) -> Path:
    """Make the folder and its parents if needed and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(
            "output_path",
            str(folder),
            f"is not a folder that can be made: {error.strerror}.",
            "Choose another folder.",
        ) from error
    except ValueError as error:  # a NUL character
        raise refuse("output_path", str(folder), f"{error}.", "Choose another folder.") from error
    return folder


def _sibling(path: Path) -> Path:
    # A short random name: the target's own name may already be as long as names can be.
    return path.with_name(f".{secrets.token_hex(8)}.part")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`; leaving the block without an error moves it there."""
    temporary = _sibling(path)
    try:
        # Not mkstemp: its mode 0600 would end up on the finished file and ignore the umask.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; leaving the block moves it there, whole."""
    temporary = _sibling(path)
    try:
        temporary.mkdir()
        yield temporary
        _swap_folder(temporary, path)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap_folder(new: Path, path: Path) -> None:
    try:
        # Over nothing, or over the empty folder that claims the name: one atomic step.
        os.rename(new, path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not path.is_dir():
            raise
    # A folder cannot be renamed over one that has files, so the old one steps aside first.
    aside = _sibling(path)
    os.rename(path, aside)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_bytes(path: Path, data: bytes) -> int:
    """Write a whole file or nothing; returns its size in bytes."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return len(data)
