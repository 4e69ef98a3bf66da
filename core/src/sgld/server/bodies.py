"""Request bodies: JSON or multipart, read within limits and sorted into fields and input media.

* `Limits.of(options)`: the server's own limits on what a request may be.
* `read_image_body`, `read_edit_body`, `read_video_body` `(request, limits) -> Body`: one for each
  kind of request; JSON and forms mean the same.

Nothing here knows the model: what a field means is decided in `sgld.server.parameters`. A body
that cannot be read is an `ApiError` (400, 408, 413 or 415).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fastapi import Request
from python_multipart.multipart import parse_options_header

from sgld.media.images import MAX_PIXELS
from sgld.params.server import ServerOptions
from sgld.realtime.controls import MAX_PROMPT
from sgld.server.errors import ApiError, body_too_large
from sgld.server.forms import FormReader, UploadedFile, sort_parts
from sgld.server.inlets import LARGE, REPEATABLE, take_media
from sgld.server.json_text import bad_json, parse_json

Kind = Literal["image", "edit", "video"]

CONTAINERS: Final = ("extra_body", "extra_json", "extra_params", "extra_args")
"""Fields whose own fields count as if they stood at the top, unless they stand there too."""
MAX_NAME: Final = 100
MAX_DEPTH: Final = 16
THREAD_BYTES: Final = 2**20
"""JSON above this is parsed outside the event loop, which must stay free for probes."""


@dataclass(frozen=True)
class Limits:
    """The server's own limits on a request, the same on every route.

    Args:
        max_body_bytes: the whole body, uploads included.
        body_seconds: how long a client may take to send it.
        max_parts: parts of a form, fields of a JSON object.
        max_field_bytes: one field that is no input medium.
        max_prompt: characters of a prompt.
        max_inputs: input pictures of one request.
        max_input_pixels: width x height of an input picture, looked at before it is decoded.
        max_pixels: width x height of the output; None leaves it to the model.
        max_frames: frames of the output; None leaves it to the model.
        allow_profile: whether a request may ask for a profiler trace.
    """

    max_body_bytes: int = 64 * 2**20
    body_seconds: float = 120.0
    max_parts: int = 200
    max_field_bytes: int = 2**20
    max_prompt: int = MAX_PROMPT
    max_inputs: int = 16
    max_input_pixels: int = MAX_PIXELS
    max_pixels: int | None = None
    max_frames: int | None = None
    allow_profile: bool = False

    @classmethod
    def of(cls, options: ServerOptions) -> Limits:
        """The limits that the server's options set."""
        return cls(
            max_body_bytes=options.max_body_mib * 2**20,
            max_pixels=options.max_pixels,
            max_frames=options.max_frames,
            allow_profile=options.profile is not None,
        )

    def as_dict(self) -> dict[str, Any]:
        """What clients may know of the limits."""
        names = ("max_body_bytes", "max_prompt", "max_inputs", "max_input_pixels", "max_pixels")
        return {name: getattr(self, name) for name in (*names, "max_frames")}


@dataclass
class Body:
    """A request body, sorted.

    Args:
        fields: name → value; JSON values, or texts, lists and objects of texts from a form.
        texts: the names whose values are text from a form and still have to be typed.
        files: uploaded input pictures by field, in the order they came.
        urls: field and address of each input picture that is to be fetched.
        mask: the encoded mask picture of an edit.
        warnings: what was accepted without effect.
    """

    fields: dict[str, Any]
    texts: frozenset[str] = frozenset()
    files: dict[str, list[UploadedFile]] = field(default_factory=dict)
    urls: list[tuple[str, str]] = field(default_factory=list)
    mask: bytes | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """How many input pictures were given."""
        return sum(len(files) for files in self.files.values()) + len(self.urls)


async def read_image_body(request: Request, limits: Limits) -> Body:
    """The body of a request for pictures from text."""
    return await _read(request, limits, "image")


async def read_edit_body(request: Request, limits: Limits) -> Body:
    """The body of a request for pictures from pictures."""
    return await _read(request, limits, "edit")


async def read_video_body(request: Request, limits: Limits) -> Body:
    """The body of a request for a clip."""
    return await _read(request, limits, "video")


async def _read(request: Request, limits: Limits, kind: Kind) -> Body:
    header = request.headers.get("content-type", "")
    media_type, options = parse_options_header(header)
    _check_headers(request, media_type, limits)
    try:
        async with asyncio.timeout(limits.body_seconds):
            if media_type == b"multipart/form-data":
                texts, files = await _read_form(request, header, limits)
                return make_body(kind, texts, files, limits, form=True)
            data = await _read_all(request, limits)
    except TimeoutError:
        raise ApiError(
            f"the request body did not arrive within {limits.body_seconds:g} seconds.",
            status=408,
            code="request_timeout",
            headers={"connection": "close"},
        ) from None
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    large = len(data) > THREAD_BYTES
    value = (
        await asyncio.to_thread(parse_json, data, charset) if large else parse_json(data, charset)
    )
    return make_body(kind, value, {}, limits, form=False)


