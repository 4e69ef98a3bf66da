"""Every stage in miniature, one after the other, and what a server makes of the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
import train
from demo_world import (
    data,
    judges,
    looks,
    motion,
    network,
    pool,
    rollout,
    train_dit,
    train_vae,
    vae,
)
from demo_world.run import Run, load_half, save_half
from export import export

import sgld

CPU = torch.device("cpu")
SETTINGS = train.TINY_DIT


def _run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *words, "--tiny", "--device", "cpu"])
    train.main()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for stage in ("vae", "decoder", "dit"):
            _run(monkeypatch, stage, "--minutes", "9", "--out", str(out))
    return out


def test_every_stage_leaves_weights_a_log_and_pictures(trained: Path) -> None:
    files = {path.name for path in trained.iterdir()}
    assert files == {
        *("vae-1.safetensors", "decoder-1.safetensors", "world-1.safetensors"),
        *(f"{name}.{end}" for name in ("vae", "decoder", "dit") for end in ("json", "png")),
    }
    for name in ("vae", "decoder", "dit"):
        log = json.loads((trained / f"{name}.json").read_text())
        assert log["steps"] == 4
        assert log["progress"]
        assert log["held_out"]


def test_a_stage_goes_on_from_what_is_there(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time left nothing is trained: the weights come out as they went in."""
    common = ("--minutes", "0", "--resume", str(trained), "--out", str(tmp_path))
    _run(monkeypatch, "dit", "--vae", str(trained), *common)
    before, after = (load_half(folder, "world") for folder in (trained, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "dit.json").read_text())["steps"] == 0


