"""The record of how an output was made: a JSON file beside it, and the copy inside it.

write_sidecar(path, payload)    clip.mp4 -> clip.json
read_metadata(path)             what a finished file or frames folder holds
versions()                      of sgld-core, torch, Python and the named distributions
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import av
from av.error import FFmpegError
from PIL import Image

from sgld.media import metadata as embedded
from sgld.media.formats import refuse
from sgld.media.names import companion
from sgld.media.writing import write_bytes

SIDECAR_SUFFIX = ".json"


def sidecar_path(path: Path) -> Path:
    """Return where the sidecar of an output (a file or a frames folder) stands."""
    return companion(path, SIDECAR_SUFFIX, directory=path.is_dir())


def write_sidecar(path: Path, payload: Mapping[str, Any]) -> Path:
    """Write `payload` as JSON beside the output at `path` and return the sidecar's path."""
    target = sidecar_path(path)
    write_bytes(target, (embedded.to_json(payload, indent=2) + "\n").encode("utf-8"))
    return target


def versions(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Return installed versions without importing anything; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in ("sgld-core", "torch", *distributions):
        if (version := _version(name)) is not None:
            found[name] = version
    return found


@functools.cache
def _version(distribution: str) -> str | None:
    # Kept, because looking takes longer than encoding a small picture.
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata embedded in a finished output, or raise if it holds none."""
    path = Path(path)
    try:
        found = _read_folder(path) if path.is_dir() else _read_file(path)
    except FileNotFoundError as error:
        raise refuse("path", str(path), "does not exist.", "Check the path.") from error
    except (OSError, FFmpegError, SyntaxError, ValueError) as error:
        raise refuse("path", str(path), f"cannot be read: {error}.", "Check the file.") from error
    if found is None:
        raise refuse(
            "path", str(path), "holds no sgld metadata.", "Look for the .json file beside it."
        )
    return found


def _read_folder(path: Path) -> dict[str, Any] | None:
    file = path / embedded.FRAMES_FILE
    about = embedded.from_json(file.read_bytes()) if file.is_file() else None
    inner = (about or {}).get("metadata")
    return inner if isinstance(inner, dict) else None


def _read_file(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        head = file.read(12)
    # By content, not by ending: files get renamed.
    picture = head.startswith((b"\x89PNG", b"\xff\xd8", b"GIF8")) or head[8:12] == b"WEBP"
    return _read_picture(path) if picture else _read_container(path)


def _read_picture(path: Path) -> dict[str, Any] | None:
    with Image.open(path, formats=["PNG", "JPEG", "WEBP", "GIF"]) as image:
        if image.format == "PNG":
            image.load()  # a text chunk may follow the pixels
            return embedded.from_json(image.info.get(embedded.PNG_KEYWORD, ""))
        if image.format == "GIF":
            return embedded.from_json(image.info.get("comment", b""))
        comment = image.getexif().get_ifd(embedded.EXIF_FOLDER).get(embedded.USER_COMMENT, b"")
    data = comment if isinstance(comment, bytes) else str(comment).encode()
    return embedded.from_json(data.removeprefix(embedded.ASCII_MARK))


def _read_container(path: Path) -> dict[str, Any] | None:
    with av.open(str(path)) as container:
        tags = {key.lower(): value for key, value in container.metadata.items()}
    return embedded.from_json(tags.get("comment", ""))
