from __future__ import annotations

import base64
import io
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sgld.api.errors import ParameterError, SgldError
from sgld.media.images import fit_image, load_image, write_image
from sgld.media.sidecar import read_metadata

RANDOM = np.random.default_rng(7)


def noise(height: int, width: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    planes = (rows * 255 / height, columns * 255 / width, (rows + columns) % 256 * 0 + 90)
    return np.stack(planes, axis=2).astype(np.uint8)


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def refused(source, **options):
    with pytest.raises(ParameterError) as caught:
        load_image(source, **options)
    (problem,) = caught.value.problems
    assert problem.remedy
    return problem


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF"])
def test_lossless_pictures_load_exactly(format, tmp_path):
    pixels = noise(9, 13)
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(Image.fromarray(pixels), format, **options)
    path = tmp_path / "no ending, 語"
    path.write_bytes(data)
    for source in (data, path, str(path)):
        loaded = load_image(source)
        assert loaded.dtype == np.uint8
        assert loaded.flags.writeable
        np.testing.assert_array_equal(loaded, pixels)


def test_alpha_is_composited_on_white_and_hidden_colour_never_leaks():
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[:, :32] = (255, 0, 0, 255)
    pixels[:, 32:] = (0, 255, 0, 0)
    white = np.full((64, 64, 3), 255, np.uint8)
    white[:, :32] = (255, 0, 0)
    picture = Image.fromarray(pixels)
    np.testing.assert_array_equal(load_image(encoded(picture)), white)
    np.testing.assert_array_equal(load_image(encoded(picture, "WEBP", lossless=True)), white)
    np.testing.assert_array_equal(load_image(encoded(picture, "TIFF")), white)


def test_half_transparent_black_becomes_mid_grey():
    picture = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert load_image(encoded(picture)).tolist() == [[[127] * 3] * 2] * 2


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("1", 0, (0, 0, 0)),
        ("L", 77, (77, 77, 77)),
        ("LA", (77, 255), (77, 77, 77)),
        ("LA", (77, 0), (255, 255, 255)),
        ("P", 3, None),
    ],
)
def test_grey_and_palette_modes(mode, colour, expected):
    picture = Image.new(mode, (5, 4), colour)
    if mode == "P":
        picture.putpalette([n for rgb in [(0, 0, 0)] * 3 + [(10, 20, 30)] for n in rgb])
        expected = (10, 20, 30)
    assert load_image(encoded(picture)).tolist() == [[list(expected)] * 5] * 4


def test_palette_and_rgb_transparency_entries_are_white():
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 250, 0, 0])
    palette.putpixel((1, 0), 1)
    assert load_image(encoded(palette, transparency=1)).tolist() == [[[1, 2, 3], [255] * 3]]
    assert load_image(encoded(palette, "GIF", transparency=0)).tolist() == [
        [[255] * 3, [250, 0, 0]]
    ]
    rgb = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert load_image(encoded(rgb, transparency=(4, 5, 6))).tolist() == [[[1, 2, 3], [255] * 3]]


def test_sixteen_bit_grey_is_scaled_not_clipped():
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    for format in ("PNG", "TIFF"):
        loaded = load_image(encoded(Image.fromarray(values), format))
        assert loaded[0, :, 0].tolist() == [0, 1, 128, 255]
    deep = Image.fromarray(np.array([[0, 32896, 65535]], np.int32))
    assert load_image(encoded(deep, "TIFF"))[0, :, 0].tolist() == [0, 128, 255]
    assert "broken" in refused(encoded(Image.new("F", (2, 2)), "TIFF")).message


def test_cmyk_jpeg_has_natural_colours():
    data = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    pixel = load_image(data)[8, 8].astype(int)
    assert pixel[0] > 240
    assert max(pixel[1:]) < 15


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = (255, 0, 0)  # red: top left
    upright[:8, 16:] = (0, 255, 0)
    # What the camera stores, so that showing it as `orientation` says gives `upright`.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    np.testing.assert_array_equal(load_image(data), upright)


def test_broken_exif_does_not_refuse_the_picture():
    pixels = smooth(16, 16)
    data = encoded(Image.fromarray(pixels), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xffgarbage")
    np.testing.assert_array_equal(load_image(data), pixels)


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), (n * 60, 0, 0)) for n in range(1, 4)]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert load_image(data)[0, 0].tolist() == [60, 0, 0]


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header promises width x height."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"), [(8001, 8000), (9500, 9500), (20_000, 20_000), (2**31 - 1, 2**31 - 1)]
)
def test_decompression_bombs_are_refused_from_the_header(width, height):
    problem = refused(bomb(width, height), field="image_path")
    assert problem.field == "image_path"
    assert "pixels allowed" in problem.message


