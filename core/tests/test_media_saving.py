from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError, SgldError
from sgld.media import saving, writing
from sgld.media.images import load_image
from sgld.media.metadata import from_json, to_json
from sgld.media.saving import check_saving, save_output
from sgld.media.sidecar import read_metadata, sidecar_path, versions, write_sidecar
from sgld.messages import Output

NOW = datetime(2026, 11, 30, 10, 15, tzinfo=UTC)


def output(frames: int = 9, height: int = 46, width: int = 66, **changes) -> Output:
    moving = frames > 1
    pixels = np.arange(frames * height * width * 3, dtype=np.uint32) % 251
    made = Output(
        index=0,
        seed=42,
        kind="video" if moving else "image",
        frames=pixels.astype(np.uint8).reshape(frames, height, width, 3),
        fps=16 if moving else 0,
        parameters={
            "prompt": "赤い狐",
            "width": width,
            "height": height,
            "num_frames": frames,
            **({"fps": 16} if moving else {}),
        },
        latents=np.linspace(0, 1, 48, dtype=np.float32).reshape(1, 4, 3, 2, 2),
        timings={"denoise": 1.5, "total": 2.0},
    )
    return replace(made, **changes)


def save(made: Output, folder: Path, **options):
    return save_output(made, folder=folder, **{"prompt": "赤い狐", "now": NOW, **options})


