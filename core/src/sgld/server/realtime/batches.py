"""A chunk's frames as the messages that carry them.

`FrameWriter(picture, threads)` belongs to one session; `write(frames)` gives `Batch`es: the keys of
the map, and the payload. Encoding runs in threads, the pictures of a chunk side by side.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from sgld.server.realtime.h264 import AccessUnit, H264Encoder, codec_string

Frames = npt.NDArray[np.uint8]
Format = Literal["raw", "webp", "jpeg", "h264"]
FORMATS: Final[tuple[Format, ...]] = ("raw", "webp", "jpeg", "h264")
CONTENT_TYPES: Final[Mapping[str, str]] = {
    "raw": "application/x-raw-rgb",
    "webp": "image/webp",
    "jpeg": "image/jpeg",
    "h264": "video/h264",
}
RAW_FRAMES: Final = 16
ENCODED_FRAMES: Final = 6
"""Most frames of one batch."""
SPLIT_BYTES: Final = 65_536
"""A payload of this size or more travels in a frame of its own."""


@dataclass(frozen=True, slots=True)
class Picture:
    """How the frames of a session are sent.

    Args:
        width, height: as the model makes them.
        fps: frames per second.
        quality: of the encoder, 0..100.
        max_width: wider frames are made smaller, in the encoded formats; 0: as they are.
    """

    format: Format
    width: int
    height: int
    fps: float
    quality: int
    max_width: int = 0

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height as sent."""
        width, height = self.width, self.height
        if self.format == "raw" or not self.max_width or width <= self.max_width:
            return width, height
        smaller = self.max_width, max(1, round(height * self.max_width / width))
        if self.format == "h264":
            return max(2, smaller[0] // 2 * 2), max(2, smaller[1] // 2 * 2)
        return smaller


class Batch(NamedTuple):
    """One message: its keys without those of the chunk, and the bytes behind them."""

    head: dict[str, Any]
    payload: bytes


class FrameWriter:
    """Turns chunks of one session into batches, one chunk at a time."""

    def __init__(self, picture: Picture, threads: ThreadPoolExecutor) -> None:
        self.picture = picture
        self._threads = threads
        self._h264: H264Encoder | None = None

    async def write(self, frames: Frames) -> list[Batch]:
        """The batches of a chunk, RGB uint8 [F, H, W, 3]; one without frames if F is 0."""
        if not len(frames):
            return [self._empty()]
        if self.picture.format == "raw":
            return await self._run(self._raw, frames)
        if self.picture.format == "h264":
            units: Sequence[AccessUnit] = await self._run(self._encode, frames)
        else:
            parts = await asyncio.gather(*[self._run(self._still, frame) for frame in frames])
            units = [AccessUnit(part, True) for part in parts]
        return self._encoded(units)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    def _raw(self, frames: Frames) -> list[Batch]:
        groups = [frames[at : at + RAW_FRAMES] for at in range(0, len(frames), RAW_FRAMES)]
        return [self._raw_batch(index, groups) for index in range(len(groups))]

    def _raw_batch(self, index: int, groups: Sequence[Frames]) -> Batch:
        payload = groups[index].tobytes()
        head = self._head(len(groups[index]), payload, index, len(groups))
        return Batch({**head, "raw_size": len(payload)}, payload)

    def _encode(self, frames: Frames) -> list[AccessUnit]:
        width, height = self.picture.shown
        if self._h264 is None:
            self._h264 = H264Encoder(width, height, self.picture.fps, self.picture.quality)
        if (width, height) != (self.picture.width, self.picture.height):
            frames = np.stack([np.asarray(self._resized(frame)) for frame in frames])
        return self._h264.encode(frames)

    def _still(self, frame: Frames) -> bytes:
        buffer = io.BytesIO()
        image, quality = self._resized(frame), self.picture.quality
        if self.picture.format == "webp":
            image.save(buffer, "WEBP", quality=quality, method=0)
        else:
            # Colour at full resolution: half of it smears the edges of what is steered.
            image.save(buffer, "JPEG", quality=quality, subsampling=0)
        return buffer.getvalue()

    def _resized(self, frame: Frames) -> Image.Image:
        image = Image.fromarray(np.ascontiguousarray(frame))
        if image.size == self.picture.shown:
            return image
        return image.resize(self.picture.shown, Image.Resampling.BICUBIC)

    def _encoded(self, units: Sequence[AccessUnit]) -> list[Batch]:
        groups = [units[at : at + ENCODED_FRAMES] for at in range(0, len(units), ENCODED_FRAMES)]
        return [self._encoded_batch(index, groups) for index in range(len(groups))]

    def _encoded_batch(self, index: int, groups: Sequence[Sequence[AccessUnit]]) -> Batch:
        payload = b"".join(unit.data for unit in groups[index])
        head = self._head(len(groups[index]), payload, index, len(groups))
        head |= self._sizes() | {"payload_lengths": [len(unit.data) for unit in groups[index]]}
        if self.picture.format == "h264":
            head |= {
                "codec": codec_string(groups[0][0].data),
                "key_frames": [unit.key for unit in groups[index]],
            }
        return Batch(head, payload)

    def _head(self, frames: int, payload: bytes, index: int, count: int) -> dict[str, Any]:
        picture = self.picture
        width, height = picture.shown
        return {
            "content_type": CONTENT_TYPES[picture.format],
            "num_frames": frames,
            "total_size": len(payload),
            "frame_batch_index": index,
            "num_frame_batches": count,
            "is_final_frame_batch": index == count - 1,
            "format": "rgb24" if picture.format == "raw" else picture.format,
            "encoding": picture.format,
            "width": width,
            "height": height,
            "channels": 3,
            "bytes_per_frame": picture.width * picture.height * 3,
        }

    def _sizes(self) -> dict[str, Any]:
        width, height = self.picture.shown
        return {
            "source_width": self.picture.width,
            "source_height": self.picture.height,
            "preview_width": width,
            "preview_height": height,
        }

    def _empty(self) -> Batch:
        head = self._head(0, b"", 0, 1)
        del head["encoding"]
        raw = self.picture.format == "raw"
        return Batch(head | ({"raw_size": 0} if raw else self._sizes()), b"")
