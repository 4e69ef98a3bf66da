"""The Python way in.

    import sgld
    with sgld.load("Wan-AI/Wan2.1-T2V-1.3B-Diffusers") as model:
        video = model.generate(prompt="a red kite over the sea", seed=7)
        video.frames            # uint8 [F, H, W, 3]
        video.save("kite.mp4")

`Model.stream` gives events (steps, previews, outputs) as they happen; `Model.session` opens a
realtime session.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sgld.api.errors import Cancelled, FeatureError, ParameterError, Problem, RequestError
from sgld.engine.build import build_engine
from sgld.engine.executors.executor import Executor
from sgld.engine.executors.in_process import InProcessExecutor
from sgld.engine.loading import LoadProgress
from sgld.engine.mailboxes import Mailboxes
from sgld.engine.sessions.snapshot import Snapshot
from sgld.media.images import load_image
from sgld.messages import Event, Output, Request
from sgld.observe.logs import hand_to_logging
from sgld.params.merge import Layer, build
from sgld.params.requests import Prepared, fit_to_images, prepare
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.plugins.catalog import load_target
from sgld.realtime.messages import SessionRequest
from sgld.session import Session, session_options

if TYPE_CHECKING:
    from sgld.media.saving import Saved


@dataclass(frozen=True)
class Result:
    """What one prompt became.

    Args:
        outputs: one per seed, in order.
        notes: what was adjusted, such as a rounded frame count.
    """

    request_id: str
    outputs: tuple[Output, ...]
    notes: tuple[str, ...] = ()

    @property
    def frames(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Frames of the first output, RGB uint8 [F, H, W, 3]."""
        return self.outputs[0].frames

    @property
    def seed(self) -> int:
        """Seed of the first output."""
        return self.outputs[0].seed

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Every parameter really used for the first output."""
        return self.outputs[0].parameters

    def save(self, path: str | Path, **options: Any) -> list[Saved]:
        """Write every output; several get a number before the ending.

        `options` are those of `sgld.media.saving.save_output`.
        """
        from sgld.media.saving import save_output  # noqa: PLC0415

        path = Path(path)
        prompt = str(self.parameters.get("prompt", ""))
        return [
            save_output(
                output,
                folder=path.parent,
                file_name=path.name,
                prompt=prompt,
                count=len(self.outputs),
                **options,
            )
            for output in self.outputs
        ]


class Model:
    """A loaded model; use it as a context manager, or call `close`.

    Several threads may use one model: their requests run together and each thread gets the events
    of its own.
    """

    def __init__(self, plan: ModelPlan, executor: Executor) -> None:
        self.plan = plan
        self._executor = executor
        self._mail = Mailboxes(executor)
        self._numbers = itertools.count(1)

    @classmethod
    def open(cls, plan: ModelPlan, progress: LoadProgress | None = None) -> Model:
        """Load a planned model in this process.

        An interrupt (Ctrl-C) ends the loading at its next piece; the plan stays the caller's.
        """
        hand_to_logging()
        watched = _Interruptible(progress)
        try:
            return cls(plan, InProcessExecutor(partial(_build, plan, watched)))
        except BaseException:
            watched.stop.set()
            raise

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything and free the model: runs of other threads end as cancelled.

        Safe to call again.
        """
        try:
            self._executor.close()
        finally:
            self.plan.close()

    def cancel(self, request_id: str) -> None:
        """Stop a request after the call that runs; its last event says so, or `done` when that call
        was its last one."""
        self._executor.cancel(request_id)

    def run(self, requests: Sequence[Request]) -> Generator[Event]:
        """Run requests together and give their events until each has ended.

        Leaving the loop early cancels what still runs. Raises ValueError when an id is already
        open, and the engine's own error when it is lost.
        """
        box = self._mail.submit(requests)
        try:
            while (event := box.next()) is not None:
                yield event
        finally:
            box.close()

    def requests(
        self,
        *,
        images: Sequence[Any] = (),
        want_latents: bool = False,
        previews: int = 0,
        **params: Any,
    ) -> list[tuple[Request, Prepared]]:
        """Validate `params` (names as in `sgld models show`) into requests, one per prompt.

        `images` are conditioning pictures: uint8 RGB arrays [H, W, 3], PIL images, paths or bytes.
        `previews` decoded estimates of each result are sent on the way.

        Raises:
            ParameterError: listing everything that is wrong; nothing has run.
        """
        return self._requests(self.plan.local_layer, images, want_latents, previews, params)

    def _requests(
        self,
        own: Layer,
        images: Sequence[Any],
        want_latents: bool,
        previews: int,
        params: Mapping[str, Any],
    ) -> list[tuple[Request, Prepared]]:
        layers = [Layer("call", params), own]
        prepared = prepare(self.plan.params_class, layers, images_given=len(images))
        made: list[tuple[Request, Prepared]] = []
        for item in prepared:
            pictures = [_picture(image) for image in (*images, *item.image_paths)]
            item = fit_to_images(item, [(p.shape[1], p.shape[0]) for p in pictures])
            request = Request(
                id=f"request-{next(self._numbers)}",
                params=item.params.model_dump(mode="json"),
                seeds=item.seeds,
                images=tuple(pictures),
                want_latents=want_latents,
                preview_every=item.params.preview_every,
                previews=previews,
            )
            made.append((request, item))
        return made

    def stream(
        self, *, images: Sequence[Any] = (), previews: int = 0, **params: Any
    ) -> Generator[Event]:
        """Events of a generation as they happen. `preview_every` sends latents on the way,
        `previews` so many pictures of what the result looks like so far (`Event.frames`)."""
        made = self.requests(images=images, previews=previews, **params)
        return self.run([request for request, _ in made])

    def session(
        self,
        *,
        first_frame: Any = None,
        snapshot: bytes = b"",
        rewind_chunks: int = 0,
        max_chunks: int | None = None,
        free_running: bool = False,
        queue_chunks: int = 2,
        on_full: Literal["block", "drop"] = "block",
        **params: Any,
    ) -> Session:
        """Open a realtime session.

        Args:
            first_frame: a picture as in `requests`, for models that start from one.
            snapshot: continue from these bytes of `Session.snapshot`; without `params`, with those
                of the snapshot.
            rewind_chunks: how many chunks `Session.rewind` can take back; each costs host memory.
            max_chunks: the session ends by itself after so many.
            free_running: generate on while `queue_chunks` are not full; otherwise each chunk is
                made when it is asked for.
            queue_chunks: finished chunks that may wait to be taken.
            on_full: then `block`, or `drop` what lies between.
            params: names as in `sgld models show`.

        Raises:
            FeatureError: this model has no realtime sessions.
            ParameterError: wrong parameters; nothing was opened.
            RequestError: refused by the engine, with `code`: `busy` when there is no room.
        """
        entry = self.plan.adapter
        if entry is None:
            raise FeatureError(
                f"{self.plan.spec.id} has no realtime sessions.",
                remedy="`sgld plugins list` shows which plugins bring realtime adapters.",
            )
        options = session_options(
            rewind_chunks=rewind_chunks,
            max_chunks=max_chunks,
            free_running=free_running,
            queue_chunks=queue_chunks,
            on_full=on_full,
        )
        given = () if first_frame is None else (_picture(first_frame, "first_frame"),)
        if snapshot and not params:
            saved = Snapshot.read(snapshot)
            values, seed = saved.params, saved.seed
            pictures = given
        else:
            [(made, _)] = self._requests(self.plan.session_layer, given, False, 0, params)
            values, seed, pictures = made.params, made.seeds[0], made.images
        request = SessionRequest(
            self._session_name(),
            entry.spec.id,
            values,
            seed,
            pictures,
            options=options,
            snapshot=snapshot,
        )
        adapter = load_target(entry.spec.target, entry)
        return Session(self._executor, self._mail, adapter, request, self._session_name)

    def _session_name(self) -> str:
        return f"session-{next(self._numbers)}"

    def generate(
        self, *, images: Sequence[Any] = (), want_latents: bool = False, **params: Any
    ) -> Result | list[Result]:
        """Generate and wait; one `Result`, or a list when `prompt` is a list.

        Raises:
            ParameterError: wrong parameters, before anything runs.
            RequestError: a generation failed, with `code`; what else was asked for is cancelled.
            Cancelled: another thread cancelled it or closed the model.
        """
        made = self.requests(images=images, want_latents=want_latents, **params)
        outputs: dict[str, list[Output]] = {request.id: [] for request, _ in made}
        with closing(self.run([request for request, _ in made])) as events:
            for event in events:
                if event.output is not None:
                    outputs[event.request_id].append(event.output)
                if event.kind == "failed":
                    raise RequestError(event.message, code=event.code)
                if event.kind == "cancelled":
                    raise Cancelled(f"request {event.request_id} was cancelled")
        results = [
            Result(
                request.id,
                tuple(sorted(outputs[request.id], key=lambda output: output.index)),
                item.built.notes,
            )
            for request, item in made
        ]
        return results if isinstance(params.get("prompt"), list | tuple) else results[0]


