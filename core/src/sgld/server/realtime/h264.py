"""Frames as H.264 that a browser decodes while it arrives: one access unit per frame, no delay.

Constrained baseline, Annex B, every call begins with an IDR picture that carries SPS and PPS. So
each chunk stands alone: a decoder may start, resume, go back or leave chunks out at any of them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, cast

import av
import numpy as np
import numpy.typing as npt
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from sgld.media.formats import frame_rate, x264_crf

Frames = npt.NDArray[np.uint8]
NAL_IDR, NAL_SPS = 5, 7


class AccessUnit(NamedTuple):
    """One coded picture in Annex B, and whether decoding may begin with it."""

    data: bytes
    key: bool


class H264Encoder:
    """Encodes the chunks of one session, one call at a time.

    Args:
        width, height: of the frames; odd sides are made even by repeating the last line.
        fps: frames per second.
        quality: 0..100, higher is better.
    """

    def __init__(self, width: int, height: int, fps: float, quality: int) -> None:
        self.width, self.height = width + width % 2, height + height % 2
        rate = frame_rate(fps)
        context = cast(VideoCodecContext, av.CodecContext.create("libx264", "w"))
        context.width, context.height, context.pix_fmt = self.width, self.height, "yuv420p"
        context.framerate, context.time_base = rate, 1 / rate
        context.colorspace = Colorspace.ITU709
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        context.color_range = ColorRange.MPEG
        context.thread_count = 1
        context.options = {
            "preset": "veryfast",
            "tune": "zerolatency",
            "profile": "baseline",
            "crf": str(x264_crf(quality)),
            "forced-idr": "1",
            # Key frames come at the chunks' beginnings alone.
            "x264-params": "keyint=infinite:scenecut=0:repeat-headers=1:annexb=1",
        }
        self._context, self._rate, self._count = context, rate, 0

    def encode(self, frames: Frames) -> list[AccessUnit]:
        """Access units of RGB uint8 [F, H, W, 3], as many as frames; the first is an IDR."""
        units: list[AccessUnit] = []
        for index, pixels in enumerate(frames):
            picture = self._picture(pixels)
            picture.pict_type = PictureType.I if index == 0 else PictureType.NONE
            for packet in self._context.encode(picture):
                data = bytes(packet)
                units.append(AccessUnit(data, NAL_IDR in nal_types(data)))
        if len(units) != len(frames):
            raise RuntimeError(f"the encoder made {len(units)} access units of {len(frames)}")
        return units

    def _picture(self, pixels: Frames) -> av.VideoFrame:
        height, width = pixels.shape[:2]
        if (height, width) != (self.height, self.width):
            padding = ((0, self.height - height), (0, self.width - width), (0, 0))
            pixels = np.pad(pixels, padding, mode="edge")
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        # The default matrix is BT.601, which would shift every colour against the tags.
        picture = picture.reformat(
            format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
        )
        picture.pts, picture.time_base = self._count, Fraction(1) / self._rate
        self._count += 1
        return picture


def nal_types(data: bytes) -> list[int]:
    """Types of the NAL units of an Annex B access unit, in order."""
    return [data[place] & 0x1F for place in _nal_places(data)]


def codec_string(data: bytes) -> str:
    """What WebCodecs calls the stream that begins with this IDR access unit, `avc1.PPCCLL`
    (RFC 6381: profile, constraints and level as the SPS has them)."""
    for place in _nal_places(data):
        if data[place] & 0x1F == NAL_SPS:
            return f"avc1.{data[place + 1 : place + 4].hex().upper()}"
    raise ValueError("the access unit has no SPS")


def _nal_places(data: bytes) -> list[int]:
    places: list[int] = []
    place = data.find(b"\x00\x00\x01")
    while place >= 0 and place + 3 < len(data):
        places.append(place + 3)
        place = data.find(b"\x00\x00\x01", place + 3)
    return places
