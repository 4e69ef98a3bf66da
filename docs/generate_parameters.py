"""Writes docs/parameters.md from the option classes, so that the page cannot be wrong.

uv run python docs/generate_parameters.py            write the page
uv run python docs/generate_parameters.py --check    exit 1 when the page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgld.params.options import Options, rule
from sgld.params.output import OutputOptions
from sgld.params.sampling import Guided, ImageParams, SamplingParams, TakesImage, VideoParams
from sgld.params.serving import ServingOptions
from sgld.params.size import SIZES
from sgld.plugins.catalog import load_catalog, load_target

PAGE = Path(__file__).with_name("parameters.md")

INTRODUCTION = """\
# Parameters

<!-- Written by docs/generate_parameters.py; change the option classes, not this page. -->

Every way in (flags, environment, configuration file, Python, HTTP, WebSocket) validates through the
same classes, so a value is accepted, refused and reported in the same words everywhere.

## Rules

- **Who wins.** Flag, then `SGLD_<NAME>` variable, then `--config` file, then the model's preset,
  then the built-in default; also when a flag equals the default. `--print-config` shows every value
  with its origin. Tables of component overrides are merged name by name, every other value is
  replaced as a whole.
- **Spelling.** Dashes and underscores are the same in flags and in keys of files. Unknown names are
  refused with the nearest known one. A key given twice is refused.
- **Null** means "not given" everywhere; an empty environment variable counts as not set.
- **Files** are YAML (by the rules of YAML 1.2: only `true` and `false` are booleans) or JSON.
- **Switches** take an optional `true` or `false`: `--overwrite`, `--overwrite false`,
  `--no-overwrite`.
- **Numbers** are never clamped, and text is no number: `"2"` in a file is refused, `--fps 2` is
  not. `true` is no number; NaN and infinity are refused.
- **Sizes** that you write are never changed: one off the model's grid is refused with the nearest
  two. `width` and `height` go together. A size name ({names}) is rounded down to the grid with a
  note. `auto` is the model's own size, whatever a file says. `64x64`, `64X64` and ` 64 x 64 ` are
  the same; `64*64` is refused.
- **Pictures.** A model that starts from a picture gives the output its shape, with the area of the
  model's own size, unless a size is given. One picture serves all prompts, or give one for each.
- **Frames** are rounded down to what the model makes (4k+1 for Wan: 8 → 5, 80 → 77), at least 1,
  with a note; the result reports the real number. `seconds` is multiplied with `fps` and then
  rounded likewise, so a clip is never longer than asked.
- **Seeds.** Output i of a request uses seed + i and reports it; made alone with that seed it is the
  same again (to the bit on a CPU with `batching: off`; outputs that share a forward round
  differently, by at most one of 256 levels). With several prompts the count goes on: output i of
  prompt j uses seed + j x num_outputs_per_prompt + i. A list has one seed for each output, the same
  for every prompt, or one for each output of each prompt. Without a seed one is drawn and reported.
- **Guidance** is active exactly when `guidance_scale` is above 1; then each step runs two forwards.
  At 1 and below a negative prompt has no effect. An empty negative prompt is an empty text; leaving
  it out takes the model's own.
- **Component parts.** `--component-path.NAME VALUE` (also `--component-paths.NAME`, `--NAME-path`)
  replaces a component, `--component-weights-path.NAME` (`--component-weights-paths.NAME`,
  `--NAME-weights-path`) its weights, `--component-precision.NAME` its precision.
- **Parameters of one family** go by `--param NAME=VALUE` or as a flag of the same name.
"""

OTHER_NAMES = """\
## Where other tools differ

