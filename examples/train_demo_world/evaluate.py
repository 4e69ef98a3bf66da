"""Judge a checkpoint of the demo world against the renderer, through sgld's own sessions.

    python examples/train_demo_world/evaluate.py --model FOLDER --out DIR [--parts walks ...]

    walks       32 held-out walks from their first frames: PSNR, SSIM, edge energy by chunk; PSNR
                also of those that have moved by then, since to stand still is easy
    steering    how well the camera follows the keys over 200 frames (a taught network tells)
    stability   walks of 2000 frames: edges, sharpness, mean colour and histogram against the
                renderer on the same keys, and whether they stay within `BANDS`
    switch      a new prompt: after how many chunks the look is there (a taught network tells)
    made_up     worlds from a caption alone, each look once: whether the look is there (likewise)
    seeds       two seeds differ, one repeats

Everything goes into `evaluation.json`, and strips of pictures beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from demo_world import data, judges, looks, metrics, motion, pictures, scene
from torch import Tensor

import sgld

JUDGES: Final = Path(__file__).resolve().parent / "judges"
"""Those of the repository, taught by `train.py judges`."""
FIRST: Final = 9
CHUNK: Final = 12
FPS: Final = 12
BANDS: Final = {
    "edges": (0.8, 1.2),
    "sharpness": (0.7, 1.3),
    "colour": (0.0, 16.0),
    "histogram": (0.0, 0.3),
}
"""Where the means over all long walks shall be in every hundred frames: energies over the
renderer's, mean colours so far apart (of 255), histograms so far apart (total variation, 0..1)."""
CPU: Final = torch.device("cpu")
PARTS: Final = ("walks", "seeds", "switch", "made_up", "steering", "stability")


class Bench(NamedTuple):
    """Args:
    model: the loaded checkpoint.
    size: (height, width).
    steps: denoising steps, None: the model's own.
    out: folder of the pictures.
    """

    model: Any
    size: tuple[int, int]
    steps: tuple[int, ...] | None
    out: Path

    def session(self, first: Tensor, prompt: str, seed: int) -> Any:
        """A session that begins with the frame `first` [3, H, W]."""
        height, width = self.size
        given: dict[str, Any] = {"width": width, "height": height, "num_frames": 21, "fps": FPS}
        if self.steps:
            given |= {"dmd_denoising_steps": self.steps, "num_inference_steps": len(self.steps)}
        picture = pictures.to_bytes(first[None])[0]
        return self.model.session(first_frame=picture, prompt=prompt, seed=seed, **given)

    def walk(self, clips: data.Clips, clip: int, chunks: int, seed: int) -> Tensor:
        """Frames [T, 3, H, W] that the model makes of a clip's first frame, keys and first look."""
        first = _truth(clips, clip, slice(0, 1), self.size)[0]
        with self.session(first, _prompt(clips, clip, 0), seed) as session:
            session.send("camera_actions", motion.levels_of(clips.axes, clip))
            return torch.cat([_frames(session.step()) for _ in range(chunks)])


def _frames(chunk: Any) -> Tensor:
    return torch.from_numpy(np.array(chunk.frames)).permute(0, 3, 1, 2).float() / 127.5 - 1


def _truth(clips: data.Clips, clip: int, part: slice, size: tuple[int, int]) -> Tensor:
    """Drawn frames [T, 3, H, W] of one clip."""
    return clips.one(clip).draw(torch.float32, part, size)[0].transpose(0, 1)


def _prompt(clips: data.Clips, clip: int, chunk: int) -> str:
    return looks.plain_caption(looks.ALL[int(clips.looks[clip, chunk])])


def walks(bench: Bench, clips: int) -> dict[str, Any]:
    """PSNR, SSIM and edges of chunks 0, 1, 2 and 8 (0 begins with the given frame)."""
    drawn = data.sample(clips, 9, 4242, CPU, switch=0.0, plain=True)
    made = [bench.walk(drawn, clip, 9, 100 + clip) for clip in range(clips)]
    result: dict[str, Any] = {}
    for chunk in (0, 1, 2, 8):
        begin = 0 if chunk == 0 else FIRST + CHUNK * (chunk - 1)
        part = slice(begin, FIRST + CHUNK * chunk)
        truth = torch.cat([_truth(drawn, clip, part, bench.size) for clip in range(clips)])
        held = torch.cat([_truth(drawn, clip, slice(0, 1), bench.size).expand(
            part.stop - begin, -1, -1, -1) for clip in range(clips)])  # fmt: skip
        moving = [clip for clip in range(clips) if _moved(drawn, clip, part.stop)]
        length = part.stop - begin
        shown = torch.cat([frames[part] for frames in made])
        result[f"chunk_{chunk}"] = {
            **metrics.table(shown, truth),
            "first_frame_held": round(metrics.psnr(held, truth), 2),
            "moving": len(moving),
            "moving_psnr": _psnr_of(shown, truth, moving, length),
            "moving_held": _psnr_of(held, truth, moving, length),
        }
    rows = []
    for clip in range(min(clips, 5)):
        rows += [_truth(drawn, clip, slice(0, None, 12), bench.size), made[clip][::12]]
    pictures.strip(bench.out / "walks.png", rows)
    return result


