"""Multipart forms: read part by part within limits, then sorted into fields and files.

* `FormReader(content_type, limits, large)`: `feed(chunk)` as the body arrives, then
  `finish() -> list[Part]`.
* `sort_parts(parts, repeatable) -> (texts, files)`: `name[]` and `name[0]` make lists,
  `name[key]` makes objects, anything else may be given once.

Whatever is wrong with a form is the caller's fault: an `ApiError` with status 400 or 413.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sgld.server.errors import ApiError, body_too_large

MAX_HEADER_BYTES: Final = 8192
"""Headers of one part, all together; ours and every browser's are a tenth of this."""
MAX_DEPTH: Final = 4
_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_KEY = re.compile(r"\[([^\[\]]*)\]")


class FormLimits(Protocol):
    """What a form reader needs to know of the server's limits."""

    @property
    def max_parts(self) -> int:
        """Parts of one form."""
        ...

    @property
    def max_field_bytes(self) -> int:
        """Bytes of one field that is no file."""
        ...


@dataclass(slots=True)
class Part:
    """One part of a form; `file_name` is None for a field, and never used as a path."""

    name: str = ""
    file_name: str | None = None
    content_type: str = ""
    data: bytearray = field(default_factory=bytearray)


class UploadedFile(NamedTuple):
    """An uploaded file: its bytes, and what the client says of it, which is not to be trusted."""

    field: str
    data: bytes
    claimed_name: str = ""
    content_type: str = ""


def bad_form(message: str, param: str | None = None) -> ApiError:
    """400 for a form that cannot be read."""
    return ApiError(message, code="invalid_form", param=param)


class FormReader:
    """Reads one multipart body; refuses it as soon as a limit is passed.

    `large` names the fields that only the limit of the whole body binds.
    """

    def __init__(self, content_type: str, limits: FormLimits, large: Collection[str] = ()) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise bad_form("the content type multipart/form-data lacks its boundary.")
        self._limits = limits
        self._large = large
        self._parts: list[Part] = []
        self._part = Part()
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = b"", b""
        self._header_bytes = 0
        self._complete = False
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except (FormParserError, ValueError) as error:
            raise bad_form(f"the boundary of the form cannot be used: {error}.") from error

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._end_part,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_end,
            "on_end": self._end,
        }

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        if self._complete or not chunk:
            return  # what follows the last boundary means nothing
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise bad_form(f"the form cannot be read: {error}.") from error

    def finish(self) -> list[Part]:
        """Every part in order; an unfinished form is refused."""
        if not self._complete:
            raise bad_form("the form ends before its last boundary.")
        # Parser and reader hold each other, so what they keep would stay until the next collection.
        parts, self._parts, self._part = self._parts, [], Part()
        return parts

    def _begin(self) -> None:
        if len(self._parts) >= self._limits.max_parts:
            raise bad_form(f"the form has more than the {self._limits.max_parts} parts allowed.")
        self._part = Part()
        self._headers, self._header_bytes = {}, 0
        self._header, self._value = b"", b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += self._head(data, start, end)

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._head(data, start, end)

    def _head(self, data: bytes, start: int, end: int) -> bytes:
        self._header_bytes += end - start
        if self._header_bytes > MAX_HEADER_BYTES:
            raise bad_form(f"a part of the form has more than {MAX_HEADER_BYTES} bytes of headers.")
        return data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.lower().strip()] = self._value
        self._header, self._value = b"", b""

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise bad_form('a part of the form lacks `Content-Disposition: form-data; name="…"`.')
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        name = options[b"name"].decode("utf-8", "replace")
        if encoding not in (b"binary", b"8bit", b"7bit"):
            raise bad_form(f"{_short(name)}: send the bytes as they are, not encoded.", name)
        self._part.name = name
        if b"filename" in options:
            self._part.file_name = options[b"filename"].decode("utf-8", "replace")
        self._part.content_type = self._headers.get(b"content-type", b"").decode("latin-1")

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        part.data += data[start:end]
        large = part.file_name is not None or part.name.partition("[")[0] in self._large
        if not large and len(part.data) > self._limits.max_field_bytes:
            raise body_too_large(self._limits.max_field_bytes, _short(part.name), part.name)

    def _end_part(self) -> None:
        self._parts.append(self._part)

    def _end(self) -> None:
        self._complete = True


def _short(name: str) -> str:
    return name if len(name) <= 80 else name[:77] + "..."


def _split_name(name: str) -> tuple[str, list[str]]:
    """`a[b][]` → `a` and `["b", ""]`."""
    found = _NAME.fullmatch(name)
    keys = _KEY.findall(found[2]) if found else []
    if not found or len(keys) > MAX_DEPTH:
        raise bad_form(f"{_short(name)!r} is not a field name.", _short(name))
    return found[1], keys


def sort_parts(
    parts: Sequence[Part], repeatable: Collection[str]
) -> tuple[dict[str, Any], dict[str, list[UploadedFile]]]:
    """Fields as text, lists and objects of text, and files by name.

    A plain name that comes twice is refused unless it is `repeatable`; a file input that was left
    empty (no name, no bytes) counts as not given.
    """
    texts: dict[str, Any] = {}
    files: dict[str, list[UploadedFile]] = {}
    for part in parts:
        base, keys = _split_name(part.name)
        if part.file_name is not None:
            if (keys and not _is_index(keys[0])) or len(keys) > 1:
                raise bad_form(f"{_short(part.name)!r} cannot be a file.", base)
            if part.file_name or part.data:
                upload = UploadedFile(base, bytes(part.data), part.file_name, part.content_type)
                files.setdefault(base, []).append(upload)
        else:
            _put(texts, base, keys, _text(part, base), base in repeatable)
    return texts, files


def _is_index(key: str) -> bool:
    return key == "" or key.isdecimal()


def _text(part: Part, base: str) -> str:
    _, options = parse_options_header(part.content_type)
    charset = options.get(b"charset", b"utf-8").lower()
    try:
        if charset in (b"utf-8", b"utf8", b"us-ascii"):
            return bytes(part.data).decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise bad_form(f"{_short(base)}: the text is not UTF-8.", _short(base))


def _put(texts: dict[str, Any], base: str, keys: list[str], text: str, repeatable: bool) -> None:
    """Store one field; two ways of writing the same name are refused."""
    if not keys and base not in texts:
        texts[base] = text
        return
    if not keys and repeatable:
        held = texts[base]
        texts[base] = [*held, text] if isinstance(held, list) else [held, text]
        return
    if keys and _is_index(keys[0]):
        held = texts.setdefault(base, [])
        held = texts[base] = [held] if repeatable and not isinstance(held, list) else held
        if isinstance(held, list):
            held.append(_nest(keys[1:], text))
            return
    elif keys:
        held = texts.setdefault(base, {})
        if isinstance(held, dict) and _insert(held, keys, text):
            return
    raise ApiError(
        f"{_short(base)} is given more than once.", code="duplicate_parameter", param=_short(base)
    )


def _nest(keys: Sequence[str], text: str) -> Any:
    value: Any = text
    for key in reversed(keys):
        value = [value] if _is_index(key) else {key: value}
    return value


def _insert(tree: dict[str, Any], keys: Sequence[str], text: str) -> bool:
    """Put `text` into nested objects; False where something is in the way."""
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            return False
    if keys[-1] in tree:
        return False
    tree[keys[-1]] = text
    return True
