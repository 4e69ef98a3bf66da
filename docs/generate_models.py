"""Writes docs/models.md from the installed plugins, so that the page cannot be wrong.

uv run python docs/generate_models.py            write the page
uv run python docs/generate_models.py --check    exit 1 when the page is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from sgld.api import PipelineSpec
from sgld.params.sampling import SamplingParams, VideoParams
from sgld.plugins.catalog import load_catalog, load_target

PAGE = Path(__file__).with_name("models.md")
FALLBACK: Final = "diffusers"
"""The plugin that hands a model to another library's code; all others bring their own networks."""

INTRODUCTION: Final = """\
# Models

<!-- Written by docs/generate_models.py; change the plugins' records, not this page. -->

Every pipeline of the plugins in this repository. `sgld models list` shows those that are installed, `sgld models show NAME` every
parameter; how a checkpoint is found and checked is in [models and checkpoints](models-and-checkpoints.md).

- **Models** are hub repositories that are known by name. Others, and local folders, are recognised by what their files say.
- **Sizes** are multiples of the number given, and the default holds unless the checkpoint's own files say otherwise. What is off
  the grid is refused with the nearest two sizes.
- **Pictures** are input pictures: how many a request may hold. No model here takes a mask; see [server](server.md).
- **Native** pipelines run networks of ours, with kernels, step batching and offload; a fallback runs another library's.
- **Without weights**: `tiny:PIPELINE` is a complete random checkpoint, `config:NAME` has the real sizes for
  `--load-format dummy`.
"""  # noqa: E501

FEATURES: Final[Mapping[str, str]] = {
    "step-batching": "requests join each other between two steps",
    "component-offload": "components that are not needed wait in host memory",
    "layerwise-offload": "a network's layers come to the device one by one",
    "cfg": "classifier-free guidance in two passes",
    "dummy-weights": "runs at its real size with random weights",
    "original-layout": "reads the publisher's own files beside the diffusers layout",
    "vae-tiling": "large pictures are decoded in tiles",
}
"""Feature → what it means; a feature without a row here is shown by its name."""


def page() -> str:
    """The whole page as text."""
    entries = sorted(
        load_catalog({}).pipelines.values(), key=lambda entry: (entry.plugin, entry.spec.id)
    )
    parts = [INTRODUCTION]
    for plugin, group in groupby(entries, key=lambda entry: entry.plugin):
        members = list(group)
        native = "fallback" if plugin == FALLBACK else "native"
        parts.append(f"## {members[0].dist}, {native}")
        parts += _tables([(e.spec, load_target(e.spec.params, e)) for e in members])
    parts += ["## Features", _features({f for entry in entries for f in entry.spec.features})]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _tables(members: list[tuple[PipelineSpec, type[SamplingParams]]]) -> Iterator[str]:
    rows = [_row("pipeline", "models", "tasks", "features"), "|---|---|---|---|"]
    for spec, _ in members:
        repos = ", ".join(f"`{repo}`" for repo in spec.claims.repos) or "-"
        features = ", ".join(sorted(spec.features))
        rows.append(_row(f"`{spec.id}`", repos, ", ".join(spec.tasks), features))
    yield "\n".join(rows)
    head = ("pipeline", "sizes", "frames", "pictures", "steps", "guidance", "without weights")
    rows = [_row(*head), "|" + "---|" * len(head)]
    rows += [_facts(spec, cls) for spec, cls in members]
    yield "\n".join(rows)


def _facts(spec: PipelineSpec, cls: type[SamplingParams]) -> str:
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
        str(base["num_inference_steps"]),
        words.get(cls.guidance, cls.guidance),
        ", ".join(names) or "-",
    )


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
