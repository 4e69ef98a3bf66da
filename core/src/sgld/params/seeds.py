"""Seeds: reading them, and `seeds_for`, which says which seed makes which output."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from sgld.params.options import Text, scalar

MAX_SEED: Final = 2**32 - 1
"""torch's CPU generator keeps 32 bits of a seed; a larger one would repeat another's output."""
SEED_RULE: Final = f"a whole number from 0 to {MAX_SEED}, or a list of such numbers"


def read_seed(value: Any) -> int | tuple[int, ...] | None:
    """A seed or a non-empty tuple of seeds; raises `ValueError` for anything else, bools too."""
    if value is None:
        return None
    many = value if isinstance(value, list | tuple) else [value]
    for seed in many:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise ValueError(f"must be {SEED_RULE}")
    if not many:
        raise ValueError(f"must be {SEED_RULE}; the list is empty")
    return tuple(many) if isinstance(value, list | tuple) else value


def _seed_text(text: Any) -> Any:
    parts = text if isinstance(text, list) else [text]
    words = [w for part in parts for w in (part.split(",") if isinstance(part, str) else [part])]
    values = [scalar(word) for word in words]
    return values[0] if len(values) == 1 else values


Seed = Annotated[
    int | tuple[int, ...] | None,
    BeforeValidator(read_seed),
    Text(_seed_text),
]


def seeds_for(
    seed: int | Sequence[int] | None,
    prompts: int,
    outputs: int,
    draw: Callable[[int], int] = secrets.randbelow,
) -> list[tuple[int, ...]]:
    """One tuple of `outputs` seeds for each prompt.

    A single seed S (drawn when None) counts on: output i of prompt j uses S + j·outputs + i. A
    list has one seed per output, used for every prompt alike, or one per output of each prompt.
    Raises `ValueError` when the list has another length or S counts beyond `MAX_SEED`.
    """
    total = prompts * outputs
    if seed is None:
        # Counting on from a drawn seed must not run out of seeds: the user did not choose it.
        seed = draw(MAX_SEED - total + 2)
    if isinstance(seed, int):
        if seed + total - 1 > MAX_SEED:
            raise ValueError(f"must be at most {MAX_SEED - total + 1} for {total} outputs")
        seed = range(seed, seed + total)
    if len(seed) == outputs:
        return [tuple(seed)] * prompts
    if len(seed) == total:
        return [tuple(seed[start : start + outputs]) for start in range(0, total, outputs)]
    wanted = str(outputs) if prompts == 1 else f"{outputs} or {total}"
    raise ValueError(f"has {len(seed)} seeds, but the list must have {wanted}")
