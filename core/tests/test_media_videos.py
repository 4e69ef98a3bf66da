from __future__ import annotations

import io
import json
import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sgld.api.errors import ParameterError, SgldError
from sgld.media import formats
from sgld.media.formats import format_of_name, frame_rate, quality_number
from sgld.media.images import load_image
from sgld.media.sidecar import read_metadata
from sgld.media.videos import write_video

NTSC = Fraction(24000, 1001)
METADATA = {"parameters": {"prompt": "赤い狐 \0 'x' 🦊" + "é" * 5000, "seed": 2**63, "scale": 5.5}}


def clip(frames: int, height: int, width: int) -> np.ndarray:
    """A bright square moves over a gradient, so that every frame differs."""
    rows, columns = np.mgrid[0:height, 0:width]
    base = np.stack([rows * 200 / height, columns * 200 / width, np.full(rows.shape, 60.0)], axis=2)
    video = np.repeat(base[None].astype(np.uint8), frames, axis=0)
    for number in range(frames):
        at = number * max(1, width // 10)
        video[number, : max(1, height // 2), at : at + max(1, width // 4)] = (250, 240, 30)
    return video


def decode(path) -> tuple[np.ndarray, list[Fraction], Fraction]:
    """Frames, their times in seconds, and the average rate."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        times = [frame.pts * frame.time_base for frame in frames]
        pixels = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        return pixels, times, stream.average_rate


def gif_durations(path) -> list[int]:
    with Image.open(path) as image:
        found = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            found.append(image.info["duration"])
        return found


SIZES = [(65, 47), (66, 46), (64, 64), (16, 16), (65, 46), (66, 47), (195, 141), (2, 2), (1, 1)]


@pytest.mark.parametrize("fps", [16, 24, 23.976])
@pytest.mark.parametrize("frames", [9, 1])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_mp4_decodes_to_what_is_reported(width, height, frames, fps, tmp_path):
    video = clip(frames, height, width)
    path = tmp_path / "a.mp4"
    written = write_video(path, video, fps, quality="high")
    pixels, times, rate = decode(path)
    even = (height + height % 2, width + width % 2)
    assert pixels.shape == (frames, *even, 3)
    assert (written.height, written.width, written.frames) == (*even, frames)
    assert written.padded == (even != (height, width))
    assert written.bytes == path.stat().st_size
    exact = NTSC if fps == 23.976 else Fraction(fps)
    assert rate == written.fps == exact
    assert times == [number / exact for number in range(frames)]
    if width >= 16:
        # Not rescaled and not shifted: the picture lies where it lay, the edge is repeated.
        error = np.abs(pixels[:, :height, :width].astype(int) - video)
        assert error.mean() < 6
        assert np.abs(pixels[:, -1].astype(int) - pixels[:, height - 1]).mean() < 6
        assert np.abs(pixels[:, :, -1].astype(int) - pixels[:, :, width - 1]).mean() < 6


@pytest.mark.parametrize("fps", [16, 23.976])
@pytest.mark.parametrize("frames", [9, 1])
@pytest.mark.parametrize(("width", "height"), [(65, 47), (64, 64), (16, 16), (1, 1)])
def test_webm_keeps_every_size_exactly(width, height, frames, fps, tmp_path):
    video = clip(frames, height, width)
    path = tmp_path / "a.webm"
    written = write_video(path, video, fps, format="webm", quality="high", preset="ultrafast")
    pixels, times, rate = decode(path)
    assert pixels.shape == video.shape
    assert (written.height, written.width, written.padded) == (height, width, False)
    assert rate == written.fps
    # Matroska counts milliseconds.
    ideal = [number / written.fps for number in range(frames)]
    assert all(abs(a - b) <= Fraction(1, 1000) for a, b in zip(times, ideal, strict=True))
    if width >= 16:
        assert np.abs(pixels.astype(int) - video).mean() < 8


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("fps", [16, 24, 23.976, 50, 1])
@pytest.mark.parametrize(("frames", "height", "width"), [(9, 47, 65), (1, 16, 16), (9, 1, 1)])
def test_gif_keeps_every_frame_and_its_length(frames, height, width, fps, same, tmp_path):
    video = clip(frames, height, width)
    if same:
        video[:] = video[:1]
    path = tmp_path / "a.gif"
    written = write_video(path, video, fps, format="gif", metadata=METADATA)
    assert decode(path)[0].shape == video.shape
    durations = gif_durations(path)
    assert len(durations) == frames == written.frames
    assert sum(durations) == pytest.approx(1000 * frames / written.fps, abs=5)
    assert max(durations) - min(durations) <= 10
    with Image.open(path) as image:
        assert image.size == (width, height)
        assert image.info["loop"] == 0


def test_gif_colours_come_from_the_picture(tmp_path):
    video = np.zeros((3, 16, 16, 3), np.uint8)
    video[0], video[1], video[2] = (200, 10, 30), (5, 220, 60), (40, 50, 240)
    write_video(tmp_path / "a.gif", video, 10, format="gif")
    np.testing.assert_array_equal(decode(tmp_path / "a.gif")[0], video)


def test_frames_folder(tmp_path):
    video = clip(11, 47, 65)
    folder = tmp_path / "shots"
    written = write_video(folder, video, 23.976, format="frames", metadata=METADATA)
    names = sorted(child.name for child in folder.iterdir())
    assert names == [f"frame_{n:05d}.png" for n in range(1, 12)] + ["metadata.json"]
    for number, frame in enumerate(video, start=1):
        np.testing.assert_array_equal(load_image(folder / f"frame_{number:05d}.png"), frame)
    about = json.loads((folder / "metadata.json").read_text("utf-8"))
    assert (about["width"], about["height"], about["frames"]) == (65, 47, 11)
    assert frame_rate(about["fps"]) == NTSC == written.fps
    assert read_metadata(folder) == METADATA
    assert written.bytes == sum(child.stat().st_size for child in folder.iterdir())
    # Replacing leaves no frame of the longer one behind.
    write_video(folder, video[:2], 8, format="frames")
    assert len(list(folder.iterdir())) == 3
    assert [child.name for child in tmp_path.iterdir()] == ["shots"]


def test_frames_folder_never_deletes_other_files(tmp_path):
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "thesis.txt").write_text("years of work")
    with pytest.raises(ParameterError, match="thesis"):
        write_video(tmp_path / "shots", clip(2, 8, 8), 8, format="frames")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParameterError):
        write_video(tmp_path / "file", clip(2, 8, 8), 8, format="frames")
    assert (tmp_path / "shots" / "thesis.txt").read_text() == "years of work"
    assert sorted(child.name for child in tmp_path.iterdir()) == ["file", "shots"]


@pytest.mark.parametrize("format", ["mp4", "webm", "gif", "frames"])
def test_metadata_round_trips(format, tmp_path):
    write_video(tmp_path / "a", clip(2, 16, 16), 8, format=format, metadata=METADATA)
    assert read_metadata(tmp_path / "a") == METADATA
    write_video(tmp_path / "b", clip(2, 16, 16), 8, format=format)
    with pytest.raises(ParameterError, match="no sgld metadata"):
        read_metadata(tmp_path / "b")


def yuv_of(path) -> tuple[av.VideoFrame, list[int]]:
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        return frame, [bytes(plane)[0] for plane in frame.planes]


@pytest.mark.parametrize("format", ["mp4", "webm"])
@pytest.mark.parametrize(
    ("rgb", "yuv"),
    # Rec. ITU-R BT.709 item 3.3-3.5: Y = 16 + 219 E, C = 128 + 224 E, rounded.
    [
        ((255, 0, 0), (63, 102, 240)),
        ((0, 255, 0), (173, 42, 26)),
        ((0, 0, 255), (32, 240, 118)),
        ((255, 255, 255), (235, 128, 128)),
        ((0, 0, 0), (16, 128, 128)),
    ],
)
def test_colours_are_bt709_limited_and_tagged_so(rgb, yuv, format, tmp_path):
    video = np.full((2, 32, 32, 3), rgb, np.uint8)
    write_video(tmp_path / "a", video, 8, format=format, quality="maximum")
    frame, planes = yuv_of(tmp_path / "a")
    assert frame.format.name == "yuv420p"
    assert planes == pytest.approx(yuv, abs=2)
    assert int(frame.colorspace) == 1  # BT.709
    assert int(frame.color_range) == 1  # limited
    assert int(frame.color_primaries) == int(frame.color_trc) == 1


def test_mp4_starts_with_its_index_and_is_h264(tmp_path):
    write_video(tmp_path / "a.mp4", clip(9, 64, 64), 16)
    data = (tmp_path / "a.mp4").read_bytes()
    assert data[4:8] == b"ftyp"
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    with av.open(io.BytesIO(data)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].codec_context.profile == "High"
    write_video(tmp_path / "a.mp4", clip(9, 64, 64), 16, quality="maximum")
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.video[0].codec_context.profile == "High"  # not lossless 4:4:4


@pytest.mark.parametrize("format", ["mp4", "webm", "gif"])
def test_higher_quality_is_bigger_and_nearer(format, tmp_path):
    noise = np.random.default_rng(3).normal(0, 25, (5, 64, 64, 3))
    video = np.clip(clip(5, 64, 64) + noise, 0, 255).astype(np.uint8)
    sizes, errors = [], []
    for quality in (0, "low", "default", "high", 100):
        sizes.append(write_video(tmp_path / "a", video, 8, format=format, quality=quality).bytes)
        errors.append(np.abs(decode(tmp_path / "a")[0].astype(int) - video).mean())
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]
    assert errors[0] > errors[2] >= errors[-1]


def test_frames_may_come_one_by_one_and_are_read_once(tmp_path):
    video = clip(9, 48, 64)
    taken = []

    def stream():
        for number, frame in enumerate(video):
            taken.append(number)
            yield frame

    for format in ("mp4", "gif", "frames"):
        taken.clear()
        written = write_video(tmp_path / format, stream(), 8, format=format)
        assert written.frames == 9
        assert taken == list(range(9))
    write_video(tmp_path / "b.mp4", video, 8)
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "mp4").read_bytes()
    # A view that is not contiguous (channels moved last) is not scrambled.
    moved = np.ascontiguousarray(video.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    write_video(tmp_path / "c.mp4", moved, 8)
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "c.mp4").read_bytes()


@pytest.mark.parametrize("format", ["mp4", "webm", "gif", "frames"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_failing_source_leaves_nothing_and_keeps_the_old(format, error, tmp_path):
    def stream():
        yield from clip(3, 16, 16)
        raise error

    path = tmp_path / "a"
    with pytest.raises(error):
        write_video(path, stream(), 8, format=format)
    assert list(tmp_path.iterdir()) == []
    write_video(path, clip(3, 16, 16), 8, format=format)
    before = read_tree(tmp_path)
    with pytest.raises(error):
        write_video(path, stream(), 8, format=format)
    assert read_tree(tmp_path) == before


def read_tree(folder) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("format", ["mp4", "webm", "gif", "frames"])
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(format, tmp_path):
    resource = pytest.importorskip("resource")
    video = np.random.default_rng(1).integers(0, 256, (4, 96, 96, 3), dtype=np.uint8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(SgldError) as caught:
            write_video(tmp_path / "a", video, 8, format=format, quality="maximum")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "disk_full"
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"fps": 0}, "fps"),
        ({"fps": -8}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"fps": float("inf")}, "fps"),
        ({"fps": True}, "fps"),
        ({"fps": "24"}, "fps"),
        ({"fps": 100_000}, "fps"),
        ({"fps": 60, "format": "gif"}, "fps"),
        ({"format": "png"}, "output_format"),
        ({"format": "avi"}, "output_format"),
        ({"quality": 101}, "output_quality"),
        ({"quality": -1}, "output_quality"),
        ({"quality": "best"}, "output_quality"),
        ({"preset": "warp"}, "x264_preset"),
        ({"frames": np.zeros((0, 8, 8, 3), np.uint8)}, "frames"),
        ({"frames": []}, "frames"),
        ({"frames": np.zeros((2, 8, 8, 3), np.float32)}, "frames"),
        ({"frames": np.zeros((2, 8, 8), np.uint8)}, "frames"),
        ({"frames": np.zeros((2, 8, 8, 4), np.uint8)}, "frames"),
        ({"frames": [np.zeros((8, 8, 3), np.uint8), np.zeros((8, 9, 3), np.uint8)]}, "frames"),
        ({"frames": np.zeros((1, 2, 16386, 3), np.uint8)}, "output_format"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(changes, field, tmp_path):
    given = {"frames": clip(2, 8, 8), "fps": 8, **changes}
    with pytest.raises(ParameterError) as caught:
        write_video(tmp_path / "a", given.pop("frames"), given.pop("fps"), **given)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert problem.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fps", "exact"),
    [
        (24, Fraction(24)),
        (24.0, Fraction(24)),
        (23.976, NTSC),
        (23.98, NTSC),
        (29.97, Fraction(30000, 1001)),
        (59.94, Fraction(60000, 1001)),
        (12.5, Fraction(25, 2)),
        (0.5, Fraction(1, 2)),
        (Fraction(24000, 1001), NTSC),
        (float(NTSC), NTSC),
        (np.float32(23.976), NTSC),
        (np.int64(16), Fraction(16)),
    ],
)
def test_frame_rates_are_exact(fps, exact):
    assert frame_rate(fps) == exact


@given(st.fractions(min_value=Fraction(1, 99), max_value=1000))
def test_any_frame_rate_stays_near_and_fits_the_containers(fps):
    rate = frame_rate(fps)
    assert abs(rate - fps) < Fraction(1, 100)
    assert 0 < rate.numerator < 2**31
    assert rate.denominator < 2**31


def test_quality_words_and_scales():
    words = ("default", "maximum", "high", "medium", "low")
    assert [quality_number(w, moving=True) for w in words] == [50, 100, 90, 55, 35]
    assert [quality_number(w, moving=False) for w in words] == [75, 100, 90, 55, 35]
    assert quality_number(None, moving=True) == 50
    for scale, best, worst, falls in [
        (formats.x264_crf, 1, 51, True),
        (formats.vp9_crf, 1, 63, True),
        (formats.png_level, 1, 9, True),
        (formats.gif_colours, 256, 16, False),
    ]:
        values = [scale(quality) for quality in range(101)]
        assert (values[100], values[0]) == (best, worst)
        assert values == sorted(values, reverse=falls)
    assert formats.x264_crf(50) == 25
    assert [formats.vp9_speed(preset) for preset in formats.PRESETS] == [
        8,
        7,
        6,
        5,
        4,
        3,
        2,
        1,
        0,
        0,
    ]


def test_formats_are_known_by_name_ending():
    table = {
        "a.MP4": "mp4",
        "a.jpg": "jpeg",
        "a.JPEG": "jpeg",
        "a.tar.webp": "webp",
        "frames": None,
    }
    for name, expected in {**table, "a.v1": None, "mp4": None, "a.frames": None}.items():
        found = format_of_name(name)
        assert (found.name if found else None) == expected


def test_the_documented_quality_table_is_what_the_code_does():
    lines = Path(__file__).parents[2].joinpath("docs", "outputs.md").read_text("utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if re.match(r"\| \d+ \|", line)
    ]
    assert len(rows) == 7
    for quality, word, *shown in rows:
        number = int(quality)
        scales = (
            formats.x264_crf(number),
            formats.vp9_crf(number),
            formats.gif_colours(number),
            formats.png_level(number),
            number,
        )
        assert shown == [str(value) for value in scales]
        moving = "pictures" not in word
        assert not word or quality_number(word.split("`")[1], moving=moving) == number
