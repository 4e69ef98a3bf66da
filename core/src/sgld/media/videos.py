"""Videos out: `write_video` makes an MP4, WebM or GIF file or a folder of PNGs, whole or none.

Every frame given is one frame in the file, at the size given: nothing is rescaled. H.264 in
yuv420p needs even sides, so for MP4 an odd side gets one more line, a copy of its edge, and the
result says `padded`. Colours are BT.709, limited range, and tagged as such.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from av.video.stream import VideoStream

from sgld.media import formats
from sgld.media.formats import Format, Quality, check_side, find_format, refuse
from sgld.media.gif import check_gif_rate, encode_gif
from sgld.media.images import Picture, check_picture, encode_image
from sgld.media.metadata import FRAMES_FILE, to_json
from sgld.media.writing import replacing, replacing_folder


class WrittenVideo(NamedTuple):
    """A finished video: `width` x `height` is what the file decodes to, `padded` whether an edge
    line was added to make it even, `bytes` the size of the file or of all files in the folder."""

    path: Path
    width: int
    height: int
    frames: int
    fps: Fraction
    bytes: int
    padded: bool


class Clip(NamedTuple):
    """What goes into a file, checked: sides are even where the format wants that."""

    frames: Iterator[Picture]
    width: int
    height: int
    rate: Fraction
    quality: int
    preset: str
    metadata: Mapping[str, Any] | None


def write_video(
    path: Path,
    frames: np.ndarray | Iterable[Picture],
    fps: int | float | Fraction,
    *,
    format: str = "mp4",
    quality: Quality | None = None,
    preset: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> WrittenVideo:
    """Write frames as `mp4` (H.264), `webm` (VP9), `gif` or `frames` (PNGs in a folder).

    Args:
        path: the file, or the folder for `frames`; an existing one is replaced.
        frames: RGB uint8 [F, H, W, 3], or an iterable of [H, W, 3] that is read once, in order.
        fps: frames per second; 23.976 and the like mean n * 1000 / 1001.
        quality: 0..100 or a word, see docs/outputs.md.
        preset: speed of the encoder, `ultrafast` … `placebo`; MP4 and WebM only.
        metadata: embedded as JSON, readable with `sgld.media.sidecar.read_metadata`.

    Raises:
        ParameterError: a wrong format, rate, quality or frame; nothing is written.
        SgldError: the disk is full (`disk_full`) or writing failed (`write_failed`).
    """
    kind = find_format(format, moving=True)
    rate = formats.frame_rate(fps)
    number = formats.quality_number(quality, moving=True)
    preset = formats.check_preset(preset)
    if kind.name == "gif":
        check_gif_rate(rate)
    checked, (height, width) = _check(frames)
    padded = kind.even and bool(height % 2 or width % 2)
    if padded:
        checked = map(pad_even, checked)
        height, width = height + height % 2, width + width % 2
    check_side(height, width, kind)
    clip = Clip(checked, width, height, rate, number, preset, metadata)
    count, size = _WRITERS[kind.name](path, clip, kind)
    return WrittenVideo(path, width, height, count, rate, size, padded)


def _check(frames: Iterable[Picture]) -> tuple[Iterator[Picture], tuple[int, int]]:
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        raise refuse("frames", "none", "is not a video.", "Give at least one frame.")
    height, width = check_picture(first).shape[:2]

    def same_size() -> Iterator[Picture]:
        for number, frame in enumerate(itertools.chain([first], iterator), start=1):
            if check_picture(frame).shape[:2] != (height, width):
                found = f"{frame.shape[1]}x{frame.shape[0]}"
                raise refuse(
                    "frames",
                    found,
                    f"is the size of frame {number}.",
                    f"All must be {width}x{height}.",
                )
            yield frame

    return same_size(), (height, width)


def pad_even(frame: Picture) -> Picture:
    """The frame with odd sides made even by a copy of the edge."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _write_container(path: Path, clip: Clip, kind: Format) -> tuple[int, int]:
    count = 0
    # The index goes in front, so that a browser can start before it has the whole file.
    options = {"movflags": "+faststart"} if kind.name == "mp4" else {}
    with replacing(path) as temporary:
        with av.open(str(temporary), "w", format=kind.name, options=options) as container:
            if clip.metadata is not None:
                container.metadata["comment"] = to_json(clip.metadata)
            codec, settings = codec_of(kind, clip)
            stream = cast(
                VideoStream, container.add_stream(codec, rate=clip.rate, options=settings)
            )
            describe(stream, clip)
            for frame in clip.frames:
                container.mux(stream.encode(to_yuv(frame, count, clip.rate)))
                count += 1
            container.mux(stream.encode(None))
        size = temporary.stat().st_size
    return count, size


