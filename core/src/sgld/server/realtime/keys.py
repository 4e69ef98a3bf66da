"""API keys on a WebSocket: browsers cannot set headers there, so two other ways are open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

SUBPROTOCOL: Final = "sgld"
KEY_PREFIX: Final = "sgld.api-key."
"""A subprotocol with a key: `new WebSocket(url, ["sgld", "sgld.api-key.KEY"])`."""


def socket_keys(scope: Any) -> Iterator[bytes]:
    """The keys that a client gives without a header: in the query, as a subprotocol."""
    query = scope.get("query_string", b"").decode("latin-1")
    for name, value in parse_qsl(query, encoding="latin-1"):
        if name == "api_key":
            yield value.encode("latin-1")
    for name in scope.get("subprotocols", ()):
        if name.startswith(KEY_PREFIX):
            yield name.removeprefix(KEY_PREFIX).encode("latin-1", "replace")
