"""The request log: one record when a request is accepted and one when it has ended.

    log = RequestLog(1, "json", ["stdout", "/var/log/sgld"])
    log.received(request_id, kind="video", job_id=job_id, model=name, parameters=params)
    log.finished(request_id, kind="video", job_id=job_id, status="completed", seconds=12.5,
                 seeds=[7], outputs=[...], timings={...})
    log.close()

Levels: 0 says which request and how it ended, 1 adds parameters without prompts, 2 adds prompts cut
to 2048 characters, 3 adds everything. Secrets are hidden at every level.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler, TimedRotatingFileHandler
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from sgld.api.errors import UserError
from sgld.observe.redaction import Redactor, printable

log = structlog.get_logger("sgld.requests")

Format = Literal["text", "json"]
LEVELS: Final = (0, 1, 2, 3)
FORMATS: Final = ("text", "json")
PROMPT_LENGTH: Final = 2048
"""Characters of a prompt at level 2."""
TEXT_LENGTH: Final = 256
"""Characters of any other text below level 3; longer ones may hide a prompt or a file."""
PROSE: Final = re.compile(r"prompt|caption|text|message")
"""Names under which people write sentences."""
KEEP_FILES: Final = 168
"""Rotated files kept: a week of hours."""


class RequestLog:
    """Writes request records to standard output and to files.

    Args:
        level: 0 to 3, how much of a request is written; see the module.
        format: `text` or `json`, one record a line either way.
        targets: `stdout`, or folders; each gets `requests-HOST-PID.log`.
        max_bytes: rotate a file when it reaches this size; 0 rotates at every full hour (UTC).
        keep: rotated files kept per target.
        secrets: values that must never be written.

    Raises:
        UserError: an unknown level or format, or a folder that cannot be written.
    """

    def __init__(
        self,
        level: int = 0,
        format: Format = "text",
        targets: Sequence[str | Path] = ("stdout",),
        *,
        max_bytes: int = 0,
        keep: int = KEEP_FILES,
        secrets: Iterable[str] = (),
    ) -> None:
        if level not in LEVELS:
            raise UserError(f"log_requests_level={level!r}: must be 0, 1, 2 or 3.")
        if format not in FORMATS:
            raise UserError(f"log_requests_format={format!r}: must be text or json.")
        self._level = level
        self._line = _json_line if format == "json" else _text_line
        self._redact = Redactor(secrets)
        self._handlers = _open(targets, max_bytes, keep)

    @classmethod
    def off(cls) -> RequestLog:
        """A log that writes nothing."""
        return cls(targets=())

    @property
    def enabled(self) -> bool:
        """Whether anything is written."""
        return bool(self._handlers)

    def received(
        self,
        request_id: str,
        *,
        kind: str,
        job_id: str = "",
        model: str = "",
        parameters: Mapping[str, Any] | None = None,
        inputs: Sequence[str] = (),
        client: str = "",
    ) -> None:
        """Write `request.received`: the request was accepted with these parameters and inputs."""
        if not self._handlers:
            return
        record = self._head("request.received", request_id, kind, job_id)
        _add(record, model=model)
        if self._level >= 1:
            _add(record, parameters=self._shown(parameters or {}))
        if self._level >= 3:
            _add(record, inputs=list(inputs), client=client)
        self._write(record)

    def finished(
        self,
        request_id: str,
        *,
        kind: str,
        status: str,
        seconds: float,
        job_id: str = "",
        code: str = "",
        message: str = "",
        seeds: Sequence[int] = (),
        outputs: Sequence[Mapping[str, Any]] = (),
        timings: Mapping[str, float] | None = None,
    ) -> None:
        """Write `request.finished`.

        Args:
            request_id: as given to `received`.
            kind: `image`, `video` or `session`.
            status: `completed`, `failed` or `cancelled`.
            seconds: from acceptance to the end.
            job_id: the job that it became, if any.
            code: the error's code.
            message: the error's text; from level 2, because it may quote a prompt.
            seeds: one per output.
            outputs: of each: width, height, frames, fps, bytes, and what else is known.
            timings: stage → seconds.
        """
        if not self._handlers:
            return
        record = self._head("request.finished", request_id, kind, job_id)
        _add(record, status=status, code=code, seconds=round(seconds, 6))
        if self._level >= 1:
            _add(record, seeds=list(seeds))
            _add(record, outputs=[self._shown(_sizes(output)) for output in outputs])
            _add(record, timings={k: round(v, 6) for k, v in (timings or {}).items()})
        if self._level >= 2:
            _add(record, message=self._cut("message", message))
        self._write(record)

    def close(self) -> None:
        """Flush and close the files. Safe to call again."""
        handlers, self._handlers = self._handlers, []
        for handler in handlers:
            handler.close()

    def _head(self, event: str, request_id: str, kind: str, job_id: str) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record: dict[str, Any] = {"timestamp": now, "event": event, "request_id": request_id}
        _add(record, job_id=job_id)
        record["kind"] = kind
        return record

    def _shown(self, values: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for name, value in values.items():
            if self._level < 2 and PROSE.search(name) and _has_text(value):
                continue
            shown[name] = self._cut(name, value)
        return shown

    def _cut(self, name: str, value: Any) -> Any:
        if self._level >= 3:
            return value
        if isinstance(value, str):
            most = PROMPT_LENGTH if PROSE.search(name) else TEXT_LENGTH
            return value if len(value) <= most else value[:most] + "…"
        if isinstance(value, Mapping):
            return self._shown(value)
        if isinstance(value, list | tuple):
            return [self._cut(name, item) for item in value]
        return value

    def _write(self, record: dict[str, Any]) -> None:
        line = printable(self._line(self._redact.value(record)))
        made = logging.LogRecord("sgld.requests", logging.INFO, "", 0, line, None, None)
        for handler in self._handlers:
            handler.handle(made)


class _Careful(logging.Handler):
    """A full disk or a closed pipe loses a record, never a request; the log says so once."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._told:
            self._told = True
            log.error("request log cannot be written", target=str(self), error=_cause())

    def format(self, record: logging.LogRecord) -> str:
        return record.msg