def names(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


def decoded(path: Path) -> tuple[int, int, int]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        return len(frames), frames[0].height, frames[0].width


def test_a_video_with_everything_beside_it(tmp_path):
    made = output()
    metadata = {"model": "tiny", "versions": {"sgld-wan": "0.1.0"}, "warnings": ["w"]}
    saved = save(made, tmp_path / "new" / "out", metadata=metadata, save_latents=True)
    assert saved.path.name.startswith("赤い狐_20261130-101500_seed42_")
    assert saved.path.suffix == ".mp4"
    stem = saved.path.stem
    assert names(saved.path.parent) == [f"{stem}.json", f"{stem}.mp4", f"{stem}.safetensors"]
    assert decoded(saved.path) == (9, 46, 66) == (saved.frames, saved.height, saved.width)
    assert (saved.fps, saved.padded, saved.format) == (Fraction(16), False, "mp4")
    assert saved.bytes == saved.path.stat().st_size
    record = json.loads(saved.sidecar.read_text("utf-8"))
    assert record["parameters"] == made.parameters
    assert (record["seed"], record["index"], record["model"]) == (42, 0, "tiny")
    assert record["output"] == {
        "format": "mp4",
        "width": 66,
        "height": 46,
        "frames": 9,
        "fps": 16,
        "padded": False,
        "quality": 50,
        "preset": "fast",
        "file": saved.path.name,
        "bytes": saved.bytes,
        "latents": f"{stem}.safetensors",
    }
    assert record["timings"] == {"denoise": 1.5, "total": 2.0}
    assert record["warnings"] == ["w"]
    assert record["created"] == "2026-11-30T10:15:00+00:00"
    assert record["versions"].keys() >= {"python", "torch", "sgld-core", "sgld-wan"}
    inside = read_metadata(saved.path)
    assert inside["parameters"] == made.parameters
    assert inside["output"]["width"] == 66
    latents = safetensors.numpy.load_file(saved.latents_path)["latents"]
    np.testing.assert_array_equal(latents, made.latents)
    assert latents.dtype == np.float32


def test_transposed_latents_are_not_scrambled(tmp_path):
    latents = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    saved = save(output(latents=latents), tmp_path, save_latents=True)
    np.testing.assert_array_equal(
        safetensors.numpy.load_file(saved.latents_path)["latents"], latents
    )


@pytest.mark.parametrize(("width", "height"), [(65, 47), (66, 46), (64, 64), (16, 16), (1, 1)])
@pytest.mark.parametrize("frames", [9, 2])
def test_odd_mp4_reports_what_the_file_holds(width, height, frames, tmp_path):
    saved = save(output(frames, height, width), tmp_path)
    assert decoded(saved.path) == (saved.frames, saved.height, saved.width)
    record = json.loads(saved.sidecar.read_text())["output"]
    assert (record["frames"], record["height"], record["width"]) == decoded(saved.path)
    odd = bool(width % 2 or height % 2)
    assert saved.padded == record["padded"] == odd
    assert any("padded to" in text for text in saved.warnings) == odd


def test_parameters_that_differ_from_the_file_are_reported(tmp_path):
    upscaled = output(height=92, width=132)
    saved = save(replace(upscaled, parameters=output().parameters), tmp_path)
    assert saved.warnings == (
        "width was 66; the file holds 132.",
        "height was 46; the file holds 92.",
    )
    assert json.loads(saved.sidecar.read_text())["warnings"] == list(saved.warnings)


@pytest.mark.parametrize(
    ("format", "ending"),
    [(None, ".png"), ("png", ".png"), ("jpeg", ".jpg"), ("jpg", ".jpg"), ("webp", ".webp")],
)
def test_pictures(format, ending, tmp_path):
    made = output(1, 47, 65)
    saved = save(made, tmp_path, format=format)
    assert saved.path.suffix == ending
    assert (saved.width, saved.height, saved.frames, saved.fps) == (65, 47, 1, 0)
    assert (saved.padded, saved.latents_path, saved.warnings) == (False, None, ())
    assert load_image(saved.path).shape == (47, 65, 3)
    assert read_metadata(saved.path)["parameters"] == made.parameters
    assert "preset" not in read_metadata(saved.path)["output"]


def test_a_picture_may_become_a_video_of_one_frame(tmp_path):
    saved = save(output(1), tmp_path, format="mp4")
    assert decoded(saved.path) == (1, 46, 66)
    assert saved.fps == 1
    still = replace(output(), frames=output().frames[:1])
    assert save(still, tmp_path, format="png").path.suffix == ".png"


def test_frames_folder_with_sidecar_and_latents_beside_it(tmp_path):
    saved = save(output(), tmp_path, format="frames", file_name="v1.5", save_latents=True)
    assert names(tmp_path) == ["v1.5", "v1.5.json", "v1.5.safetensors"]
    assert len(names(saved.path)) == 10
    assert sidecar_path(saved.path) == saved.sidecar
    assert read_metadata(saved.path)["seed"] == 42
    again = save(output(), tmp_path, format="frames", file_name="v1.5")
    assert again.path.name == "v1.5-2"
    fewer = save(output(2), tmp_path, format="frames", file_name="v1.5", overwrite=True)
    assert len(names(fewer.path)) == 3


def test_the_same_second_twice_gives_two_files_unless_overwritten(tmp_path):
    first, second = save(output(), tmp_path), save(output(), tmp_path)
    assert second.path.name == f"{first.path.stem}-2.mp4"
    before = first.path.read_bytes()
    assert before == second.path.read_bytes()
    third = save(output(), tmp_path, overwrite=True, quality="low")
    assert third.path == first.path
    assert first.path.read_bytes() != before
    assert len(names(tmp_path)) == 4


def test_a_four_thousand_letter_prompt(tmp_path):
    prompt = "lighthouse " * 364
    made = replace(output(), parameters={"prompt": prompt})
    saved = [save(made, tmp_path, prompt=prompt) for _ in range(2)]
    assert saved[0].path != saved[1].path
    assert all(len(name.encode()) <= 255 for name in names(tmp_path))
    assert read_metadata(saved[0].path)["parameters"]["prompt"] == prompt
    assert json.loads(saved[0].sidecar.read_text())["parameters"]["prompt"] == prompt


@pytest.mark.parametrize(
    ("file_name", "format", "count", "expected"),
    [
        ("clip", None, 1, "clip.mp4"),
        ("clip.webm", None, 1, "clip.webm"),
        ("clip.WEBM", "webm", 1, "clip.WEBM"),
        ("clip.v2", "gif", 1, "clip.v2.gif"),
        ("clip.mp4", None, 3, "clip_0.mp4"),
        ("語", "frames", 3, "語_0"),
    ],
)
def test_explicit_names(file_name, format, count, expected, tmp_path):
    saved = save(output(3), tmp_path, file_name=file_name, format=format, count=count)
    assert saved.path == tmp_path / expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"file_name": "../escape"}, "output_file_name"),
        ({"file_name": "/abs/escape.mp4"}, "output_file_name"),
        ({"file_name": ""}, "output_file_name"),
        ({"file_name": "CON"}, "output_file_name"),
        ({"file_name": "clip.webm", "format": "mp4"}, "output_file_name"),
        ({"file_name": "clip.mp4", "format": "frames"}, "output_file_name"),
        ({"format": "png"}, "output_format"),
        ({"file_name": "clip.png"}, "output_format"),
        ({"format": "avi"}, "output_format"),
        ({"quality": 101}, "output_quality"),
        ({"preset": "warp"}, "x264_preset"),
    ],
)
def test_bad_options_are_refused_early_and_late_alike(options, field, tmp_path):
    with pytest.raises(ParameterError) as early:
        check_saving("video", frames=9, height=46, width=66, fps=16, **options)
    with pytest.raises(ParameterError) as late:
        save(output(), tmp_path / "out", **options)
    assert str(early.value) == str(late.value)
    assert early.value.problems[0].field == field
    assert early.value.problems[0].remedy
    assert names(tmp_path) == []