def _check_headers(request: Request, media_type: bytes, limits: Limits) -> None:
    """Refuse by the headers what need not be read."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            f"content-encoding={encoding!r}: compressed bodies are not taken.",
            status=415,
            code="unsupported_media_type",
            headers={"accept-encoding": "identity"},
        )
    if media_type not in (b"application/json", b"multipart/form-data"):
        shown = media_type.decode("latin-1")[:80]
        raise ApiError(
            f"content-type={shown!r} is not taken here.",
            status=415,
            code="unsupported_media_type",
            remedy="Send application/json or multipart/form-data.",
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > limits.max_body_bytes:
        raise body_too_large(limits.max_body_bytes)


async def _read_all(request: Request, limits: Limits) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limits.max_body_bytes:
            raise body_too_large(limits.max_body_bytes)
    return bytes(data)


async def _read_form(
    request: Request, content_type: str, limits: Limits
) -> tuple[dict[str, Any], dict[str, list[UploadedFile]]]:
    reader, size = FormReader(content_type, limits, LARGE), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.max_body_bytes:
            raise body_too_large(limits.max_body_bytes)
        reader.feed(chunk)
    return sort_parts(reader.finish(), REPEATABLE)


def make_body(
    kind: Kind,
    value: Any,
    files: Mapping[str, list[UploadedFile]],
    limits: Limits,
    *,
    form: bool,
) -> Body:
    """Sort what was read: containers emptied, input media taken out, the rest checked."""
    if not isinstance(value, dict):
        raise bad_json(f"the body must be a JSON object, not {_name_of(value)}.")
    if len(value) > limits.max_parts:
        raise bad_json(f"the body has more than the {limits.max_parts} fields allowed.")
    fields, typed = _flatten(value, limits)
    body = Body(fields, frozenset(fields.keys() - typed) if form else frozenset())
    take_media(kind, body, files, limits.max_inputs)
    for name, held in body.fields.items():
        _check_value(name, held, limits)
    return body


def _name_of(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _flatten(value: Mapping[str, Any], limits: Limits) -> tuple[dict[str, Any], set[str]]:
    """The fields with those of the containers beneath them, and the names that were JSON text."""
    top = {name: held for name, held in value.items() if name not in CONTAINERS}
    beneath: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for container in CONTAINERS:
        for name, held in _open(container, value.get(container)).items():
            if name in CONTAINERS:
                raise ApiError(
                    f"{container}.{name}: a container cannot hold another.",
                    code="invalid_parameter",
                    param=f"{container}.{name}",
                )
            if name in beneath and beneath[name] != held:
                raise ApiError(
                    f"{name} differs between {owner[name]} and {container}.",
                    code="duplicate_parameter",
                    remedy="Give it once.",
                    param=name,
                )
            beneath[name], owner[name] = held, container
    typed = {name for name, container in owner.items() if isinstance(value[container], str)}
    above = {name for name, held in top.items() if held is not None}
    if len(top) + len(beneath) > limits.max_parts:
        raise bad_json(f"the body has more than the {limits.max_parts} fields allowed.")
    return top | {n: v for n, v in beneath.items() if n not in above}, typed - above


def _open(container: str, held: Any) -> Mapping[str, Any]:
    """The fields of a container, which is an object or an object as JSON text."""
    if held is None or held == "":
        return {}
    if isinstance(held, str):
        try:
            held = parse_json(held.encode("utf-8", "surrogatepass"))
        except ApiError as error:
            raise ApiError(f"{container}: {error}", code=error.code, param=container) from None
    if not isinstance(held, dict):
        raise ApiError(
            f"{container} must be an object or an object as JSON text.",
            code="invalid_parameter",
            param=container,
        )
    return held


def _check_value(name: str, value: Any, limits: Limits) -> None:
    """Refuse names and values that no store, log or header could hold."""
    shown = name[:MAX_NAME].encode("utf-8", "replace").decode()
    if len(name) > MAX_NAME or not _clean(name):
        raise ApiError(f"{shown!r} is not a field name.", code="unknown_parameter", param=shown)
    weight = 0
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise ApiError(f"{shown} is nested too deeply.", param=shown)
        if isinstance(item, str) and not _clean(item):
            raise ApiError(
                f"{shown}: the text holds a NUL or half of a surrogate pair.",
                code="invalid_parameter",
                param=shown,
            )
        weight += len(item) if isinstance(item, str) else 8
        if weight > limits.max_field_bytes:
            raise body_too_large(limits.max_field_bytes, shown, shown)
        stack += [(child, depth + 1) for child in _children(item)]


def _clean(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    return item if isinstance(item, list) else ()
