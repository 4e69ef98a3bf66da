"""Writes docs/models.md from the installed plugins, so that the page cannot be wrong.

uv run python docs/generate_models.py            write the page
uv run python docs/generate_models.py --check    exit 1 when the page is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from sgld.api import PipelineSpec
from sgld.api.specs import NATIVE
from sgld.params.sampling import SamplingParams, VideoParams
from sgld.plugins.catalog import load_catalog, load_target
from sgld_diffusers.reading.signature import Argument, read_signature
from sgld_diffusers.reading.source import find_class, method
from sgld_diffusers.tiny import FAMILIES, Family

PAGE = Path(__file__).with_name("models.md")
INTRODUCTION: Final = """\
# Models

<!-- Written by docs/generate_models.py; change the plugins' records, not this page. -->

Every pipeline of the plugins in this repository. `sgld models list` shows those that are installed, `sgld models show NAME` every
parameter; how a checkpoint is found and checked is in [models and checkpoints](models-and-checkpoints.md).

- **Models** are hub repositories that are known by name. Others, and local folders, are recognised by what their files say.
- **Sizes** are multiples of the number given, and the default holds unless the checkpoint's own files say otherwise. What is off
  the grid is refused with the nearest two sizes.
- **Pictures** are input pictures: how many a request may hold. No native model takes a mask; see [server](server.md).
- **Negative prompt**: whether the model reads one; elsewhere it is refused, and so is every other parameter that is not taken.
- **Native** pipelines run networks of ours, with kernels, step batching and offload. The fallback runs diffusers' pipelines, one
  request at a time; it serves what no native plugin claims, and `--backend diffusers` chooses it for any model.
- **Cancelling** ends every model, native or fallback, after at most one further step, and each step is reported as it ends.
- **Without weights**: `tiny:PIPELINE` is a complete random checkpoint, `config:NAME` has the real sizes for
  `--load-format dummy`.
"""  # noqa: E501


FALLBACK: Final = """\
Any other model in the diffusers layout whose class the installed diffusers has. A checkpoint's parameters are those of its class:
`sgld models show FOLDER` lists them. Its own class serves it, and `--pipeline-class-name CLASS` takes another one of the family,
such as one that starts from a picture. These families are run by the tests, and give the same latents and frames as diffusers
called directly, in float32 to 1e-5; others are served in the same way and were not compared. Sound, three-dimensional objects,
and pipelines that start from a clip are refused when the model is named. Inputs that are tensors or lists, such as
`prompt_embeds` and `sigmas`, are refused by name.
"""  # noqa: E501

FEATURES: Final[Mapping[str, str]] = {
    "step-batching": "requests join each other between two steps",
    "component-offload": "components that are not needed wait in host memory",
    "layerwise-offload": "a network's layers come to the device one by one",
    "cfg": "classifier-free guidance in two passes",
    "dummy-weights": "runs at its real size with random weights",
    "original-layout": "reads the publisher's own files beside the diffusers layout",
    "vae-tiling": "large pictures are decoded in tiles",
    "remote-code": "runs code that a checkpoint brings, with `--trust-remote-code` only",
}
"""Feature → what it means; a feature without a row here is shown by its name."""


def page() -> str:
    """The whole page as text."""
    entries = sorted(
        load_catalog({}).pipelines.values(), key=lambda entry: (entry.plugin, entry.spec.id)
    )
    parts = [INTRODUCTION]
    for _, group in groupby(entries, key=lambda entry: entry.plugin):
        members = list(group)
        native = all(entry.spec.backend == NATIVE for entry in members)
        parts.append(f"## {members[0].dist}, {'native' if native else 'fallback'}")
        parts.append(_overview([entry.spec for entry in members]))
        if native:
            parts.append(_facts([(e.spec, load_target(e.spec.params, e)) for e in members]))
        else:
            parts += [FALLBACK, _families()]
    parts += ["## Features", _features({f for entry in entries for f in entry.spec.features})]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _overview(specs: list[PipelineSpec]) -> str:
    rows = [_row("pipeline", "models", "tasks", "features"), "|---|---|---|---|"]
    for spec in specs:
        repos = ", ".join(f"`{repo}`" for repo in spec.claims.repos) or "-"
        features = ", ".join(sorted(spec.features))
        rows.append(_row(f"`{spec.id}`", repos, ", ".join(spec.tasks), features))
    return "\n".join(rows)


def _facts(members: list[tuple[PipelineSpec, type[SamplingParams]]]) -> str:
    head = (
        "pipeline", "sizes", "frames", "pictures", "negative prompt", "steps", "guidance",
        "without weights",
    )  # fmt: skip
    rows = [_row(*head), "|" + "---|" * len(head)]
    rows += [_fact(spec, cls) for spec, cls in members]
    return "\n".join(rows)


def _fact(spec: PipelineSpec, cls: type[SamplingParams]) -> str:
    base = _base(spec, cls)
    size = f"{base['width']}x{base['height']}, in steps of {cls.spatial_multiple}"
    frames = "-"
    if issubclass(cls, VideoParams):
        stride = cls.temporal_stride
        frames = f"{base['num_frames']} at {base['fps']}/s, {stride}k+1"
    words = {"none": "none", "cfg": "two passes", "embedded": "an input of the network"}
    names = [f"`tiny:{spec.id}`"] if "tiny" in spec.blueprints else []
    names += [f"`config:{name}`" for name in spec.blueprints if name != "tiny"]
    return _row(
        f"`{spec.id}`",
        size,
        frames,
        _pictures(cls),
        "yes" if "negative_prompt" in cls.model_fields else "no",
        str(base["num_inference_steps"]),
        words.get(cls.guidance, cls.guidance),
        ", ".join(names) or "-",
    )


def _families() -> str:
    """The families that the fallback's tests run and compare with diffusers."""
    head = (
        "family", "class", "task", "sizes", "frames", "pictures", "negative prompt", "steps",
        "guidance", "from a picture", "with a mask", "refused inputs", "without weights",
    )  # fmt: skip
    rows = [_row(*head), "|" + "---|" * len(head)]
    rows += [_family(family) for family in sorted(FAMILIES.values(), key=lambda row: row.title)]
    return "\n".join(rows)


