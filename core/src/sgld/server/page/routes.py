"""`/` and `/page/...`: the page of a realtime model, or a short one with links for the others."""

from __future__ import annotations

import hashlib
import html
from importlib import resources
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from sgld.server.services import Services

PAGE_PATHS: Final = "/page/"
"""What every path of the page but `/` begins with."""

TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Final = {
    # Nothing from elsewhere, nothing inline, in no frame of another page.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}

PLAIN: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name} · sgld</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="page/icon.svg"><link rel="stylesheet" href="page/page.css"></head>
<body><main class="plain"><h1>{name}</h1>
<p>sgld serves this model over HTTP. It makes {tasks}; it is not steered while it runs.</p>
<ul><li><a href="docs">Every route, to try out</a></li>
<li><a href="openapi.json">The same as OpenAPI</a></li>
<li><a href="v1/models">The model and its parameters</a></li>
<li><a href="server_info">How this server runs</a></li>
<li><a href="health">Whether it is ready</a></li></ul>
</main></body></html>
"""


class Asset(NamedTuple):
    """A file of the page: its bytes, media type and validator."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> Asset:
        """An asset named `name`; the ending tells the type."""
        digest = hashlib.sha256(body).hexdigest()[:32]
        return cls(body, TYPES[name.rpartition(".")[2]], f'"{digest}"')

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        headers = {**HEADERS, "etag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def assets() -> dict[str, Asset]:
    """Every static file by name."""
    folder = resources.files("sgld.server.page") / "static"
    found = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name: Asset.of(file.name, file.read_bytes()) for file in found if file.is_file()}


def is_steered(services: Services) -> bool:
    """Whether the served model has a realtime adapter."""
    plan = services.plan
    return any(row.spec.pipeline == plan.spec.id for row in plan.catalog.realtime.values())


def page_routes(services: Services) -> APIRouter:
    """The page's routes; they tell nothing secret and need no key, what the page asks for does."""
    router = APIRouter(include_in_schema=False)
    files = assets()
    steered = files.pop("index.html")
    first = steered if is_steered(services) else _plain(services)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return first.answer(request)

    for name, asset in files.items():
        _add(router, f"{PAGE_PATHS}{name}", asset)
    return router


def _add(router: APIRouter, path: str, asset: Asset) -> None:
    async def answer(request: Request) -> Response:
        return asset.answer(request)

    router.add_api_route(path, answer, methods=["GET", "HEAD"])


def _plain(services: Services) -> Asset:
    kinds = sorted({task.rpartition("-")[2] + "s" for task in services.plan.tasks})
    text = PLAIN.format(name=html.escape(services.name), tasks=" and ".join(kinds))
    return Asset.of("index.html", text.encode())
