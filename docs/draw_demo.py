"""Draw the pictures of docs/demo.md: a walk through `demo:world`, as anybody would get it.

    uv run python docs/draw_demo.py [--to docs] [--seed 1] [--device cpu]

* `demo-world.gif`: the whole walk, with the keys that are held and the prompt.
* `demo-world-strip.png`: eight pictures of it, before and after the first change of the prompt.

One session of the Python API, from the model's own first picture. Nothing is left out or chosen:
seed, keys and prompts stand below.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

import sgld

MODEL: Final = "demo:world"
SEED: Final = 1
SCALE: Final = 2
BAR: Final = 24
"""Height of the line below a picture, which has the prompt and the keys."""
DELAY: Final = 80
"""Milliseconds of a picture. GIF knows hundredths of a second only: 12.5 a second instead of 12."""
COLOURS: Final = 160
GIF, STRIP = "demo-world.gif", "demo-world-strip.png"

DUSK: Final = "dusk, clear, warm, tall pillars"
NIGHT: Final = "a clear cold night among tall columns"
NOON: Final = "a clear noon, red columns"


class Part(NamedTuple):
    """What is held and said for some chunks of a second each."""

    chunks: int
    keys: tuple[str, ...]
    prompt: str


WALK: Final = (
    Part(2, ("w",), DUSK),
    Part(1, ("w", "l"), DUSK),
    Part(1, ("w",), DUSK),
    Part(1, ("w",), NIGHT),
    Part(2, ("w", "j"), NIGHT),
    Part(1, ("w",), NIGHT),
    Part(2, ("w",), NOON),
    Part(1, ("w", "l"), NOON),
    Part(1, ("w",), NOON),
)
SHOWN: Final = 4
"""Pictures in a row of the strip."""
STRIDE: Final = 12
"""Frames from one picture of the strip to the next: a second."""


class Frame(NamedTuple):
    """A frame, uint8 [H, W, 3], with what was held and said."""

    pixels: npt.NDArray[np.uint8]
    keys: tuple[str, ...]
    prompt: str


def walk(model: Any, parts: Sequence[Part], seed: int = SEED) -> list[Frame]:
    """Every frame of a session that goes this way."""
    frames: list[Frame] = []
    said = parts[0].prompt
    with model.session(prompt=said, seed=seed) as session:
        for part in parts:
            if part.prompt != said:
                session.send("prompt", part.prompt)
                said = part.prompt
            for _ in range(part.chunks):
                session.send("camera_actions", [list(part.keys)] * 3)  # one for each latent frame
                made = session.step().frames
                frames += [Frame(pixels, part.keys, said) for pixels in made]
    return frames


def framed(frame: Frame) -> Image.Image:
    """The frame enlarged, above a line with the keys that are held and the prompt."""
    picture = Image.fromarray(frame.pixels)
    picture = picture.resize(
        (picture.width * SCALE, picture.height * SCALE), Image.Resampling.NEAREST
    )
    sheet = Image.new("RGB", (picture.width, picture.height + BAR), "#16181d")
    sheet.paste(picture)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    top = picture.height + 4
    for number, key in enumerate("wjl"):
        left = 6 + 20 * number
        held = key in frame.keys
        box = (left, top, left + 15, top + 15)
        draw.rounded_rectangle(box, 3, fill="#f2b84b" if held else None, outline="#6b7180")
        ink = "#16181d" if held else "#9aa1ad"
        draw.text((left + 8, top + 8), key, ink, font, anchor="mm")
    draw.text((72, top + 8), frame.prompt, "#e6e8ec", font, anchor="lm")
    return sheet


def draw_gif(path: Path, frames: Sequence[Frame]) -> None:
    """Write the walk as an endless GIF; every picture has a palette of its own."""
    method = Image.Quantize.MEDIANCUT
    flat = [framed(frame).quantize(COLOURS, method, dither=Image.Dither.NONE) for frame in frames]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=DELAY, loop=0)


def draw_strip(path: Path, frames: Sequence[Frame]) -> None:
    """Write two rows of pictures a second apart: up to the first new prompt, and from it on."""
    first = next(n for n, frame in enumerate(frames) if frame.prompt != frames[0].prompt)
    places = [
        *(first - 1 - STRIDE * n for n in reversed(range(SHOWN))),
        *(first + STRIDE * (n + 1) - 1 for n in range(SHOWN)),
    ]
    sheets = [framed(frames[place]) for place in places]
    wide, high = sheets[0].size
    strip = Image.new("RGB", (wide * SHOWN, high * 2))
    for number, sheet in enumerate(sheets):
        strip.paste(sheet, (wide * (number % SHOWN), high * (number // SHOWN)))
    strip.save(path, optimize=True)


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--to", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with sgld.load(MODEL, device=args.device) as model:
        frames = walk(model, WALK, args.seed)
    draw_gif(args.to / GIF, frames)
    draw_strip(args.to / STRIP, frames)


if __name__ == "__main__":
    main()
