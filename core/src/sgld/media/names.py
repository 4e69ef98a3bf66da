"""Names for output files: readable in every script, never colliding, never leaving the folder.

    output_name(prompt, ...)        a name from a prompt
    check_file_name(name)           a name from a user, refused if it could escape or confuse
    hold(folder, name, ...)         claim it (context manager; released again on any error)
    reserve(folder, name, ...)      the same without the context manager
    reserve_part(folder, name, ...) claim `name.part.mp4`, for what will be `name.mp4` when complete

A claim creates an empty file with O_EXCL (or a folder with mkdir), which is atomic between
threads and processes; a taken name becomes `name-2.mp4`, `name-3.mp4`, …
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PurePath

from sgld.api.errors import SgldError
from sgld.media.formats import refuse
from sgld.media.writing import explain, output_folder

MAX_NAME_BYTES = 255
# Files that may stand beside an output share its stem, so the longest ending sets the limit.
LONGEST_SUFFIX = ".safetensors"
PART = ".part"
"""Stands before the ending of a file that grows."""
MAX_STEM_BYTES = MAX_NAME_BYTES - len(LONGEST_SUFFIX)
# Long enough to recognise a prompt, short enough for a listing; the whole prompt is in metadata.
PROMPT_CHARACTERS = 80
_MOST_CLAIMS = 100_000
_COUNTER_ROOM = len(f"-{_MOST_CLAIMS}")

_RESERVED = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|clock\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(\.|$)", re.IGNORECASE
)
_FORBIDDEN = frozenset('<>:"|?*')
# Letters and marks by category, yet drawn as nothing: fillers, joiners, variation selectors.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
# Reverse the order of what is shown ("gpj.exe"), so a name would lie about its ending.
_DECEPTIVE = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e0fff]")
_CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})


def cut_bytes(text: str, limit: int) -> str:
    """Shorten to at most `limit` bytes of UTF-8 without splitting a character."""
    return text.encode("utf-8")[:limit].decode("utf-8", "ignore")


def readable(text: str) -> str:
    """Keep letters, marks and digits of every script, in NFC; all else becomes one `_`."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text)).replace("'", "").replace("’", "")
    kept = "".join(c if unicodedata.category(c)[0] in "LMN" else "_" for c in text)
    kept = re.sub("_+", "_", unicodedata.normalize("NFC", kept)).strip("_")
    # A mark with nothing under it would attach to whatever is printed before the name.
    while kept and (unicodedata.category(kept[0])[0] == "M" or kept[0] == "_"):
        kept = kept[1:]
    return kept


def output_name(
    prompt: str, *, index: int, count: int, seed: int, extension: str, digest: str, now: datetime
) -> str:
    """Make `prompt_YYYYmmdd-HHMMSS_seedN_digest[_index].ext`, at most 255 bytes with companions.

    `index` (from 0) is added when `count` > 1; `digest` is a few letters of a hash of the
    parameters; `extension` may be empty for a folder. No prompt gives `output_…`.
    """
    ending = f".{extension.lstrip('.')}" if extension else ""
    if not re.fullmatch(r"(\.[A-Za-z0-9]{1,11})?", ending):
        raise ValueError(f"not a file ending: {extension!r}")
    tail = f"_{now:%Y%m%d-%H%M%S}_seed{seed}"
    tail += f"_{cut_bytes(readable(digest), 16)}" if digest else ""
    tail += f"_{index}" if count > 1 else ""
    # Only the start of a long prompt can matter; normalising megabytes would be waste.
    words = readable(prompt.strip()[: 20 * PROMPT_CHARACTERS])
    room = MAX_STEM_BYTES - _COUNTER_ROOM - len(tail.encode("utf-8"))
    head = cut_bytes(words[:PROMPT_CHARACTERS], max(room, 0))
    if len(head) < len(words) and head.rfind("_") > len(head) // 2:
        head = head[: head.rfind("_")]
    return f"{head.strip('_') or 'output'}{tail}{ending}"


def check_file_name(name: str | PurePath, *, field: str = "output_file_name") -> str:
    """Return a user's file name in NFC, or refuse it; it must be a plain name in the folder."""
    text = unicodedata.normalize("NFC", str(name))
    message = _fault(text)
    if message:
        raise refuse(
            field, str(name), message, "Give a plain file name; the folder goes in output_path."
        )
    return text


def _fault(text: str) -> str:
    if not text.strip():
        return "is empty."
    if "/" in text or "\\" in text or text in (".", ".."):
        return "must not contain a folder."
    if text[0] == "." or text[-1] == "." or text != text.strip():
        return "must not start with a dot, end with a dot, or have spaces around it."
    if _DECEPTIVE.search(text) or any(unicodedata.category(c) in _CONTROLS for c in text):
        return "contains control characters or text-direction marks."
    if _FORBIDDEN & set(text):
        return 'contains a character that some systems forbid (< > : " | ? *).'
    if _RESERVED.match(text):
        return "is a device name on Windows."
    if len(_split(text)[0].encode("utf-8")) > MAX_STEM_BYTES:
        return f"is longer than {MAX_STEM_BYTES} bytes before its ending."
    return ""


