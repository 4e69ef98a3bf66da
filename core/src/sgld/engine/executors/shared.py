"""Arrays in shared memory without names: the sender fills one, the receiver gets its descriptor.

    fd = share(array)               a descriptor to send over a Unix socket
    array = mapped(fd, "|u1", shape)    in the other process, without a copy

The memory belongs to whoever holds a descriptor or a mapping, so the kernel frees it whatever way
either process ends; there is nothing in /dev/shm to sweep, and a container's limit on /dev/shm
does not matter. Torch-free.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any, Final

import numpy as np

KINDS: Final = frozenset("biufc")
"""Kinds of dtype that may cross: plain numbers, never objects."""
LARGEST_WRITE: Final = 2**30

Array = np.ndarray[Any, np.dtype[Any]]


def share(array: Array) -> int:
    """Copy `array` (any strides, plain numbers) into new shared memory; returns its descriptor.

    Raises:
        ValueError: the array holds no plain numbers.
        OSError: there is no memory or descriptor left.
    """
    check_kind(array.dtype)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    fd = _anonymous()
    try:
        # Writing lets the kernel allocate whole runs of pages; a mapping would fault on each.
        done = 0
        while done < len(data):
            done += os.write(fd, data[done : done + LARGEST_WRITE])
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, dtype: str, shape: tuple[int, ...]) -> Array:
    """The array in the memory behind `fd`, writable; closes `fd`.

    The memory lives as long as the array does.

    Raises:
        ValueError: the description is no array of plain numbers, or the memory is too small for it.
    """
    try:
        kind = check_kind(np.dtype(dtype))
        size = nbytes(kind, shape)
        # Reading past the end of the memory would end this process, so its size is not believed.
        if size == 0 or os.fstat(fd).st_size < size:
            raise ValueError(f"shared memory is smaller than {dtype} {list(shape)}")
        memory = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    return np.frombuffer(memory, kind).reshape(shape)


def nbytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes of an array; raises ValueError for a negative side."""
    if any(side < 0 for side in shape):
        raise ValueError(f"shape {list(shape)} has a negative side")
    return dtype.itemsize * math.prod(shape)


def check_kind(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype itself; raises ValueError unless it is one of plain numbers."""
    if dtype.kind not in KINDS:
        raise ValueError(f"dtype {dtype} cannot cross to another process")
    return dtype


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sgld")
    # Elsewhere an unlinked file does the same through the page cache.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
