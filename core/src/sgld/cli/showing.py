"""Text and JSON for `--print-config` (values and origins) and `--dry-run` (plan and schedule)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sgld.cli.settings import Settings
from sgld.memory import device_bytes, on_device
from sgld.params.merge import Built


def config(settings: Settings, *, as_json: bool) -> str:
    """Every setting with its value and where it came from; one section per kind."""
    sections = {
        "serving": _rows(settings.serving),
        "output": _rows(settings.output),
        "sampling": _rows(settings.prepared[0].built),
    }
    if as_json:
        return _json(sections | {"prompts": [one.params.prompt for one in settings.prepared]})
    lines: list[str] = []
    for title, rows in sections.items():
        lines += [f"# {title}", *_table(rows), ""]
    return "\n".join(lines).rstrip()


def dry_run(settings: Settings, *, as_json: bool) -> str:
    """What would run: the plan of the model, each request, and the adjustments."""
    plan = dict(settings.plan.describe(settings.prepared[0].params))
    if settings.serving.params.load_format == "dummy":
        plan["components"] = _weighed(settings.plan, plan["components"])
        plan["device_bytes"] = device_bytes(plan["components"])
    requests = [
        {
            "id": request.id,
            "prompt": one.params.prompt,
            "seeds": list(request.seeds),
            "width": one.params.width,
            "height": one.params.height,
            **(
                {"num_frames": request.params["num_frames"]}
                if "num_frames" in request.params
                else {}
            ),
            "steps": one.params.num_inference_steps,
            "forwards_per_step": 2 if one.params.uses_cfg else 1,
        }
        for request, one in zip(settings.requests, settings.prepared, strict=True)
    ]
    facts = {"plan": plan, "requests": requests, "notes": list(settings.notes)}
    return _json(facts) if as_json else "\n".join(_outline(facts))


def _weighed(model: Any, components: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The components with parameters and bytes counted on modules built without memory."""
    from sgld.engine.build import weigh

    weights = weigh(model)
    return [
        {
            **row,
            "parameters": weights[row["name"]].parameters,
            "bytes": weights[row["name"]].bytes,
            "device_bytes": on_device(weights[row["name"]], row["residency"]),
        }
        for row in components
    ]


def _rows(built: Built[Any]) -> dict[str, dict[str, Any]]:
    values = built.params.model_dump(mode="json")
    return {name: {"value": values[name], "origin": built.origins[name]} for name in values}


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    shown = {name: json.dumps(row["value"], ensure_ascii=False) for name, row in rows.items()}
    names = max(map(len, shown), default=0)
    values = min(max(map(len, shown.values()), default=0), 40)
    return [
        f"{name:<{names}}  {shown[name]:<{values}}  {row['origin']}" for name, row in rows.items()
    ]


def _outline(value: Any, indent: str = "") -> Iterator[str]:
    """A nested mapping as indented lines."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping) or _is_list(inner):
                yield f"{indent}{key}:"
                yield from _outline(inner, indent + "  ")
            else:
                yield f"{indent}{key}: {inner}"
    elif _is_list(value):
        for inner in value:
            first, *others = _outline(inner, "") if isinstance(inner, Mapping) else [str(inner)]
            yield f"{indent}- {first}"
            yield from (f"{indent}  {line}" for line in others)
    else:
        yield f"{indent}{value}"


def _is_list(value: Any) -> bool:
    """A list that deserves lines of its own: of mappings or text, not of numbers."""
    plain = isinstance(value, Sequence) and not isinstance(value, str)
    return plain and any(isinstance(item, str | Mapping) for item in value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
