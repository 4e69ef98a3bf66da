"""JSON as this server takes it: UTF-8, no key twice, no NaN; whatever is wrong is a 400."""

from __future__ import annotations

import json
import math
from typing import Any

from sgld.server.errors import ApiError


class _Duplicate(ValueError):
    """An object names the same key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Duplicate(next(name for name in names if names.count(name) > 1))
    return made


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def parse_json(data: bytes, charset: str = "utf-8") -> Any:
    """JSON in UTF-8, a byte order mark allowed; duplicate keys, NaN and Infinity are refused."""
    if charset.lower().replace("_", "-") not in ("utf-8", "utf8", "us-ascii", "ascii"):
        raise bad_json(f"charset={charset[:40]!r} is not taken; send UTF-8.")
    try:
        text = data.decode("utf-8-sig")
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
        )
    except _Duplicate as error:
        name = str(error)[:100]
        raise ApiError(
            f"{name!r} is given more than once.", code="duplicate_parameter", param=name
        ) from None
    except UnicodeDecodeError as error:
        raise bad_json(f"the body is not UTF-8 (byte {error.start}).") from None
    except RecursionError:
        raise bad_json("the body is nested too deeply.") from None
    except ValueError as error:
        raise bad_json(f"the body is not JSON: {str(error)[:200]}.") from None


def bad_json(message: str) -> ApiError:
    """400 for a body that is no JSON, or not the JSON that is taken here."""
    return ApiError(message, code="invalid_json")
