"""How many bytes each component takes, and how many of them are on the device at once.

    rows = memory_plan(plan)        from file headers; nothing is read or allocated
    device_bytes(rows)              what the weights need of the device under their residencies

Dummy weights have no files to ask: `sgld.engine.build.weigh` counts them on modules built without
memory, and the rows take its numbers. Torch-free, but for pickle files that may be opened.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sgld.api.errors import ModelError
from sgld.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from sgld.plan import ModelPlan
    from sgld.weights.layout import Located

PRECISION_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LAYER = re.compile(r"(?:(.*?)\.)?(\d+)\.")
"""A tensor name up to the first number, which says which layer it belongs to."""
LAYERS_AT_ONCE = 2
"""Layerwise offload holds the layer that computes and the one that is copied meanwhile."""


class Weight(NamedTuple):
    """What a component takes.

    Args:
        parameters: number of elements.
        bytes: all of them, in the precision they are loaded in.
        streamed: bytes on the device at once when its layers are streamed; an estimate that takes
            the longest run of numbered names for the layers.
    """

    parameters: int
    bytes: int
    streamed: int

    @classmethod
    def of(cls, tensors: Mapping[str, tuple[int, int]]) -> Weight:
        """From tensor name → (elements, bytes)."""
        total = sum(size for _, size in tensors.values())
        layers: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for name, (_, size) in tensors.items():
            match = LAYER.match(name)
            if match is not None:
                layers[match[1] or ""][match[2]] += size
        longest = max(layers.values(), key=len, default={})
        shown = sorted(longest.values(), reverse=True)[:LAYERS_AT_ONCE]
        return cls(
            sum(count for count, _ in tensors.values()),
            total,
            total - sum(longest.values()) + sum(shown),
        )


def memory_plan(plan: ModelPlan) -> list[dict[str, Any]]:
    """Per component: group, parameters, precision, residency, `bytes` in all and `device_bytes`,
    the most of them that are on the device at once.

    The numbers are None where only loading can tell: pickle files that may not be opened, and dummy
    weights.
    """
    rows: list[dict[str, Any]] = []
    for name, where in plan.located.items():
        residency = plan.residency[name]
        weight = _weight(plan, name, where)
        row: dict[str, Any] = {
            "name": name,
            "group": where.group,
            "residency": residency,
            "precision": plan.precisions[name],
            "parameters": weight and weight.parameters,
            "bytes": weight and weight.bytes,
            "device_bytes": weight and on_device(weight, residency),
        }
        rows.append(row)
    return rows


def on_device(weight: Weight, residency: str) -> int:
    """The most bytes of a component that are on the device at once."""
    return weight.streamed if residency == "layerwise-offload" else weight.bytes


def device_bytes(rows: Iterable[Mapping[str, Any]]) -> dict[str, int] | None:
    """What the weights need of the device: `resident`, the most that is `visiting` at once, and
    `total`; None when a row does not know its bytes.

    Offloaded components take turns, so only the largest counts. Activations come on top.
    """
    known = list(rows)
    if any(row["device_bytes"] is None for row in known):
        return None
    resident = sum(row["device_bytes"] for row in known if row["residency"] == "resident")
    visiting = [row["device_bytes"] for row in known if row["residency"] != "resident"]
    most = max(visiting, default=0)
    return {"resident": resident, "visiting": most, "total": resident + most}


def _weight(plan: ModelPlan, name: str, where: Located) -> Weight | None:
    if plan.options.load_format == "dummy":
        return None
    allowed = plan.options.allow_pickle
    if not allowed and _is_pickled(where.weights):
        return None
    checkpoint = Checkpoint.open(where.weights, allow_pickle=allowed, field=name)
    width = PRECISION_BYTES.get(plan.precisions[name])
    return Weight.of(
        {
            key: (tensor.elements, tensor.elements * width if width else tensor.bytes)
            for key, tensor in checkpoint.items()
        }
    )


def _is_pickled(weights: Any) -> bool:
    sources: Sequence[Any] = weights if isinstance(weights, (list, tuple)) else (weights,)
    try:
        for source in sources:
            Checkpoint.open(source)
    except ModelError as error:
        return error.code == "unsafe_file"
    return False