def plan(options: ServingOptions) -> ModelPlan:
    """Decide how a model is served, without loading it; see `sgld.plan.make_plan`."""
    return make_plan(options)


def load(model_path: str, *, progress: LoadProgress | None = None, **options: Any) -> Model:
    """Load a model: a folder, a hub id, `tiny:NAME` or `config:NAME`.

    Args:
        model_path: what to load.
        progress: told `(component, bytes done, bytes in all)`.
        options: fields of `sgld.params.serving.ServingOptions`, such as `device`, `dtype`,
            `residency`, `batching`.

    Raises:
        UserError: wrong options or model; nothing was loaded.
    """
    layer = Layer("call", {"model_path": model_path, **options})
    made = make_plan(build(ServingOptions, [layer]).params)
    try:
        return Model.open(made, progress)
    except BaseException:
        made.close()
        raise


class _Interruptible:
    """Load progress that ends the loading once `stop` is set: the thread that loads cannot be
    interrupted from outside, and would fill memory that nobody wants any more."""

    def __init__(self, progress: LoadProgress | None) -> None:
        self.stop = threading.Event()
        self._progress = progress

    def __call__(self, component: str, done: int, total: int) -> None:
        if self.stop.is_set():
            raise Cancelled("loading was interrupted")
        if self._progress is not None:
            self._progress(component, done, total)


def _build(plan: ModelPlan, progress: LoadProgress | None, emit: Any) -> Any:
    return build_engine(plan, emit, progress)


def _picture(image: Any, field: str = "images") -> np.ndarray[Any, np.dtype[np.uint8]]:
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            shown = f"{image.dtype} {list(image.shape)}"
            raise ParameterError([Problem(field, shown, "must be RGB uint8 [H, W, 3].")])
        return image
    if isinstance(image, str | Path | bytes):
        return load_image(image, field="image_path" if field == "images" else field)
    if not hasattr(image, "convert"):
        message = "must be an array, a PIL image, a path or bytes."
        raise ParameterError([Problem(field, type(image).__name__, message)])
    return _picture(np.asarray(image.convert("RGB")), field)