def test_missing_latents_and_too_fast_gifs_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="save_latents"):
        save(output(latents=None), tmp_path, save_latents=True)
    with pytest.raises(ParameterError, match="fps"):
        check_saving("video", frames=9, fps=60, format="gif")
    assert check_saving("image").name == "png"
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["write_sidecar", "write_bytes", "write_video"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "full")])
@pytest.mark.parametrize("format", ["mp4", "frames"])
def test_an_error_at_any_step_leaves_nothing(step, error, format, tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(saving, step, fail)
    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        save(output(), tmp_path, format=format, save_latents=True)
    assert names(tmp_path) == []


def test_a_full_disk_while_writing_the_sidecar(tmp_path, monkeypatch):
    def full(self, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SgldError) as caught:
        save(output(), tmp_path)
    assert caught.value.code == "disk_full"
    assert names(tmp_path) == []


def test_threads_saving_at_once_never_collide(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        saved = list(pool.map(lambda _: save(output(2, 16, 16), tmp_path), range(24)))
    assert len({one.path for one in saved}) == 24
    assert len(names(tmp_path)) == 48
    assert all(decoded(one.path) == (2, 16, 16) for one in saved)


def test_finished_files_follow_the_umask(tmp_path):
    saved = save(output(), tmp_path)
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert saved.path.stat().st_mode == plain.stat().st_mode == saved.sidecar.stat().st_mode


@pytest.mark.multi_process
@pytest.mark.parametrize("format", ["mp4", "frames"])
def test_ctrl_c_while_encoding_leaves_nothing(format, tmp_path):
    script = (
        "import itertools, signal, sys; import numpy as np; from pathlib import Path\n"
        "from sgld.media.names import hold; from sgld.media.videos import write_video\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def frames():\n"
        "    for number in itertools.count():\n"
        "        if number == 30: print('busy', flush=True)\n"
        "        yield np.full((64, 64, 3), number % 256, np.uint8)\n"
        "with hold(Path(sys.argv[1]), 'a', companions=('.json',), directory=True) as path:\n"
        "    write_video(path, frames(), 16, format=sys.argv[2])\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), format],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "busy\n"
        worker.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in worker.communicate(timeout=20)[1]
    finally:
        worker.kill()
    assert names(tmp_path) == []


def test_replacing_keeps_the_old_file_on_errors(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def half():
        with writing.replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_sidecar_stands_beside_the_output(tmp_path):
    path = tmp_path / "a.b.mp4"
    assert write_sidecar(path, {"x": float("nan"), "p": Path("q")}) == tmp_path / "a.b.json"
    assert json.loads((tmp_path / "a.b.json").read_text()) == {"x": "nan", "p": "q"}
    assert versions(["no-such-distribution"]).keys() == versions().keys()
    assert versions()["python"] == sys.version.split()[0]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=5))
def test_json_values_survive(payload):
    assert from_json(to_json(payload)) == payload
    assert from_json(to_json(payload, ascii_only=True)) == payload


def test_what_json_cannot_hold_becomes_text_or_numbers():
    odd = {
        "surrogate": "\ud800x",
        "half": Fraction(1, 2),
        "whole": Fraction(4),
        "array": np.arange(3),
        "scalar": np.float32(0.5),
        "tuple": (1, 2),
        "infinite": float("-inf"),
        3: "key",
    }
    assert from_json(to_json(odd)) == {
        "surrogate": "?x",
        "half": 0.5,
        "whole": 4,
        "array": [0, 1, 2],
        "scalar": 0.5,
        "tuple": [1, 2],
        "infinite": "-inf",
        "3": "key",
    }


def test_media_never_imports_torch():
    script = (
        "import sys, sgld.media.saving\n"
        "bad = {'torch', 'diffusers', 'transformers'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
