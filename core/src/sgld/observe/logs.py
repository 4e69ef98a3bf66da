"""Where log lines go and how they look: one form for sgld, uvicorn, SQLAlchemy and everyone else.

    configure("info", "json")                      # standard error
    configure_from_environment(os.environ)         # SGLD_LOG_LEVEL, _FORMAT, _TARGET
    with bound(request_id=..., job_id=...):        # every line inside carries them
        ...

structlog hands its lines to the standard library, so that one handler formats all of them. Secrets
are hidden and control characters escaped in every line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import Processor

from sgld.api.errors import UserError
from sgld.observe.redaction import Redactor, printable

LogFormat = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
MULTILINE: Final = ("exception", "stack")
"""Fields that are shown over several lines in text."""
CHATTY: Final = (
    "asyncio", "boto3", "botocore", "httpcore", "httpx", "PIL", "python_multipart", "s3transfer",
    "urllib3",
)  # fmt: skip
"""Libraries that tell every request, some with its headers; only their warnings are shown."""
RUN_BY_UVICORN: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


def hand_to_logging() -> None:
    """Send structlog's lines to the standard library, unless the program has configured structlog.

    For programs that use sgld as a library: structlog's own default prints every line, debug lines
    too, to standard output. After this, `logging` decides as usual: warnings go to standard error,
    and `logging.basicConfig(level="INFO")` shows more.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def configure(
    level: str = "info",
    format: str = "text",
    target: str | Path = "stderr",
    *,
    secrets: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Send all log lines of this process to `target`. A second call replaces the first.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        format: `text` for people (with colours on a terminal, unless NO_COLOR is set), `json` for
            programs, one object a line.
        target: `stderr`, `stdout`, or the path of a file; a file that was moved away is made anew,
            so logrotate may have it.
        secrets: values that must never be written, such as the server's API keys.
        environ: where NO_COLOR is looked up.

    Raises:
        UserError: an unknown level or format, or a file that cannot be written.
    """
    number = _level(level, "log_level")
    if format not in FORMATS:
        raise UserError(f"log_format={format!r}: unknown.", remedy="Use text or json.")
    handler = _handler(target)
    colours = isinstance(handler, _Stream) and handler.terminal and not environ.get("NO_COLOR")
    handler.setFormatter(_formatter(format, Redactor(secrets), colours=colours))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Ours)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(number)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    for name in RUN_BY_UVICORN:
        # uvicorn brings handlers of its own, which would write every line a second time.
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def configure_from_environment(
    environ: Mapping[str, str] = os.environ, *, level: str = "info"
) -> None:
    """`configure` from SGLD_LOG_LEVEL, SGLD_LOG_FORMAT and SGLD_LOG_TARGET.

    A child process uses this, so that its lines look like its parent's. Raises what `configure`
    raises, naming the variable.
    """
    level = environ.get("SGLD_LOG_LEVEL") or level
    _level(level, "SGLD_LOG_LEVEL")
    format = environ.get("SGLD_LOG_FORMAT") or "text"
    if format not in FORMATS:
        raise UserError(f"SGLD_LOG_FORMAT={format!r}: unknown.", remedy="Use text or json.")
    configure(level, format, environ.get("SGLD_LOG_TARGET") or "stderr", environ=environ)


def to_environment(level: str, format: str, target: str | Path = "stderr") -> dict[str, str]:
    """The variables that make a child process log like this one."""
    return {
        "SGLD_LOG_LEVEL": level,
        "SGLD_LOG_FORMAT": format,
        "SGLD_LOG_TARGET": str(target),
    }


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Give every log line written inside the block, and by tasks begun in it, these fields.

    Empty values are left out: `bound(request_id=..., job_id="")` adds only the first.
    """
    known = {name: value for name, value in fields.items() if value not in ("", None)}
    with structlog.contextvars.bound_contextvars(**known):
        yield


class _Ours(logging.Handler):
    """Marks the handlers that `configure` made and may replace."""


class _Stream(_Ours):
    """Writes to a standard stream, looked up at each use: tests and live displays replace it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    @property
    def terminal(self) -> bool:
        stream = self._stream()
        return stream is not None and stream.isatty()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = self._stream()
            if stream is not None:
                # One write, so that lines of several processes do not mix.
                stream.write(self.format(record) + "\n")
                stream.flush()
        except Exception:  # whoever logs must not fail because nobody reads
            return

    def _stream(self) -> TextIO | None:
        return getattr(sys, self._name)


class _File(WatchedFileHandler, _Ours):
    pass


def _level(level: str, field: str) -> int:
    if level.lower() not in LEVELS:
        raise UserError(f"{field}={level!r}: unknown.", remedy=f"Use one of {', '.join(LEVELS)}.")
    return getattr(logging, level.upper())


def _handler(target: str | Path) -> logging.Handler:
    if str(target) in ("stderr", "stdout"):
        return _Stream(str(target))
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _File(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UserError(
            f"log_target={str(target)!r}: cannot be written: {error.strerror}.",
            remedy="Use stderr, stdout or the path of a file.",
        ) from error


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        # Here and not in the renderer: the traceback's text has to pass the redaction too.
        structlog.processors.format_exc_info,
    ]


def _formatter(format: str, redactor: Redactor, *, colours: bool) -> logging.Formatter:
    def redact(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> dict[str, Any]:
        return {name: redactor.value(value, name) for name, value in fields.items()}

    last: list[Processor] = [ProcessorFormatter.remove_processors_meta, redact]
    if format == "json":
        last += [_ordered, structlog.processors.JSONRenderer(ensure_ascii=False, default=repr)]
    else:
        last += [
            _one_line,
            structlog.dev.ConsoleRenderer(
                colors=colours,
                pad_event_to=0,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    return _Formatter(foreign_pre_chain=_shared(), processors=last, lone=format == "json")


class _Formatter(ProcessorFormatter):
    def __init__(self, *, lone: bool, **options: Any) -> None:
        super().__init__(**options)
        self._lone = lone

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return printable(text) if self._lone else text


def _ordered(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> dict[str, Any]:
    first = ("timestamp", "level", "logger", "event")
    head = {name: fields[name] for name in first if name in fields}
    return head | {name: value for name, value in fields.items() if name not in head}


def _one_line(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if name in MULTILINE or not isinstance(value, str) else printable(value)
        for name, value in fields.items()
    }
