"""What routes raise: `ApiError`, its kinds and makers, and the checks that precede a request.

Routes import these from `sgld.server.errors`, which also turns them into answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from sgld.api.errors import SgldError

RETRY_SECONDS: Final = 5
"""Retry-After of an answer that means "not now", where nothing better is known."""


class ApiError(SgldError):
    """An answer with a status of its own.

    Args:
        message: what is wrong, one sentence.
        status: HTTP status, 400 to 599.
        code: stable word for programs.
        remedy: what the caller can do.
        param: the field at fault, as the caller spells it.
        headers: extra response headers, such as Retry-After.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        remedy: str = "",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.status = status
        self.param = param
        self.headers = dict(headers or {})


class NotReady(ApiError):
    """503: the server starts, restarts its engine, or stops; `retry_after` in seconds."""

    def __init__(
        self, message: str, *, retry_after: float = RETRY_SECONDS, code: str = "not_ready"
    ) -> None:
        super().__init__(message, status=503, code=code, headers=_retry(retry_after))


class QueueFull(ApiError):
    """429: as many jobs wait as may wait; `retry_after` in seconds."""

    def __init__(self, message: str, *, retry_after: float = RETRY_SECONDS) -> None:
        remedy = "Try again later."
        headers = _retry(retry_after)
        super().__init__(message, status=429, code="queue_full", remedy=remedy, headers=headers)


def not_found(what: str, name: str, *, remedy: str = "", param: str | None = None) -> ApiError:
    """404 for a `what` (model, video, image) that is not here, or no longer."""
    shown = name if len(name) <= 80 else name[:77] + "..."
    return ApiError(
        f"there is no {what} {shown!r}.",
        status=404,
        code="model_not_found" if what == "model" else "not_found",
        remedy=remedy,
        param="model" if what == "model" else param,
    )


def body_too_large(
    limit: int, what: str = "the request body", param: str | None = None
) -> ApiError:
    """413: `what` has more than `limit` bytes."""
    return ApiError(
        f"{what} is larger than the {limit} bytes allowed.",
        status=413,
        code="body_too_large",
        param=param,
        # The rest of the body is not read, so the connection cannot be used again.
        headers={"connection": "close"},
    )


class Ready(Protocol):
    """What `check_ready` asks: whether requests are taken, and else why not and for how long."""

    ready: bool
    reason: str
    retry_after: int


def check_ready(readiness: Ready) -> None:
    """Raise `NotReady` while no generation request is taken."""
    if not readiness.ready:
        raise NotReady(f"not ready: {readiness.reason}.", retry_after=readiness.retry_after)


class Served(Protocol):
    """What `check_task` asks: the model's name and which routes it serves."""

    @property
    def name(self) -> str:
        """The model's name in the API."""
        ...

    @property
    def routes(self) -> Mapping[str, str]:
        """Kind of request (`image`, `edit`, `video`) → its address, for those that work."""
        ...


def check_task(facts: Served, kind: str) -> None:
    """Refuse a kind of request that the model cannot do; names the addresses that work."""
    if kind in facts.routes:
        return
    wanted = {"image": "pictures from text", "edit": "pictures from pictures", "video": "clips"}
    raise ApiError(
        f"the model {facts.name!r} does not make {wanted[kind]}.",
        code="unsupported_task",
        remedy=f"Use {' or '.join(f'POST {route}' for route in facts.routes.values())}.",
    )


def _retry(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}