class _Stdout(_Careful):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Looked up at each use: the stream may be replaced.
            sys.stdout.write(record.msg + "\n")
            sys.stdout.flush()
        except Exception:
            self.handleError(record)


class _Hourly(_Careful, TimedRotatingFileHandler):
    pass


class _BySize(_Careful, RotatingFileHandler):
    pass


def _open(targets: Sequence[str | Path], max_bytes: int, keep: int) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    try:
        for target in targets:
            handlers.append(_handler(target, max_bytes, keep))
    except BaseException:
        for handler in handlers:
            handler.close()
        raise
    return handlers


def _handler(target: str | Path, max_bytes: int, keep: int) -> logging.Handler:
    if str(target) == "stdout":
        return _Stdout()
    folder = Path(target)
    host = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "host"
    path = folder / f"requests-{host}-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if max_bytes:
            return _BySize(path, maxBytes=max_bytes, backupCount=keep, encoding="utf-8")
        handler = _Hourly(path, when="H", backupCount=keep, encoding="utf-8", utc=True)
        # From full hour to full hour, not from whenever the server happened to start.
        handler.rolloverAt = (int(time.time()) // 3600 + 1) * 3600
        return handler
    except OSError as error:
        raise UserError(
            f"log_requests_target={str(target)!r}: cannot be written: {error.strerror}.",
            remedy="Give stdout or a folder that this user may write to.",
        ) from error


def _add(record: dict[str, Any], **fields: Any) -> None:
    record.update({name: value for name, value in fields.items() if value not in ("", [], {})})


def _sizes(output: Mapping[str, Any]) -> dict[str, Any]:
    # Parameters were written at the start; the ones really used are the job's to tell.
    return {name: value for name, value in output.items() if name != "parameters"}


def _has_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_text(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_text(item) for item in value)
    return isinstance(value, str)


def _json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, default=repr)


def _text_line(record: Mapping[str, Any]) -> str:
    head = f"{record['timestamp']} {record['event']}"
    rest = (
        f"{name}={_word(value)}"
        for name, value in record.items()
        if name not in ("timestamp", "event")
    )
    return " ".join((head, *rest))


def _word(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\w./:@+-]+", value):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)


def _cause() -> str:
    return repr(sys.exc_info()[1])
