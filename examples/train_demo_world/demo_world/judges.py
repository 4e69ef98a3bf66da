"""Two small networks that are taught by the renderer and judge what a model makes.

`Looks` tells the four words of a look from one frame; `Steps` tells from two frames, four apart,
how the camera moved. Both see 80×48 pixels: fewer leave out the pillars' heights, and what walks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_world import data, looks, motion
from demo_world.run import load_half, save_half

SIZE: Final = (48, 80)
STEM: Final = "judges"
UNITS: Final = torch.tensor([motion.STEP, motion.STEP, motion.YAW, motion.PITCH])
"""What one key does in a latent frame: cells ahead and to the right, degrees right and up."""


def small(frames: Tensor) -> Tensor:
    """Frames [N, 3, H, W] at the judges' size."""
    return F.interpolate(frames.float(), SIZE, mode="area")


def _body(channels: int, width: int = 32) -> list[nn.Module]:
    sides = ((channels, width, 2), (width, 2 * width, 2), (2 * width, 2 * width, 1),
             (2 * width, 2 * width, 2), (2 * width, 2 * width, 1))  # fmt: skip
    layers: list[nn.Module] = []
    for before, after, stride in sides:
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(8, after), nn.SiLU()]
    return [*layers, nn.Flatten(), nn.Linear(2 * width * 60, 128), nn.SiLU()]


class Looks(nn.Module):
    """Scores of the four values of a look, one tensor per axis, from frames [N, 3, 48, 80]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*_body(3))
        self.heads = nn.ModuleList(nn.Linear(128, len(axis)) for axis in looks.AXES)

    def forward(self, frames: Tensor) -> list[Tensor]:
        inner = self.body(frames)
        return [head(inner) for head in self.heads]

    @torch.no_grad()
    def tell(self, frames: Tensor) -> list[looks.Look]:
        """The look of each frame of any size."""
        best = [scores.argmax(1).tolist() for scores in self(small(frames))]
        return [
            looks.Look(*(axis[n] for axis, n in zip(looks.AXES, places, strict=True)))
            for places in zip(*best, strict=True)
        ]


class Steps(nn.Module):
    """How the camera moved, in `UNITS`, [N, 4], from two frames [N, 6, 48, 80]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*_body(6))
        self.head = nn.Linear(128, 4)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.head(self.body(pairs))

    @torch.no_grad()
    def tell(self, frames: Tensor) -> Tensor:
        """The steps [k, 4] of a clip's latent frames 1 to k; frames [1 + 4k, 3, H, W]."""
        at = small(frames[:: motion.FRAMES])
        return self(torch.cat([at[:-1], at[1:]], 1))


def teach(
    device: torch.device, *, seed: int = 11, clips: int = 2400, rounds: int = 12
) -> tuple[Looks, Steps]:
    """Teach both by drawn walks, each seen in a mirror half of the time."""
    torch.manual_seed(seed)
    drawn = data.sample(clips, 3, seed * 100, device, switch=0.0)
    frames = drawn.draw(torch.float32, slice(0, None, motion.FRAMES), SIZE).transpose(1, 2)
    path = torch.stack(list(drawn.path), -1)[:, :: motion.FRAMES]  # b f 4
    kinds = torch.tensor([looks.ALL[n].indices for n in drawn.looks[:, 0].tolist()])
    pairs = torch.cat([frames[:, :-1], frames[:, 1:]], 2).flatten(0, 1)
    steps = _steps(path).flatten(0, 1).to(device)
    # The first picture may have another look than what was asked for.
    seen, kinds = frames[:, 3:].flatten(0, 1), kinds.repeat_interleave(frames.shape[1] - 3, 0)
    judge, kinds = Looks().to(device), kinds.to(device)
    other = Steps().to(device)
    mirror = torch.tensor([1.0, -1.0, -1.0, 1.0], device=device)

    def look_loss(places: Tensor, flip: bool) -> Tensor:
        scores = judge(_turned(seen[places], flip))
        losses = [F.cross_entropy(scores[axis], kinds[places, axis]) for axis in range(len(scores))]
        return torch.stack(losses).sum()

    def step_loss(places: Tensor, flip: bool) -> Tensor:
        told = steps[places] * mirror if flip else steps[places]
        return F.smooth_l1_loss(other(_turned(pairs[places], flip)), told, beta=0.2)

    _fit(judge, rounds, len(seen), look_loss)
    _fit(other, rounds, len(pairs), step_loss)
    return judge.eval(), other.eval()


