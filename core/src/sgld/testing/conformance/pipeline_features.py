"""The features that a pipeline lists work; those that it does not list are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from sgld.api import features
from sgld.api.errors import FeatureError
from sgld.engine.build import weigh
from sgld.engine.loading import Loader
from sgld.messages import Output
from sgld.testing.bench import Engines
from sgld.testing.conformance.base import broken, expect
from sgld.testing.conformance.pipeline_base import OfPipeline, expect_other, expect_same
from sgld.testing.engine_rig import STEPS, EngineRig
from sgld.testing.parity import relative_l2
from sgld.testing.second_device import FakeDeviceMover

BATCH_ERROR: Final = 1e-4
"""Relative L2 error that sharing a forward may cost: other shapes, another order of sums."""
TILE_ERROR: Final = 0.1
"""Mean difference in 0..1 that decoding in tiles may cost, which shows at their seams."""


class Features(OfPipeline):
    """One test for each feature that the core knows."""

    def test_cfg(self, bench: Engines) -> None:
        """Guidance takes effect, and so does the negative prompt."""
        rig = bench.rig(batching="off")
        cls = rig.plan.params_class
        if not self._offers(features.CFG):
            expect(
                cls.guidance != "cfg" and not _uses_cfg(rig),
                expected="without the feature 'cfg', parameters that use no guidance",
                got=f"{cls.__name__}.guidance={cls.guidance!r}, uses_cfg={_uses_cfg(rig)}",
                remedy="List the feature 'cfg', or take Guided out of the parameters.",
            )
            return
        expect(
            _uses_cfg(rig, **self.guided),
            expected=f"uses_cfg with {dict(self.guided)}",
            got="False",
            remedy="Set `guided` in the test class, or take 'cfg' out of the features.",
        )
        guided = rig.run(rig.request(**self.guided))
        plain: dict[str, Any] = {
            name: 1.0 for name, value in self.guided.items() if isinstance(value, float)
        }
        text = {**self.guided, "negative_prompt": "snow, a crowd of people"}
        remedy = "Run the second pass, and combine both: `sgld.stages.denoise.guide`."
        others: tuple[tuple[str, dict[str, Any]], ...] = (
            ("with and without guidance", plain),
            ("two negative prompts", text),
        )
        for what, other in others:
            expect_other(guided, rig.run(rig.request(**other)), what=what, remedy=remedy)

    def test_step_batching(self, bench: Engines) -> None:
        """Requests that share forwards give what each gives alone."""
        if not self._offers(features.STEP_BATCHING):
            self._refused(bench, features.STEP_BATCHING, batching=2)
            return
        alone, shared = bench.rig(batching="off"), bench.rig(batching=8, max_running=4)
        wishes: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2, "prompt": "rain"}, {"seed": 3}]
        if self._takes_steps(alone):
            wishes[2]["num_inference_steps"] = STEPS - 1
        before = dict(alone.engine.forwards), dict(shared.engine.forwards)
        expected = [alone.run(alone.request(**wish)) for wish in wishes]
        found = shared.run_all([shared.request(**wish) for wish in wishes])
        for one, other in zip(expected, found, strict=True):
            _expect_close(one, other)
        many, few = _forwards(alone, before[0]), _forwards(shared, before[1])
        expect(
            any(few.get(name, 0) < count for name, count in many.items()),
            expected=f"a component with fewer forwards than one request after the other: {many}",
            got=few,
            remedy="Give the calls a `batch_key`, and tensors with one row in dimension 0.",
        )

    def test_component_offload(self, bench: Engines) -> None:
        """Components that are moved in whole give the same bits."""
        self._offload(bench, features.COMPONENT_OFFLOAD, "all")

    def test_layerwise_offload(self, bench: Engines) -> None:
        """Layers that pass through the device one by one give the same bits."""
        self._offload(bench, features.LAYERWISE_OFFLOAD, self.streamed)

    def test_dummy_weights(self, bench: Engines) -> None:
        """A request runs with random weights, and their size is known beforehand."""
        if not self._offers(features.DUMMY_WEIGHTS):
            self._refused(bench, features.DUMMY_WEIGHTS, load_format="dummy")
            return
        real, dummy = bench.rig(batching="off"), bench.rig(batching="off", load_format="dummy")
        expect(
            (size := dummy.run(dummy.request()).frames.shape)
            == (wanted := real.plain().frames.shape),
            expected=f"frames {list(wanted)} with random weights too",
            got=list(size),
            remedy="Build every module through `loader.module`.",
        )
        weights = weigh(dummy.plan)
        missing = sorted(set(real.engine.forwards) - set(weights))
        expect(
            not missing,
            expected="the size of every component that is called is known before it is loaded",
            got=f"not that of {', '.join(missing)}",
            remedy="Build every module through `loader.module`, also on the meta device.",
        )

    def test_vae_tiling(self, bench: Engines) -> None:
        """Decoding in tiles is done, and hardly changes the picture."""
        if not self._offers(features.VAE_TILING):
            self._refused(bench, features.VAE_TILING, vae_tiling=True)
            return
        plain = bench.rig(batching="off")
        with _asked_for_tiling() as asked:
            tiled = bench.rig(batching="off", vae_tiling=True)
        expect(
            asked,
            expected="`load` asks `loader.vae_tiling`",
            got="nobody did",
            remedy="Build a decoder that works in tiles when it is set, or unlist 'vae-tiling'.",
        )
        one = plain.run(plain.request(**self.tiled)) if self.tiled else plain.plain()
        other = tiled.run(tiled.request(**self.tiled))
        shapes = one.frames.shape == other.frames.shape
        apart = np.abs(one.frames.astype(float) - other.frames).mean() / 255 if shapes else np.inf
        expect(
            apart < TILE_ERROR,
            expected=f"frames {list(one.frames.shape)} within a mean of {TILE_ERROR} of the whole",
            got=f"frames {list(other.frames.shape)}, {apart:.3g} apart",
            remedy="Blend tiles over an overlap as wide as the decoder sees.",
        )

    def test_previews(self, bench: Engines) -> None:
        """Whoever watches sees frames, and changes nothing."""
        rig = bench.rig(batching="off")
        request = rig.request(previews=2)
        watched = rig.run(request)
        shown = [event for event in rig.events(request, "preview") if event.frames is not None]
        shows = rig.plan.params_class.shows_previews
        steps = max((event.total for event in rig.events(request, "step")), default=0)
        wanted = shows and steps > 1
        expect(
            bool(shown) == wanted,
            expected=f"{'some' if wanted else 'no'} previews, since shows_previews={shows}",
            got=f"{len(shown)} in {steps} steps",
            remedy="Give the denoiser `preview` and the sampler `estimate`, or set "
            "`shows_previews = False` on the parameters.",
        )
        for event in shown:
            size = () if event.frames is None else event.frames.shape[1:]
            expect(
                size == watched.frames.shape[1:],
                expected=f"previews of the output's size {list(watched.frames.shape[1:])}",
                got=list(size),
                remedy="Decode the estimate as the result is decoded.",
            )
        expect_same(
            rig.plain(),
            watched,
            what="a request without and with previews",
            remedy="A preview may change no slot and draw no random number.",
        )

    def _offers(self, feature: str) -> bool:
        return feature in self.entry().spec.features

    def _refused(self, bench: Engines, feature: str, **options: Any) -> None:
        """The plan refuses what is not listed, naming it."""
        try:
            plan = bench.plan(**options)
        except FeatureError as error:
            expect(
                repr(feature) in str(error),
                expected=f"a refusal that names {feature!r}",
                got=str(error),
                remedy="Take names of features from `sgld.api.features`.",
            )
            return
        plan.close()
        broken(
            expected=f"{options} is refused, since {feature!r} is not listed",
            got="it is taken",
            remedy="List the feature if it works.",
        )

    def _offload(self, bench: Engines, feature: str, which: str) -> None:
        if not self._offers(feature):
            self._refused(bench, feature, residency={"all": feature})
            return
        resident = bench.rig(batching="off")
        mover = FakeDeviceMover() if bench.bench.device == "cpu" else None
        plan = bench.plan(batching="off", residency={which: feature})
        with EngineRig(plan, self.params, mover=mover) as rig:
            found = rig.run(rig.request())
        expect_same(
            resident.plain(),
            found,
            what=f"resident weights and {feature}",
            remedy="Use weights in `forward` only, as parameters or buffers of the component; for "
            "layerwise-offload name the layers in `layer_groups()`.",
        )
        if mover is not None:
            expect(
                mover.uploads > 0,
                expected="weights that are moved",
                got="none were",
                remedy="Hand modules out in `Loaded.modules`, where the engine can move them.",
            )

    def _takes_steps(self, rig: EngineRig) -> bool:
        return rig.defaults.get("num_inference_steps") == STEPS


def _uses_cfg(rig: EngineRig, **params: Any) -> bool:
    return rig.plan.params_class.model_validate(dict(rig.request(**params).params)).uses_cfg


def _forwards(rig: EngineRig, before: dict[str, int]) -> dict[str, int]:
    """Component → forwards since `before`, of those that a request repeats."""
    counts = {name: n - before.get(name, 0) for name, n in rig.engine.forwards.items()}
    return {name: count for name, count in counts.items() if count}


def _expect_close(alone: Output, shared: Output) -> None:
    error = np.abs(alone.frames.astype(int) - shared.frames).max()
    limit: float = 1
    what = "frames within 1/255"
    if alone.latents is not None and shared.latents is not None:
        error, limit = relative_l2(shared.latents, alone.latents), BATCH_ERROR
        what = f"latents within a relative error of {BATCH_ERROR:g}"
    expect(
        error <= limit,
        expected=f"a request alone and in a shared forward: {what}",
        got=f"{error:.3g}",
        remedy="Rows must not see each other; what differs by request goes into tensors with rows.",
    )


@contextmanager
def _asked_for_tiling() -> Iterator[list[bool]]:
    """Notes whether anybody reads `Loader.vae_tiling` meanwhile."""
    asked: list[bool] = []
    slot: Any = vars(Loader)["vae_tiling"]

    class Asked:
        def __get__(self, loader: Any, kind: Any = None) -> Any:
            asked.append(True)
            return slot.__get__(loader, kind)

        def __set__(self, loader: Any, value: Any) -> None:
            slot.__set__(loader, value)

    Loader.vae_tiling = Asked()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield asked
    finally:
        Loader.vae_tiling = slot