def _family(family: Family) -> str:
    taken = _arguments(family.pipeline)
    guidance = ", ".join(f"`{name}` {taken[name].default}" for name in family.guidance)
    pictures = f"up to {family.pictures}, one is needed" if family.pictures else "none"
    # A native family of the same name has the short one.
    native = load_catalog({}).pipelines
    tiny = f"`tiny:{family.id}`"
    if family.id in native:
        tiny = f"`tiny:diffusers:{family.id}` with `--backend diffusers`"
    return _row(
        family.title,
        f"`{family.pipeline}`",
        family.task,
        f"in steps of {family.multiple}",
        f"{family.stride}k+1" if family.stride else "-",
        pictures,
        "yes" if family.negative_prompt else "no",
        str(taken["num_inference_steps"].default),
        guidance,
        _names(family.also),
        _names(family.masked),
        _names(family.refused),
        tiny,
    )


def _arguments(name: str) -> Mapping[str, Argument]:
    source = find_class(name)
    call = method(source, "__call__") if source is not None else None
    if call is None:
        raise SystemExit(f"the installed diffusers has no {name}")
    return read_signature(call)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def _base(spec: PipelineSpec, cls: type[SamplingParams]) -> dict[str, Any]:
    """Defaults of the family: the class's, and those of presets that hold for every checkpoint."""
    values = {name: field.default for name, field in cls.model_fields.items()}
    for preset in spec.presets:
        if not preset.repos and not preset.rules:
            values |= preset.defaults
    return values


def _pictures(cls: type[SamplingParams]) -> str:
    if not cls.takes_image:
        return "none"
    words = (
        f"up to {cls.max_images}, one is needed" if cls.needs_image else f"up to {cls.max_images}"
    )
    return f"{words}; with a mask" if cls.takes_mask else words


def _features(used: set[str]) -> str:
    rows = [_row("feature", "meaning"), "|---|---|"]
    rows += [_row(f"`{name}`", FEATURES.get(name, name)) for name in sorted(used)]
    return "\n".join(rows)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write or check the page; returns the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        print("docs/models.md is " + ("current" if current == text else "out of date"))
        return int(current != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
