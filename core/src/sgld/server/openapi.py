"""The OpenAPI document: request bodies from the served family's own parameters, every status named.

* `answers(model, *statuses)`: the `responses` of a route.
* `request_body(kind, facts, limits)`: the `openapi_extra` of a POST, JSON and form alike.
* `install_openapi(app, keys=...)`: `app.openapi()` without what this server never answers.

Routes read their bodies themselves, so the framework cannot derive any of this.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from sgld.params.options import Options, limits
from sgld.params.sampling import SamplingParams
from sgld.server.answers import ErrorAnswer, Pictures
from sgld.server.bodies import CONTAINERS, Kind, Limits
from sgld.server.inlets import FILES, URLS
from sgld.server.parameters import ModelFacts, limited
from sgld.server.settings import OutputSettings
from sgld.server.sorting import LENGTHS, OUTPUTS, is_still
from sgld.server.spelling import ALIASES, APPROXIMATE, EXACT, OFF_ONLY, REFUSED, WITHOUT_EFFECT

Schema = dict[str, Any]

ERRORS: Final[Mapping[int, str]] = {
    400: "A field or the body is wrong; the message says which and what to do.",
    401: "The API key is missing or wrong.",
    404: "There is no such model, picture or video here.",
    408: "The body did not arrive in time.",
    409: "The job has ended, or was cancelled by somebody else.",
    413: "The body, or one field, is larger than allowed.",
    415: "The content type is neither JSON nor a form.",
    416: "The range lies outside the file.",
    429: "As many jobs wait as may wait; see Retry-After.",
    500: "The server or the model failed.",
    503: "Not ready yet, or the engine was lost; see Retry-After.",
}
"""Status → what it means, for every error that this server answers."""

CREATING: Final = (400, 404, 408, 413, 415, 429, 500, 503)
"""What may come instead of a new job."""

MEDIA: Final[Schema] = {
    "oneOf": [
        {"type": "string", "description": "An http(s) or data: URL."},
        {
            "type": "object",
            "properties": {"image_url": {"type": "string"}},
            "required": ["image_url"],
            "additionalProperties": False,
        },
    ]
}
SUPPORTED: Final[Mapping[str, list[Any]]] = {"background": ["auto", "opaque"]}
"""Settings of which not every known value is supported, and those that are."""

FILE: Final[Schema] = {"type": "string", "format": "binary"}


def answers(model: type[BaseModel] | None, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` for a route: `model` for success (None: described elsewhere) and the errors."""
    success: dict[int | str, dict[str, Any]] = {}
    if model is not None:
        words = (model.__doc__ or "").strip().splitlines()[0]
        success[200] = {"model": model, "description": words}
    return success | {
        status: {"model": ErrorAnswer, "description": ERRORS[status]} for status in statuses
    }


def picture_answers(events: str) -> dict[int | str, dict[str, Any]]:
    """`responses` for a route that makes pictures: one answer, or a stream of `events`."""
    made = answers(Pictures, *CREATING, 409)
    names = (f"{events}.partial_image", f"{events}.completed", "error")
    made[200] = {**made[200], "content": event_content(*names)}
    return made


def event_content(*names: str) -> Schema:
    """`content` of an answer that is a stream of server-sent events; describes one event."""
    schema = {
        "type": "object",
        "properties": {
            "event": {"type": "string", "enum": list(names)},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
        "required": ["event", "data"],
        "additionalProperties": False,
    }
    return {"text/event-stream": {"schema": schema}}


def file_answers(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """`responses` for a route that sends a file, in parts or from elsewhere if need be."""
    content = {name: {"schema": FILE} for name in media_types}
    part = {**content, "multipart/byteranges": {"schema": FILE}}
    return {
        200: {"description": "The file.", "content": content},
        206: {"description": "The parts that a Range header asked for.", "content": part},
        307: {"description": "The file is in a bucket; Location is a signed address."},
        **answers(None, 400, 404, 416, 500),
    }


def request_body(kind: Kind, facts: ModelFacts, bounds: Limits) -> dict[str, Any]:
    """`openapi_extra` with the body that this kind of request takes."""
    schema = _schema(kind, facts, bounds)
    form = copy.deepcopy(schema)
    for name in FILES[kind]:
        if name in schema["properties"]:
            one = {**FILE, "description": "A picture file."}
            many = {"type": "array", "items": FILE}
            form["properties"][name] = {"oneOf": [one, many]} if name == "image" else one
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema},
                "multipart/form-data": {"schema": form},
            },
        }
    }