def _turned(frames: Tensor, flip: bool) -> Tensor:
    return frames.flip(-1) if flip else frames


def _steps(path: Tensor) -> Tensor:
    """How a camera at x, z, yaw, pitch [B, F, 4] moved between frames, in `UNITS`."""
    move, yaw = path[:, 1:] - path[:, :-1], path[:, 1:, 2].deg2rad()
    ahead = yaw.sin() * move[..., 0] + yaw.cos() * move[..., 1]
    right = yaw.cos() * move[..., 0] - yaw.sin() * move[..., 1]
    return torch.stack([ahead, right, move[..., 2], move[..., 3]], -1) / UNITS


def steps_of(path: motion.Path, clip: int) -> Tensor:
    """The true steps [k, 4] of a clip, as `Steps.tell` estimates them."""
    return _steps(torch.stack([value[clip] for value in path], -1)[None, :: motion.FRAMES])[0]


def _fit(
    model: nn.Module, rounds: int, count: int, loss_of: Callable[[Tensor, bool], Tensor]
) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-2)
    total = rounds * -(-count // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total)
    for _ in range(rounds):
        for number, part in enumerate(torch.randperm(count).split(64)):
            optimiser.zero_grad(set_to_none=True)
            loss_of(part, number % 2 == 1).backward()
            optimiser.step()
            schedule.step()


def examine(
    judge: Looks, other: Steps, *, seed: int = 99, clips: int = 150
) -> dict[str, dict[str, float]]:
    """How well both judge drawn walks that they have not seen: shares of pictures whose look they
    tell right, and mean errors of steps in parts of a key's, also where nothing moves."""
    drawn = data.sample(clips, 3, seed, torch.device("cpu"), switch=0.0, plain=True)
    frames = drawn.draw(torch.float32, slice(0, None, motion.FRAMES), SIZE).transpose(1, 2)
    told = [look for clip in frames for look in judge.cpu().tell(clip)]
    wanted = [looks.ALL[n] for n in drawn.looks[:, 0].tolist() for _ in range(frames.shape[1])]
    pairs = list(zip(told, wanted, strict=True))
    right = {
        name: sum(getattr(one, name) == getattr(two, name) for one, two in pairs) / len(pairs)
        for name in looks.Look._fields
    }
    right["all"] = sum(one == two for one, two in pairs) / len(pairs)
    true = torch.stack([steps_of(drawn.path, clip) for clip in range(clips)])
    with torch.no_grad():
        found = other.cpu()(torch.cat([frames[:, :-1], frames[:, 1:]], 2).flatten(0, 1))
    apart = (found.reshape(true.shape) - true).abs()
    names = ("walk", "strafe", "turn", "look")
    still = (true.abs().amax(-1, keepdim=True) < 1e-4).expand_as(apart)
    rows = {"error": apart.flatten(0, 1).mean(0), "still": apart[still].view(-1, 4).mean(0)}
    errors = {
        f"{name}_{kind}": float(value)
        for kind, row in rows.items()
        for name, value in zip(names, row, strict=True)
    }
    return {
        "looks": {name: round(share, 4) for name, share in right.items()},
        "steps": {name: round(error, 4) for name, error in errors.items()},
    }


def save(folder: Path, judge: Looks, other: Steps) -> None:
    """Write both into `judges-1.safetensors`."""
    tensors = {f"looks.{k}": v for k, v in judge.state_dict().items()}
    save_half(tensors | {f"steps.{k}": v for k, v in other.state_dict().items()}, folder, STEM)


def load(folder: Path) -> tuple[Looks, Steps] | None:
    """Those that were saved, if they are there."""
    tensors = load_half(folder, STEM)
    if not tensors:
        return None
    made = Looks(), Steps()
    for name, model in zip(("looks.", "steps."), made, strict=True):
        part = {k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)}
        model.load_state_dict(part)
        model.eval()
    return made