def test_limits_are_inclusive_and_named():
    data = encoded(Image.fromarray(noise(10, 10)))
    assert load_image(data, max_pixels=100, max_bytes=len(data)).shape == (10, 10, 3)
    assert "10x10" in refused(data, max_pixels=99).message
    assert "bytes allowed" in refused(data, max_bytes=len(data) - 1).message


def test_what_is_no_picture_is_refused_with_field_value_and_remedy(tmp_path):
    text = tmp_path / "a.png"
    text.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    empty = tmp_path / "empty.png"
    empty.write_bytes(b"")
    huge = tmp_path / "huge.png"
    with huge.open("wb") as file:
        file.truncate(2**40)  # sparse: must not be read
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    table = [
        (text, str(text), "not a picture"),
        (empty, str(empty), "empty"),
        (huge, str(huge), "bytes allowed"),
        (fifo, str(fifo), "not a file"),
        (tmp_path, str(tmp_path), "not a file"),
        (tmp_path / "missing.png", str(tmp_path / "missing.png"), "No such file"),
        ("nul\0.png", "nul\0.png", "not a path"),
        (b"GIF89a", "<6 bytes>", "picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", None, "not a picture"),
        ("https://example.org/x.png", "https://example.org/x.png", "URL"),
        ("file:///etc/hostname", "file:///etc/hostname", "URL"),
        ("data:image/png;base64,@@@@", "data:image/png;base64,@@@@", "base64"),
        ("data:image/png;base64,", "data:image/png;base64,", "empty"),
        ("data:text/plain,hello", "data:text/plain,hello", "not a picture"),
    ]
    for source, value, words in table:
        problem = refused(source, field="image_paths[1]")
        assert problem.field == "image_paths[1]"
        assert value is None or problem.value == value
        assert words in problem.message, problem


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_truncated_files_are_refused(format):
    data = encoded(Image.fromarray(noise(64, 64)), format)
    for share in (0.1, 0.5, 0.9):
        assert refused(data[: int(len(data) * share)]).field == "image_path"


@given(
    st.binary(max_size=200), st.integers(0, 2000), st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"])
)
@settings(max_examples=200, deadline=None)
def test_damaged_files_are_a_picture_or_a_parameter_error(junk, at, format):
    data = bytearray(encoded(Image.fromarray(smooth(24, 24)), format))
    at %= len(data)
    data[at : at + len(junk)] = junk
    try:
        loaded = load_image(bytes(data), max_pixels=10_000)
    except ParameterError:
        return
    assert loaded.ndim == 3
    assert loaded.shape[2] == 3


def test_data_urls():
    pixels = noise(3, 5)
    data = encoded(Image.fromarray(pixels))
    text = base64.b64encode(data).decode()
    for url in (
        f"data:image/png;base64,{text}",
        f"DATA:image/png;charset=x;BASE64,{text.rstrip('=')}",
        f"data:;base64,{text[:20]}\n{text[20:]}".replace("+", "%2B").replace("/", "%2F"),
        "data:image/png," + "".join(f"%{byte:02x}" for byte in data),
    ):
        np.testing.assert_array_equal(load_image(url), pixels)
    problem = refused(f"data:image/png;base64,{'A' * 10_000}", max_bytes=100)
    assert "bytes allowed" in problem.message
    assert len(str(problem)) < 400


@pytest.mark.parametrize("mode", ["crop", "stretch", "pad"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((120, 128), (128, 128)),
        ((17, 31), (16, 16)),
        ((1, 1), (64, 48)),
        ((1, 1000), (1000, 1)),
        ((47, 65), (9, 300)),
    ],
)
def test_fit_gives_the_size_and_keeps_a_flat_colour(source, target, mode):
    image = np.full((*source, 3), (10, 200, 90), np.uint8)
    fitted = fit_image(image, *target, mode)
    assert fitted.shape == (*target, 3)
    assert fitted.dtype == np.uint8
    colours = {tuple(c) for c in fitted.reshape(-1, 3).tolist()}
    assert colours <= {(10, 200, 90)} | ({(0, 0, 0)} if mode == "pad" else set())
    assert (10, 200, 90) in colours


def test_crop_cuts_the_sides_evenly_and_stretch_does_not():
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 20:60] = 255  # the centre square
    assert fit_image(image, 40, 40, "crop").min() == 255
    stretched = fit_image(image, 40, 40, "stretch")
    assert stretched[:, :8].max() < 30
    assert stretched[:, 12:28].min() > 225
    padded = fit_image(image, 80, 80, "pad")
    assert padded[:20].max() == 0
    assert padded[21:59, 22:58].min() > 225


def test_fit_at_the_same_size_is_an_exact_copy():
    image = noise(20, 30)
    fitted = fit_image(image, 20, 30)
    np.testing.assert_array_equal(fitted, image)
    fitted[:] = 0
    assert image.any()


