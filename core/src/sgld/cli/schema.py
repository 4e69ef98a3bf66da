"""A family's parameters as rows of a table, read from the JSON schema of its pydantic class.

Public: `parameter_rows(entry, own, defaults) -> list[dict]` with name, type,
default, range, choices, help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sgld.api.specs import PipelineSpec
    from sgld.params.sampling import SamplingParams
    from sgld.plugins.resolve import Entry


def parameter_rows(
    entry: Entry[PipelineSpec],
    own: type[SamplingParams] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Every parameter of a pipeline in the order its class declares them.

    `own` and `defaults` are the class and the preset values of one checkpoint; without them the
    family's own are shown.
    """
    from sgld.params.options import rule
    from sgld.plugins.catalog import load_target

    cls = own or load_target(entry.spec.params, entry)
    schema = cls.model_json_schema()
    shared = schema.get("$defs", {})
    base = _base_defaults(entry.spec) if defaults is None else defaults
    required = set(schema.get("required", ()))
    rows: list[dict[str, Any]] = []
    for name, field in schema.get("properties", {}).items():
        row = _row(name, field, shared)
        row["range"] = rule(cls.model_fields[name])
        if name in base:
            row["default"] = base[name]
        row["required"] = name in required and name not in base
        row["default_text"] = "required" if row["required"] else _shown(row["default"])
        rows.append(row)
    return [*rows, *_conveniences(cls)]


def _conveniences(cls: Any) -> list[dict[str, Any]]:
    """The other names that may be written, such as `size`, with what each of them sets."""
    return [
        {
            "name": name,
            "type": f"sets {' and '.join(item.sets)}",
            "default": None,
            "range": item.rule,
            "choices": [],
            "optional": True,
            "required": False,
            "default_text": "-",
            "help": item.description,
        }
        for name, item in getattr(cls, "conveniences", {}).items()
    ]


def _base_defaults(spec: PipelineSpec) -> dict[str, Any]:
    """What the family's base presets set for every checkpoint."""
    values: dict[str, Any] = {}
    for preset in spec.presets:
        if not preset.repos and not preset.rules:
            values.update(preset.defaults)
    return values


def _shown(value: Any) -> str:
    text = "-" if value is None else repr(value)
    return text if len(text) <= 30 else text[:27] + "..."


def _row(name: str, field: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    options = _options(field, shared)
    choices = [value for option in options for value in _choices(option)]
    types = dict.fromkeys(_type(option) for option in options if option.get("type") != "null")
    return {
        "name": name,
        "type": " or ".join(types) or "any",
        "default": field.get("default"),
        "range": "",
        "choices": choices,
        "optional": any(option.get("type") == "null" for option in options),
        "help": " ".join(field.get("description", "").split()),
    }


def _options(field: dict[str, Any], shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a field, with references looked up."""
    if "$ref" in field:
        return _options(shared.get(field["$ref"].rpartition("/")[2], {}), shared)
    alternatives = field.get("anyOf") or field.get("oneOf") or field.get("allOf")
    if alternatives:
        return [option for item in alternatives for option in _options(item, shared)]
    return [field]


def _choices(option: dict[str, Any]) -> list[Any]:
    if "const" in option:
        return [option["const"]]
    return list(option.get("enum", ()))


def _type(option: dict[str, Any]) -> str:
    kind = option.get("type")
    if kind == "array":
        inner = _type(option["items"]) if isinstance(option.get("items"), dict) else "any"
        return f"list of {inner}"
    if isinstance(kind, str):
        return kind
    return "choice" if _choices(option) else "any"
