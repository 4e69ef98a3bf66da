from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.media.names import (
    check_file_name,
    companion,
    hold,
    output_name,
    reserve,
    reserve_part,
)

NOW = datetime(2026, 11, 30, 10, 15, 0)
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def name_of(prompt: str, **changes) -> str:
    given = {
        "index": 0,
        "count": 1,
        "seed": 42,
        "extension": ".mp4",
        "digest": "ab12cd34",
        "now": NOW,
    }
    return output_name(prompt, **{**given, **changes})


TAIL = "_20261130-101500_seed42_ab12cd34.mp4"


@pytest.mark.parametrize(
    ("prompt", "head"),
    [
        ("A red fox, running!", "A_red_fox_running"),
        ("don't stop", "dont_stop"),
        ("", "output"),
        ("🦊🦊", "output"),
        ("../../etc/passwd", "etc_passwd"),
        ("..\\..\\x", "x"),
        ("/abs/path", "abs_path"),
        (".hidden", "hidden"),
        ("CON", "CON"),  # harmless: the tail makes it another name
        ("a\0b\nc\td", "a_b_c_d"),
        ("赤い狐が走る", "赤い狐が走る"),
        ("лиса бежит", "лиса_бежит"),
        ("हिन्दी में लोमड़ी", "हिन्दी_में_लोमड़ी"),
        ("ثعلب أحمر", "ثعلب_أحمر"),
        ("cafe\u0301", "café"),  # composed
        ("evil\u202egpj.exe", "evilgpj_exe"),
        ("\u0301\u0301a", "a"),
        ("\u3164\u3164", "output"),
        ("\ud800x", "x"),
        ("snow ²", "snow_²"),
    ],
)
def test_prompt_becomes_a_readable_name(prompt, head):
    assert name_of(prompt) == head + TAIL


def test_long_prompt_is_cut_at_a_word_and_stays_under_the_limit():
    name = name_of("word " * 800)
    assert name.endswith(TAIL)
    assert name.startswith("word_word_")
    assert not name.removesuffix(TAIL).endswith("_")
    assert len(name.removesuffix(TAIL)) <= 80
    assert len(name_of("語" * 4000).encode()) <= 255
    assert len(name_of("𠀀" * 4000, seed=2**64, count=10, index=9).encode()) <= 255


def test_several_outputs_have_their_index_and_folders_no_ending():
    assert name_of("a", count=3, index=2).endswith("_ab12cd34_2.mp4")
    assert name_of("a", extension="").endswith("_ab12cd34")
    assert name_of("a", extension="png").endswith(".png")
    with pytest.raises(ValueError, match="file ending"):
        name_of("a", extension="/../x")


@given(
    prompt=st.text(max_size=300) | st.text(alphabet="/\\.. \0\u202eé語𠀀ก́", max_size=300),
    index=st.integers(0, 9999),
    count=st.integers(1, 10000),
    seed=st.integers(0, 2**64),
    extension=st.sampled_from(["", ".mp4", "webm", ".jpeg"]),
    digest=st.text(max_size=40),
)
@example("CON", 0, 1, 0, "", "")
@example("\u1161\u11a8" * 100, 0, 1, 0, ".mp4", "")
def test_any_prompt_gives_a_safe_name(prompt, index, count, seed, extension, digest):
    name = name_of(prompt, index=index, count=count, seed=seed, extension=extension, digest=digest)
    assert len(name.encode("utf-8")) <= 255
    assert len(companion(Path(name), ".safetensors").name.encode("utf-8")) <= 255
    assert unicodedata.is_normalized("NFC", name)
    assert not name.startswith((".", "_", "-", " "))
    assert not set(name) & set("/\\\0:" + BIDI)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in name)
    assert os.path.basename(name) == name
    assert check_file_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "   ",
        ".",
        "..",
        "a/b.mp4",
        "../escape.png",
        "../../escape.png",
        "..\\..\\escape.png",
        "/abs/escape.png",
        "C:\\x.png",
        "C:x.png",
        ".hidden.mp4",
        "dot.",
        " space.mp4",
        "space.mp4 ",
        "nul\0.mp4",
        "line\n.mp4",
        "evil\u202egpj.exe",
        "CON",
        "con.mp4",
        "Lpt1.tar.mp4",
        "com¹.txt",
        "NUL .txt",
        "what?.mp4",
        "a" * 300 + ".mp4",
        "語" * 82 + ".mp4",
        "\ud800.mp4",
    ],
)
def test_bad_explicit_names_are_refused_and_nothing_is_written(name, tmp_path):
    inside = tmp_path / "out"
    with pytest.raises(ParameterError) as caught:
        reserve(inside, name)
    problem = caught.value.problems[0]
    assert problem.field == "output_file_name"
    assert problem.value == name
    assert problem.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["clip.mp4", "my clip (2).mp4", "console.mp4", "com10.mp4", "語" * 80 + ".mp4", "می‌روم.gif"],
)
def test_good_explicit_names_are_kept(name, tmp_path):
    assert reserve(tmp_path, name) == tmp_path / name
    assert check_file_name("cafe\u0301.png") == "café.png"


