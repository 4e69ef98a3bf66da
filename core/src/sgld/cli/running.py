"""Driving a loaded model: events to progress, outputs to files, signals to a clean stop."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sgld.api.errors import ParameterError, SgldError
from sgld.cli.parts import Parts
from sgld.cli.progress import Reporter
from sgld.cli.settings import Settings
from sgld.cli.signals import Stop, stop_on_signals
from sgld.media import saving
from sgld.media.names import reserve
from sgld.media.writing import write_bytes
from sgld.messages import Event, Output


@dataclass
class Tally:
    """How the requests of a run ended, by id."""

    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    signal: int = 0
    """The signal that stopped the run; 0 for none."""

    @property
    def exit_code(self) -> int:
        """0, 1 when some failed, or when the run was stopped 130 (Ctrl-C) or 143 (SIGTERM)."""
        return 128 + self.signal if self.signal else 1 if self.failed else 0


class Run:
    """One run of all requests of `settings` on a loaded model.

    Each output gives one line of results: its path, or a JSON object with `as_json`.
    """

    def __init__(self, settings: Settings, reporter: Reporter, *, as_json: bool = False) -> None:
        self.settings, self.reporter, self.as_json = settings, reporter, as_json
        self.tally = Tally()
        self._numbers = {request.id: i for i, request in enumerate(settings.requests)}
        self._parts = Parts(settings.output.params)
        self._given_up: set[str] = set()
        self._to_cancel: list[str] = []
        self._stop = Stop()

    def drive(self, model: Any) -> Tally:
        """Run until every request has ended; Ctrl-C and SIGTERM cancel those that have not."""
        try:
            with stop_on_signals(lambda: self._cancel(model)) as self._stop:
                for event in model.run(self.settings.requests):
                    self.handle(event)
                    while self._to_cancel:
                        model.cancel(self._to_cancel.pop())
                self.tally.signal = self._stop.signal
        finally:
            self._parts.discard()
        return self.tally

    def _cancel(self, model: Any) -> None:
        self.reporter.say("stopping after this step (Ctrl-C again: at once)")
        for request in self.settings.requests:
            if request.id not in self.tally.done and request.id not in self.tally.failed:
                model.cancel(request.id)

    def handle(self, event: Event) -> None:
        """Show, save or count one event; of a request that was given up nothing more is shown."""
        if event.request_id in self._given_up:
            return
        label = f"[{self._numbers[event.request_id] + 1}/{len(self._numbers)}]"
        self.reporter.event(event, label)
        if event.kind == "output" and self._stop.signal:
            # A call is not interrupted, and after the last one the engine has nothing to cancel.
            self._given_up.add(event.request_id)
            self._cancelled(event.request_id)
        elif event.kind == "output" and event.output is not None:
            self._save(event.request_id, event.output, label)
        elif event.kind == "preview" and event.latents is not None:
            self._save_preview(event)
        elif event.kind == "frames" and event.frames is not None:
            self._save_part(event, label)
        elif event.kind == "failed":
            self._fail(event.request_id, event.code, event.message, label)
        elif event.kind == "cancelled":
            self._cancelled(event.request_id)
        elif event.kind == "done" and event.request_id not in self.tally.failed:
            self.tally.done.add(event.request_id)

    def _cancelled(self, request_id: str) -> None:
        self._parts.discard(request_id)
        self.tally.cancelled.add(request_id)
        self._result(request_id, {"event": "cancelled"})

    def _save(self, request_id: str, output: Output, label: str) -> None:
        options = self.settings.output.params
        if not options.save_output:
            self._result(request_id, self._facts(output))
            return
        one = self.settings.prepared[self._numbers[request_id]]
        try:
            saved = saving.save_output(
                output,
                folder=options.output_path,
                file_name=options.output_file_name,
                format=options.output_format,
                quality=options.output_quality,
                preset=options.x264_preset,
                overwrite=options.overwrite,
                save_latents=options.save_latents,
                prompt=one.params.prompt,
                count=len(one.seeds),
                metadata={
                    "model": self.settings.serving.params.model_path,
                    "warnings": list(one.built.notes),
                    "versions": self.settings.versions,
                },
                growing=self._parts.take(request_id, output),
            )
        except SgldError as error:
            self._fail(request_id, error.code, str(error), label)
            return
        facts = self._facts(output) | {
            "path": str(saved.path),
            "sidecar": str(saved.sidecar),
            "latents": str(saved.latents_path) if saved.latents_path else None,
            "width": saved.width,
            "height": saved.height,
            "frames": saved.frames,
            "fps": float(saved.fps),
            "padded": saved.padded,
            "format": saved.format,
            "bytes": saved.bytes,
            "warnings": list(saved.warnings),
        }
        self._result(request_id, facts, text=str(saved.path))
        frames = "1 frame" if saved.frames == 1 else f"{saved.frames} frames"
        self.reporter.say(
            f"{label} saved {saved.width}x{saved.height}, {frames}, "
            f"seed {output.seed}, {output.timings.get('total', 0.0):.1f} s"
        )

    def _facts(self, output: Output) -> dict[str, Any]:
        frames, height, width = output.frames.shape[:3]
        return {
            "event": "output",
            "index": output.index,
            "seed": output.seed,
            "kind": output.kind,
            "frames": frames,
            "width": width,
            "height": height,
            "fps": output.fps,
            "timings": dict(output.timings),
            "parameters": dict(output.parameters),
        }

    def _save_part(self, event: Event, label: str) -> None:
        """Write a finished part of a clip at once, where its file may grow."""
        one = self.settings.prepared[self._numbers[event.request_id]]
        facts = {"event": "chunk", "index": event.index, "chunk": event.step, "chunks": event.total}
        try:
            path = self._parts.add(event, one.params, one.seeds[event.index], len(one.seeds))
        except SgldError as error:
            # What cannot be written now could not be written in the end: computing on is waste.
            self._given_up.add(event.request_id)
            self._to_cancel.append(event.request_id)
            self._fail(event.request_id, error.code, str(error), label)
            return
        if path is None:
            return
        if event.step == 1:
            self.reporter.say(f"{label} writing {path} while it runs")
        self._result(event.request_id, facts | {"path": str(path)})

    def _save_preview(self, event: Event) -> None:
        """Keep denoised latents as a numpy file in the output folder, when files are wanted."""
        if not self.settings.output.params.save_output:
            return
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(event.latents))
        name = f"preview_{event.request_id}_{event.index}_step{event.step:04d}.npy"
        try:
            path = reserve(Path(self.settings.output.params.output_path), name)
            write_bytes(path, buffer.getvalue())
        except (SgldError, ParameterError) as error:
            self.reporter.say(f"preview not saved: {error}")
            return
        facts = {"event": "preview", "index": event.index, "step": event.step, "path": str(path)}
        self._result(event.request_id, facts)

    def _fail(self, request_id: str, code: str, message: str, label: str) -> None:
        self._parts.discard(request_id)
        self.tally.done.discard(request_id)
        self.tally.failed.add(request_id)
        self._result(request_id, {"event": "failed", "code": code, "message": message})
        # The JSON line says it already, and `--json --quiet` promises a clean standard error.
        tell = self.reporter.say if self.as_json else self.reporter.fail
        tell(f"{label} failed ({code}): {message}")

    def _result(self, request_id: str, facts: dict[str, Any], text: str = "") -> None:
        if self.as_json:
            self.reporter.result(
                json.dumps({"request": request_id, **facts}, ensure_ascii=False, default=str)
            )
        elif text:
            self.reporter.result(text)
