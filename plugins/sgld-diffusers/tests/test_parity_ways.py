"""Other ways to the same numbers: another class of a checkpoint, a server, offloaded components."""

from __future__ import annotations

import dataclasses
import inspect
import io
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers_oracle
import family_cases
import httpx
import numpy as np
import pytest
from PIL import Image

import sgld
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.parity import ParityTable
from sgld.testing.served import served_here
from sgld_diffusers.tiny import FAMILIES

pytestmark = [
    pytest.mark.parity,
    # diffusers' own, with NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

LIMIT = 1e-5
TABLE = ParityTable("diffusers")
ALSO = [(family.id, name) for family in FAMILIES.values() for name in family.also]
MASKED = [(family.id, name) for family in FAMILIES.values() for name in family.masked]


def from_picture(name: str, class_name: str) -> dict[str, Any]:
    """The family's request with a picture; some of these classes take their size from it."""
    params = family_cases.ours(FAMILIES[name], pictures=1, strength=0.6, num_inference_steps=5)
    call = getattr(diffusers_oracle.diffusers, class_name).__call__
    taken = inspect.signature(call).parameters
    return {
        key: value
        for key, value in params.items()
        if key in taken or key in ("images", "seed", "prompt")
    }


@pytest.mark.parametrize(("name", "class_name"), ALSO, ids=lambda value: value)
def test_another_class_of_the_checkpoint(
    name: str, class_name: str, checkpoint: Callable[[str], Path]
) -> None:
    folder, params = checkpoint(name), from_picture(name, class_name)
    theirs = {key: value for key, value in params.items() if key != "images"}
    wanted = diffusers_oracle.run(folder, class_name, image=family_cases.pictures(1)[0], **theirs)
    with family_cases.load(folder, pipeline_class_name=class_name) as model:
        cls: Any = model.plan.params_class
        assert "image-to-image" in cls.tasks
        result = model.generate(want_latents=True, **params)
        assert isinstance(result, sgld.Result)
        steps = [event for event in model.stream(**params) if event.kind == "step"]
    TABLE.check(f"{class_name}, latents", result.outputs[0].latents, wanted.latents, LIMIT)
    TABLE.check(f"{class_name}, frames", result.frames, wanted.pixels, LIMIT)
    assert len(steps) == wanted.calls < 5  # a part of the picture is kept


@pytest.mark.parametrize(("name", "class_name"), MASKED, ids=lambda value: value)
def test_a_mask(name: str, class_name: str, checkpoint: Callable[[str], Path]) -> None:
    folder, params = checkpoint(name), from_picture(name, class_name)
    mask = np.zeros((family_cases.SIDE, family_cases.SIDE), dtype=bool)
    mask[16:40, 24:64] = True
    theirs = {key: value for key, value in params.items() if key != "images"}
    theirs |= {"image": family_cases.pictures(1)[0], "mask_image": Image.fromarray(mask)}
    wanted = diffusers_oracle.run(folder, class_name, **theirs)
    with family_cases.load(folder, pipeline_class_name=class_name) as model:
        cls: Any = model.plan.params_class
        assert cls.takes_mask
        [(request, _)] = model.requests(want_latents=True, **params)
        *_, made, last = model.run([dataclasses.replace(request, mask=mask)])
        assert last.kind == "done"
        [*_, refused] = model.run([dataclasses.replace(request, id="without")])
    assert made.output is not None
    TABLE.check(f"{class_name}, latents", made.output.latents, wanted.latents, LIMIT)
    TABLE.check(f"{class_name}, frames", made.output.frames, wanted.pixels, LIMIT)
    assert refused.kind == "failed"
    assert "mask" in refused.message


@pytest.fixture(scope="module")
def server(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of SDXL with its engine in this process."""
    options = {"backend": "diffusers", "device": "cpu", "dtype": "float32"}
    with served_here(str(checkpoint("sdxl")), tmp_path_factory.mktemp("server"), options) as served:
        yield served.api


def test_through_a_server(server: str, reference: Callable[..., Any]) -> None:
    body = family_cases.ours(FAMILIES["sdxl"])
    body["size"] = f"{body.pop('width')}x{body.pop('height')}"
    answer = httpx.post(
        f"{server}/images/generations",
        json={**body, "response_format": "b64_json"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    [made] = answer.json()["data"]
    picture = Image.open(io.BytesIO(b64decode(made["b64_json"])))
    TABLE.check("sdxl by HTTP, frames", np.asarray(picture)[None], reference("sdxl").pixels, LIMIT)


def test_a_server_names_what_it_refuses(server: str) -> None:
    body = {"prompt": "a kite", "ip_adapter_image": "x", "banana": 1}
    answer = httpx.post(f"{server}/images/generations", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 400
    assert "ip_adapter_image" in answer.text
    assert "banana" in answer.text


def test_two_outputs_are_their_own_seeds(
    checkpoint: Callable[[str], Path], reference: Callable[..., Any]
) -> None:
    params = family_cases.ours(FAMILIES["sd3"], num_outputs_per_prompt=2)
    with family_cases.load(checkpoint("sd3")) as model:
        result = model.generate(want_latents=True, **params)
    assert isinstance(result, sgld.Result)
    for index, output in enumerate(result.outputs):
        wanted = reference("sd3", seed=7 + index)
        TABLE.check(f"sd3 output {index} of 2, latents", output.latents, wanted.latents, LIMIT)


@pytest.mark.parametrize("name", ["sdxl", "wan-vace"])
def test_offloaded_components(
    name: str, checkpoint: Callable[[str], Path], reference: Callable[..., Any]
) -> None:
    groups = dict.fromkeys(("dit", "text_encoder", "vae"), "component-offload")
    with family_cases.load(checkpoint(name), residency=groups) as model:
        result = model.generate(want_latents=True, **family_cases.ours(FAMILIES[name]))
    assert isinstance(result, sgld.Result)
    wanted = reference(name)
    TABLE.check(f"{name} offloaded, latents", result.outputs[0].latents, wanted.latents, LIMIT)
    TABLE.check(f"{name} offloaded, frames", result.frames, wanted.pixels, LIMIT)


def test_a_native_family_goes_first(checkpoint: Callable[[str], Path]) -> None:
    for backend, pipeline in {"auto": "sana", "native": "sana", "diffusers": "diffusers"}.items():
        options = ServingOptions(model_path=str(checkpoint("sana")), backend=backend)
        assert make_plan(options).spec.id == pipeline


@pytest.mark.parametrize("name", ["sdxl", "ltx-video"])
def test_by_its_tiny_name(name: str, reference: Callable[..., Any]) -> None:
    """Nothing but the name is given: no native plugin claims the family."""
    with sgld.load(f"tiny:{name}", device="cpu", dtype="float32") as model:
        result = model.generate(**family_cases.ours(FAMILIES[name]))
    assert isinstance(result, sgld.Result)
    TABLE.check(f"tiny:{name}, frames", result.frames, reference(name).pixels, LIMIT)
