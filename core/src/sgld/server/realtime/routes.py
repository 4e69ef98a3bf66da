"""The address of realtime sessions, and who may open a socket on it."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.websockets import WebSocket

from sgld.observe.logs import bound
from sgld.server.errors import ApiError, error_response, new_request_id
from sgld.server.realtime.connection import Connection
from sgld.server.realtime.keys import SUBPROTOCOL
from sgld.server.realtime.model import ADDRESS
from sgld.server.services import Services


def realtime_routes(services: Services) -> APIRouter:
    """The WebSocket route over these services."""
    router = APIRouter()

    @router.websocket(ADDRESS)
    async def generate(socket: WebSocket) -> None:
        refusal = _foreign(socket, services)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        # A browser that offers subprotocols wants one of them back, and not the one with the key.
        chosen = SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None
        await socket.accept(subprotocol=chosen)
        with bound(request_id=new_request_id()):
            await Connection(services, socket).run()

    return router


def _foreign(socket: WebSocket, services: Services) -> Response | None:
    """The refusal of a page from elsewhere: browsers let any page open a socket to any server, and
    send the user's cookies and network position along. Programs send no Origin."""
    headers = Headers(scope=socket.scope)
    origin = headers.get("origin")
    allowed = services.options.cors_origin
    if origin is None or origin in allowed or "*" in allowed:
        return None
    parts = urlsplit(origin)
    if parts.netloc and parts.netloc.lower() == headers.get("host", "").lower():
        return None
    error = ApiError(
        "pages of this origin may not open sessions here.",
        status=403,
        code="origin_not_allowed",
        remedy="The operator can allow it with --cors-origin.",
    )
    return error_response(error)
