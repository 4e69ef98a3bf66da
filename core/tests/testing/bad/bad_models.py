"""Models, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from sgld.api import Claims, ModelSpec, PipelineSpec, Plugin, Where, hookimpl
from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.params.inspected import Inspected
from sgld.testing import toy_checkpoint, toy_plugin
from sgld.testing.toy_world import DecodeFrames, ToyWorldPipeline
from sgld.testing.toy_world_params import ToyWorldParams

RUNS = {"test_makes_something", "test_one_seed_repeats"}
"""What cannot pass where no server would start."""
CARD = "# A toy\n\nRandom numbers, shown as coloured squares. Licence: Apache-2.0, as sgld.\n"
WEIGHTS = Path("transformer", "diffusion_pytorch_model.safetensors")
PACKAGE = "bad_models_files"


class Bad(NamedTuple):
    """What finds a fault, what makes it of a good folder, and what the record says."""

    found_by: set[str]
    spoil: Callable[[Path], Any] = lambda _: None
    record: dict[str, Any] = {}  # noqa: RUF012

    @property
    def attributes(self) -> dict[str, Any]:
        """What the test class has beside the id."""
        return {"beside": ("sgld.testing.toy_plugin",), "params": {"num_frames": 5}}


def _half(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def _index(folder: Path, **values: Any) -> None:
    path = folder / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _blank(folder: Path) -> None:
    path = folder / "vae" / "diffusion_pytorch_model.safetensors"
    save_file({key: np.zeros_like(value) for key, value in load_file(path).items()}, path)


class Dice(DecodeFrames):
    """Adds what no seed tells of."""

    def run(self, job: Job) -> StageRun:
        yield from super().run(job)
        job.slots.frames = job.slots.frames + torch.rand(())


class Restless(ToyWorldPipeline):
    """A toy world that never repeats."""

    def frame_stages(self, params: Any) -> Sequence[Stage]:
        return (Dice(),)


def refuse(files: Any, options: Any) -> Inspected:
    """What a pipeline says that takes no checkpoint at all."""
    return Inspected(ToyWorldParams, ("it is never content",))


BAD: dict[str, Bad] = {
    "bad:nowhere": Bad(
        {"test_its_folder_is_in_the_package", "test_says_what_it_is", *RUNS}, shutil.rmtree
    ),
    "bad:half": Bad({"test_its_weights_are_whole", *RUNS}, _half),
    "bad:lacking": Bad(
        {"test_its_weights_are_whole", *RUNS}, lambda folder: (folder / WEIGHTS).unlink()
    ),
    "bad:pickled": Bad(
        {"test_its_weights_are_whole"}, lambda folder: (folder / "extra.pt").write_bytes(b"x")
    ),
    "bad:other": Bad(
        {"test_its_pipeline_recognises_it"},
        lambda folder: _index(folder, _class_name="ToyVideoPipeline"),
    ),
    "bad:orphan": Bad(
        {"test_its_pipeline_recognises_it", *RUNS}, record={"pipeline": "toy-planet"}
    ),
    "bad:unserved": Bad(
        {"test_a_server_would_start_with_it", *RUNS},
        lambda folder: _index(folder, _class_name="Picky"),
        {"pipeline": "picky"},
    ),
    "bad:unknown": Bad({"test_its_defaults_are_taken", *RUNS}, record={"defaults": {"colour": 1}}),
    "bad:range": Bad({"test_its_defaults_are_taken", *RUNS}, record={"defaults": {"width": -64}}),
    "bad:picture": Bad(
        {"test_its_pictures_are_pictures", *RUNS},
        lambda folder: (folder / "first.png").write_bytes(b"no picture"),
        {"picture": "first.png"},
    ),
    "bad:lost-picture": Bad({"test_its_pictures_are_pictures", *RUNS}, record={"blank": "b.png"}),
    "bad:silent": Bad({"test_says_what_it_is"}, record={"summary": ""}),
    "bad:bare": Bad({"test_says_what_it_is"}, lambda folder: (folder / "README.md").unlink()),
    "bad:blank": Bad({"test_makes_something"}, _blank),
    "bad:restless": Bad(
        {"test_one_seed_repeats"},
        lambda folder: _index(folder, _class_name="Restless"),
        {"pipeline": "restless"},
    ),
}
GOOD = {"good:one": Bad(set())}


def write(folder: Path) -> None:
    """A package that carries all of them."""
    for name, bad in {**BAD, **GOOD}.items():
        place = folder / PACKAGE / _folder(name)
        toy_checkpoint.write_world(place)
        (place / "README.md").write_text(CARD)
        bad.spoil(place)
    (folder / PACKAGE / "__init__.py").touch()


def _folder(name: str) -> str:
    return name.replace(":", "_")


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin(
        "bad-models", {"model": 1, "pipeline": 1}, summary="One fault each", needs=("toy",)
    )


@hookimpl
def sgld_pipelines() -> Iterator[PipelineSpec]:
    [toy] = [spec for spec in toy_plugin.sgld_pipelines() if spec.id == "toy-world"]
    for name, more in (
        ("picky", {"inspect": f"{__name__}:refuse"}),
        ("restless", {"target": f"{__name__}:Restless"}),
    ):
        where = Where("model_index.json", "_class_name", "==", name.capitalize())
        yield toy._replace(id=name, claims=Claims(rules=((where,),)), blueprints={}, **more)


@hookimpl
def sgld_models() -> Iterator[ModelSpec]:
    for name, bad in {**BAD, **GOOD}.items():
        said = {"pipeline": "toy-world", "summary": "A toy", **bad.record}
        yield ModelSpec(id=name, folder=f"{PACKAGE}:{_folder(name)}", **said)