| there | here |
|---|---|
| 80 frames become 81, 96 become 97 | counts are always rounded down: 77 and 93 |
| output counts are clamped to 1..10 | refused outside 1..10 |
| sizes off the grid only warn | refused, with the nearest two |
| null disables guidance | null is "not given"; guidance depends on the scale alone |
| a missing seed is 42 | a seed is drawn and reported |
| PNG quality counts backwards | a higher quality is better in every format |
| a failed prompt leaves exit status 0 | the others are done, and the status is 1 |
"""


def page() -> str:
    """The whole page as text."""
    parts = [
        INTRODUCTION.format(names=", ".join(f"`{name}`" for name in SIZES)),
        "## What to make",
        "Shared by all families:",
        _table(SamplingParams, list(SamplingParams.model_fields)),
        _conveniences(SamplingParams),
        "For clips:",
        _table(VideoParams, _new(VideoParams, SamplingParams)),
        _conveniences(VideoParams, SamplingParams),
        "With guidance:",
        _table(Guided, list(Guided.model_fields)),
        "With input pictures:",
        _table(TakesImage, list(TakesImage.model_fields)),
        "## Model and device",
        _table(ServingOptions, list(ServingOptions.model_fields)),
        "## Files",
        _table(OutputOptions, list(OutputOptions.model_fields)),
        "## Families",
        *_families(),
        OTHER_NAMES,
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _new(cls: type[Options], base: type[Options]) -> list[str]:
    """Fields that `base` does not have, or has with another default."""
    return [
        name
        for name, field in cls.model_fields.items()
        if name not in base.model_fields or field.default != base.model_fields[name].default
    ]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(cls: type[Options], names: list[str]) -> str:
    rows = [_row(["name", "must be", "default", "meaning"]), "|---|---|---|---|"]
    for name in names:
        field = cls.model_fields[name]
        default = "required" if field.is_required() else _default(field.default)
        rows.append(_row([f"`{name}`", rule(field), default, field.description or ""]))
    return "\n".join(rows) if names else ""


def _default(value: Any) -> str:
    if value is None or value == {}:
        return "-"
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= 40 else f"`{text[:32]}…`"


def _conveniences(cls: type[SamplingParams], base: type[SamplingParams] | None = None) -> str:
    known = base.conveniences if base else {}
    rows = [_row(["also accepted", "must be", "sets", "meaning"]), "|---|---|---|---|"]
    for name, entry in cls.conveniences.items():
        if name not in known:
            rows.append(_row([f"`{name}`", entry.rule, ", ".join(entry.sets), entry.description]))
    return "\n".join(rows)


def _families() -> Iterator[str]:
    catalog = load_catalog({})
    for name in sorted(catalog.pipelines):
        entry = catalog.pipelines[name]
        cls = load_target(entry.spec.params, entry)
        yield f"### {name}"
        yield _facts(cls, entry.spec.summary)
        base = VideoParams if issubclass(cls, VideoParams) else ImageParams
        yield _table(cls, _own(cls, base))


def _own(cls: type[SamplingParams], base: type[SamplingParams]) -> list[str]:
    shared = {**Guided.model_fields, **TakesImage.model_fields, **base.model_fields}
    return [
        name
        for name, field in cls.model_fields.items()
        if name not in shared or field.default != shared[name].default
    ]


def _facts(cls: type[SamplingParams], summary: str) -> str:
    facts = [f"{' and '.join(cls.tasks)}", f"sizes in steps of {cls.spatial_multiple} pixels"]
    facts.append(f"at most {cls.max_pixels} pixels a frame")
    if issubclass(cls, VideoParams):
        facts.append(f"{cls.temporal_stride}k+1 frames, at most {cls.max_frames}")
    guided = {"none": "no guidance", "cfg": "classifier-free guidance"}
    facts.append(guided.get(cls.guidance, f"{cls.guidance} guidance"))
    if cls.takes_image:
        facts.append("a picture is required" if cls.needs_image else "a picture is optional")
    lead = f"{summary.rstrip('.')}. " if summary else ""
    return (
        f"{lead}{'; '.join(facts).capitalize()}. Defaults that differ, and parameters of its own:"
    )


def main() -> int:
    """Write or check the page; returns the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        print("docs/parameters.md is " + ("current" if current == text else "out of date"))
        return int(current != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