@given(st.text(max_size=40) | st.text(alphabet="./\\:\0 aCON\u202e~", max_size=12))
@settings(max_examples=300)
@example("0.json")
def test_no_explicit_name_escapes(tmp_path_factory, name):
    root = tmp_path_factory.mktemp("escape")
    folder = root / "out"
    folder.mkdir()
    field = "output_file_name"
    try:
        path = reserve(folder, name, companions=(".json",))
    except ParameterError as error:
        field = error.problems[0].field
    else:
        assert path.parent == folder
        assert path.resolve().parent == folder.resolve()
        assert path.is_file()
    assert field == "output_file_name"
    assert [child.name for child in root.iterdir()] == ["out"]


def test_taken_names_count_up_and_companions_must_be_free(tmp_path):
    names = [reserve(tmp_path, "a.mp4", companions=(".json",)).name for _ in range(3)]
    assert names == ["a.mp4", "a-2.mp4", "a-3.mp4"]
    # Another ending would share the sidecar, so it moves on too.
    assert reserve(tmp_path, "a.png", companions=(".json",)).name == "a-4.png"
    assert not (tmp_path / "a.png").exists()
    assert reserve(tmp_path, "a.webp").name == "a.webp"
    assert reserve(tmp_path, "shots", directory=True, companions=(".json",)).is_dir()
    assert reserve(tmp_path, "shots", directory=True, companions=(".json",)).name == "shots-2"


def test_an_ending_kept_for_a_companion_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="kept for the file beside it"):
        reserve(tmp_path, "a.JSON", companions=(".json",))


def test_a_dangling_link_is_taken_not_followed(tmp_path):
    outside = tmp_path / "outside.mp4"
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.mp4").symlink_to(outside)
    assert reserve(folder, "a.mp4").name == "a-2.mp4"
    assert not outside.exists()


def test_overwrite_claims_nothing(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"old")
    assert reserve(tmp_path, "a.mp4", overwrite=True) == tmp_path / "a.mp4"
    assert (tmp_path / "a.mp4").read_bytes() == b"old"


def test_longest_names_still_count_up(tmp_path):
    name = "語" * 81 + ".mp4"
    paths = [reserve(tmp_path, name, companions=(".safetensors",)) for _ in range(12)]
    assert len(set(paths)) == 12
    assert all(len(path.name.encode()) <= 255 for path in tmp_path.iterdir())


def fail_inside(error, folder, name, **options):
    with hold(folder, name, companions=(".json",), **options) as path:
        assert path.exists()
        if path.is_dir():
            (path / "frame_00001.png").write_bytes(b"x")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_inside_hold_releases_everything(error, tmp_path):
    with pytest.raises(error):
        fail_inside(error, tmp_path, "a.mp4")
    with pytest.raises(error):
        fail_inside(error, tmp_path, "f", directory=True)
    assert list(tmp_path.iterdir()) == []


def test_an_error_with_overwrite_keeps_the_old_file(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"old")
    with pytest.raises(RuntimeError), hold(tmp_path, "a.mp4", overwrite=True):
        raise RuntimeError
    assert (tmp_path / "a.mp4").read_bytes() == b"old"


def test_the_output_folder_can_be_a_file_or_unwritable(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper", Path("nul\0")):
        with pytest.raises(ParameterError) as caught:
            reserve(folder, "a.mp4")
        assert caught.value.problems[0].field == "output_path"


def test_threads_never_share_a_name(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        paths = list(
            pool.map(lambda _: reserve(tmp_path, "a.mp4", companions=(".json",)), range(200))
        )
    assert len(set(paths)) == 200
    assert len(list(tmp_path.iterdir())) == 400


@pytest.mark.multi_process
def test_processes_never_share_a_name(tmp_path):
    script = (
        "import sys; from pathlib import Path; from sgld.media.names import reserve\n"
        "for _ in range(40): print(reserve(Path(sys.argv[1]), 'a.mp4', companions=('.json',)).name)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    names = [name for worker in workers for name in worker.communicate()[0].split()]
    assert len(names) == len(set(names)) == 120
    assert len(list(tmp_path.iterdir())) == 240


def test_a_growing_file_is_called_like_what_it_becomes(tmp_path: Path):
    first = reserve_part(tmp_path, "kite.mp4", companions=(".json",))
    assert first == (tmp_path / "kite.part.mp4", "kite.mp4")
    assert [file.name for file in tmp_path.iterdir()] == ["kite.part.mp4"]
    assert reserve_part(tmp_path, "kite.mp4") == (tmp_path / "kite-2.part.mp4", "kite-2.mp4")
    (tmp_path / "kite-3.json").touch()
    assert reserve_part(tmp_path, "kite.mp4", companions=(".json",))[1] == "kite-4.mp4"
    assert reserve_part(tmp_path, "kite.mp4", companions=())[1] == "kite-3.mp4"


def test_a_growing_file_that_will_overwrite(tmp_path: Path):
    (tmp_path / "kite.mp4").touch()
    first = reserve_part(tmp_path, "kite.mp4", True)
    assert first == (tmp_path / "kite.part.mp4", "kite.mp4")
    # Another run at the same time has a growing file of its own.
    second = reserve_part(tmp_path, "kite.mp4", True)
    assert second == (tmp_path / "kite-2.part.mp4", "kite.mp4")


def test_names_of_growing_files_are_checked(tmp_path: Path):
    with pytest.raises(ParameterError):
        reserve_part(tmp_path, "../kite.mp4")
    longest = "a" * 243
    path, name = reserve_part(tmp_path, longest + ".webm")
    assert (path.name, name) == (f"{longest}.part.webm", f"{longest}.webm")
    path, name = reserve_part(tmp_path, longest + ".webm")
    assert name == f"{'a' * 241}-2.webm"
    assert path.exists()
