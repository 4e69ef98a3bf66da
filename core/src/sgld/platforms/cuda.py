"""An NVIDIA GPU through torch.cuda: streams, pinned memory, the caching allocator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError
from sgld.platforms.platform import Memory, Platform


class CudaPlatform(Platform):
    """One CUDA device of this process.

    Args:
        index: as torch counts them, that is after `CUDA_VISIBLE_DEVICES`.

    Raises:
        DeviceError: torch sees no such device.
    """

    id = "cuda"

    def __init__(self, index: int = 0) -> None:
        count = torch.cuda.device_count()
        if not 0 <= index < count:
            raise DeviceError(
                f"device=cuda:{index}: torch sees {count} CUDA device(s).",
                remedy="Check the driver, CUDA_VISIBLE_DEVICES and that torch is a CUDA build, "
                "or choose device=cpu.",
            )
        self._device = torch.device("cuda", index)
        self._streams: list[torch.cuda.Stream] = []

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def facts(self) -> DeviceFacts:
        major, minor = torch.cuda.get_device_capability(self._device)
        arch = 10 * major + minor
        dtypes = {"float32", "float16"}
        if arch >= 80:
            dtypes.add("bfloat16")
        if arch >= 89:
            dtypes.add("float8_e4m3fn")
        return DeviceFacts(
            "cuda", arch, frozenset(dtypes), frozenset({"streams", "graphs", "pinned"})
        )

    def default_dtype(self) -> torch.dtype:
        return torch.bfloat16 if "bfloat16" in self.facts().dtypes else torch.float16

    def memory(self) -> Memory:
        free, total = torch.cuda.mem_get_info(self._device)
        allocated = torch.cuda.memory_allocated(self._device)
        # What torch holds but no tensor uses is free for this process too.
        idle = torch.cuda.memory_reserved(self._device) - allocated
        peak = torch.cuda.max_memory_allocated(self._device)
        return Memory(total, free + idle, allocated, peak)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def synchronise(self) -> None:
        torch.cuda.synchronize(self._device)

    @contextmanager
    def stream(self) -> Iterator[torch.cuda.Stream]:
        # Streams are kept and reused: the allocator has a pool of memory for each one.
        stream = self._streams.pop() if self._streams else torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(stream):
                yield stream
        finally:
            self._streams.append(stream)

    def join(self, stream: torch.cuda.Stream | None, *tensors: Tensor) -> None:
        if stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(stream)
        for tensor in tensors:
            # Without this the allocator may give the memory out again to work on `stream` while
            # the computation still reads it.
            tensor.record_stream(current)

    def empty_cache(self) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.empty_cache()
