"""What a caller is told when a job fails."""

from __future__ import annotations

import re

import torch

from sgld.api.errors import RequestError, SgldError

NO_HOST_MEMORY = ("not enough memory", "can't allocate memory")
"""How torch's CPU allocator words it: it has no exception of its own."""


def as_request_error(error: Exception, stage: str) -> SgldError:
    """The error a caller sees: ours as it is, memory exhaustion by name, others by stage."""
    if isinstance(error, SgldError):
        return error
    where = f"stage {stage or 'start'}"
    if _is_exhaustion(error):
        return RequestError(
            f"{where} needs more memory than there is. {_shortage(error)}",
            code="out_of_memory",
            remedy="Try a smaller size, fewer frames, or --residency all=component-offload.",
        )
    return RequestError(f"{where} failed: {type(error).__name__}: {error}")


def _shortage(error: Exception) -> str:
    """What was asked for and what was free, without the allocator's page of advice."""
    text = str(error)
    if found := re.search(r"Tried to allocate [^\n]*? is free\.", text):
        return found[0]
    if found := re.search(r"tried to allocate (\d+) bytes", text):
        return f"Tried to allocate {int(found[1]) / 2**30:.2f} GiB of host memory."
    return text


def _is_exhaustion(error: Exception) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in NO_HOST_MEMORY)
