"""The world that comes with the distribution: small, steered, and as its renderer draws it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import safe_open

from sgld.bundled import only_model
from sgld.plugins.catalog import load_catalog
from sgld_demo.plugin import DEFAULTS, MODEL, STEPS

FOLDER = Path(str(resources.files("sgld_demo"))) / "world"
Frames = npt.NDArray[np.float32]


def frames_of(chunk: Any) -> Frames:
    return np.array(chunk.frames, np.float32)


def walk(world: Any, keys: list[list[str]], chunks: int, **given: Any) -> Frames:
    """Frames [T, 96, 160, 3] in 0..255 of a session with these keys, one list per latent frame."""
    with world.session(**given) as session:
        session.send("camera_actions", keys)
        return np.concatenate([frames_of(session.step()) for _ in range(chunks)])


def test_it_is_the_model_where_none_is_named() -> None:
    catalog = load_catalog({"SGLD_PLUGINS": "demo,lingbot,wan"})
    entry = only_model(catalog)
    assert entry is not None
    assert (entry.spec.id, entry.spec.pipeline, entry.dist) == (MODEL, "lingbot-world", "sgld-demo")
    assert only_model(load_catalog({"SGLD_PLUGINS": "lingbot,wan"})) is None


def test_the_wheel_stays_below_forty_megabytes_and_holds_half_precision() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert 20e6 < sum(path.stat().st_size for path in files) < 40e6
    for path in FOLDER.rglob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            names = list(tensors.keys())
            assert names
            assert {tensors.get_slice(name).get_dtype() for name in names} == {"F16"}
    assert not list(FOLDER.rglob("*.bin"))


def test_the_card_says_what_is_in_the_files() -> None:
    card = (FOLDER / "README.md").read_text("utf-8")
    sizes = json.loads((FOLDER / "transformer" / "config.json").read_text())
    assert f"{sizes['num_layers']} layers" in card
    assert "Apache-2.0" in card
    total = 0
    for path in FOLDER.rglob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                total += int(np.prod(tensors.get_slice(name).get_shape(), dtype=np.int64))
    assert f"{total / 1e6:.2f} million" in card


def test_its_defaults_and_its_picture_are_taken(world: Any) -> None:
    plan = world.plan
    assert plan.files.name == MODEL
    assert plan.recognition.evidence.startswith("carried by sgld-demo")
    assert Path(plan.picture) == FOLDER / "start.png"
    [(request, _)] = world.requests()
    assert request.params["prompt"] == DEFAULTS["prompt"]
    assert tuple(request.params["dmd_denoising_steps"]) == STEPS
    assert (request.params["width"], request.params["height"]) == (160, 96)
    assert len(request.images) == 1
    other = np.zeros((96, 160, 3), np.uint8)
    [(request, _)] = world.requests(images=[other])
    assert len(request.images) == 1
    assert not request.images[0].any()


def test_it_begins_with_its_picture_and_repeats_by_seed(world: Any) -> None:
    keys = [["w"]] * 6
    one, again, other = (walk(world, keys, 2, seed=seed) for seed in (5, 5, 6))
    assert one.shape == (21, 96, 160, 3)
    start = np.asarray(Image.open(FOLDER / "start.png"), np.float32)
    assert np.square(one[0] - start).mean() < 255**2 * 10**-3.0  # 30 dB
    assert np.array_equal(one, again)
    assert np.abs(one - other).mean() > 0.3


def test_a_walk_forward_is_what_the_renderer_draws(world: Any) -> None:
    """On worlds that training has never seen: nearer to the truth than a picture that stands still,
    by as much as the model card says."""
    from demo_world import data, looks, metrics, motion

    count, chunks = 2, 3
    clips = data.sample(count, chunks, 909, torch.device("cpu"), switch=0.0, plain=True)
    keys = [["w"]] * (3 * chunks)
    axes = motion.Axes(*(axis.repeat(count, 1) for axis in motion.axes_of(keys)))
    start = motion.Start(*(value[:, 0] for value in clips.path))
    clips = clips._replace(axes=axes, path=motion.follow(axes, clips.told_from, start))
    truth = clips.draw(torch.float32).transpose(1, 2)  # [B, T, 3, H, W]
    made: list[torch.Tensor] = []
    for clip in range(count):
        first = ((truth[clip, 0].permute(1, 2, 0) + 1) * 127.5).round().byte().numpy()
        prompt = looks.plain_caption(looks.ALL[int(clips.looks[clip, 0])])
        frames = walk(world, keys, chunks, seed=clip, first_frame=first, prompt=prompt)
        made.append(torch.from_numpy(frames).permute(0, 3, 1, 2) / 127.5 - 1)
    result = torch.stack(made)
    for begin, end, floor in ((9, 21, 30.0), (21, 33, 28.0)):
        part, real = result[:, begin:end].flatten(0, 1), truth[:, begin:end].flatten(0, 1)
        still = truth[:, :1].expand(-1, end - begin, -1, -1, -1).flatten(0, 1)
        near = metrics.psnr(part, real)
        assert near > floor
        assert near > metrics.psnr(still, real) + 4
        assert 0.85 < metrics.edge_energy(part) / metrics.edge_energy(real) < 1.15


def test_another_prompt_changes_the_look_within_two_chunks(world: Any) -> None:
    with world.session(seed=3, prompt="day clear warm tall") as session:
        before = [frames_of(session.step()) for _ in range(2)][-1]
        session.send("prompt", "a clear cold night among tall columns")
        after = [frames_of(session.step()) for _ in range(2)][-1]
    red, blue = (after[-1].mean((0, 1))[channel] for channel in (0, 2))
    assert after[-1].mean() < 0.6 * before[-1].mean()
    assert blue > 1.3 * red
    assert before[-1].mean((0, 1))[0] > 100
