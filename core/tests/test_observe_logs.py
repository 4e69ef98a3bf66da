"""Log lines: one form for everyone, ids inside requests, no secrets, no forged lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry  # an arbitrary class, to be shown as a value

from sgld.api.errors import UserError
from sgld.observe.logs import (
    CHATTY,
    RUN_BY_UVICORN,
    bound,
    configure,
    configure_from_environment,
    to_environment,
)

SECRET = "Zq8vT2mX9kLp4RwN"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    names = [*CHATTY, *RUN_BY_UVICORN]
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    for name, old in levels.items():
        logging.getLogger(name).setLevel(old)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_everyone_writes_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    structlog.get_logger("sgld.engine").info("model loaded", model="wan", seconds=1.5)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("sqlalchemy.engine").warning("pool is %s", "empty")
    ours, uvicorn, database = lines(capsys)
    assert list(ours)[:4] == ["timestamp", "level", "logger", "event"]
    assert ours["timestamp"].endswith("Z")
    assert (ours["level"], ours["logger"], ours["event"]) == ("info", "sgld.engine", "model loaded")
    assert (ours["model"], ours["seconds"]) == ("wan", 1.5)
    assert (uvicorn["logger"], uvicorn["event"]) == (
        "uvicorn.error",
        "Started server process [7]",
    )
    assert (database["level"], database["event"]) == ("warning", "pool is empty")


def test_text_has_no_colours_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    structlog.get_logger("sgld.x").warning("slow", seconds=3)
    logging.getLogger("uvicorn").info("up")
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert "slow" in text
    assert "seconds=3" in text
    assert "[sgld.x]" in text
    assert "up" in text.splitlines()[1]


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    configure("info", "text", environ={"NO_COLOR": no_color})
    structlog.get_logger("sgld.x").info("seen", a=1)
    assert ("\x1b[" in screen.getvalue()) is coloured


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("WARNING", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_levels(capsys: pytest.CaptureFixture[str], level: str, shown: list[str]) -> None:
    configure(level, "json")
    for logger in (structlog.get_logger("sgld.x"), logging.getLogger("other")):
        for name in ("debug", "info", "warning", "error"):
            getattr(logger, name)("line")
    assert [line["level"] for line in lines(capsys)] == shown * 2


def test_chatty_libraries_show_their_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug", "json")
    logging.getLogger("botocore.auth").debug("Authorization: %s", SECRET)
    logging.getLogger("httpx").info("HTTP Request: GET https://x/?sig=%s", SECRET)
    logging.getLogger("botocore.auth").warning("no credentials")
    assert [line["event"] for line in lines(capsys)] == ["no credentials"]


def test_uvicorns_own_handlers_are_taken_off(capsys: pytest.CaptureFixture[str]) -> None:
    from uvicorn.config import LOGGING_CONFIG

    logging.config.dictConfig(LOGGING_CONFIG)
    configure("info", "json")
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "127.0.0.1:9", "GET", f"/v1/videos?api_key={SECRET}", "1.1", 200
    )
    (line,) = lines(capsys)
    assert line["event"] == '127.0.0.1:9 - "GET /v1/videos?api_key=[redacted] HTTP/1.1" 200'


def test_configuring_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug", "text")
    configure("info", "json")
    structlog.get_logger("sgld.x").debug("hidden")
    structlog.get_logger("sgld.x").info("once")
    assert [line["event"] for line in lines(capsys)] == ["once"]


def test_ids_are_in_every_line_of_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")

    async def work(name: str) -> None:
        structlog.get_logger("sgld.server").info("working")
        await asyncio.sleep(0)
        await asyncio.to_thread(logging.getLogger("some.library").info, "in a thread")

    async def request(name: str) -> None:
        with bound(request_id=name, job_id=""):
            await asyncio.create_task(work(name))

    async def both() -> None:
        await asyncio.gather(request("a"), request("b"))

    asyncio.run(both())
    structlog.get_logger("sgld.server").info("outside")
    written = lines(capsys)
    assert sorted((line.get("request_id"), line["event"]) for line in written[:-1]) == [
        ("a", "in a thread"),
        ("a", "working"),
        ("b", "in a thread"),
        ("b", "working"),
    ]
    assert all("job_id" not in line for line in written)
    assert "request_id" not in written[-1]


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_secret_is_written(capsys: pytest.CaptureFixture[str], format: str) -> None:
    configure("debug", format, secrets=["horse-battery-staple"])
    log = structlog.get_logger("sgld.x")
    log.info("a", authorization=f"Bearer {SECRET}", headers={"X-Api-Key": SECRET})
    log.info(f"redirect to https://s3/a?X-Amz-Signature={SECRET}")
    log.info("plain", note="horse-battery-staple", items=["horse-battery-staple"])
    logging.getLogger("other").warning("dsn %s", f"postgresql://u:{SECRET}@h/d")
    logging.getLogger("other").warning("extra", extra={"password": SECRET})
    try:
        raise ValueError(f"cannot reach https://s3/a?Signature={SECRET} with horse-battery-staple")
    except ValueError:
        log.error("failed", exc_info=True)
        log.exception("failed again")
        logging.getLogger("other").exception("failed too")
    text = capsys.readouterr().err
    assert SECRET not in text
    assert "horse-battery-staple" not in text
    assert text.count("[redacted]") >= 9
    assert text.count("ValueError: cannot reach https://s3/a?Signature=[redacted]") == 3


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_line_is_forged(capsys: pytest.CaptureFixture[str], format: str) -> None:
    configure("info", format)
    forged = "x\n2026-01-01 [error] forged\r\x1b[2J\x9b\u2028"
    structlog.get_logger("sgld.x").info(forged, prompt=forged, nested={"a": [forged]})
    logging.getLogger("other").info("%s", forged)
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text
    if format == "json":
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


def test_a_traceback_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    try:
        raise KeyError("missing")
    except KeyError as error:
        structlog.get_logger("sgld.x").error("failed", exc_info=error)
    (line,) = lines(capsys)
    assert "KeyError: 'missing'" in line["exception"]
    assert "Traceback" in line["exception"]


def test_values_of_any_kind(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    structlog.get_logger("sgld.x").info(
        "odd", path=Path("/x"), data=b"abc", kind=CollectorRegistry, surrogate="\ud800", none=None
    )
    (line,) = lines(capsys)
    assert line["data"] == "[3 bytes]"
    assert line["none"] is None
    assert "/x" in line["path"]
    assert "CollectorRegistry" in line["kind"]


def test_a_file_survives_rotation_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "sgld.log"
    configure("info", "json", path)
    structlog.get_logger("sgld.x").info("first", text="猫")
    path.rename(tmp_path / "old.log")
    structlog.get_logger("sgld.x").info("second")
    assert json.loads((tmp_path / "old.log").read_text(encoding="utf-8"))["text"] == "猫"
    assert json.loads(path.read_text(encoding="utf-8"))["event"] == "second"
    assert capsys.readouterr().err == ""


def test_a_closed_stream_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    configure("info", "json")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    structlog.get_logger("sgld.x").info("into the void")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "loud"}, "log_level='loud': unknown. Use one of debug, info"),
        ({"format": "xml"}, "log_format='xml': unknown. Use text or json."),
        ({"target": "/dev/null/x.log"}, "log_target='/dev/null/x.log': cannot be written"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    before = list(logging.getLogger().handlers)
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        configure(**arguments)
    assert logging.getLogger().handlers == before


def test_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    configure_from_environment(to_environment("debug", "json", path))
    structlog.get_logger("sgld.x").debug("seen")
    assert json.loads(path.read_text())["event"] == "seen"
    for name, value in (("SGLD_LOG_LEVEL", "loud"), ("SGLD_LOG_FORMAT", "xml")):
        with pytest.raises(UserError, match=f"{name}='{value}'"):
            configure_from_environment({name: value})
    configure_from_environment({"SGLD_LOG_LEVEL": ""}, level="error")
    assert logging.getLogger().level == logging.ERROR


@pytest.mark.multi_process
def test_a_child_writes_the_same_form() -> None:
    code = (
        "from sgld.observe.logs import configure_from_environment\n"
        "import structlog\n"
        "configure_from_environment()\n"
        "structlog.get_logger('sgld.engine').info('from the child')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=to_environment("info", "json"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stderr)["event"] == "from the child"
    assert done.stdout == ""
