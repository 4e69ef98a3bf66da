"""What accelerators share whose torch namespace has the functions of `torch.cuda`: `torch.cuda`
itself (CUDA and ROCm), `torch.xpu`, `torch.npu`, `torch.musa`. A family says only what differs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from sgld.api.abilities import PINNED, STREAMS
from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError
from sgld.platforms.platform import Memory, Platform


class Accelerator(Platform):
    """One device of such a family.

    Args:
        index: as torch counts them, that is after the family's variable of visible devices.
        namespace: stands in for the family's torch namespace, with `device_type`, where there is
            no such device; tests give one that computes on the host.
        device_type: torch's word for the device that goes with `namespace`.

    Raises:
        DeviceError: a package is missing, torch was built for another family, or torch sees no
            such device.
    """

    title: ClassVar[str]
    """The family's name in messages."""
    device_type: ClassVar[str]
    """Torch's word for the family; also the name of its namespace in torch."""
    package: ClassVar[str] = ""
    """What brings the namespace, where torch itself does not."""
    remedy: ClassVar[str]
    """What to check when torch sees no device."""
    abilities: ClassVar[frozenset[str]] = frozenset({STREAMS, PINNED})

    def __init__(self, index: int = 0, *, namespace: Any = None, device_type: str = "") -> None:
        self._namespace = self._open(index) if namespace is None else namespace
        count = self._namespace.device_count()
        if not 0 <= index < count:
            raise self._missing(index, f"torch sees {count} {self.title} device(s).")
        self._device = torch.device(device_type or self.device_type, index)
        self._streams: list[Any] = []

    def _open(self, index: int) -> Any:
        if self.package:
            try:
                importlib.import_module(self.package)
            except Exception as error:
                known = isinstance(error, ModuleNotFoundError) and error.name == self.package
                what = "is missing" if known else f"does not import: {error}"
                raise self._missing(index, f"package {self.package} {what}.") from error
        fault = self.build_fault()
        namespace = getattr(torch, self.device_type, None)
        if not fault and namespace is None:
            fault = f"this torch has no torch.{self.device_type}."
        if fault:
            raise self._missing(index, fault)
        return namespace

    def _missing(self, index: int, reason: str) -> DeviceError:
        remedy = f"{self.remedy}, or choose device=cpu."
        return DeviceError(f"device={self.id}:{index}: {reason}", remedy=remedy)

    def build_fault(self) -> str:
        """Why the installed torch cannot drive this family, or nothing."""
        return ""

    def arch(self) -> int:
        """The architecture number, 0 where the family has none."""
        return 0

    def dtypes(self) -> frozenset[str]:
        """Names of torch's dtypes in which the device computes."""
        names = {"float32", "float16"}
        # Older releases of the packages do not say; then it is taken for a no.
        supported = getattr(self._namespace, "is_bf16_supported", None)
        if supported is not None and supported():
            names.add("bfloat16")
        return frozenset(names)

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def facts(self) -> DeviceFacts:
        return DeviceFacts(self.id, self.arch(), self.dtypes(), self.abilities)

    def default_dtype(self) -> torch.dtype:
        return torch.bfloat16 if "bfloat16" in self.dtypes() else torch.float16

    def memory(self) -> Memory:
        free, total = self.free_and_total()
        allocated = self._namespace.memory_allocated(self._device)
        # What torch holds but no tensor uses is free for this process too.
        idle = self._namespace.memory_reserved(self._device) - allocated
        peak = self._namespace.max_memory_allocated(self._device)
        return Memory(total, free + idle, allocated, peak)

    def free_and_total(self) -> tuple[int, int]:
        """Bytes that the driver could still give out, and bytes of the device."""
        return self._namespace.mem_get_info(self._device)

    def reset_peak(self) -> None:
        self._namespace.reset_peak_memory_stats(self._device)

    def synchronise(self) -> None:
        self._namespace.synchronize(self._device)

    @contextmanager
    def stream(self) -> Iterator[Any]:
        # Streams are kept and reused: the allocator has a pool of memory for each one.
        stream = self._streams.pop() if self._streams else self._namespace.Stream(self._device)
        stream.wait_stream(self._namespace.current_stream(self._device))
        try:
            with self._namespace.stream(stream):
                yield stream
        finally:
            self._streams.append(stream)

    def join(self, stream: Any, *tensors: Tensor) -> None:
        if stream is None:
            return
        current = self._namespace.current_stream(self._device)
        current.wait_stream(stream)
        for tensor in tensors:
            if tensor.device.type != "cpu":
                # Without this the allocator may give the memory out again to work on `stream`
                # while the computation still reads it.
                tensor.record_stream(current)

    def empty_cache(self) -> None:
        with self._namespace.device(self._device):
            self._namespace.empty_cache()