@pytest.mark.parametrize(
    ("image", "size", "mode"),
    [
        (np.zeros((4, 4, 3), np.float32), (2, 2), "crop"),
        (np.zeros((4, 4), np.uint8), (2, 2), "crop"),
        (np.zeros((4, 4, 4), np.uint8), (2, 2), "crop"),
        (np.zeros((0, 4, 3), np.uint8), (2, 2), "crop"),
        (np.zeros((4, 4, 3), np.uint8), (0, 2), "crop"),
        (np.zeros((4, 4, 3), np.uint8), (2, 2), "zoom"),
    ],
)
def test_fit_refuses(image, size, mode):
    with pytest.raises(ParameterError):
        fit_image(image, *size, mode)


METADATA = {"parameters": {"prompt": "赤い狐 \0 'x' 🦊", "seed": 2**63, "guidance_scale": 5.5}}


@pytest.mark.parametrize(
    ("format", "kind", "close"),
    [("png", "PNG", 0), ("jpeg", "JPEG", 8), ("jpg", "JPEG", 8), ("webp", "WEBP", 8)],
)
@pytest.mark.parametrize("size", [(47, 65), (1, 1), (64, 64)])
def test_pictures_round_trip_with_their_metadata(format, kind, close, size, tmp_path):
    pixels = smooth(*size)
    path = tmp_path / "picture"
    written = write_image(path, pixels, format, 95, METADATA)
    assert (written.width, written.height) == (size[1], size[0])
    assert written.bytes == path.stat().st_size
    with Image.open(path) as image:
        assert image.format == kind
        assert image.size == (size[1], size[0])
        back = np.asarray(image.convert("RGB"))
    assert np.abs(back.astype(int) - pixels).mean() <= close
    assert read_metadata(path) == METADATA
    np.testing.assert_array_equal(load_image(path), back)
    assert [child.name for child in tmp_path.iterdir()] == ["picture"]


def test_png_is_exact_at_every_quality_and_higher_is_never_smaller(tmp_path):
    pixels = smooth(64, 64)
    sizes = []
    for quality in (0, 25, 50, "default", "maximum"):
        write_image(tmp_path / "a.png", pixels, "png", quality)
        np.testing.assert_array_equal(load_image(tmp_path / "a.png"), pixels)
        sizes.append((tmp_path / "a.png").stat().st_size)
    assert sizes[0] <= sizes[-1]


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_higher_quality_is_bigger_and_nearer(format, tmp_path):
    pixels = noise(64, 64)
    sizes, errors = [], []
    for quality in ("low", "medium", "default", "high", "maximum"):
        sizes.append(write_image(tmp_path / "a", pixels, format, quality).bytes)
        errors.append(np.abs(load_image(tmp_path / "a").astype(int) - pixels).mean())
    assert sizes == sorted(sizes)
    assert errors[0] > errors[-1]


@pytest.mark.parametrize("quality", [-1, 101, 1.5, True, "best", "50", float("nan")])
def test_quality_out_of_range_is_refused(quality, tmp_path):
    with pytest.raises(ParameterError) as caught:
        write_image(tmp_path / "a.png", smooth(4, 4), "png", quality)
    assert caught.value.problems[0].field == "output_quality"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["mp4", "bmp", "", "svg"])
def test_other_formats_are_refused(format, tmp_path):
    with pytest.raises(ParameterError, match="png, jpeg, webp"):
        write_image(tmp_path / "a", smooth(4, 4), format)


def test_webp_names_its_size_limit(tmp_path):
    with pytest.raises(ParameterError, match="16383"):
        write_image(tmp_path / "a.webp", np.zeros((1, 16384, 3), np.uint8), "webp")


def test_metadata_too_long_for_a_jpeg_is_cut_and_says_so(tmp_path):
    long = {"parameters": {"prompt": "語" * 60_000, "steps": 7}, "list": ["x" * 100_000]}
    write_image(tmp_path / "a.jpg", smooth(8, 8), "jpeg", metadata=long)
    found = read_metadata(tmp_path / "a.jpg")
    assert found["truncated"] is True
    assert found["parameters"]["steps"] == 7
    assert found["parameters"]["prompt"].startswith("語語語")
    for format in ("png", "webp"):
        write_image(tmp_path / "a", smooth(8, 8), format, metadata=long)
        assert read_metadata(tmp_path / "a") == long


def test_files_without_metadata_say_so(tmp_path):
    write_image(tmp_path / "a.png", smooth(4, 4))
    (tmp_path / "b.png").write_bytes(b"junk")
    for name in ("a.png", "b.png", "c.png"):
        with pytest.raises(ParameterError) as caught:
            read_metadata(tmp_path / name)
        assert caught.value.problems[0].field == "path"


def test_writing_into_a_missing_folder_is_explained(tmp_path):
    with pytest.raises(SgldError) as caught:
        write_image(tmp_path / "none" / "a.png", smooth(4, 4))
    assert caught.value.problems[0].field == "output_path"
