"""Where input pictures come in: which fields of which kind of request, as file, URL or object.

`take_media(kind, body, files, most)` moves them out of the fields into `body.files`, `body.urls`
and `body.mask`. Nothing is fetched, opened or decoded here, and no name of a client is a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sgld.api.errors import ParameterError, Problem
from sgld.media.fetch import decode_data_url
from sgld.params.nearest import did_you_mean
from sgld.server.forms import UploadedFile

if TYPE_CHECKING:
    from sgld.server.bodies import Body

RULE: Final = "must be an uploaded file, an http(s) or data: URL, or an object with image_url"


FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "image": (),
    "edit": ("image", "mask", "markup"),
    "video": ("input_reference",),
}
"""Kind of request → fields that may be files."""

URLS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": (),
    "edit": ("image", "images", "url"),
    "video": ("input_reference", "reference_url"),
}
"""Kind of request → fields that may be URLs."""

REPEATABLE: Final = frozenset({"image", "images", "url"})
"""Fields of a form that may come several times without brackets."""

LARGE: Final = frozenset({*URLS["edit"], *URLS["video"], "mask"})
"""Fields of a form that may hold a data: URL and so be as large as the body."""

NAMED: Final[Mapping[str, str]] = {"image": "image", "edit": "image", "video": "input_reference"}
"""Kind of request → the field that errors about input pictures name."""


def take_media(kind: str, body: Body, files: Mapping[str, list[UploadedFile]], most: int) -> None:
    """Move the input pictures of `body` to their places; raises every problem at once."""
    problems: list[Problem] = []
    for name, uploads in files.items():
        _take_files(kind, body, name, uploads, problems)
    for name in URLS[kind]:
        try:
            body.urls += [(name, url) for url in _urls(name, body.fields.pop(name, None))]
        except ParameterError as error:
            problems += error.problems
    if kind == "edit":
        _take_mask(body, problems)
    if body.inputs > most:
        named = NAMED[kind]
        message = f"{body.inputs} pictures are too many: the limit is {most}."
        problems.append(Problem(named, None, message))
    if problems:
        raise ParameterError(problems)
    body.texts = body.texts & body.fields.keys()


def _take_files(
    kind: str, body: Body, name: str, uploads: list[UploadedFile], problems: list[Problem]
) -> None:
    allowed = FILES[kind]
    if name not in allowed:
        message = "cannot be a file here."
        remedy = did_you_mean(name, allowed) if allowed else "Send pictures to /v1/images/edits."
        problems.append(Problem(name[:80], None, message, remedy, "unknown_parameter"))
    elif name == "mask":
        if len(uploads) > 1:
            problems.append(Problem(name, None, "is given more than once."))
        body.mask = uploads[0].data
    elif name == "markup":
        body.warnings.append("markup has no effect: this server does not support it.")
    else:
        body.files[name] = uploads


def _take_mask(body: Body, problems: list[Problem]) -> None:
    held = body.fields.pop("mask", None)
    try:
        for url in _urls("mask", held):
            if body.mask is not None:
                raise ParameterError([Problem("mask", None, "is given more than once.")])
            if not url.lower().startswith("data:"):
                remedy = "Send the mask as a file or a data: URL."
                raise ParameterError([Problem("mask", url[:80], "is not fetched.", remedy)])
            body.mask = decode_data_url(url, field="mask")
    except ParameterError as error:
        problems += error.problems


def _urls(name: str, held: Any) -> list[str]:
    """The addresses in a field; an empty text or list counts as not given."""
    if held is None or held == "":
        return []
    if isinstance(held, list):
        return [url for item in held for url in _urls(name, item)]
    if isinstance(held, str):
        return [held]
    if isinstance(held, dict):
        return [_from_object(name, held)]
    raise ParameterError([Problem(name, held, f"{RULE}.")])


def _from_object(name: str, held: dict[str, Any]) -> str:
    if held.get("file_id") is not None:
        message = "stored files are not supported."
        raise ParameterError(
            [Problem(f"{name}.file_id", None, message, "Send image_url.", "unsupported_parameter")]
        )
    url = held.get("image_url", held.get("url"))
    url = url.get("url") if isinstance(url, dict) else url
    known = {"image_url", "url", "file_id", "type", "detail"}
    if not isinstance(url, str) or not url or not held.keys() <= known:
        raise ParameterError([Problem(name, None, f"{RULE}.")])
    return url
