"""A video file that is written while its frames are still being made.

    growing = GrowingVideo(path, width=96, height=64, fps=16)
    growing.add(frames)                       # [F, H, W, 3], as often as there are new ones
    growing.finish(target, metadata=...)      # the same packets in a file like `write_video`'s

What lies at `path` can be watched at any time (the encoder holds the newest frames back); it is
gone after `finish` or `discard`. Nothing is encoded twice: `finish` only copies packets, so the
result decodes to what `write_video` would have made of all frames at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, cast

import av
import numpy as np
from av.error import FFmpegError
from av.video.stream import VideoStream

from sgld.media import formats
from sgld.media.formats import Quality, check_side, find_format, refuse
from sgld.media.images import check_picture
from sgld.media.metadata import to_json
from sgld.media.videos import Clip, WrittenVideo, codec_of, describe, pad_even, to_yuv
from sgld.media.writing import explain, replacing

GROWS: Final = frozenset({"mp4", "webm"})
"""Formats that can grow; the others need all frames first."""
_OPEN_ENDED: Final = {
    # A fragment for every frame: whatever has left the encoder can be played.
    "mp4": {"movflags": "empty_moov+default_base_moof+frag_every_frame", "flush_packets": "1"},
    "webm": {"live": "1", "flush_packets": "1"},
}


class GrowingVideo:
    """Encodes frames into the file `path` as they come; arguments as for `write_video`.

    Args:
        path: the growing file; an existing one is replaced.
        width: of the frames.
        height: likewise.
        fps: frames per second.
        format: `mp4` or `webm`.
        quality: 0..100 or a word.
        preset: speed of the encoder.
        becomes: what the file is to be called when it is complete, for `save_output`.

    Raises:
        ParameterError: a wrong format, rate, quality, preset or size; there is no file then.
        SgldError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        width: int,
        height: int,
        fps: int | float | Fraction,
        format: str = "mp4",
        quality: Quality | None = None,
        preset: str | None = None,
        becomes: str = "",
    ) -> None:
        kind = find_format(format, moving=True)
        if kind.name not in GROWS:
            allowed = " or ".join(sorted(GROWS))
            raise refuse("output_format", kind.name, "cannot be written bit by bit.", allowed)
        self.path, self.becomes, self.frames = path, becomes, 0
        self._kind, self._given = kind, (height, width)
        self._padded = kind.even and bool(height % 2 or width % 2)
        if self._padded:
            height, width = height + height % 2, width + width % 2
        check_side(height, width, kind)
        rate = formats.frame_rate(fps)
        number = formats.quality_number(quality, moving=True)
        self._clip = Clip(iter(()), width, height, rate, number, formats.check_preset(preset), None)
        self._closed = False
        try:
            self._container = av.open(
                str(path), "w", format=kind.name, options=_OPEN_ENDED[kind.name]
            )
        except OSError as error:
            raise explain(error, path) from error
        codec, settings = codec_of(kind, self._clip)
        stream = self._container.add_stream(codec, rate=rate, options=settings)
        self._stream = cast("VideoStream", stream)
        describe(self._stream, self._clip)

    def add(self, frames: np.ndarray) -> None:
        """Encode further frames, RGB uint8 [F, H, W, 3].

        Raises ParameterError for frames of another size, SgldError when writing fails.
        """
        for frame in frames:
            if check_picture(frame).shape[:2] != self._given:
                size = f"{frame.shape[1]}x{frame.shape[0]}"
                wanted = f"All must be {self._given[1]}x{self._given[0]}."
                raise refuse("frames", size, "is another size than before.", wanted)
            picture = pad_even(frame) if self._padded else frame
            packets = self._stream.encode(to_yuv(picture, self.frames, self._clip.rate))
            self._write(packets)
            self.frames += 1

    def finish(self, target: Path, metadata: Mapping[str, Any] | None = None) -> WrittenVideo:
        """Write what `write_video` would have written to `target`, whole or not at all, and remove
        the growing file."""
        self._write(self._stream.encode(None))
        self._close()
        options = {"movflags": "+faststart"} if self._kind.name == "mp4" else {}
        try:
            with replacing(target) as temporary:
                with (
                    av.open(str(self.path)) as source,
                    av.open(str(temporary), "w", format=self._kind.name, options=options) as copy,
                ):
                    if metadata is not None:
                        copy.metadata["comment"] = to_json(metadata)
                    self._copy(source, copy)
                size = temporary.stat().st_size
        finally:
            self.discard()
        clip = self._clip
        return WrittenVideo(
            target, clip.width, clip.height, self.frames, clip.rate, size, self._padded
        )

    def discard(self) -> None:
        """Remove the growing file. Safe to call again."""
        with suppress(OSError, FFmpegError):
            self._close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _copy(self, source: Any, copy: Any) -> None:
        stream = source.streams.video[0]
        target = copy.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:  # the last one is empty: it says that there are no more
                packet.stream = target
                copy.mux(packet)

    def _write(self, packets: Any) -> None:
        try:
            self._container.mux(packets)
        except OSError as error:
            raise explain(error, self.path) from error

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._container.close()
