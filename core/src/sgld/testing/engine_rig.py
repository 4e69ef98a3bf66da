"""A loaded model whose engine is driven by hand, so that a test decides what happens between steps.

    with EngineRig(make_plan(options)) as rig:
        rig.run(rig.request(prompt="a lamp", seed=7))    the finished output
        rig.submit(request); rig.turn(3); rig.engine.cancel(request.id)

Requests are as small as the family allows: the smallest size, few frames, two steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from sgld.api.errors import ParameterError
from sgld.engine.build import build_engine
from sgld.engine.residency.movers import Mover
from sgld.messages import LAST, Event, Output, Request
from sgld.params.merge import Layer
from sgld.params.requests import fit_to_images, prepare
from sgld.plan import ModelPlan
from sgld.realtime.messages import SessionReport

PROMPT: Final = "a lamp on a table"
STEPS: Final = 2
MOST_TURNS: Final = 100_000
"""More forwards than any tiny request takes: an engine without an end must not hang a test."""


class EngineRig:
    """An engine of one planned model and all that it has told.

    Args:
        plan: closed with the rig.
        defaults: parameters of every request, over those that the family's smallest one has.
        mover: what moves weights; the device's own when None.
    """

    def __init__(
        self,
        plan: ModelPlan,
        defaults: Mapping[str, Any] | None = None,
        *,
        mover: Mover | None = None,
    ) -> None:
        self.plan = plan
        self.told: list[Event | SessionReport] = []
        self.defaults = {**smallest(plan), **(defaults or {})}
        self._numbers = itertools.count(1)
        self._plain: Output | None = None
        self.engine = build_engine(plan, self.told.append, mover=mover)
        self.pipeline = self.engine.pipeline

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        *,
        seed: int = 1,
        images: Sequence[Any] | None = None,
        previews: int = 0,
        want_latents: bool = True,
        **params: Any,
    ) -> Request:
        """A request of one output with these parameters; a picture where the family needs one.

        Raises ParameterError for parameters that the family refuses.
        """
        cls = self.plan.params_class
        if images is None:
            images = (picture(),) if cls.needs_image else ()
        layers = [Layer("call", {**self.defaults, **params, "seed": seed}), self.plan.preset_layer]
        [made] = prepare(cls, layers, images_given=len(images))
        made = fit_to_images(made, [(image.shape[1], image.shape[0]) for image in images])
        return Request(
            id=f"r{next(self._numbers)}",
            params=made.params.model_dump(mode="json"),
            seeds=made.seeds,
            images=tuple(images),
            want_latents=want_latents,
            preview_every=made.params.preview_every,
            previews=previews,
        )

    def submit(self, *requests: Request) -> None:
        """Queue requests."""
        for request in requests:
            self.engine.submit(request)

    def turn(self, times: int = MOST_TURNS, until: Callable[[], bool] = lambda: False) -> bool:
        """Run so many forwards, or until something holds; whether there is more to do."""
        for _ in range(times):
            if until():
                return True
            if not self.engine.turn():
                return False
        if times == MOST_TURNS:
            raise AssertionError(f"the engine is not done after {times} forwards")
        return True

    def run(self, request: Request) -> Output:
        """Submit a request, run it to its end, and give its output."""
        return self.run_all([request])[0]

    def plain(self) -> Output:
        """The output of `request()`, made once: what other outputs are compared with."""
        if self._plain is None:
            self._plain = self.run(self.request())
        return self._plain

    def run_all(self, requests: Sequence[Request]) -> list[Output]:
        """As `run`, for several that are submitted at once."""
        self.submit(*requests)
        self.turn()
        return [self.output(request) for request in requests]

    def events(self, request: Request, *kinds: str) -> list[Event]:
        """What was told of a request, of these kinds or of all."""
        return [
            event
            for event in self.told
            if isinstance(event, Event)
            and event.request_id == request.id
            and (not kinds or event.kind in kinds)
        ]

    def output(self, request: Request) -> Output:
        """The output of a request that is done. AssertionError with the reason when it failed."""
        outputs = [event.output for event in self.events(request, "output") if event.output]
        if outputs:
            return outputs[0]
        ends = self.events(request, *LAST)
        if not ends:
            raise AssertionError(f"request {request.id} has not ended")
        last = ends[-1]
        raise AssertionError(
            f"request {request.id} {last.kind} in stage {last.stage or '-'}: "
            f"{last.code} {last.message}"
        )

    def close(self) -> None:
        """Free the model. Safe to call again."""
        self.engine.close()
        self.plan.close()


def picture(width: int = 64, height: int = 64) -> Any:
    """A picture without symmetry, RGB uint8 [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    channels = (x * 255 // width, y * 255 // height, (x * y) % 256)
    return np.stack(channels, axis=-1).astype(np.uint8)


def smallest(plan: ModelPlan) -> dict[str, Any]:
    """The smallest request of a family that is still a whole one, as its parameters."""
    cls, preset = plan.params_class, plan.preset_layer
    fields = cls.model_fields
    own = {name: preset.values.get(name, fields[name].default) for name in fields}
    wish: dict[str, Any] = {"prompt": PROMPT}
    unit = cls.spatial_multiple
    short, long = (-(-max(cls.min_size, times * unit) // unit) * unit for times in (2, 3))
    # None: the pipeline decides, and nobody knows how small a size it takes.
    if own["width"] and own["height"] and own["width"] * own["height"] > short * long:
        wish |= {"width": long, "height": short}
    if "num_frames" in fields:
        least = 2 * getattr(cls, "temporal_stride", 1) + 1
        wish["num_frames"] = min(own["num_frames"], least)
    if own["num_inference_steps"] > STEPS:
        wish["num_inference_steps"] = STEPS
    images = 1 if cls.needs_image else 0
    try:
        prepare(cls, [Layer("call", wish), preset], images_given=images)
    except ParameterError as error:
        # A family with a fixed list of steps, or of sizes, says so; then its own holds.
        refused = {problem.field for problem in error.problems}
        wish = {name: value for name, value in wish.items() if name not in refused}
    return wish
