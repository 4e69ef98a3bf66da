"""Shows whether a block of CUDA work ever makes the host wait for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raises RuntimeError at the first operation inside that waits for a CUDA device.

    The mode is process-wide, so it is always switched off again.
    """
    import torch  # noqa: PLC0415

    with warnings.catch_warnings():
        # torch says at each use that it does not find every kind of waiting.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("default")
