"""GIF encoding: one palette for the whole clip, every frame kept, durations that add up.

Pillow's own GIF writer merges equal neighbours into one longer frame, which loses the frame
count; so Pillow chooses the colours and FFmpeg's encoder writes the frames one by one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

from sgld.media.formats import gif_colours, refuse
from sgld.media.images import Picture
from sgld.media.metadata import with_gif_comment

# GIF counts hundredths of a second, and browsers slow delays below 2 down to 10.
FASTEST = 50
_PALETTE_FRAMES = 16
_PALETTE_PIXELS = 1_000_000


def check_gif_rate(rate: Fraction) -> None:
    """Refuse rates that GIF viewers would play at a tenth of the speed."""
    if rate > FASTEST:
        raise refuse(
            "fps",
            float(rate),
            f"is above {FASTEST}, the most a GIF can play.",
            "Lower it or use mp4.",
        )


def encode_gif(
    frames: list[Picture], rate: Fraction, quality: int, metadata: Mapping[str, Any] | None
) -> bytes:
    """Encode frames uint8 [H, W, 3] as a looping GIF; the durations sum to F / rate seconds."""
    palette = _choose_palette(frames, gif_colours(quality))
    times = [round(number * 100 / rate) for number in range(len(frames) + 1)]
    buffer = io.BytesIO()
    options = {"loop": "0", "final_delay": str(times[-1] - times[-2])}
    with av.open(buffer, "w", format="gif", options=options) as container:
        stream = container.add_stream("gif", rate=100)
        height, width = frames[0].shape[:2]
        stream.width, stream.height, stream.pix_fmt = width, height, "pal8"
        stream.codec_context.time_base = Fraction(1, 100)
        colours = _opaque(palette)
        for frame, time in zip(frames, times, strict=False):
            indexed = Image.fromarray(frame).quantize(
                palette=palette, dither=Image.Dither.FLOYDSTEINBERG
            )
            # The binding takes a pair for this format, which its annotations leave out.
            pair: Any = (np.array(indexed), colours)
            picture = av.VideoFrame.from_ndarray(pair, format="pal8")
            picture.pts, picture.time_base = time, Fraction(1, 100)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    data = buffer.getvalue()
    return data if metadata is None else with_gif_comment(data, metadata)


def _choose_palette(frames: list[Picture], colours: int) -> Image.Image:
    chosen = frames[:: max(1, -(-len(frames) // _PALETTE_FRAMES))]
    pixels = np.concatenate([frame.reshape(-1, 3) for frame in chosen])
    pixels = pixels[:: max(1, len(pixels) // _PALETTE_PIXELS)]
    sample = Image.fromarray(np.ascontiguousarray(pixels[None]))
    return sample.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def _opaque(palette: Image.Image) -> np.ndarray:
    colours = np.array(palette.getpalette(), dtype=np.uint8).reshape(-1, 3)
    table = np.zeros((256, 4), dtype=np.uint8)  # alpha, red, green, blue
    table[:, 0] = 255
    table[: len(colours), 1:] = colours
    return table
