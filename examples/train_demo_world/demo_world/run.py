"""What every training stage shares: its clock, its log, its files, the average of its weights."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

SAVE_EVERY: Final = 60.0
"""Seconds between two savings."""
SHARD: Final = 15_400_000
"""Bytes of one file at most: results may have to travel in pieces."""


class Run:
    """The clock and the log of one stage.

    Args:
        name: of the stage; the log is `<name>.json` in `out`.
        out: folder of the results.
        minutes: how long the stage may train.
        facts: what the log begins with.
    """

    def __init__(self, name: str, out: Path, minutes: float, facts: Mapping[str, Any]) -> None:
        self.name, self.out, self.limit = name, out, minutes * 60
        self.began = self.saved = self.told = time.monotonic()
        self.steps = 0
        self.log: dict[str, Any] = {"stage": name, **facts, "progress": []}
        out.mkdir(parents=True, exist_ok=True)

    @property
    def elapsed(self) -> float:
        """Seconds since the training began."""
        return time.monotonic() - self.began

    def start(self) -> None:
        """Training begins now; what was before, data and start-up, does not count."""
        self.log["start_up_seconds"] = round(self.elapsed, 1)
        self.began = self.saved = self.told = time.monotonic()

    @property
    def share(self) -> float:
        """How much of the time is over, 0..1."""
        return min(1.0, self.elapsed / self.limit) if self.limit else 1.0

    def over(self, steps: int | None) -> bool:
        """Whether to stop: the time is up, or so many steps are done."""
        return self.elapsed >= self.limit or (steps is not None and self.steps >= steps)

    def due(self) -> bool:
        """Whether it is time to save; counts the step that was just made."""
        self.steps += 1
        if time.monotonic() - self.saved < SAVE_EVERY:
            return False
        self.saved = time.monotonic()
        return True

    def tell(self, every: float = 10.0, **values: Any) -> None:
        """Print a progress line every so many seconds; tensors are read only then."""
        now = time.monotonic()
        if now - self.told < every and self.steps > 1:
            return
        self.told = now
        read = {key: round(_number(value), 5) for key, value in values.items()}
        entry = {"step": self.steps, "seconds": round(self.elapsed, 1), **read}
        self.log["progress"].append(entry)
        self.say(" ".join(f"{key} {value}" for key, value in entry.items()))

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"[{self.name}] {text}", flush=True)

    def finish(self) -> None:
        """Training is over; the clock stands still."""
        self.log["steps"], self.log["train_seconds"] = self.steps, round(self.elapsed, 1)
        self.say(f"{self.steps} steps in {self.elapsed:.1f} s")

    def note(self, **values: Any) -> None:
        """Put results into the log and write it."""
        self.log.update(values)
        self.write()

    def write(self) -> None:
        """Write the log."""
        self.log.setdefault("steps", 0)
        text = json.dumps(self.log, indent=1) + "\n"
        _replace(self.out / f"{self.name}.json", lambda path: path.write_text(text))

    def rate(self, peak: float, warm_up: int) -> float:
        """The learning rate now: linear warm-up, then a cosine over the time down to 2 %."""
        low = 0.02
        wave = low + (1 - low) * 0.5 * (1 + math.cos(math.pi * self.share))
        return peak * wave * min(1.0, (self.steps + 1) / warm_up)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def save_half(tensors: Mapping[str, Tensor], out: Path, stem: str, **notes: str) -> list[Path]:
    """Write tensors in half precision as `<stem>-<n>.safetensors`, in as few files as `SHARD`
    allows; a file is never there half written."""
    out.mkdir(parents=True, exist_ok=True)
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        tensor = tensor.half() if tensor.is_floating_point() else tensor
        tensor = tensor.cpu().contiguous()
        if size + tensor.nbytes > SHARD and groups[-1]:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    paths = [out / f"{stem}-{number}.safetensors" for number in range(1, len(groups) + 1)]
    for path, group in zip(paths, groups, strict=True):
        _replace(path, lambda new, group=group: save_file(group, new, dict(notes)))
    return paths


def load_half(folder: Path, stem: str) -> dict[str, Tensor]:
    """What `save_half` wrote, in float32; empty when nothing is there."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{stem}-*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                tensor = file.get_tensor(name)
                tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def _replace(path: Path, write: Any) -> None:
    new = path.with_name(f".{path.name}.new")
    write(new)
    new.chmod(0o644)
    os.replace(new, path)


class Average:
    """Exponential moving average of a module's parameters.

    Args:
        module: whose parameters.
        decay: reached after a while; young averages forget faster.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._live = list(module.parameters())
        self._names = [name for name, _ in module.named_parameters()]
        self._kept = [p.detach().clone() for p in self._live]
        self._decay, self._steps = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        """Take a step's weights in."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(self._kept, [p.detach() for p in self._live], 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by name."""
        return dict(zip(self._names, self._kept, strict=True))

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the module's weights and the averages."""
        for live, kept in zip(self._live, self._kept, strict=True):
            held = live.detach().clone()
            live.copy_(kept)
            kept.copy_(held)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def count(parameters: Iterable[Tensor]) -> int:
    """Numbers in all tensors."""
    return sum(tensor.numel() for tensor in parameters)


def memory(device: torch.device) -> float:
    """GiB of device memory at the highest so far."""
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