def codec_of(kind: Format, clip: Clip) -> tuple[str, dict[str, str]]:
    """Encoder and its settings."""
    if kind.name == "mp4":
        return "libx264", {"crf": str(formats.x264_crf(clip.quality)), "preset": clip.preset}
    return "libvpx-vp9", {
        "crf": str(formats.vp9_crf(clip.quality)),
        "b": "0",  # constant quality: no target bit rate
        "deadline": "good",
        "cpu-used": str(formats.vp9_speed(clip.preset)),
        "row-mt": "1",
    }


def describe(stream: VideoStream, clip: Clip) -> None:
    """Tell the encoder size, rate and colours."""
    stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
    context = stream.codec_context
    context.time_base = 1 / clip.rate
    context.colorspace = Colorspace.ITU709
    context.color_primaries = ColorPrimaries.BT709
    context.color_trc = ColorTrc.BT709
    context.color_range = ColorRange.MPEG


def to_yuv(frame: Picture, number: int, rate: Fraction) -> av.VideoFrame:
    """Frame `number` (from 0) as the encoder takes it."""
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    # The default matrix is BT.601, which would shift every colour against the tags.
    picture = picture.reformat(
        format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
    )
    picture.pts, picture.time_base = number, 1 / rate
    return picture


def _write_gif(path: Path, clip: Clip, kind: Format) -> tuple[int, int]:
    frames = list(clip.frames)  # one palette for all of them needs all of them
    with replacing(path) as temporary:
        data = encode_gif(frames, clip.rate, clip.quality, clip.metadata)
        temporary.write_bytes(data)
    return len(frames), len(data)


def _write_frames(path: Path, clip: Clip, kind: Format) -> tuple[int, int]:
    _refuse_foreign(path)
    count = size = 0
    with replacing_folder(path) as temporary:
        for count, frame in enumerate(clip.frames, start=1):
            data = encode_image(frame, "png", clip.quality)
            size += (temporary / f"frame_{count:05d}.png").write_bytes(data)
        about = {
            "format": "frames",
            "width": clip.width,
            "height": clip.height,
            "frames": count,
            "fps": clip.rate,
            "metadata": clip.metadata,
        }
        text = to_json(about, indent=2) + "\n"
        size += (temporary / FRAMES_FILE).write_bytes(text.encode("utf-8"))
    return count, size


def _refuse_foreign(path: Path) -> None:
    """Replacing a folder deletes what is in it, so it must hold nothing but earlier frames."""
    if not path.is_dir():
        return
    strange = [
        child.name
        for child in path.iterdir()
        if child.name != FRAMES_FILE and not child.match("frame_*.png")
    ]
    if strange:
        raise refuse(
            "output_file_name",
            path.name,
            f"is a folder with other files ({strange[0]}).",
            "Choose another name.",
        )


_WRITERS: dict[str, Callable[[Path, Clip, Format], tuple[int, int]]] = {
    "mp4": _write_container,
    "webm": _write_container,
    "gif": _write_gif,
    "frames": _write_frames,
}
