"""Checkpoint → module on a device: verify everything first, then stream tensor by tensor.

    module = load_module(
        lambda: Transformer(config),
        Checkpoint.open(folder, field="transformer"),
        rename=original_to_ours,                    # stored name → module name, None drops it
        convert=[Target("qkv.weight", ("q.weight", "k.weight", "v.weight"), torch.cat)],
        device="cuda", dtype=torch.bfloat16,        # or a function: name → dtype, None as stored
        optional=("lm_head.weight",), ignore=("*.norm_added_q.*",),
    )

Non-persistent buffers: see `sgld.weights.module`. Random weights: see `dummy_module`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import nn

from sgld.weights.checkpoint import Checkpoint
from sgld.weights.dummy import dummy_module
from sgld.weights.mapping import (
    CheckpointError,
    Convert,
    Plan,
    Problems,
    Rename,
    Shape,
    Target,
    make_plan,
)
from sgld.weights.module import Finish, Slot, build_on_meta, materialise, place, settle, slots
from sgld.weights.reading import Reader

__all__ = ["CheckpointError", "DtypeOf", "Problems", "Target", "dummy_module", "load_module"]

DtypeOf: TypeAlias = torch.dtype | Callable[[str], torch.dtype | None] | None
"""Precision of floating-point tensors: one, None as stored, or by module tensor name."""


def load_module(
    build: Callable[[], nn.Module],
    checkpoint: Checkpoint,
    *,
    rename: Rename | None = None,
    convert: Convert = (),
    device: torch.device | str,
    dtype: DtypeOf = None,
    progress: Callable[[int, int], None] | None = None,
    optional: Iterable[str] = (),
    ignore: Iterable[str] = (),
    finish: Finish | None = None,
    label: str = "",
) -> nn.Module:
    """Build the module without memory, check every tensor, then load it in eval mode.

    Args:
        build: makes the module; called once, under the meta device.
        checkpoint: the stored tensors.
        rename: stored name → module name; None drops the tensor.
        convert: module tensors made of several stored ones, or one of several.
        device: where the tensors go; they never lie on the host as a whole.
        dtype: precision of floating-point tensors; a function keeps islands in float32.
        progress: told bytes done and bytes in all, both as stored.
        optional: patterns of module tensors that may be missing (`finish` then provides them).
        ignore: patterns of stored tensors known to be unused.
        finish: gets the loaded module before it is checked for tensors without data.
        label: what messages call it.

    Raises:
        CheckpointError: a tensor is missing, unexpected or of another shape; nothing was loaded.
        ModelError: a tensor has no data afterwards, or a file changed while loading.
    """
    target_device = _with_index(torch.device(device))
    label = label or checkpoint.label
    module = build_on_meta(build)
    table = slots(module)
    plan = make_plan(
        {name: tuple(slot.tensor.shape) for name, slot in table.items()},
        checkpoint.shapes,
        rename=rename,
        convert=convert,
        optional=optional,
        ignore=ignore,
        same={slot.names for slot in table.values()},
        shape_of=_combined_shape,
    )
    _check(plan, table, checkpoint, label)
    _stream(module, table, plan, checkpoint, target_device, dtype, progress)
    materialise(module, target_device, finish)
    return settle(module, target_device, label)


def _with_index(device: torch.device) -> torch.device:
    # Tensors report "cuda:0" where the user said "cuda"; comparing needs the full name.
    return torch.empty(0, device=device).device


def _combined_shape(target: Target, shapes: Sequence[Shape]) -> Shape | None:
    assert target.combine is not None
    try:
        return tuple(target.combine([torch.empty(s, device="meta") for s in shapes]).shape)
    except (RuntimeError, ValueError, IndexError, TypeError):
        # Wrong source shapes make the function fail; the empty shape then shows as a mismatch.
        return ()


def _check(plan: Plan, table: dict[str, Slot], checkpoint: Checkpoint, label: str) -> None:
    problems = plan.problems
    integer = [
        f"{target.name} is floating point, but {source!r} is stored as {checkpoint[source].dtype}"
        for target in plan.targets
        for source in target.sources
        # An unscaled cast of integers would load, and give noise.
        if target.combine is None
        and table[target.name].tensor.is_floating_point()
        and checkpoint[source].dtype[0] in "UIB"
        and checkpoint[source].dtype != "BF16"
    ]
    if integer:
        problems = Problems(
            problems.missing,
            problems.unexpected,
            problems.shapes,
            problems.doubled,
            (*problems.other, *integer),
        )
    problems.raise_if_any(label)


def _stream(
    module: nn.Module,
    table: dict[str, Slot],
    plan: Plan,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: DtypeOf,
    progress: Callable[[int, int], None] | None,
) -> None:
    total = sum(checkpoint[source].bytes for target in plan.targets for source in target.sources)
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    def position(target: Target) -> tuple[str, int]:
        first = checkpoint[target.sources[0]]
        return str(first.file), first.start

    with Reader(checkpoint, device, count) as reader, torch.no_grad():
        # In the order of the files: disks and page caches read ahead.
        for target in sorted(plan.targets, key=position):
            slot = table[target.name]
            wanted = _wanted(target.name, slot, checkpoint[target.sources[0]].floating, dtype)
            place(module, slot, _make(target, reader, wanted))


def _wanted(name: str, slot: Slot, floating: bool, dtype: DtypeOf) -> torch.dtype | None:
    if not floating or not slot.tensor.is_floating_point():
        return None
    return dtype(name) if callable(dtype) else dtype


def _make(target: Target, reader: Reader, wanted: torch.dtype | None) -> torch.Tensor:
    if target.combine is None:
        return reader.read(target.sources[0], wanted)
    made = target.combine([reader.read(source) for source in target.sources])
    # A slice of its source would keep all of the source alive.
    whole = made.untyped_storage().nbytes() == made.nbytes and made.is_contiguous()
    made = made if whole else made.clone(memory_format=torch.contiguous_format)
    return made if wanted is None else made.to(wanted)
