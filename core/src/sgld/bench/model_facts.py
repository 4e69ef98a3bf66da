"""What a running server tells of its model, and what of it decides about a session."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import httpx
import numpy as np
from PIL import Image

from sgld.api.errors import FeatureError, ParameterError, Problem, SgldError
from sgld.bench.client import KIND
from sgld.params.size import parse_size
from sgld.server.realtime.model import ADDRESS

SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
LARGEST = 4096
"""Longest side in pixels of a picture that is made up; of a longer one the server says whether it
is taken."""
PROMPT = "a path through hills, clear weather"
"""For models without a prompt of their own."""


class Place(NamedTuple):
    """Where a server is: its address for HTTP and for WebSockets, neither with a slash, and whether
    it may be behind a proxy."""

    http: str
    ws: str
    far: bool


def place_of(url: str) -> Place:
    """The server of an address such as `ws://host:port` or `http://host:port/`.

    Raises ParameterError for anything else.
    """
    message = "must be a server's address, such as ws://127.0.0.1:30000."
    wrong = ParameterError([Problem("--url", url, message)])
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    scheme = SCHEMES.get(parts.scheme)
    more = parts.path.rstrip("/").removesuffix(ADDRESS), parts.query, parts.fragment, parts.username
    blank = any(map(str.isspace, parts.netloc))
    if scheme is None or not parts.hostname or port == 0 or any(more) or blank:
        raise wrong
    return Place(
        f"{scheme}://{parts.netloc}",
        f"{'wss' if scheme == 'https' else 'ws'}://{parts.netloc}",
        parts.hostname not in LOCAL,
    )


def served_model(place: Place, key: str = "", seconds: float = 10.0) -> dict[str, Any]:
    """The served model as `GET /v1/models/{name}` tells it.

    Raises:
        SgldError: `no_server`, nobody answers, or somebody else; or its refusal of the key.
        FeatureError: a model without sessions, or without keys.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(
        base_url=place.http, headers=headers, timeout=seconds, trust_env=place.far
    ) as web:
        try:
            name = str(_json(web, "/v1/models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise _other(place.http) from None
        model = _json(web, f"/v1/models/{quote(name)}")
        if not {"id", "pipeline", "plugin", "realtime"} <= model.keys():
            raise _other(place.http)
    sessions = model.get("realtime")
    if not sessions:
        raise FeatureError(
            f"{name}: pipeline {model['pipeline']} has no realtime sessions.",
            remedy="Name a realtime model; `sgld models` marks them.",
        )
    if KIND not in sessions["events"]:
        raise FeatureError(
            f"{name}: its sessions take no {KIND}, which this benchmark sends; they take "
            f"{', '.join(sessions['events'])}."
        )
    return model


def _json(web: httpx.Client, path: str) -> dict[str, Any]:
    try:
        answer = web.get(path)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SgldError(
            f"{web.base_url} does not answer: {error}.",
            code="no_server",
            remedy="Start `sgld serve` there, or leave --url out.",
        ) from None
    if answer.status_code == 401:
        raise SgldError(
            f"{web.base_url} wants an API key.", code="invalid_api_key", remedy="Give --api-key."
        )
    try:
        found = answer.raise_for_status().json()
    except (httpx.HTTPStatusError, ValueError):
        raise _other(str(web.base_url)) from None
    if not isinstance(found, dict):
        raise _other(str(web.base_url))
    return found


def _other(address: str) -> SgldError:
    return SgldError(f"{address} answers, but is no server of sgld.", code="no_server")


def device_memory(place: Place, key: str = "") -> dict[str, int]:
    """What the engine tells of its device's memory, in bytes; empty when it tells nothing."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=place.http, headers=headers, timeout=10, trust_env=place.far) as web:
        return dict(_json(web, "/server_info")["engine"]["device_memory"])


def init_of(model: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The init message of a session, its `free_running` aside: what is wanted, and the model's own
    prompt and a picture where it needs them."""
    sessions = model["realtime"]
    defaults = {row["name"]: row.get("default") for row in sessions["parameters"]}
    init = {"prompt": defaults.get("prompt") or PROMPT, **wanted}
    if sessions["needs_first_frame"] and not init.get("first_frame"):
        init["first_frame"] = _noise(*_size(init, defaults))
    return init


def _size(init: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[int, int]:
    """Width and height of a picture that suits what is wanted, as far as that is a size."""
    size = parse_size(init["size"]) if init.get("size") else ""
    given = (init.get("width"), init.get("height")) if isinstance(size, str) else size
    own = defaults.get("width"), defaults.get("height")
    return _side(given[0], own[0]), _side(given[1], own[1])


def _side(*wishes: Any) -> int:
    """The first that is a length."""
    for wish in wishes:
        if isinstance(wish, int) and not isinstance(wish, bool) and 0 < wish <= LARGEST:
            return wish
    return 512


def _noise(width: int, height: int) -> bytes:
    """A picture that is the same every time."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
