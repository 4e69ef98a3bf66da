"""Clips that are written while they are made: one growing file for each unfinished output."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from sgld.media import saving
from sgld.media.growing import GROWS, GrowingVideo
from sgld.media.names import reserve_part
from sgld.media.sidecar import SIDECAR_SUFFIX
from sgld.messages import Event, Output
from sgld.params.output import OutputOptions


class Parts:
    """The growing files of a run, in the folder of its outputs: `NAME.part.mp4` beside `NAME.mp4`.

    Only formats that can grow have one; of the others nothing is written before the end.
    """

    def __init__(self, options: OutputOptions) -> None:
        self._options = options
        self._files: dict[tuple[str, int], GrowingVideo] = {}

    def add(self, event: Event, params: Any, seed: int, count: int) -> Path | None:
        """Write what a `frames` event brings; the file, or None where none can grow.

        `params`, `seed` and `count` are the request's parameters, the output's seed and how many
        outputs the request has. Raises SgldError when it cannot be written; the file is gone then.
        """
        frames = np.asarray(event.frames)
        key = (event.request_id, event.index)
        if key not in self._files:
            growing = self._open(event, frames, params, seed, count)
            if growing is None:
                return None
            self._files[key] = growing
        growing = self._files[key]
        try:
            growing.add(frames)
        except BaseException:
            self._files.pop(key).discard()
            raise
        return growing.path

    def take(self, request_id: str, output: Output) -> GrowingVideo | None:
        """The growing file of an output that is complete now, for `save_output`; None when there is
        none that holds all of its frames."""
        growing = self._files.pop((request_id, output.index), None)
        if growing is not None and growing.frames != len(output.frames):
            growing.discard()
            return None
        return growing

    def discard(self, request_id: str | None = None) -> None:
        """Remove the growing files of a request, or of all."""
        for key in [key for key in self._files if request_id in (None, key[0])]:
            self._files.pop(key).discard()

    def _open(
        self, event: Event, frames: np.ndarray, params: Any, seed: int, count: int
    ) -> GrowingVideo | None:
        options = self._options
        height, width = frames.shape[1:3]
        kind = saving.check_saving(
            "video",
            frames=len(frames),
            height=height,
            width=width,
            fps=params.fps,
            file_name=options.output_file_name,
            format=options.output_format,
            quality=options.output_quality,
            preset=options.x264_preset,
        )
        if not options.save_output or kind.name not in GROWS:
            return None
        # Chosen once, for the finished file too: at the end time and parameters are others.
        wanted = saving.name_of(
            kind,
            options.output_file_name,
            prompt=params.prompt,
            index=event.index,
            count=count,
            seed=seed,
            parameters=params.model_dump(mode="json"),
            now=datetime.now().astimezone(),
        )
        path, name = reserve_part(
            Path(options.output_path),
            wanted,
            options.overwrite,
            companions=(SIDECAR_SUFFIX, *([saving.LATENTS_SUFFIX] if options.save_latents else [])),
        )
        try:
            return GrowingVideo(
                path,
                width=width,
                height=height,
                fps=params.fps,
                format=kind.name,
                quality=options.output_quality,
                preset=options.x264_preset,
                becomes=name,
            )
        except BaseException:
            path.unlink(missing_ok=True)
            raise
