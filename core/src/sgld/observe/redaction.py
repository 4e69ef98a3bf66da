"""Keeps keys, passwords and signatures out of every line that is written.

`Redactor(secrets)` replaces the given values wherever they appear, values under a name such as
`authorization` or `api_key`, and what looks like a credential inside text: bearer tokens, passwords
in URLs, signatures of presigned URLs. Pictures inlined as data URLs are cut to their size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

HIDDEN: Final = "[redacted]"
SHORTEST: Final = 4
"""Shorter secrets are not searched for: they would blot out words of ordinary text."""
DEEPEST: Final = 8

SECRET_NAME: Final = re.compile(
    r"(^|_)(authorization|api_?keys?|access_key(_id)?|secret(_\w*)?|private_key|passw(or)?d"
    r"|(\w+_)?token|(set_)?cookies?|signature|credentials?)$"
)
SIGNED: Final = (
    "x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential"
    "|signature|awsaccesskeyid|access_token|token|api_?key|key|sig|password|secret"
)
IN_TEXT: Final = (
    # What a header holds, to the end of its value.
    (
        re.compile(r"(authorization|cookie)([\"']?\s*[:=]\s*[\"']?)[^\r\n\"'}]+", re.IGNORECASE),
        rf"\1\2{HIDDEN}",
    ),
    # A scheme and its value, wherever they stand.
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    # Parameters of a URL that let their bearer in.
    (re.compile(rf"([?&;](?:{SIGNED})=)[^&\s\"'<>]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    # A password in a URL, as in postgresql://user:password@host/.
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:)[^\s/]+(?=@)", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    # `api_key=…`, `"password": "…"` and names that end so.
    (
        re.compile(
            r"((?:api[_-]?key|access_?key(?:_id)?|secret(?:_?(?:access_?)?key)?|password)"
            r"[\"']?\s*[:=]\s*[\"']?)(?!\[redacted)[^\s\"',;&)}\]]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(sk-|hf_)[A-Za-z0-9_-]{16,}"), rf"\1{HIDDEN}"),
)
DATA_URL: Final = re.compile(
    r"(data:[\w.+/-]{0,80}(?:;[\w=.+-]{1,80})*;base64,)([A-Za-z0-9+/=_-]+)"
)
SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Redactor:
    """Hides secrets in text and in nested values.

    Args:
        secrets: values that must never be written, such as the server's API keys.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first: one key may be the beginning of another.
        known = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """`text` without what looks like, or is known as, a secret."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        if "base64," in text:
            text = DATA_URL.sub(lambda m: f"{m[1]}[{len(m[2])} characters]", text)
        for pattern, hidden in IN_TEXT:
            text = pattern.sub(hidden, text)
        return text

    def value(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """A copy of `value`, found under `name`, with the secrets hidden in all its parts.

        Numbers and None stay as they are: `max_token=512` is no secret.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if name and is_secret(name):
            return HIDDEN if value else value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return f"[{len(value)} bytes]"
        if depth >= DEEPEST:
            return self.text(repr(value))
        if isinstance(value, Mapping):
            return {str(k): self.value(v, str(k), depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(item, "", depth + 1) for item in value]
        return self.text(repr(value))


def is_secret(name: str) -> bool:
    """Whether a value under this name is one to hide."""
    return SECRET_NAME.search(name.lower().replace("-", "_")) is not None


def printable(text: str) -> str:
    """`text` on one line: control characters and lone surrogates become escapes as in JSON.

    A prompt or a path must neither start a line that looks like another record nor steer the
    terminal that shows it.
    """
    return UNPRINTABLE.sub(lambda m: SHORT.get(m[0]) or f"\\u{ord(m[0]):04x}", text)
