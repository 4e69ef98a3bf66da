"""A video file that grows: readable on the way, and in the end what `write_video` makes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from sgld.api.errors import ParameterError, SgldError
from sgld.media.growing import GrowingVideo
from sgld.media.sidecar import read_metadata
from sgld.media.videos import write_video

FORMATS = ("mp4", "webm")


def frames(count: int, height: int = 48, width: int = 64) -> np.ndarray:
    base = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return np.stack([np.roll(base, number, axis=1) for number in range(count)])


def decoded(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def readable(path: Path) -> int:
    """Frames that a player finds now; none before the encoder has given the first."""
    try:
        return len(decoded(path))
    except (FileNotFoundError, av.error.EOFError):
        return 0


def pieces(clip: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for first in range(0, len(clip), size):
        yield clip[first : first + size]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("width", [64, 65])
def test_it_ends_as_the_file_that_is_written_at_once(
    tmp_path: Path, format: str, width: int
) -> None:
    clip = frames(40, width=width)
    options = {"quality": 60, "preset": "veryfast"}
    whole = write_video(
        tmp_path / f"whole.{format}", clip, 12, format=format, metadata={"a": 1}, **options
    )
    growing = GrowingVideo(
        tmp_path / f"part.{format}", width=width, height=48, fps=12, format=format, **options
    )
    for piece in pieces(clip, 7):
        growing.add(piece)
    written = growing.finish(tmp_path / f"end.{format}", {"a": 1})
    assert written[1:5] == whole[1:5]
    assert written.padded == whole.padded == (format == "mp4" and width == 65)
    assert np.array_equal(decoded(written.path), decoded(whole.path))
    assert read_metadata(written.path) == read_metadata(whole.path) == {"a": 1}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"end.{format}", f"whole.{format}"]


@pytest.mark.parametrize("format", FORMATS)
def test_it_can_be_watched_on_the_way(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"part.{format}"
    growing = GrowingVideo(path, width=64, height=48, fps=12, format=format)
    clip, seen = frames(120), []
    for piece in pieces(clip, 12):
        growing.add(piece)
        seen.append(readable(path))
    assert seen == sorted(seen)
    assert 0 < seen[7] < 96
    assert seen[-1] > seen[7]
    growing.discard()
    growing.discard()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_grow_or_changes_is_refused(tmp_path: Path) -> None:
    for format in ("gif", "frames"):
        with pytest.raises(ParameterError, match="output_format"):
            GrowingVideo(tmp_path / "x", width=64, height=48, fps=12, format=format)
    growing = GrowingVideo(tmp_path / "part.mp4", width=64, height=48, fps=12)
    growing.add(frames(2))
    with pytest.raises(ParameterError, match="64x48"):
        growing.add(frames(1, width=32))
    growing.discard()
    missing = GrowingVideo(tmp_path / "no" / "part.mp4", width=64, height=48, fps=12)
    with pytest.raises(SgldError, match="output_path"):
        missing.add(frames(200))


def test_an_end_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = GrowingVideo(tmp_path / "part.mp4", width=64, height=48, fps=12)
    growing.add(frames(30))
    with pytest.raises(SgldError, match="output_path"):
        growing.finish(tmp_path / "no" / "x.mp4")
    assert list(tmp_path.iterdir()) == []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(GrowingVideo, "_copy", full)
    growing = GrowingVideo(tmp_path / "part.mp4", width=64, height=48, fps=12)
    growing.add(frames(30))
    with pytest.raises(SgldError) as error:
        growing.finish(tmp_path / "x.mp4")
    assert error.value.code == "disk_full"
    assert list(tmp_path.iterdir()) == []
