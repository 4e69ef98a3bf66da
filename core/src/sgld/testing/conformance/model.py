"""What every model keeps that a distribution carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from sgld.api.errors import SgldError
from sgld.carried import Carried, examine
from sgld.media.images import load_image
from sgld.messages import Output
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.bench import Bench
from sgld.testing.conformance.base import Contract, broken, expect
from sgld.testing.conformance.pipeline_base import expect_other, expect_same
from sgld.testing.engine_rig import PROMPT, EngineRig

CARD: Final = "README.md"
FIRST: Final = "Mend what the tests above say; else see what `sgld generate` says of it."
LEAST_CARD: Final = 80
"""Characters; fewer do not say what a model is, what it cannot do and under which licence it is."""


class ModelContract(Contract):
    """A model: all of it is in the wheel, and it is what its record says.

        class TestVillage(ModelContract):
            model = "acme:village"

    Args:
        model: its id.
        params: parameters of the two requests that are made, over the model's own defaults; fewer
            frames, for example.
    """

    kind: ClassVar[str] = "model"
    named_by: ClassVar[str] = "model"
    told: ClassVar[tuple[str, ...]] = ("model", "params")
    model: ClassVar[str] = ""
    params: ClassVar[Mapping[str, Any]] = {}
    _seen: ClassVar[Carried | None] = None
    _first: ClassVar[Output | None] = None

    def test_its_folder_is_in_the_package(self) -> None:
        """The folder that the record names is there, in the package as it is installed."""
        self._expect("folder", "a folder of the package")

    def test_its_weights_are_whole(self) -> None:
        """Every weight file is whole, none is missing, and none can run code."""
        self._expect("weights", "whole .safetensors files and no others")

    def test_its_pipeline_recognises_it(self) -> None:
        """By its files, so that a copy of the folder is served just as the model is."""
        self._expect("pipeline", f"a checkpoint of {self.entry().spec.pipeline!r}")

    def test_a_server_would_start_with_it(self) -> None:
        """What `sgld serve` refuses before it loads anything, it does not refuse of this."""
        self._expect("start", "a model that is served")

    def test_its_defaults_are_taken(self) -> None:
        """They are parameters that its pipeline takes, with values in range."""
        self._expect("defaults", "parameters that the pipeline takes")

    def test_its_pictures_are_pictures(self) -> None:
        """`picture` and `blank` are there and can be read."""
        self._expect("picture", "pictures that can be read")

    def test_says_what_it_is(self) -> None:
        """The record has a summary, and the folder a model card that names the licence."""
        expect(
            self.entry().spec.summary.strip(),
            expected="a summary, which lists and docs show",
            got="none",
            remedy='Add summary="..." in one line.',
        )
        folder = self._examined().folder
        card = folder / CARD if folder else Path(CARD)
        text = card.read_text("utf-8") if card.is_file() else ""
        expect(
            len(text.strip()) >= LEAST_CARD and "licen" in text.lower(),
            expected=f"a model card {CARD} in the folder that names the licence of the weights",
            got=f"{len(text.strip())} characters" if text else "none",
            remedy="Write data, training, metrics, limits and licence into it.",
        )

    def test_makes_something(self, sgld_bench: Bench) -> None:
        """A request with its own defaults gives frames that show something."""
        output = self._output(sgld_bench)
        frames = output.frames
        expect(
            frames is not None and float(np.std(frames)) > 1,
            expected="frames in which there is something to see",
            got="none" if frames is None else f"one colour, {frames.reshape(-1)[:3].tolist()}",
            remedy="Look at what `sgld generate` makes of it: are these the weights of this model?",
        )

    def test_one_seed_repeats(self, sgld_bench: Bench) -> None:
        """The same seed gives the same again, another one something else."""
        first = self._output(sgld_bench)
        with self._rig(sgld_bench) as rig:
            again, other = self._run(rig, 1), self._run(rig, 2)
        expect_same(
            first,
            again,
            what="two requests with one seed",
            remedy="Its pipeline must draw random numbers only from the request's seed.",
        )
        expect_other(
            first,
            other,
            what="two requests with different seeds",
            remedy="Its network ignores its noise: train it on more, or say so in the card and "
            "override this test with xfail.",
        )

    # -- what the tests ask -----------------------------------------------------------------------

    @classmethod
    def _examined(cls) -> Carried:
        if vars(cls).get("_seen") is None:
            cls._seen = examine(cls.entry(), cls.catalog())
        assert cls._seen is not None
        return cls._seen

    def _expect(self, part: str, wanted: str) -> None:
        __tracebackhide__ = True
        faults = [fault for fault in self._examined().faults if fault.part == part]
        expect(
            not faults,
            expected=wanted,
            got=" ".join(fault.text for fault in faults),
            remedy=" ".join(dict.fromkeys(fault.remedy for fault in faults)),
        )

    def _rig(self, bench: Bench) -> EngineRig:
        """An engine of the model as a user would have it, on the device under test."""
        given = {"model_path": self.id(), "device": bench.device}
        options = build(ServingOptions, [Layer("call", given)]).params
        try:
            rig = EngineRig(make_plan(options, environ={}, catalog=self.catalog()))
        except SgldError as error:
            broken(expected="a model that can be loaded", got=str(error), remedy=FIRST)
        rig.defaults = dict(self.params)
        if "prompt" not in {**rig.plan.preset_defaults, **self.params}:
            rig.defaults["prompt"] = PROMPT
        return rig

    @staticmethod
    def _run(rig: EngineRig, seed: int) -> Output:
        path = rig.plan.local_layer.values.get("image_path", "")
        images = [load_image(Path(path))] if path else None
        try:
            return rig.run(rig.request(seed=seed, images=images))
        except SgldError as error:
            broken(expected="a request that is taken", got=str(error), remedy=FIRST)

    def _output(self, bench: Bench) -> Output:
        """The output of seed 1, made once for each class."""
        cls = type(self)
        if vars(cls).get("_first") is None:
            with self._rig(bench) as rig:
                cls._first = self._run(rig, 1)
        assert cls._first is not None
        return cls._first
