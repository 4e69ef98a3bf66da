"""Moves stored tensors from files to a device through a small staging buffer.

Files are read, not mapped: mapped pages count as host memory, and a file that shrinks while it is
mapped kills the process. Host memory stays at the staging buffers (2 x 64 MiB) plus, on the CPU,
the tensors themselves.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from sgld.api.errors import ModelError
from sgld.platforms.streams import mark, torch_of
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.dtypes import STORED
from sgld.weights.header import Tensor

STAGE_BYTES: Final = 64 * 2**20
"""Large enough that a disk and a bus run at full speed, small against any component."""


class Reader:
    """Reads tensors of one checkpoint to `device`; a context manager that closes its files.

    `progress(bytes)` is told of every piece that arrived, in bytes as stored.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, progress: Callable[[int], None]
    ) -> None:
        self.checkpoint = checkpoint
        self.device = device
        self._progress = progress
        self._stack = ExitStack()
        self._files: dict[Path, io.FileIO] = {}
        self._stages: list[torch.Tensor] = []
        self._torch = torch_of(device)
        self._copied: list[Any] = [None, None]
        self._turn = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stages and self._torch is not None:
            # The staging memory must outlive the copies that read it.
            self._torch.synchronize(self.device)
        self._stages.clear()
        self._stack.close()

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The stored tensor `name` on the device, cast to `dtype` when one is given.

        Raises:
            ModelError: the file changed since its header was read, or torch lacks the dtype.
        """
        if name in self.checkpoint.pickled:
            source = self.checkpoint.pickled[name]
            self._progress(self.checkpoint[name].bytes)
            # copy: the mapped file must not stay behind a tensor that happens to fit already.
            return source.to(self.device, dtype or source.dtype, copy=True).contiguous()
        tensor = self.checkpoint[name]
        stored = STORED.get(tensor.dtype)
        if stored is None:
            raise ModelError(
                f"{tensor.file}: tensor {name!r} is {tensor.dtype}, which torch cannot hold.",
                code="checkpoint_incomplete",
                remedy="Use a checkpoint in another format.",
            )
        return self._read(tensor, stored, dtype or stored)

    def _read(self, tensor: Tensor, stored: torch.dtype, wanted: torch.dtype) -> torch.Tensor:
        target = torch.empty(tensor.shape, dtype=wanted, device=self.device)
        if tensor.elements == 0:
            return target
        flat = target.view(-1)
        if stored == wanted and self.device.type == "cpu":
            self._fill(tensor, tensor.start, flat.view(torch.uint8))
            return target
        for begin, end in _pieces(tensor.elements, STAGE_BYTES // stored.itemsize):
            size = (end - begin) * stored.itemsize
            stage = self._stage()[:size]
            self._fill(tensor, tensor.start + begin * stored.itemsize, stage)
            piece = stage.view(stored)
            if self.device.type != "cpu":
                # Over the bus as stored, cast there: the device is better at it.
                piece = piece.to(self.device, non_blocking=stage.is_pinned())
                self._mark()
            flat[begin:end].copy_(piece)
        return target

    def _fill(self, tensor: Tensor, offset: int, into: torch.Tensor) -> None:
        file = self._files.get(tensor.file)
        if file is None:
            file = self._files[tensor.file] = self._stack.enter_context(io.FileIO(tensor.file))
        file.seek(offset)
        view = into.numpy().data
        while view:
            # Pieces, so that progress moves within a large tensor too.
            count = file.readinto(view[:STAGE_BYTES])
            if not count:
                raise ModelError(
                    f"{tensor.file}: ends within tensor {tensor.name!r}; it changed while loading.",
                    code="checkpoint_incomplete",
                    remedy="Start again when nothing writes to it.",
                )
            self._progress(count)
            view = view[count:]

    def _stage(self) -> torch.Tensor:
        """The next staging buffer, free to be overwritten (two take turns)."""
        if not self._stages:
            pinned = self._torch is not None
            self._stages = [
                torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=pinned)
                for _ in range(2 if pinned else 1)
            ]
        self._turn = (self._turn + 1) % len(self._stages)
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
        return self._stages[self._turn]

    def _mark(self) -> None:
        self._copied[self._turn] = mark(self.device)


def _pieces(elements: int, step: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, elements, step):
        yield begin, min(begin + step, elements)
