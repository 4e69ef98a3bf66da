"""Whole pictures beside diffusers: the same random weights, the same card, one run.

    python bench/images.py                         FLUX.1-dev, FLUX.2-klein-4B and SANA-1.6B at
                                                   1024x1024, each in a process of its own
    python bench/images.py --model flux.1-dev      one of them
    python bench/images.py --quick --device cpu    tiny ones: does it run, and are latents the same?

Prints seconds and peak memory per stage (text, denoise, decode) and the relative difference of the
final latents, and writes them as JSON, one file per model, to bench/results/. diffusers runs
eagerly, with its default attention (torch's own choice) and, on CUDA, also with cuDNN attention
first, as sgld chooses it. Weights are drawn on the device; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from image_twins import Flux1, Klein, Sana, Twin
from side_by_side import COMPARED, RESULTS, Clock, Sgld, compare, report, show, with_kernels, write


class Subject(NamedTuple):
    """A model: full size and tiny, what diffusers runs it with, steps and further parameters."""

    full: str
    tiny: str
    twin: type[Twin]
    steps: int
    params: dict[str, Any]


# In order of size, so that a session that is cut short has lost the fewest.
SUBJECTS = {
    "sana-1.6b": Subject(
        "sana-1.6b", "sana", Sana, 20, {"guidance_scale": 4.5, "negative_prompt": ""}
    ),
    "flux.2-klein-4b": Subject("flux.2-klein-4b", "flux.2-klein", Klein, 4, {}),
    "flux.1-dev": Subject("flux.1-dev", "flux.1-dev", Flux1, 28, {"guidance_scale": 3.5}),
}
QUICK_STEPS = 3


def parse() -> argparse.Namespace:
    """The command line."""
    names = [*SUBJECTS, *(f"tiny-{name}" for name in SUBJECTS)]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=names, help="leave out for all")
    parser.add_argument("--all", action="store_true", help="all, which is also the default")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--size", type=int, default=1024, help="pixels of a side, not for tiny")
    parser.add_argument("--steps", type=int, help="instead of the model's own")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs; medians are shown")
    parser.add_argument("--skip-default-attention", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def run(name: str, options: argparse.Namespace) -> None:
    """Both sides of one model: load, compare, print, write."""
    tiny = name.startswith("tiny-")
    subject = SUBJECTS[name.removeprefix("tiny-")]
    steps = options.steps or (QUICK_STEPS if tiny else subject.steps)
    params = dict(subject.params)
    if not tiny:
        params |= {"width": options.size, "height": options.size}
    print(f"=== {name}", flush=True)
    model = Sgld(
        model_path=f"tiny:{subject.tiny}" if tiny else f"config:{subject.full}",
        load_format="auto" if tiny else "dummy",
        device=options.device,
        dtype=options.dtype,
        attention={"all": "auto"},
    )
    reference = subject.twin(model)

    def ours(steps: int, clock: Clock) -> Any:
        return model.generate({**params, "num_inference_steps": steps}, clock).latents

    def theirs(steps: int, clock: Clock) -> Any:
        return reference(model.settle({**params, "num_inference_steps": steps}), clock)

    kernels = with_kernels(
        "diffusers", theirs, model.device, skip_default=options.skip_default_attention
    )
    measured = compare({"sgld": ours, **kernels}, steps, model.device, repeats=options.repeats)
    settled = model.settle({**params, "num_inference_steps": steps}).model_dump(mode="json")
    content = report(model, name, settled, measured)
    write(options.output, f"images-{name}-{settled['height']}px-{model.device.type}", content)
    show(content)
    model.close()


def run_apart(options: argparse.Namespace) -> None:
    """Each model in a process of its own, so that all memory of one is free for the next."""
    failed: list[str] = []
    given = [word for word in sys.argv[1:] if word != "--all"]
    for name in SUBJECTS:
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, __file__, "--model", name, *given], check=False)
        print(f"{name}: {time.perf_counter() - begin:.0f} s in all", flush=True)
        if done.returncode:
            failed.append(name)
    summarise([name for name in SUBJECTS if name not in failed], options)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def summarise(names: list[str], options: argparse.Namespace) -> None:
    """One line per model and side: seconds in all and per stage, peak, ratio, difference."""
    heads = ("total", "text", "denoise", "decode", "GiB", "x sgld", "rel. L2")
    print(f"{'':<52}" + "".join(f"{head:>9}" for head in heads))
    for name in names:
        files = options.output.glob(f"images-{name}-{options.size}px-*.json")
        content = json.loads(max(files, key=lambda path: path.stat().st_mtime).read_text())
        for side, found in content["sides"].items():
            cells = [f"{found['seconds'][stage]:.3f}" for stage in COMPARED]
            cells.append(f"{found['peak_gib'].get('total', 0.0):.1f}")
            if "ratio" in found:
                cells += [f"{found['ratio']['total']:.3f}", f"{found['relative_l2']:.1e}"]
            print(f"{name + ' ' + side:<52}" + "".join(f"{cell:>9}" for cell in cells))


def main() -> None:
    """One model, all of them apart, or the tiny ones here."""
    options = parse()
    if options.quick:
        options.repeats = 1
        name = (options.model or "").removeprefix("tiny-")
        for subject in [name] if name else SUBJECTS:
            run(f"tiny-{subject}", options)
    elif options.model:
        run(options.model, options)
    else:
        run_apart(options)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
