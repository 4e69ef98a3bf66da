"""The request log: what each level shows, formats, rotation, and that it never fails a request."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sgld.api.errors import UserError
from sgld.observe.requests import PROMPT_LENGTH, TEXT_LENGTH, RequestLog

SECRET = "Zq8vT2mX9kLp4RwN"
LONG = "a red kite " * 1000
PARAMETERS: dict[str, Any] = {
    "prompt": LONG,
    "negative_prompt": "blur",
    "prompts": ["one", "two"],
    "segments": [{"caption": "a man", "frames": 5}],
    "num_outputs_per_prompt": 2,
    "size": "832x480",
    "num_inference_steps": 4,
    "guidance_scale": 5.0,
    "note": "n" * 1000,
}
OUTPUTS = [
    {
        "width": 832,
        "height": 480,
        "frames": 5,
        "fps": 16.0,
        "bytes": 1234,
        "key": "video_1/0.mp4",
        "parameters": {"prompt": LONG},
    }
]


def write(log: RequestLog) -> None:
    log.received(
        "req-1",
        kind="video",
        job_id="video_1",
        model="wan",
        parameters=PARAMETERS,
        inputs=["upload-1.png"],
        client="127.0.0.1",
    )
    log.finished(
        "req-1",
        kind="video",
        job_id="video_1",
        status="failed",
        seconds=1.23456789,
        code="stage_failed",
        message="stage text failed: prompt 'a red kite'",
        seeds=[7, 8],
        outputs=OUTPUTS,
        timings={"denoise": 1.0, "total": 1.2},
    )


def records(
    level: int, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    log = RequestLog(level, "json")
    write(log)
    log.close()
    received, finished = map(json.loads, capsys.readouterr().out.splitlines())
    assert (received["event"], finished["event"]) == ("request.received", "request.finished")
    for record in (received, finished):
        assert (record["request_id"], record["job_id"]) == ("req-1", "video_1")
        assert record["kind"] == "video"
        assert record["timestamp"].endswith("Z")
    assert (finished["status"], finished["code"]) == ("failed", "stage_failed")
    assert finished["seconds"] == 1.234568
    return received, finished


def test_level_0_says_which_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    received, finished = records(0, capsys)
    head = {"timestamp", "event", "request_id", "job_id", "kind"}
    assert set(received) == head | {"model"}
    assert set(finished) == head | {"status", "code", "seconds"}


def test_level_1_adds_parameters_but_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    received, finished = records(1, capsys)
    shown = received["parameters"]
    assert shown == {
        "segments": [{"frames": 5}],
        "num_outputs_per_prompt": 2,
        "size": "832x480",
        "num_inference_steps": 4,
        "guidance_scale": 5.0,
        "note": "n" * TEXT_LENGTH + "…",
    }
    assert finished["seeds"] == [7, 8]
    assert finished["timings"] == {"denoise": 1.0, "total": 1.2}
    assert finished["outputs"] == [{k: v for k, v in OUTPUTS[0].items() if k != "parameters"}]
    assert "kite" not in json.dumps([received, finished])


def test_level_2_adds_prompts_cut(capsys: pytest.CaptureFixture[str]) -> None:
    received, finished = records(2, capsys)
    assert received["parameters"]["prompt"] == LONG[:PROMPT_LENGTH] + "…"
    assert received["parameters"]["negative_prompt"] == "blur"
    assert received["parameters"]["prompts"] == ["one", "two"]
    assert received["parameters"]["segments"] == [{"caption": "a man", "frames": 5}]
    assert "inputs" not in received
    assert finished["message"].startswith("stage text failed")


def test_level_3_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    received, _ = records(3, capsys)
    assert received["parameters"] == PARAMETERS
    assert received["inputs"] == ["upload-1.png"]
    assert received["client"] == "127.0.0.1"


def test_text_is_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    log = RequestLog(2, "text")
    log.received("req-1", kind="image", parameters={"prompt": 'a "cat"\nrequest.finished\x1b[2J'})
    log.finished("req-1", kind="image", status="completed", seconds=2.0)
    first, second = capsys.readouterr().out.splitlines()
    assert " request.received request_id=req-1 kind=image parameters={" in first
    assert "\x1b" not in first
    assert second.endswith(
        "request.finished request_id=req-1 kind=image status=completed seconds=2.0"
    )


@pytest.mark.parametrize("format", ["text", "json"])
def test_secrets_and_pictures_stay_out(capsys: pytest.CaptureFixture[str], format: Any) -> None:
    log = RequestLog(3, format, secrets=["horse-battery-staple"])
    log.received(
        "r",
        kind="video",
        parameters={
            "input_reference": f"https://s3/a?X-Amz-Signature={SECRET}",
            "image": "data:image/png;base64," + "QUJD" * 500,
            "api_key": SECRET,
            "prompt": "say horse-battery-staple",
        },
    )
    out = capsys.readouterr().out
    assert SECRET not in out
    assert "horse-battery-staple" not in out
    assert "[2000 characters]" in out


def test_odd_text_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RequestLog(3, "json", ["stdout", tmp_path])
    log.received("r", kind="image", parameters={"prompt": "\ud800 猫\u2028", "x": float("nan")})
    log.close()
    for text in (capsys.readouterr().out, next(tmp_path.iterdir()).read_text(encoding="utf-8")):
        assert len(text.splitlines()) == 1
        assert json.loads(text)["parameters"]["prompt"] == "\ud800 猫\u2028"


def test_files_are_named_by_host_and_process(tmp_path: Path) -> None:
    log = RequestLog(0, "json", [tmp_path / "a", tmp_path / "b"])
    write(log)
    log.close()
    log.close()
    name = f"requests-{socket.gethostname()}-{os.getpid()}.log"
    for folder in ("a", "b"):
        assert len((tmp_path / folder / name).read_text().splitlines()) == 2


def test_rotation_by_size(tmp_path: Path) -> None:
    log = RequestLog(0, "json", [tmp_path], max_bytes=400, keep=2)
    for number in range(20):
        log.received(f"req-{number}", kind="image")
    log.close()
    files = sorted(tmp_path.iterdir(), key=lambda path: path.suffix)
    assert [path.suffix for path in files] == [".1", ".2", ".log"]
    assert all(path.stat().st_size <= 400 for path in files)
    newest = [json.loads(line)["request_id"] for line in files[2].read_text().splitlines()]
    assert newest[-1] == "req-19"


def test_rotation_by_the_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    begin = 1_800_000_000 - 1_800_000_000 % 3600
    now = [begin + 3599.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    log = RequestLog(0, "json", [tmp_path], keep=2)
    log.received("before", kind="image")
    now[0] = begin + 3600.5
    log.received("after", kind="image")
    log.close()
    old, new = sorted(tmp_path.iterdir(), key=lambda path: path.suffix == ".log")
    assert json.loads(old.read_text())["request_id"] == "before"
    assert json.loads(new.read_text())["request_id"] == "after"


def test_off_costs_nothing_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = RequestLog.off()
    write(log)
    log.close()
    assert not log.enabled
    assert capsys.readouterr().out == ""


def test_a_lost_target_fails_no_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from structlog.testing import capture_logs

    class Full:
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None: ...

    log = RequestLog(0, "json", ["stdout", tmp_path])
    monkeypatch.setattr(sys, "stdout", Full())
    with capture_logs() as told:
        write(log)
    log.close()
    assert [entry["event"] for entry in told] == ["request log cannot be written"]
    assert "No space left" in told[0]["error"]
    assert len(next(tmp_path.iterdir()).read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 4}, "log_requests_level=4: must be 0, 1, 2 or 3"),
        ({"format": "xml"}, "log_requests_format='xml': must be text or json"),
        ({"targets": ["/dev/null/x"]}, "log_requests_target='/dev/null/x': cannot be written"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RequestLog(**arguments)


def test_a_refused_target_closes_the_others(tmp_path: Path) -> None:
    # -W error turns a file left open into a failure when it is collected.
    with pytest.raises(UserError):
        RequestLog(targets=[tmp_path, "/dev/null/x"])