def _schema(kind: Kind, facts: ModelFacts, bounds: Limits) -> Schema:
    cls = limited(facts.params_class, bounds.max_pixels, bounds.max_frames)
    output = OUTPUTS[kind]
    properties: dict[str, Schema] = {"model": {"type": "string", "enum": [facts.name]}}
    short = {field: name for name, field in ALIASES.items()}
    for name, schema in _fields(cls, dict(facts.preset_layer.values)).items():
        if name in REFUSED or (name in LENGTHS and is_still(kind, cls)):
            continue
        if name in short:
            properties[short[name]] = schema
        properties[name] = schema
    properties |= {n: s for n, s in _fields(output, {}).items() if n not in REFUSED}
    properties |= _media(kind)
    if not cls.takes_mask:
        properties.pop("mask", None)
    words = [*EXACT, *APPROXIMATE]
    properties["quality"] = {"type": "string", "enum": words, "description": "Has no effect."}
    for name, reason in WITHOUT_EFFECT.items():
        properties.setdefault(name, {"description": f"Has no effect: {reason}."})
    for name in sorted(OFF_ONLY):
        properties.setdefault(name, {"type": "boolean", "enum": [False]})
    for name in CONTAINERS:
        properties[name] = {"type": "object", "description": "More fields, as if at the top."}
    for name, values in SUPPORTED.items():
        if name in properties:
            properties[name]["enum"] = values
    if not bounds.allow_profile:
        properties["profile"]["enum"] = [False]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if not cls.prompt_optional:
        properties["prompt"]["minLength"] = 1
        if "prompt" not in facts.preset_layer.values:
            schema["required"] = ["prompt"]
    if kind == "edit" or (kind == "video" and facts.needs_image):
        schema["anyOf"] = [{"required": [name]} for name in URLS[kind]]
    return schema


def _media(kind: Kind) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for name in URLS[kind]:
        many = {"type": "array", "items": MEDIA}
        found[name] = {"oneOf": [*MEDIA["oneOf"], many], "description": "Input pictures."}
    if kind == "edit":
        found["mask"] = {**MEDIA, "description": "Which pixels may change; a data: URL."}
    return found


def _fields(cls: type[Options], preset: Mapping[str, Any]) -> dict[str, Schema]:
    """Schemas of fields and conveniences, with the defaults of the checkpoint."""
    schemas: dict[str, Schema] = {}
    for name, schema in cls.model_json_schema(mode="validation")["properties"].items():
        unit = schema.pop("unit", "")
        rule = schema.pop("rule", "")
        for word in ("merge", "title"):
            schema.pop(word, None)
        words = [schema.get("description", ""), f"Must be {rule}." if rule else ""]
        words.append(f"In {unit}." if unit else "")
        schema["description"] = " ".join(word for word in words if word)
        if name in preset:
            schema["default"] = preset[name]
        schemas[name] = schema | _grid(cls, name)
    for name, convenience in cls.conveniences.items():
        kinds: Schema = {"type": "string"} if name == "size" else {"type": ["number", "string"]}
        if issubclass(cls, OutputSettings):
            kinds = {"type": "integer", "minimum": 0, "maximum": 100}
        words = f"{convenience.description} Must be {convenience.rule}."
        schemas[name] = {**kinds, "description": words}
    return schemas


def _grid(cls: type[Options], name: str) -> Schema:
    if name not in ("width", "height") or not issubclass(cls, SamplingParams):
        return {}
    low, _ = limits(cls.model_fields[name])
    smallest = max(int(low or 1), cls.min_size)
    return {"minimum": smallest, "multipleOf": cls.spatial_multiple}


def install_openapi(app: FastAPI, *, keys: bool, open_paths: tuple[str, ...] = ()) -> None:
    """Make `app.openapi()` tell the truth: no 422, and 401 where keys are asked for."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = made()
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if keys and path not in open_paths:
                    _guard(operation)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        if keys:
            scheme = {"type": "http", "scheme": "bearer"}
            document["components"]["securitySchemes"] = {"key": scheme}
        return document

    app.openapi = openapi


def _guard(operation: dict[str, Any]) -> None:
    operation["security"] = [{"key": []}]
    error = {"$ref": "#/components/schemas/ErrorAnswer"}
    operation["responses"]["401"] = {
        "description": ERRORS[401],
        "content": {"application/json": {"schema": error}},
    }
