"""From a finished `Output` to files: the one way that CLI and server save what was generated.

`save_output` claims a name, writes the video or picture, the JSON sidecar and, if asked, the
latents; on any error or interrupt everything it made is removed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.numpy

from sgld.media import formats
from sgld.media.formats import Format, Quality, refuse
from sgld.media.gif import check_gif_rate
from sgld.media.growing import GrowingVideo
from sgld.media.images import write_image
from sgld.media.metadata import to_json
from sgld.media.names import check_file_name, companion, hold, output_name
from sgld.media.sidecar import SIDECAR_SUFFIX, versions, write_sidecar
from sgld.media.videos import write_video
from sgld.media.writing import write_bytes
from sgld.messages import Output

LATENTS_SUFFIX = ".safetensors"


class Saved(NamedTuple):
    """What one output became: `width`, `height`, `frames` and `fps` are what the file decodes to;
    `fps` is 0 for a picture; `padded` says that an edge line was added (MP4 of odd size)."""

    path: Path
    sidecar: Path | None
    latents_path: Path | None
    width: int
    height: int
    frames: int
    fps: Fraction
    padded: bool
    bytes: int
    format: str
    warnings: tuple[str, ...]


class _Written(NamedTuple):
    width: int
    height: int
    frames: int
    fps: Fraction
    padded: bool
    bytes: int


def save_output(
    output: Output,
    *,
    folder: Path | str,
    file_name: str | None = None,
    format: str | None = None,
    quality: Quality | None = None,
    preset: str | None = None,
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
    save_latents: bool = False,
    sidecar: bool = True,
    prompt: str = "",
    count: int = 1,
    now: datetime | None = None,
    growing: GrowingVideo | None = None,
) -> Saved:
    """Save one output and its sidecar in `folder`, whole or not at all.

    Args:
        output: the finished output.
        folder: made if missing; nothing is written outside it.
        file_name: plain name; its ending chooses the format if `format` is not given. Without
            a name one is made from the prompt.
        format: `mp4` (default for videos), `webm`, `gif`, `frames`, `png` (default for
            pictures), `jpeg`, `webp`.
        quality: 0..100 or a word, see docs/outputs.md.
        preset: encoder speed for MP4 and WebM.
        overwrite: replace files of that name instead of choosing a free one.
        metadata: more to record: `model`, `versions`, `warnings`, …
        save_latents: also write `name.safetensors` with the tensor `latents`.
        sidecar: also write the record beside the file; what is embedded in the file says the same
            except timings and warnings.
        prompt: for the name.
        count: outputs of this request; more than one adds `_index` to the name.
        now: time for the name and the record; the clock by default.
        growing: the output's frames, encoded already with this format, quality and preset; its file
            is gone afterwards. What it `becomes`, if it says so, is the name.

    Raises:
        ParameterError: wrong name, format, quality or preset; nothing was written.
        SgldError: writing failed; nothing was left.
    """
    now = now or datetime.now().astimezone()
    frames, height, width = output.frames.shape[:3]
    kind = check_saving(
        output.kind,
        frames=frames,
        height=height,
        width=width,
        fps=output.fps,
        file_name=file_name,
        format=format,
        quality=quality,
        preset=preset,
    )
    number = formats.quality_number(quality, moving=kind.moving)
    preset = formats.check_preset(preset)
    latents = _latents(output, save_latents)
    name = growing.becomes if growing is not None else ""
    name = name or name_of(
        kind,
        file_name,
        prompt=prompt,
        index=output.index,
        count=count,
        seed=output.seed,
        parameters=output.parameters,
        now=now,
    )
    folder_format = not kind.extension
    wanted = {SIDECAR_SUFFIX: sidecar, LATENTS_SUFFIX: save_latents}
    endings = tuple(ending for ending, asked in wanted.items() if asked)
    with hold(Path(folder), name, overwrite, companions=endings, directory=folder_format) as path:
        record = _record(output, kind, number, preset, metadata or {}, now)
        if growing is not None:
            video = growing.finish(path, _embedded(record))
            written = _Written(*video[1:5], video.padded, video.bytes)
        else:
            written = _write(path, output, kind, number, preset, _embedded(record))
        latents_path = None
        if latents is not None:
            latents_path = companion(path, LATENTS_SUFFIX, directory=folder_format)
            write_bytes(latents_path, safetensors.numpy.save({"latents": latents}))
        record["output"] |= {
            "file": path.name,
            "bytes": written.bytes,
            "latents": latents_path.name if latents_path else None,
        }
        beside = write_sidecar(path, record) if sidecar else None
    return Saved(path, beside, latents_path, *written, kind.name, tuple(record["warnings"]))


def name_of(
    kind: Format,
    file_name: str | None,
    *,
    prompt: str,
    index: int,
    count: int,
    seed: int,
    parameters: Mapping[str, Any],
    now: datetime,
) -> str:
    """What an output's file is called where nothing of that name exists: as the user says, or made
    from the prompt, the time, the seed and a hash of the parameters; see `save_output`."""
    if file_name is not None:
        return _explicit_name(file_name, kind, index, count)
    return output_name(
        prompt,
        index=index,
        count=count,
        seed=seed,
        extension=kind.extension,
        digest=_digest(parameters, seed),
        now=now,
    )


def check_saving(
    media: Literal["video", "image"],
    *,
    frames: int = 1,
    height: int = 1,
    width: int = 1,
    fps: int | float | Fraction = 0,
    file_name: str | None = None,
    format: str | None = None,
    quality: Quality | None = None,
    preset: str | None = None,
) -> Format:
    """Refuse what `save_output` would refuse, before any work is done, and return the format."""
    if file_name is not None:
        check_file_name(file_name)
    if format is not None:
        kind = formats.find_format(format)
    else:
        found = formats.format_of_name(file_name) if file_name else None
        kind = found or formats.FORMATS["mp4" if media == "video" else "png"]
    if not kind.moving and frames > 1:
        raise refuse(
            "output_format",
            kind.name,
            f"holds one picture, and the output has {frames} frames.",
            "Use mp4, webm, gif or frames.",
        )
    if file_name is not None:
        _explicit_name(file_name, kind, 0, 1)
    formats.quality_number(quality, moving=kind.moving)
    formats.check_preset(preset)
    formats.check_side(height, width, kind)
    rate = formats.frame_rate(fps or 1)
    if kind.name == "gif":
        check_gif_rate(rate)
    return kind


def _explicit_name(file_name: str, kind: Format, index: int, count: int) -> str:
    name = check_file_name(file_name)
    ending = PurePath(name).suffix.lower()
    if ending[1:] in formats.FOREIGN:
        names = ", ".join(found.extension for found in formats.FORMATS.values() if found.extension)
        message = f"ends in {ending}, which cannot be written."
        raise refuse("output_file_name", file_name, message, f"Use {names}, or no ending.")
    named = formats.format_of_name(name)
    if named is not None and named != kind:
        raise refuse(
            "output_file_name",
            file_name,
            f"ends in {named.extension}, and the format is {kind.name}.",
            f"Use {kind.extension or 'no ending'}, or leave output_format out.",
        )
    ending = PurePath(name).suffix if named is not None else kind.extension
    stem = name[: len(name) - len(ending)] if named is not None else name
    number = f"_{index}" if count > 1 else ""
    return check_file_name(stem + number + ending)


def _latents(output: Output, wanted: bool) -> np.ndarray | None:
    if not wanted:
        return None
    if output.latents is None:
        raise refuse(
            "save_latents", True, "asks for latents that were not kept.", "Request them as well."
        )
    # The writer takes memory as it lies, so a transposed view would be saved scrambled.
    return np.ascontiguousarray(output.latents)


def _digest(parameters: Mapping[str, Any], seed: int) -> str:
    text = to_json({"parameters": parameters, "seed": seed})
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:8]


def _record(
    output: Output,
    kind: Format,
    quality: int,
    preset: str,
    metadata: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    frames, height, width = output.frames.shape[:3]
    padded = kind.even and bool(height % 2 or width % 2)
    fps = formats.frame_rate(output.fps or 1) if kind.moving else Fraction(0)
    return {
        "created": now.isoformat(timespec="seconds"),
        "model": None,
        **metadata,
        "seed": output.seed,
        "index": output.index,
        "parameters": dict(output.parameters),
        "output": {
            "format": kind.name,
            "width": width + width % 2 if padded else width,
            "height": height + height % 2 if padded else height,
            "frames": frames,
            "fps": fps,
            "padded": padded,
            "quality": quality,
            **({"preset": preset} if kind.name in ("mp4", "webm") else {}),
        },
        "versions": {**versions(), **metadata.get("versions", {})},
        "timings": dict(output.timings),
        "warnings": [*metadata.get("warnings", ()), *_differences(output, kind, padded)],
    }


def _differences(output: Output, kind: Format, padded: bool) -> list[str]:
    frames, height, width = output.frames.shape[:3]
    notes = []
    if padded:
        size = f"{width + width % 2}x{height + height % 2}"
        notes.append(f"{kind.name} needs even sides: {width}x{height} was padded to {size}.")
    truth = {"width": width, "height": height, "num_frames": frames}
    if kind.moving:
        truth["fps"] = output.fps or 1
    for name, value in truth.items():
        asked = output.parameters.get(name)
        if asked is not None and asked != value:
            notes.append(f"{name} was {asked}; the file holds {value}.")
    return notes


def _embedded(record: Mapping[str, Any]) -> dict[str, Any]:
    # Timings and warnings are about the run, not about the picture; they stay in the sidecar.
    return {key: value for key, value in record.items() if key not in ("timings", "warnings")}


def _write(
    path: Path,
    output: Output,
    kind: Format,
    quality: int,
    preset: str,
    metadata: Mapping[str, Any],
) -> _Written:
    if not kind.moving:
        picture = write_image(path, output.frames[0], kind.name, quality, metadata)
        return _Written(picture.width, picture.height, 1, Fraction(0), False, picture.bytes)
    video = write_video(
        path,
        output.frames,
        output.fps or 1,
        format=kind.name,
        quality=quality,
        preset=preset,
        metadata=metadata,
    )
    return _Written(*video[1:5], video.padded, video.bytes)