def _moved(clips: data.Clips, clip: int, end: int) -> bool:
    """Whether the camera has left its first place before the frame `end`."""
    path = torch.stack([value[clip, :end] for value in clips.path])
    return bool((path != path[:, :1]).any())


def _psnr_of(made: Tensor, truth: Tensor, clips: list[int], length: int) -> float | None:
    """PSNR, dB, over some clips of frames [N, 3, H, W] that lie clip by clip, `length` of each;
    None of none, which JSON can say."""
    if not clips:
        return None
    frames = torch.cat([torch.arange(clip * length, (clip + 1) * length) for clip in clips])
    return round(metrics.psnr(made[frames], truth[frames]), 2)


def steering(bench: Bench, judge: judges.Steps, clips: int) -> dict[str, Any]:
    """Mean error of the estimated step against the true one, in parts of a key's step, for what
    the model makes and for what the renderer draws, which is how well the judge sees at all."""
    chunks = 17  # 201 frames
    drawn = data.sample(clips, chunks, 5151, CPU, switch=0.0, plain=True)
    errors: dict[str, list[Tensor]] = {"made": [], "drawn": []}
    signs: list[Tensor] = []
    for clip in range(clips):
        true = judges.steps_of(drawn.path, clip)
        told = judge.tell(bench.walk(drawn, clip, chunks, 200 + clip))
        at = drawn.one(clip).draw(torch.float32, size=judges.SIZE)[0].transpose(0, 1)
        errors["made"].append((told - true).abs())
        errors["drawn"].append((judge.tell(at) - true).abs())
        moved = true.abs() > 0.5
        signs.append(((told * true) > 0.25)[moved].float())
    names = ("walk", "strafe", "turn", "look")
    result: dict[str, Any] = {
        kind: dict(zip(names, torch.cat(rows).mean(0).tolist(), strict=True))
        for kind, rows in errors.items()
    }
    return {**result, "right_way": float(torch.cat(signs).mean())}


