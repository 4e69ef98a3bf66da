"""Train the demo world, stage by stage; each is one command.

    python examples/train_demo_world/train.py vae     --minutes 5.5 --out DIR
    python examples/train_demo_world/train.py decoder --minutes 2.5 --out DIR
    python examples/train_demo_world/train.py dit     --minutes 8   --out DIR [--resume]
    python examples/train_demo_world/train.py judges  --out DIR

A stage stops when its time is up, whatever the machine, and saves every minute; `--minutes` is
time of training, to which start-up, data and judging add (about a minute on a fast GPU). Results
are a few files in DIR, each small enough to travel: weights in half precision, a log, a strip of
pictures (truth above, made below). `--resume` goes on from weights that are there. The judges of
`evaluate.py` learn from the renderer alone and end by themselves.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from demo_world import judges, train_dit, train_vae
from demo_world.network import Sizes

TINY_VAE = train_vae.Settings(
    base=8, size=(32, 48), frames=9, batch=2, pool=4, judged=1, judged_frames=9, surveys=1, steps=4
)
TINY_DIT = train_dit.Settings(
    sizes=Sizes(heads=1, layers=2, inner=64, window=9, sink=3), size=(32, 48), clips=2, chunks=5,
    length=4, batch=2, steps=4, judged=1, judged_chunks=3,
)  # fmt: skip


def main() -> None:
    """Read the command line and run a stage."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("stage", choices=("vae", "decoder", "dit", "judges"))
    parser.add_argument("--minutes", type=float, help="of training")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument(
        "--vae", type=Path, help="folder of the trained VAE or an exported checkpoint, if not --out"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        help="go on from the weights in this folder or exported checkpoint, or in --out",
    )
    parser.add_argument("--decoder-base", type=int, help="train a new decoder of this width")
    parser.add_argument("--seed", type=int, help="1; of the judges 11")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto",
                        help="use torch.compile; auto: on a GPU")  # fmt: skip
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--clips", type=int, help="clips of the stage dit; fewer for a trial")
    parser.add_argument("--tiny", action="store_true", help="a miniature, to see that it runs")
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.stage == "judges":
        of_others = ("minutes", "vae", "resume", "decoder_base", "steps", "clips")
        for name in of_others:
            if getattr(args, name) is not None:
                parser.error(f"--{name.replace('_', '-')}: the judges do not take it")
        _judges(args.out, device, tiny=args.tiny, seed=args.seed)
        return
    if args.minutes is None:
        parser.error(f"--minutes: the stage {args.stage} needs it")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = args.stage != "dit"  # which only encodes, in one go
    for name in ("recompile_limit", "cache_size_limit"):  # every shape is a graph of its own
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)
    compiled = args.compile == "on" or (args.compile == "auto" and device.type == "cuda")
    vae_settings = TINY_VAE if args.tiny else train_vae.Settings()
    dit_settings = TINY_DIT if args.tiny else train_dit.Settings()
    if args.steps is not None:
        vae_settings = vae_settings._replace(steps=args.steps)
        dit_settings = dit_settings._replace(steps=args.steps)
    if args.clips is not None:
        dit_settings = dit_settings._replace(clips=args.clips)
    common = {"device": device, "seed": 1 if args.seed is None else args.seed, "compiled": compiled}
    resume = None if args.resume is None else Path(args.resume or args.out)
    source = args.vae or args.out
    if args.stage == "vae":
        train_vae.train(vae_settings, args.out, args.minutes, resume=resume, **common)
    elif args.stage == "decoder":
        train_vae.sharpen(
            vae_settings, source, args.out, args.minutes, base=args.decoder_base, **common
        )
    else:
        train_dit.train(dit_settings, source, args.out, args.minutes, resume=resume, **common)


def _judges(out: Path, device: torch.device, *, tiny: bool, seed: int | None) -> None:
    """Teach the judges, examine them on walks that they have not seen, and keep both."""
    more = {} if seed is None else {"seed": seed}
    taught = judges.teach(device, **more, **({"clips": 8, "rounds": 1} if tiny else {}))
    judges.save(out, *taught)
    found = judges.examine(*taught, clips=8 if tiny else 150)
    text = json.dumps(found, indent=1) + "\n"
    (out / "judges.json").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
