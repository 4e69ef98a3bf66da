"""Pictures in and out: `load_image`, `fit_image`, `write_image`.

Everything is RGB uint8 [H, W, 3]. A picture is refused (ParameterError) before its pixels are
decoded when its header promises too many. Transparency is composited on white, so a colour hidden
under transparent pixels never leaks; EXIF orientation is applied; colour profiles are ignored; of
an animation the first frame counts. URLs are not fetched here, `data:` URLs are decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from sgld.api.errors import ParameterError
from sgld.media import metadata as embedded
from sgld.media.formats import Quality, check_side, find_format, png_level, quality_number, refuse
from sgld.media.writing import replacing

Picture = npt.NDArray[np.uint8]
FitMode = Literal["crop", "stretch", "pad"]

# 64 MP covers phone cameras and costs 192 MB decoded; larger inputs are resized away anyway.
MAX_PIXELS = 64_000_000
MAX_BYTES = 64 * 2**20
# Only formats that decode inside Pillow: some others start outside programs or have no bounds.
READABLE = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
_REMEDY = "Use a PNG, JPEG or WebP picture."
_DATA_URL = re.compile(r"data:[^,]*,", re.IGNORECASE)
_OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


class WrittenImage(NamedTuple):
    """A finished picture file; `bytes` is its size, `format` its name in formats.FORMATS."""

    path: Path
    width: int
    height: int
    format: str
    bytes: int


def load_image(
    source: Path | str | bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    field: str = "image_path",
) -> Picture:
    """Read a picture as RGB uint8 [H, W, 3].

    Args:
        source: a path, a `data:` URL, or the bytes of a file.
        max_pixels: width x height allowed, read from the header before decoding.
        max_bytes: size of the encoded file allowed.
        field: the parameter to name in errors.

    Raises:
        ParameterError: missing, too large, truncated or not a picture.
    """
    shown = _show(source)
    data = _read(source, max_bytes, field, shown)
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _too_large(field, shown, f"{width}x{height}", max_pixels)
            return _to_rgb(_upright(image))
    except ParameterError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(field, shown, "far more pixels", max_pixels) from error
    except Image.UnidentifiedImageError as error:
        raise refuse(field, shown, "is not a picture that can be read.", _REMEDY) from error
    # Decoders of broken files raise nearly anything (SyntaxError, struct.error, zlib.error, …).
    except Exception as error:
        raise refuse(field, shown, f"is a broken picture ({error}).", _REMEDY) from error


def _formats() -> list[str]:
    Image.init()
    return [name for name in READABLE if name in Image.OPEN]


def _show(source: Path | str | bytes) -> str:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return f"<{len(source)} bytes>"
    text = str(source)
    return text if len(text) <= 100 else text[:60] + "…"


def _too_large(field: str, shown: str, size: str, max_pixels: int) -> ParameterError:
    return refuse(
        field,
        shown,
        f"has {size}, more than the {max_pixels} pixels allowed.",
        "Make the picture smaller.",
    )


def _read(source: Path | str | bytes, max_bytes: int, field: str, shown: str) -> bytes:
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    elif isinstance(source, str) and _DATA_URL.match(source):
        data = _read_data_url(source, max_bytes, field, shown)
    elif isinstance(source, str) and _OTHER_URL.match(source):
        raise refuse(
            field, shown, "is a URL; none is fetched here.", "Download it and give the file's path."
        )
    else:
        data = _read_file(Path(source), max_bytes, field, shown)
    if len(data) > max_bytes:
        raise refuse(
            field,
            shown,
            f"is larger than the {max_bytes} bytes allowed.",
            "Make the picture smaller.",
        )
    if not data:
        raise refuse(field, shown, "is empty.", _REMEDY)
    return data


def _read_file(path: Path, max_bytes: int, field: str, shown: str) -> bytes:
    try:
        # A pipe or device could block for ever or never end.
        if path.exists() and not path.is_file():
            raise refuse(field, shown, "is not a file.", _REMEDY)
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise refuse(
            field, shown, f"cannot be read: {error.strerror}.", "Check the path."
        ) from error
    except ValueError as error:  # a NUL character in the path
        raise refuse(field, shown, f"is not a path: {error}.", "Check the path.") from error


def _read_data_url(url: str, max_bytes: int, field: str, shown: str) -> bytes:
    head, _, body = url.partition(",")
    # Four letters carry three bytes: refuse by length before decoding.
    if len(body) > max_bytes * 4:
        return b"\0" * (max_bytes + 1)
    data = unquote_to_bytes(body)
    if not head.lower().rstrip().endswith(";base64"):
        return data
    data = re.sub(rb"\s", b"", data)
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except binascii.Error as error:
        raise refuse(field, shown, f"is not valid base64: {error}.", _REMEDY) from error


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block is no reason to refuse good pixels
        return image


def _to_rgb(image: Image.Image) -> Picture:
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey(image)
    if image.has_transparency_data:
        colour = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, colour)
    return np.array(image.convert("RGB"), dtype=np.uint8)


def _deep_grey(image: Image.Image) -> Picture:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError("grey values are not 8 or 16 bits")
    # Pillow's own conversion clips 16 bits at 255; 257 maps 65535 to 255 exactly.
    grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def fit_image(image: Picture, height: int, width: int, mode: FitMode = "crop") -> Picture:
    """Resize RGB uint8 [H, W, 3] to [height, width, 3] with Lanczos; of that size, it is kept.

    `crop` keeps the aspect ratio and cuts what sticks out, centred; `stretch` does not keep it;
    `pad` keeps it and fills the rest with black, centred.
    """
    check_picture(image)
    rows, columns = image.shape[:2]
    if height < 1 or width < 1:
        raise refuse("size", f"{width}x{height}", "is not a size.", "Use at least 1x1.")
    if mode not in ("crop", "stretch", "pad"):
        raise refuse("mode", mode, "is not a way to fit.", "Use crop, stretch or pad.")
    if (rows, columns) == (height, width):
        return image.copy()
    picture = Image.fromarray(image)
    box = (0.0, 0.0, float(columns), float(rows))
    size = (width, height)
    if mode == "crop":
        scale = min(columns / width, rows / height)
        left, top = (columns - width * scale) / 2, (rows - height * scale) / 2
        box = (left, top, min(columns, left + width * scale), min(rows, top + height * scale))
    elif mode == "pad":
        scale = min(width / columns, height / rows)
        size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    resized = picture.resize(size, Image.Resampling.LANCZOS, box=box)
    if size == (width, height):
        return np.array(resized)
    canvas = Image.new("RGB", (width, height))
    canvas.paste(resized, ((width - size[0]) // 2, (height - size[1]) // 2))
    return np.array(canvas)


def check_picture(frame: Any, *, field: str = "frames") -> Picture:
    """Return `frame` if it is uint8 [H, W, 3] with at least one pixel."""
    shape = getattr(frame, "shape", None)
    if (
        not isinstance(frame, np.ndarray)
        or frame.dtype != np.uint8
        or frame.ndim != 3
        or frame.shape[2] != 3
        or 0 in frame.shape
    ):
        kind = f"{getattr(frame, 'dtype', type(frame).__name__)} {shape}"
        raise refuse(field, kind, "is not a picture.", "Give RGB uint8 [H, W, 3].")
    return frame


def write_image(
    path: Path,
    frame: Picture,
    format: str = "png",
    quality: Quality | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> WrittenImage:
    """Write RGB uint8 [H, W, 3] as `png`, `jpeg` or `webp`, whole or not at all.

    PNG is exact at every quality, which only chooses how hard it is compressed (100: fastest and
    largest, 0: smallest). Lossy WebP and JPEG take the number as it is.
    """
    kind = find_format(format, moving=False)
    number = quality_number(quality, moving=False)
    check_picture(frame)
    check_side(frame.shape[0], frame.shape[1], kind)
    data = encode_image(frame, kind.name, number, metadata)
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return WrittenImage(path, frame.shape[1], frame.shape[0], kind.name, len(data))


def encode_image(
    frame: Picture, format: str, quality: int, metadata: Mapping[str, Any] | None = None
) -> bytes:
    """Encode one picture in memory; `quality` is the resolved number 0..100."""
    options: dict[str, Any]
    if format == "png":
        options = {"compress_level": png_level(quality)}
        if metadata is not None:
            options["pnginfo"] = embedded.png_text(metadata)
    elif format == "jpeg":
        # Half-resolution colour smears edges, which shows at high quality.
        options = {"quality": quality, "subsampling": 0 if quality >= 90 else 2}
        if metadata is not None:
            options["exif"] = embedded.exif(metadata, embedded.JPEG_ROOM)
    else:
        options = {"quality": quality, "method": 4}
        if metadata is not None:
            options["exif"] = embedded.exif(metadata)
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format=format.upper(), **options)
    return buffer.getvalue()