def stability(bench: Bench, frames: int, clips: int) -> dict[str, Any]:
    """Long walks: every hundred frames edges and sharpness over the renderer's, distance of mean
    colours (of 255) and of colour histograms (total variation); means over the walks, the walk
    that is furthest off in edges, and whether the means are within `BANDS`."""
    chunks = -(-(frames - FIRST) // CHUNK) + 1
    drawn = data.sample(clips, chunks, 6161, CPU, switch=0.0, plain=True)
    rows: list[list[dict[str, float]]] = []
    strips, finite = [], True
    for clip in range(clips):
        made = bench.walk(drawn, clip, chunks, 300 + clip)
        truth = _truth(drawn, clip, slice(0, None, 5), bench.size)
        rows.append([_window(made[n : n + 100 : 5], truth[n // 5 : n // 5 + 20])
                     for n in range(0, frames - 99, 100)])  # fmt: skip
        finite &= bool(made.isfinite().all())
        step = max(1, len(made) // 12)
        strips += [made[::step], truth[:: max(1, step // 5)]]
    pictures.strip(bench.out / "stability.png", strips)
    windows = []
    for number, window in enumerate(zip(*rows, strict=True)):
        means = {name: sum(row[name] for row in window) / clips for name in BANDS}
        within = all(low <= means[name] <= high for name, (low, high) in BANDS.items())
        furthest = max((row["edges"] for row in window), key=lambda edges: abs(edges - 1))
        windows.append({
            "frame": 100 * number,
            **{name: round(value, 3) for name, value in means.items()},
            "within": within,
            "furthest_edges": round(furthest, 3),
        })  # fmt: skip
    return {"frames": len(made), "walks": clips, "bands": BANDS, "windows": windows,
            "within": sum(row["within"] for row in windows), "finite": finite}  # fmt: skip


def _window(made: Tensor, truth: Tensor) -> dict[str, float]:
    colours = (made.mean((0, 2, 3)) - truth.mean((0, 2, 3))).abs().max() * 127.5
    return {
        "edges": metrics.edge_energy(made) / metrics.edge_energy(truth),
        "sharpness": metrics.sharpness(made) / metrics.sharpness(truth),
        "colour": float(colours),
        "histogram": _apart(made, truth),
    }


def _apart(one: Tensor, two: Tensor) -> float:
    def shares(frames: Tensor) -> Tensor:
        rows = [torch.histc(frames[:, n], 24, -1, 1) / frames[:, n].numel() for n in range(3)]
        return torch.stack(rows)

    return float((shares(one) - shares(two)).abs().sum(1).mean() / 2)


def switch(bench: Bench, judge: judges.Looks, cases: int) -> dict[str, Any]:
    """Walk four chunks, ask for another look, walk four more: the share of sessions whose look the
    judge tells right at the end of each chunk, before and after."""
    lots, right = random.Random(9), torch.zeros(8)
    drawn = data.sample(cases, 8, 7171, CPU, switch=0.0, plain=True)
    rows = []
    for case in range(cases):
        before = looks.ALL[int(drawn.looks[case, 0])]
        after = looks.changed(before, lots)
        first = _truth(drawn, case, slice(0, 1), bench.size)[0]
        with bench.session(first, looks.plain_caption(before), 400 + case) as session:
            session.send("camera_actions", motion.levels_of(drawn.axes, case))
            ends: list[Tensor] = []
            for chunk in range(8):
                if chunk == 4:
                    session.send("prompt", looks.plain_caption(after))
                ends.append(_frames(session.step())[-1])
        told = judge.tell(torch.stack(ends))
        right += torch.tensor([look == (before, after)[n > 3] for n, look in enumerate(told)])
        rows.append(torch.stack(ends))
    pictures.strip(bench.out / "switch.png", rows[:6])
    return {"right_at_chunk": (right / cases).tolist(), "switched_before_chunk": 4}


def made_up(bench: Bench, judge: judges.Looks, cases: int) -> dict[str, Any]:
    """Of each look a world without a first frame: how often the judge tells the look of what a
    picture shows (the last frame of a chunk that stands still) and of a clip after three chunks
    of walking, all four words and each."""
    grey = torch.zeros(3, *bench.size) + 1 / 255  # 128 of 255
    count = min(cases, len(looks.ALL))
    pictures_of: list[Tensor] = []
    clips_of: list[Tensor] = []
    for number, look in enumerate(looks.ALL[:count]):
        with bench.session(grey, looks.plain_caption(look), 500 + number) as session:
            pictures_of.append(_frames(session.step())[-1])
        with bench.session(grey, looks.plain_caption(look), 600 + number) as session:
            session.send("camera_actions", [["w"]] * 9)
            clips_of.append([_frames(session.step())[-1] for _ in range(3)][-1])
    pictures.strip(bench.out / "made_up.png", [torch.stack(pictures_of[:9]),
                                               torch.stack(clips_of[:9])])  # fmt: skip
    return {"looks": count, "pictures": _told(judge, pictures_of),
            "clips": _told(judge, clips_of)}  # fmt: skip


def _told(judge: judges.Looks, frames: list[Tensor]) -> dict[str, int]:
    """In how many of these frames, one of each look, the judge tells the words of the look."""
    pairs = list(zip(judge.tell(torch.stack(frames)), looks.ALL, strict=False))
    right = {name: sum(getattr(one, name) == getattr(two, name) for one, two in pairs)
             for name in looks.Look._fields}  # fmt: skip
    return {"all": sum(one == two for one, two in pairs), **right}


def seeds(bench: Bench) -> dict[str, Any]:
    """Mean difference (of 255) of two seeds, and of one seed twice, over five chunks."""
    drawn = data.sample(1, 5, 8181, CPU, switch=0.0, plain=True)
    one, again, other = (bench.walk(drawn, 0, 5, seed) for seed in (1, 1, 2))
    return {"same": float((one - again).abs().max()) * 127.5,
            "other": float((one - other).abs().mean()) * 127.5}  # fmt: skip


def main() -> None:
    """Read the command line and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", required=True, help="folder of the checkpoint, or a name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clips", type=int, default=32)
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--steps", help="denoising steps, such as 1000,667,333")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS,
                        help="only these; what the others have found before stays")  # fmt: skip
    parser.add_argument("--judges", type=Path, default=JUDGES,
                        help="folder of taught judges, or where to put them")  # fmt: skip
    parser.add_argument("--size", default=f"{scene.HEIGHT}x{scene.WIDTH}", help="HxW of the frames")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    taught = judges.load(args.judges)
    if taught is None:
        taught = judges.teach(torch.device(args.device))
        taught = taught[0].cpu(), taught[1].cpu()
        judges.save(args.judges, *taught)
    height, width = map(int, args.size.split("x"))
    steps = tuple(map(int, args.steps.split(","))) if args.steps else None
    written = args.out / "evaluation.json"
    asked = {"model": args.model, "steps": list(steps) if steps else None}
    result: dict[str, Any] = dict(asked)
    if written.is_file():
        found = json.loads(written.read_text(encoding="utf-8"))
        if {name: found.get(name) for name in asked} == asked:
            result = found
    with sgld.load(args.model, device=args.device, dtype="float32") as model:
        bench = Bench(model, (height, width), steps, args.out)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "walks": lambda: walks(bench, args.clips),
            "seeds": lambda: seeds(bench),
            "switch": lambda: switch(bench, taught[0], args.clips),
            "made_up": lambda: made_up(bench, taught[0], 36 if args.clips > 8 else args.clips),
            "steering": lambda: steering(bench, taught[1], max(1, args.clips // 8)),
            "stability": lambda: stability(bench, args.frames, max(1, args.clips // 8)),
        }
        for name in args.parts:
            began = time.monotonic()
            result[name] = parts[name]()
            result[name]["seconds"] = round(time.monotonic() - began, 1)
            print(name, json.dumps(result[name]), flush=True)
            written.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