@pytest.fixture(scope="module")
def checkpoint(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    export(trained, trained, folder, SETTINGS.sizes)
    return folder


def test_training_goes_on_from_an_exported_checkpoint(
    trained: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("--minutes", "0", "--resume", str(checkpoint), "--out", str(tmp_path))
    _run(monkeypatch, "dit", "--vae", str(checkpoint), *common)
    before, after = (load_half(folder, "world") for folder in (trained, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    one, two = (train_vae.load(folder, CPU) for folder in (trained, checkpoint))
    for ours, theirs in zip(one[0].parameters(), two[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(one[1], two[1])
    assert torch.equal(one[2], two[2])


def test_the_evaluation_judges_a_checkpoint(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its parts, on a model that has learned nothing: the same seed gives the same frames, and
    it is far from the renderer."""
    height, width = SETTINGS.size
    words = ("--clips", "1", "--frames", "100", "--size", f"{height}x{width}")
    words = ("--model", str(checkpoint), "--out", str(tmp_path), *words)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *words])
    evaluate.main()
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["seeds"]["same"] == 0
    assert found["walks"]["chunk_8"]["psnr"] < 25
    assert found["walks"]["chunk_8"]["first_frame_held"] > 5
    assert found["stability"]["finite"]
    assert found["stability"]["walks"] == len(found["stability"]["windows"]) == 1
    assert len(found["switch"]["right_at_chunk"]) == 8
    assert found["made_up"]["looks"] == 1
    assert found["steering"]["drawn"]["walk"] < found["steering"]["made"]["walk"]
    assert {path.name for path in tmp_path.glob("*.png")} == {
        *("walks.png", "stability.png", "switch.png", "made_up.png")
    }


def test_the_decoder_alone_was_changed_by_the_adversary(trained: Path) -> None:
    before, after = load_half(trained, "vae"), load_half(trained, "decoder")
    assert after
    assert all(name.startswith(("decoder.", "post_quant_conv.")) for name in after)
    assert any(not torch.equal(before[name], after[name]) for name in after)


def test_another_decoder_for_the_same_latents(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("--vae", str(trained), "--out", str(tmp_path), "--minutes", "9", "--steps", "2")
    _run(monkeypatch, "decoder", "--decoder-base", "16", *common)
    (tmp_path / "vae-1.safetensors").symlink_to(trained / "vae-1.safetensors")
    model, _, _ = train_vae.load(tmp_path, CPU)
    other, _, _ = train_vae.load(trained, CPU)
    assert model.config.decoder_base_dim == 16
    assert torch.equal(model.encoder.conv_in.weight, other.encoder.conv_in.weight)


def test_a_stage_without_its_input_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("decoder", "dit"):
        with pytest.raises(SystemExit, match="run the stage vae"):
            _run(monkeypatch, stage, "--minutes", "1", "--out", str(tmp_path))


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    run = Run("dit", tmp_path, 1, {})
    with pytest.raises(SystemExit, match="not finite"):
        train_dit._save(run, {"a": torch.tensor([1.0, float("nan")])}, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_large_weights_are_saved_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo_world.run.SHARD", 500)
    tensors = {f"t{n}": torch.randn(100) for n in range(5)}
    assert len(save_half(tensors, tmp_path, "x")) == 3
    read = load_half(tmp_path, "x")
    assert all(torch.equal(read[name], tensors[name].half().float()) for name in tensors)


def test_the_server_plays_what_training_played(trained: Path, tmp_path: Path) -> None:
    """The exported checkpoint through sgld's own session: tokenizer, text encoder, first frame,
    camera, cache, sampler and decoder."""
    world = network.World(SETTINGS.sizes, size=SETTINGS.size)
    network.initialise(world, 1)
    with torch.no_grad():
        for parameter in world.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
        world.half().float()
    save_half(dict(world.named_parameters()), tmp_path, train_dit.STEM)
    number = export(trained, tmp_path, tmp_path / "checkpoint", SETTINGS.sizes)
    model, mean, std = train_vae.load(trained, CPU)
    clips = data.sample(1, 3, 4242, CPU, switch=0.0, plain=True)
    first = ((clips.draw(size=SETTINGS.size)[0, :, 0].permute(1, 2, 0) + 1) * 127.5).round().byte()
    picture = first.float().div(255).mul(2).sub(1).permute(2, 0, 1)[None, :, None]
    encoded = pool.encode(clips, vae.ClipVae(model), mean, std, CPU, SETTINGS.size)
    grey = torch.zeros(1, 3, 4 * (pool.SHOWN - 1), *SETTINGS.size)
    still, _ = vae.ClipVae(model).encode(torch.cat([picture, grey], 2))
    still = ((still - mean) / std).unflatten(2, (-1, 3)).transpose(1, 2)
    script = pool.script(encoded._replace(still=still), 0, 3)
    latents = rollout.generate(world, script, 7, size=SETTINGS.size)
    wanted = (rollout.decoded(model, latents, mean, std) + 1).mul(127.5).permute(0, 2, 3, 1)
    height, width = SETTINGS.size
    with sgld.load(str(tmp_path / "checkpoint"), device="cpu", dtype="float32") as served:
        given = {"width": width, "height": height, "num_frames": 21, "fps": 12, "seed": 7}
        caption = looks.plain_caption(looks.ALL[int(clips.looks[0, 0])])
        with served.session(first_frame=first.numpy(), prompt=caption, **given) as session:
            session.send("camera_actions", motion.levels_of(clips.axes, 0))
            made = np.concatenate([session.step().frames for _ in range(3)])
    assert number > 100_000
    assert made.std() > 10
    assert np.abs(made - wanted.numpy()).max() < 0.51


def test_the_judges_are_taught_examined_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "judges", "--out", str(tmp_path))
    found = json.loads((tmp_path / "judges.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert found["looks"].keys() == {*looks.Look._fields, "all"}
    assert judges.load(tmp_path) is not None
    for words, said in (
        (("judges", "--minutes", "1", "--out", "x"), "--minutes: the judges do not take it"),
        (("vae", "--out", "x"), "--minutes: the stage vae needs it"),
    ):
        with pytest.raises(SystemExit):
            _run(monkeypatch, *words)
        assert said in capsys.readouterr().err


def test_the_judges_that_are_here_tell_looks_and_steps() -> None:
    taught = judges.load(Path(train.__file__).parent / "judges")
    assert taught is not None
    found = judges.examine(*taught, seed=731, clips=12)
    assert min(found["looks"].values()) > 0.9
    assert max(value for name, value in found["steps"].items() if name.endswith("error")) < 0.15
    assert max(value for name, value in found["steps"].items() if name.endswith("still")) < 0.05
