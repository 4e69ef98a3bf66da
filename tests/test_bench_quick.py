"""The benchmarks run to their end on small models; what they measure here means little.

`bench/server.py` has a test of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
pytestmark = pytest.mark.slow


def run(name: str, *arguments: str) -> str:
    """What a benchmark prints."""
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def check_sides(content: dict[str, Any]) -> None:
    """Both sides were timed, and made the same latents of the same weights in float32."""
    ours, theirs = content["sides"]["sgld"], content["sides"]["diffusers, default attention"]
    for side in (ours, theirs):
        seconds = side["seconds"]
        stages = [seconds[f"stage {stage}"] for stage in ("text", "denoise", "decode")]
        assert min(stages) > 0
        assert sum(stages) <= seconds["total"]
        assert len(side["totals"]) == 1
    assert theirs["ratio"]["total"] == theirs["seconds"]["total"] / ours["seconds"]["total"]
    assert theirs["relative_l2"] < 1e-4
    assert set(content["precisions"].values()) == {"float32"}


def test_images(tmp_path: Path) -> None:
    printed = run("images.py", "--quick", "--device", "cpu", "--output", str(tmp_path))
    files = sorted(tmp_path.glob("images-tiny-*-cpu.json"))
    contents = [json.loads(path.read_text()) for path in files]
    names = ["tiny-flux.1-dev", "tiny-flux.2-klein-4b", "tiny-sana-1.6b"]
    assert [content["model"] for content in contents] == names
    for content in contents:
        check_sides(content)
        assert content["model"] in printed
    assert [content["request"]["guidance_scale"] for content in contents] == [3.5, 1.0, 4.5]


def test_generate(tmp_path: Path) -> None:
    size = ("--width", "96", "--height", "64", "--frames", "5", "--steps", "2")
    run("generate.py", "--model", "tiny", "--device", "cpu", *size, "--output", str(tmp_path))
    check_sides(json.loads((tmp_path / "generate-tiny-64p-cpu.json").read_text()))


def test_dit(tmp_path: Path) -> None:
    run("dit.py", "--device", "cpu", "--repeats", "2", "--json", str(tmp_path / "dit.json"))
    rows = json.loads((tmp_path / "dit.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["diffusers eager", "sgld"]
    assert all(row["median"] > 0 for row in rows)
    assert rows[0]["relative_l2_to_sgld"] < 0.01


def test_batching() -> None:
    printed = run("batching.py", "--quick")
    rows = [line.split() for line in printed.splitlines()]
    times = {row[0]: float(row[1]) for row in rows if row and row[0] in {"alone", "step"}}
    assert set(times) == {"alone", "step"}
    assert min(times.values()) > 0


def test_realtime(tmp_path: Path) -> None:
    printed = run("realtime.py", "--quick", "--engine", "--output", str(tmp_path))
    content = json.loads((tmp_path / "realtime-quick.json").read_text())
    assert [row["sessions"] for row in content["engine"]] == [1, 2]
    for row in content["engine"]:
        assert min(row[part] for part in ("denoise_ms", "commit_ms", "decode_ms")) > 0
        assert row["frames_per_chunk"] == 12
        assert row["held_of_reserved"] == 1
    assert content["model"] == "demo:world"
    assert "sessions 2" in printed


def test_realtime_wire(tmp_path: Path) -> None:
    toy = ("--wire-model", "tiny:toy-world", "--wire-size", "64x48")
    run("realtime.py", "--quick", "--wire", *toy, "--output", str(tmp_path))
    content = json.loads((tmp_path / "realtime-quick.json").read_text())
    assert [row["format"] for row in content["wire"]] == ["raw", "webp", "jpeg", "h264"]
    for row in content["wire"]:
        assert 0 < row["key_to_frame_ms"] <= row["key_to_frames_ms"]
        assert row["server_and_wire_ms"] < row["key_to_frames_ms"]


def test_startup(tmp_path: Path) -> None:
    printed = run("startup.py", "--runs", "1", "--plugins", "3", "--output", str(tmp_path))
    content = json.loads((tmp_path / "startup.json").read_text())
    rows = content["rows"]
    assert rows["python -c pass"]["wall_ratio_to_python"] == 1.0
    assert rows["sgld plugins list"]["target_ms"] == 200
    assert all(row["wall_ms"] > 0 for row in rows.values())
    assert all(name in printed for name in rows)


def test_kernels(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    run("kernels.py", "--quick", "--device", "cpu", "--sweep", "--output", str(path))
    content = json.loads(path.read_text())
    ops = [row["op"] for row in content["rows"]]
    assert len(ops) == len(set(ops)) >= 8
    for row in content["rows"]:
        assert set(row["sides"]) == {"reference", "triton"}
        assert all(side["within"] for side in row["sides"].values())
        assert row["bytes"] > 0
    assert {row["op"] for row in content["sweep"]} == set(ops)
