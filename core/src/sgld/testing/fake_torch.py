"""A torch namespace such as `torch.xpu`, for devices that are not there: it has the functions that
`sgld.platforms.accelerator` calls, counts memory, and computes on the host.

Nothing runs beside anything here. What the order of work would be is written down in `log`, so that
a test can see that streams wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

GIB = 2**30


class FakeStream:
    """A queue of work; `log` of its namespace says what it waited for."""

    def __init__(self, namespace: FakeNamespace, name: str) -> None:
        self.namespace = namespace
        self.name = name

    def wait_stream(self, other: FakeStream) -> None:
        """Written down as `side0 waits for main`."""
        self.namespace.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        """Written down with the stream that recorded the event."""
        self.namespace.log.append(f"{self.name} waits for {event.stream.name}")


class FakeEvent:
    """A mark in the work of a stream."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self.namespace = namespace
        self.stream: FakeStream | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        """Written down with the stream."""
        self.stream = stream or self.namespace.current_stream()
        self.namespace.log.append(f"{self.stream.name} is marked")

    def synchronize(self) -> None:
        """Written down: the host waits for a stream."""
        self.namespace.log.append(
            f"host waits for {self.stream.name if self.stream else 'nothing'}"
        )

    def elapsed_time(self, end: FakeEvent) -> float:
        """Milliseconds, always the same."""
        return 1500.0


class FakeNamespace:
    """Stands in for `torch.xpu`, `torch.npu`, `torch.musa` or `torch.cuda`.

    Args:
        devices: how many there are.
        bfloat16: what `is_bf16_supported` answers.
        capability: what `get_device_capability` answers.
        total: bytes of a device.
        others: bytes that other processes hold.
        properties: attributes of `get_device_properties`; `total_memory` is added.
    """

    def __init__(
        self,
        devices: int = 2,
        *,
        bfloat16: bool = True,
        capability: tuple[int, int] = (2, 2),
        total: int = 16 * GIB,
        others: int = GIB,
        **properties: Any,
    ) -> None:
        self._devices = devices
        self._bfloat16 = bfloat16
        self._capability = capability
        self._total = total
        self._others = others
        self._properties = SimpleNamespace(total_memory=total, **properties)
        self.held = 0
        self.idle = 0
        self.peak = 0
        self.log: list[str] = []
        self._made = 0
        self._current = FakeStream(self, "main")

    # Devices ---------------------------------------------------------------------------------

    def device_count(self) -> int:
        """How many there are."""
        return self._devices

    def is_bf16_supported(self, including_emulation: bool = False) -> bool:
        """Emulated it always is."""
        return self._bfloat16 or including_emulation

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Major and minor number."""
        return self._capability

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        """What the driver says."""
        return self._properties

    # Memory ----------------------------------------------------------------------------------

    def allocate(self, size: int) -> None:
        """A tensor of `size` bytes appears; a negative one goes and its memory is kept idle."""
        if size < 0:
            self.idle -= size
        else:
            self.idle = max(0, self.idle - size)
        self.held += size
        self.peak = max(self.peak, self.held)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes, as the driver sees them."""
        return self._total - self._others - self.held - self.idle, self._total

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes that tensors hold."""
        return self.held

    def memory_reserved(self, device: Any = None) -> int:
        """Those, and what is kept idle."""
        return self.held + self.idle

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most that tensors held."""
        return self.peak

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Start again from now."""
        self.peak = self.held

    def empty_cache(self) -> None:
        """Give idle memory back."""
        self.idle = 0

    # Work ------------------------------------------------------------------------------------

    def synchronize(self, device: Any = None) -> None:
        """The host waits for everything."""
        self.log.append("host waits")

    def Stream(self, device: Any = None) -> FakeStream:
        """A new stream."""
        self._made += 1
        return FakeStream(self, f"side{self._made - 1}")

    def Event(self, enable_timing: bool = False) -> FakeEvent:
        """A new event."""
        return FakeEvent(self)

    def current_stream(self, device: Any = None) -> FakeStream:
        """The stream on which work goes now."""
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Work inside goes to `stream`."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Work inside goes to `device`."""
        yield
