"""What a request to a pipeline gives: the right media, and the same again."""

from __future__ import annotations

import random

import numpy as np
import torch

from sgld.api.errors import ParameterError
from sgld.messages import Output
from sgld.testing.bench import Engines
from sgld.testing.conformance.base import expect
from sgld.testing.conformance.pipeline_base import OfPipeline, expect_other, expect_same
from sgld.testing.engine_rig import STEPS, EngineRig, picture
from sgld.testing.watching import Watch

APART = "Keep what belongs to a request in the job's slots; a pipeline object serves all requests."


class Requests(OfPipeline):
    """Requests, one after the other and at once."""

    def test_makes_what_it_declares(self, bench: Engines) -> None:
        """Pictures for tasks that end in `-image`, clips for `-video`, of the size asked for."""
        rig = bench.rig(batching="off")
        output = rig.plain()
        wanted = {task.rpartition("-")[2] for task in self.entry().spec.tasks}
        expect(
            output.kind in wanted,
            expected=f"media of a kind that the tasks name: {' or '.join(sorted(wanted))}",
            got=f"{output.kind!r}",
            remedy="Correct the kind in `media`, or `tasks` of the record.",
        )
        _expect_size(output)
        used = output.parameters
        fps = used.get("fps", 0) if output.kind == "video" else 0
        expect(
            output.fps == fps,
            expected=f"fps={fps} of a {output.kind}",
            got=output.fps,
            remedy="`media` gives the request's fps for a clip, and 0 for a picture.",
        )

    def test_other_sizes_and_steps(self, bench: Engines) -> None:
        """Another size and another count of steps work too, or the parameters refuse them."""
        rig = bench.rig(batching="off")
        plain = rig.plain()
        wishes = [dict(self.resized) or {"width": 2 * plain.parameters["width"]}]
        if rig.defaults.get("num_inference_steps") == STEPS:
            wishes.append({"num_inference_steps": STEPS + 1})
        for wish in wishes:
            try:
                request = rig.request(**wish)
            except ParameterError as error:
                refused = {problem.field for problem in error.problems}
                expect(
                    refused <= {*wish, "width", "height"} and not self.resized,
                    expected=f"a request with {wish}, or a refusal that names what is wrong in it",
                    got=str(error),
                    remedy="Refuse values by the name of their field; a size that is taken stands "
                    "in `resized` of the test class.",
                )
                continue
            other = rig.run(request)
            _expect_size(other)
            expect_other(
                plain,
                other,
                what=f"requests without and with {wish}",
                remedy="Use the request's size and steps, or refuse others in its parameters.",
            )

    def test_values_are_finite_and_in_range(self, bench: Engines) -> None:
        """Frames lie within 0..1 (or are uint8), latents are finite."""
        rig = bench.rig(batching="off")
        watch = Watch(rig.pipeline)
        try:
            rig.run(rig.request())
        finally:
            watch.release()
        media = watch.media[0]
        frames = media.frames
        if frames.dtype != torch.uint8:
            low, high = float(frames.min()), float(frames.max())
            expect(
                low >= 0 and high <= 1,
                expected="frames within 0..1",
                got=f"{low:.4g} to {high:.4g}",
                remedy="Clamp in the decode stage: what is outside is cut off later anyway.",
            )
        finite = media.latents is None or bool(torch.isfinite(media.latents).all())
        expect(
            finite,
            expected="finite latents",
            got="NaN or infinity",
            remedy="Look for a division by zero, or for weights that are not initialised.",
        )
        flat = frames.float().std()
        expect(
            float(flat) > 0,
            expected="frames that are not one flat colour",
            got=f"all values are {float(frames.flatten()[0]):.4g}",
            remedy="A tiny checkpoint needs random weights everywhere: see "
            "sgld.testing.randomness.reinitialise.",
        )

    def test_same_seed_same_bytes(self, bench: Engines) -> None:
        """The same request gives the same bits, whatever the process drew meanwhile."""
        rig = bench.rig(batching="off")
        expect_same(
            rig.plain(),
            _disturbed(rig, 20261),
            what="one request run twice",
            remedy="Draw noise with `job.noise` or `job.generator` only.",
        )

    def test_other_seed_differs(self, bench: Engines) -> None:
        """The seed has an effect."""
        rig = bench.rig(batching="off")
        expect_other(
            rig.plain(),
            rig.run(rig.request(seed=2)),
            what="seeds 1 and 2",
            remedy="Begin with noise from `job.noise`.",
        )

    def test_prompt_has_an_effect(self, bench: Engines) -> None:
        """Another prompt, another result."""
        rig = bench.rig(batching="off")
        expect_other(
            rig.plain(),
            rig.run(rig.request(prompt="two red kites over a stormy sea, oil on canvas")),
            what="two prompts",
            remedy="Hand the text's embedding to the denoiser; memo keys must hold the prompt.",
        )

    def test_picture_has_an_effect(self, bench: Engines) -> None:
        """Where pictures are taken, another one gives another result."""
        rig = bench.rig(batching="off")
        if not rig.plan.params_class.takes_image:
            return
        one, other = picture(), np.ascontiguousarray(picture()[::-1, ::-1])
        expect_other(
            rig.run(rig.request(images=[one], **self.pictured)),
            rig.run(rig.request(images=[other], **self.pictured)),
            what="two input pictures",
            remedy="Use `job.request.images`; memo keys must hold the picture.",
        )

    def test_outputs_use_following_seeds(self, bench: Engines) -> None:
        """Output i of a request is the one that seed + i gives alone."""
        rig = bench.rig(batching="off")
        request = rig.request(seed=5, num_outputs_per_prompt=2)
        rig.run(request)
        outputs = {e.output.index: e.output for e in rig.events(request, "output") if e.output}
        expect(
            sorted(outputs) == [0, 1],
            expected="two outputs with the indices 0 and 1",
            got=sorted(outputs),
            remedy="`media` is asked once for each output and gives that one alone.",
        )
        expect_same(
            outputs[1],
            rig.run(rig.request(seed=6)),
            what="output 1 of seed 5, and seed 6 alone",
            remedy=APART,
        )

    def test_requests_share_no_state(self, bench: Engines) -> None:
        """A request gives the same bits after another one."""
        rig = bench.rig(batching="off")
        first = rig.plain()
        rig.run(rig.request(seed=2, prompt="another text altogether"))
        again = rig.run(rig.request(seed=1))
        expect_same(first, again, what="a request before and after another one", remedy=APART)

    def test_interleaved_equals_alone(self, bench: Engines) -> None:
        """Two requests whose steps take turns give what each gives alone."""
        rig = bench.rig(batching="off")
        wish = {"seed": 2, "prompt": "rain on a window"}
        alone = [rig.plain(), rig.run(rig.request(**wish))]
        first, second = rig.request(), rig.request(**wish)
        rig.submit(first)
        rig.turn(2)
        rig.submit(second)
        rig.turn()
        for expected, request in zip(alone, (first, second), strict=True):
            found = rig.output(request)
            expect_same(expected, found, what="a request alone and beside another", remedy=APART)


def _expect_size(output: Output) -> None:
    __tracebackhide__ = True
    used = output.parameters
    frames = used.get("num_frames", 1) if output.kind == "video" else 1
    size = (frames, used["height"], used["width"], 3)
    expect(
        output.frames.shape == size,
        expected=f"frames {list(size)}, as the parameters say",
        got=list(output.frames.shape),
        remedy="Make what was asked for, round in `settle` and say so, or report it in `used`.",
    )


def _disturbed(rig: EngineRig, seed: int) -> Output:
    """Run one request with the process's own random numbers elsewhere."""
    before = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        return rig.run(rig.request())
    finally:
        torch.random.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