def _split(name: str, directory: bool = False) -> tuple[str, str]:
    suffix = "" if directory else PurePath(name).suffix
    # A "suffix" as long as this is part of a sentence, not a file ending.
    if len(suffix.encode("utf-8")) > len(LONGEST_SUFFIX):
        suffix = ""
    return name[: len(name) - len(suffix)], suffix


def _claim(paths: Sequence[Path], directory: bool) -> bool:
    made: list[tuple[Path, bool]] = []
    try:
        for position, path in enumerate(paths):
            if directory and position == 0:
                path.mkdir()
            else:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            made.append((path, directory and position == 0))
    except BaseException as error:
        for path, is_directory in made:
            path.rmdir() if is_directory else path.unlink()
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def reserve(
    folder: Path,
    name: str,
    overwrite: bool = False,
    *,
    companions: Sequence[str] = (),
    directory: bool = False,
) -> Path:
    """Claim `name` in `folder` and return its path; a taken name gets `-2`, `-3`, … .

    Args:
        folder: made if missing.
        name: a plain file name, refused (`output_file_name`) if it could leave the folder.
        overwrite: take the name as it is; nothing is created and nothing is claimed.
        companions: endings (`.json`) that must be free beside it and are claimed with it.
        directory: claim a folder instead of a file.
    """
    name = check_file_name(name)
    stem, suffix = _split(name, directory)
    if suffix.lower() in companions:
        raise refuse(
            "output_file_name",
            name,
            f"ends in {suffix}, which is kept for the file beside it.",
            "Choose another ending.",
        )
    folder = output_folder(folder)
    if overwrite:
        return folder / name
    for number in range(1, _MOST_CLAIMS):
        tail = f"-{number}" if number > 1 else ""
        base = cut_bytes(stem, MAX_STEM_BYTES - len(tail)) + tail
        paths = [folder / (base + ending) for ending in (suffix, *companions)]
        try:
            if _claim(paths, directory):
                return paths[0]
        except OSError as error:
            raise explain(error, paths[0]) from error
    raise _crowded(folder, name)


def reserve_part(
    folder: Path, name: str, overwrite: bool = False, *, companions: Sequence[str] = ()
) -> tuple[Path, str]:
    """Claim the place of a file that grows, `NAME.part.mp4`, and say what it will be called when it
    is complete, `NAME.mp4`: a `NAME` of which neither exists, nor a companion.

    Only the growing file is claimed, so the other name is free until somebody else takes it. With
    `overwrite` the complete file is called `name`, whatever exists. Arguments as for `reserve`.
    """
    stem, suffix = _split(check_file_name(name))
    folder = output_folder(folder)
    for number in range(1, _MOST_CLAIMS):
        tail = f"-{number}" if number > 1 else ""
        base = cut_bytes(stem, MAX_STEM_BYTES - len(tail)) + tail
        endings = () if overwrite else (suffix, *companions)
        if any(os.path.lexists(folder / (base + ending)) for ending in endings):
            continue
        part = folder / f"{base}{PART}{suffix}"
        try:
            if _claim([part], False):
                return part, name if overwrite else base + suffix
        except OSError as error:
            raise explain(error, part) from error
    raise _crowded(folder, name)


def _crowded(folder: Path, name: str) -> SgldError:
    return SgldError(
        f"{folder} already holds {_MOST_CLAIMS} files called {name}.",
        code="write_failed",
        remedy="Choose another output_file_name or output_path.",
    )


def companion(path: Path, ending: str, *, directory: bool = False) -> Path:
    """Return the path of the file that stands beside `path` with another ending."""
    return path.with_name(_split(path.name, directory)[0] + ending)


@contextmanager
def hold(
    folder: Path,
    name: str,
    overwrite: bool = False,
    *,
    companions: Sequence[str] = (),
    directory: bool = False,
) -> Iterator[Path]:
    """Claim a name as `reserve` does; any error inside the block removes what it claimed."""
    path = reserve(folder, name, overwrite, companions=companions, directory=directory)
    try:
        yield path
    except BaseException:
        if not overwrite:
            _remove(path, companions, directory)
        raise


def _remove(path: Path, companions: Sequence[str], directory: bool) -> None:
    for claimed in (path, *(companion(path, ending, directory=directory) for ending in companions)):
        try:
            claimed.unlink()
        except IsADirectoryError:
            _remove_folder(claimed)
        except OSError as error:
            # macOS answers EPERM where Linux says EISDIR.
            if error.errno == errno.EPERM:
                _remove_folder(claimed)


def _remove_folder(folder: Path) -> None:
    with suppress(OSError):
        for child in folder.iterdir():
            child.unlink()
        folder.rmdir()
