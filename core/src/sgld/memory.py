"""How many bytes each component takes, from file headers; nothing is read or allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgld.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from sgld.plan import ModelPlan

PRECISION_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def memory_plan(plan: ModelPlan) -> list[dict[str, Any]]:
    """Per component: group, parameters, precision, bytes and residency.

    `bytes` is None where only loading can tell: pickle files that may not be opened, and dummy
    weights without files.
    """
    rows: list[dict[str, Any]] = []
    for name, where in plan.located.items():
        precision = plan.precisions[name]
        row: dict[str, Any] = {
            "name": name,
            "group": where.group,
            "residency": plan.residency[name],
            "precision": precision,
            "parameters": None,
            "bytes": None,
        }
        if plan.options.load_format != "dummy":
            checkpoint = Checkpoint.open(
                where.weights, allow_pickle=plan.options.allow_pickle, field=name
            )
            parameters = sum(tensor.elements for tensor in checkpoint.values())
            width = PRECISION_BYTES.get(precision)
            row["parameters"] = parameters
            row["bytes"] = checkpoint.total_bytes if width is None else parameters * width
        rows.append(row)
    return rows
