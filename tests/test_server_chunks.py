"""Clips that are made chunk by chunk, over HTTP and on the command line: a real causal model, its
chunks as events, and a file that grows."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from typer.testing import CliRunner

from sgld.cli.generate import generate
from sgld.cli.parts import Parts
from sgld.media.growing import GrowingVideo
from sgld.media.writing import explain
from sgld.testing.served import Served, served_here

MODEL = "tiny:wan-causal-t2v"
CLIP = {"prompt": "a kite", "size": "48x32", "num_frames": 33, "seed": 5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("chunks")
    alone = {"max_running": 1, "batching": "off", "dtype": "float32"}
    with served_here(MODEL, folder, alone) as served:
        yield served


@pytest.fixture(scope="module")
def web(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


def frames_of(data: bytes) -> int:
    with av.open(io.BytesIO(data)) as container:
        return sum(1 for _ in container.decode(video=0))


def events_of(web: httpx.Client, video: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with web.stream("GET", f"/v1/videos/{video}/events") as answer:
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_chunks_are_events_and_make_up_the_clip(web: httpx.Client) -> None:
    # While the first one runs the second waits, so that it is watched from its beginning.
    first = web.post("/v1/videos", json=CLIP).json()
    second = web.post("/v1/videos", json={**CLIP, "shot_prompts": ["a kite", "the sea"]}).json()
    events = list(events_of(web, second["id"]))
    chunks = [data for name, data in events if name == "chunk"]
    assert [(one["chunk"], one["chunks"], one["frames"]) for one in chunks] == [
        (1, 3, 9),
        (2, 3, 12),
        (3, 3, 12),
    ]
    assert [frames_of(base64.b64decode(one["mp4"])) for one in chunks] == [9, 12, 12]
    assert {one["id"] for one in chunks} == {second["id"]}
    assert events[-1][0] == "done"
    content = web.get(f"/v1/videos/{second['id']}/content").content
    assert frames_of(content) == 33
    assert web.get(f"/v1/videos/{first['id']}").json()["status"] == "completed"


def test_bad_shots_are_refused_by_name(web: httpx.Client) -> None:
    wrong = {**CLIP, "shot_prompts": ["a kite", "b"], "shot_durations": [1]}
    answer = web.post("/v1/videos", json=wrong)
    assert answer.status_code == 400
    assert "shot_durations" in answer.json()["error"]["message"]


def run(folder: Path, *flags: str) -> tuple[int, list[dict[str, Any]]]:
    found = CliRunner().invoke(
        generate,
        [MODEL, "--prompt", "a kite", "--size", "48x32", "--num-frames", "33", "--seed", "5",
         "--device", "cpu", "--json", "--quiet", "--output-path", str(folder), *flags],
    )  # fmt: skip
    lines = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    return found.exit_code, lines


@pytest.mark.parametrize("format", ["mp4", "webm"])
def test_generate_writes_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    seen: list[list[str]] = []
    add = Parts.add

    def note(self: Parts, *args: Any) -> Any:
        path = add(self, *args)
        seen.append(sorted(file.name for file in tmp_path.iterdir()))
        return path

    monkeypatch.setattr(Parts, "add", note)
    code, lines = run(tmp_path, "--output-file-name", f"kite.{format}")
    assert code == 0
    assert seen == [[f"kite.part.{format}"]] * 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kite.json", f"kite.{format}"]
    assert [line["chunk"] for line in lines if line["event"] == "chunk"] == [1, 2, 3]
    assert frames_of((tmp_path / f"kite.{format}").read_bytes()) == 33
    record = json.loads((tmp_path / "kite.json").read_text())
    assert record["output"]["frames"] == 33


def test_formats_that_cannot_grow_are_written_at_the_end(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "--output-file-name", "kite.gif")
    assert code == 0
    assert "chunk" not in {line["event"] for line in lines}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kite.gif", "kite.json"]


def test_nothing_is_left_of_a_clip_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgld_wan.models.vae import Vae

    original, count = Vae.decode_chunk, [0]

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("no memory")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Vae, "decode_chunk", fail)
    code, lines = run(tmp_path)
    assert code == 1
    assert [line["event"] for line in lines] == ["chunk", "chunk", "failed"]
    assert list(tmp_path.iterdir()) == []


def parts_and_files(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Name of the growing file and of the finished one, for each output."""
    chunks = {line["index"]: Path(line["path"]).name for line in lines if line["event"] == "chunk"}
    outputs = [line for line in lines if line["event"] == "output"]
    return [(chunks[line["index"]], Path(line["path"]).name) for line in outputs]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--num-outputs-per-prompt", "2"),
        ("--output-file-name", "kite.final.mp4"),
        ("--output-file-name", "kite", "--output-format", "webm", "--save-latents"),
    ],
)
def test_the_growing_file_is_called_like_the_finished_one(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    names: set[str] = set()
    # The second time the names may be taken.
    for _ in range(2):
        code, lines = run(tmp_path, *flags)
        assert code == 0
        for growing, finished in parts_and_files(lines):
            stem, ending = finished.rsplit(".", 1)
            assert growing == f"{stem}.part.{ending}"
            assert finished not in names
            names.add(finished)
    assert {file.name for file in tmp_path.iterdir() if file.suffix in (".mp4", ".webm")} == names


def test_overwrite_keeps_the_name(tmp_path: Path) -> None:
    for _ in range(2):
        _, lines = run(tmp_path, "--output-file-name", "kite.mp4", "--overwrite")
        assert parts_and_files(lines) == [("kite.part.mp4", "kite.mp4")]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kite.json", "kite.mp4"]


def test_a_full_disk_stops_the_clip_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgld_wan.models.vae import Vae

    original, decoded = Vae.decode_chunk, [0]

    def decode(self: Any, *args: Any, **kwargs: Any) -> Any:
        decoded[0] += 1
        return original(self, *args, **kwargs)

    def full(self: Any, packets: Any) -> None:
        raise explain(OSError(errno.ENOSPC, "full"), self.path)

    monkeypatch.setattr(Vae, "decode_chunk", decode)
    monkeypatch.setattr(GrowingVideo, "_write", full)
    code, lines = run(tmp_path, "--num-frames", "501")
    assert code == 1
    assert [(line["event"], line["code"]) for line in lines] == [("failed", "disk_full")]
    assert decoded[0] < 42
    assert list(tmp_path.iterdir()) == []


def test_only_the_real_fault_of_shots_is_named(web: httpx.Client) -> None:
    wrong = {"size": "48x32", "num_frames": 33, "shot_prompts": ["a", "b" * 32_001]}
    answer = web.post("/v1/videos", json={**wrong, "shot_durations": "1,2"})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "shot_prompts[1] has 32001 characters; the limit is 32000." in message
    assert message.count("\n") == 0
    assert "prompt: " not in message


def test_previews_that_cannot_be_shown_are_a_warning(web: httpx.Client) -> None:
    asked = web.post("/v1/videos", json={**CLIP, "num_frames": 9, "partial_images": 2}).json()
    assert any("partial_images has no effect" in text for text in asked["warnings"])
    events = dict(events_of(web, asked["id"]))
    assert "preview" not in events
    plain = web.post("/v1/videos", json={**CLIP, "num_frames": 9}).json()
    assert not any("partial_images" in text for text in plain["warnings"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_takes_the_growing_file_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    add, seen = Parts.add, list[bool]()

    def stop(self: Parts, *args: Any) -> Any:
        path = add(self, *args)
        if not seen:
            seen.append(path is not None and path.exists())
            os.kill(os.getpid(), number)
        return path

    monkeypatch.setattr(Parts, "add", stop)
    found, lines = run(tmp_path, "--num-frames", "501")
    assert (found, seen) == (code, [True])
    assert lines[-1]["event"] == "cancelled"
    assert list(tmp_path.iterdir()) == []
