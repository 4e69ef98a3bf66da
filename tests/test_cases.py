"""Public bug reports as small cases, on real tiny Wan models through the command line and Python.

The letters and numbers are those of the list of cases that the project was given; those that need a
server are with the server. A27 (one broken plugin) is `test_plugin_wheels.py`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import safetensors.numpy
from case_outcomes import Generate, Outcome, decoded
from PIL import Image

import sgld
from sgld.api.errors import ParameterError, RequestError
from sgld.cli.main import main
from sgld.media.saving import save_output
from sgld.media.sidecar import read_metadata

QUICK = ["--num-frames", "1", "--num-inference-steps", "1"]
SMALL = {"width": 32, "height": 32, "num_frames": 5, "num_inference_steps": 2}
PRECISIONS = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny checkpoints `t2v` and `i2v`; copy one before changing it."""
    from sgld_wan import testing

    folder = tmp_path_factory.mktemp("checkpoints")
    testing.tiny_t2v(folder / "t2v")
    testing.tiny_i2v(folder / "i2v")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test in a folder of its own, without settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SGLD_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str]) -> Generate:
    """`sgld generate` in this process, with JSON lines."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        start = time.perf_counter()
        code = main(["generate", *map(str, arguments), "--json", "--quiet"])
        seconds = time.perf_counter() - start
        shown = capsys.readouterr()
        out = "" if code == 2 and shown.err else shown.out
        return Outcome(code, out, shown.err, seconds)

    return run


# A01: input pictures off the model's grid


@pytest.mark.parametrize(("width", "height"), [(120, 128), (128, 120), (17, 31), (16, 16)])
def test_a01_a_picture_of_any_size_gives_an_output_of_the_reported_size(
    checkpoints: Path, generate: Generate, width: int, height: int
) -> None:
    Image.new("RGB", (width, height), (200, 60, 30)).save("in.png")
    model = checkpoints / "i2v"
    event = generate(model, "-p", "add a kite", "--image-path", "in.png", *QUICK).first
    assert decoded(event["path"]) == (event["width"], event["height"], 1)
    assert (event["width"] % 16, event["height"] % 16) == (0, 0)
    assert (event["width"] > event["height"]) == (width > height)
    assert event["parameters"]["width"] == event["width"]
    assert any("shape of the input picture" in line for line in event["warnings"])


def test_a01_an_explicit_size_is_never_changed(checkpoints: Path, generate: Generate) -> None:
    Image.new("RGB", (120, 128)).save("in.png")
    model = checkpoints / "i2v"
    arguments = [model, "-p", "add a kite", "--image-path", "in.png", *QUICK]
    generate(*arguments, "--size", "120x128").refuses(
        "--size='120x128'", "multiples of 16 pixels", "112x128 and 128x128"
    )
    assert decoded(generate(*arguments, "--size", "112x128").first["path"])[:2] == (112, 128)


# A02: frame counts


@pytest.mark.parametrize(
    ("asked", "made"),
    [({"num-frames": 1}, 1), ({"num-frames": 4}, 1), ({"num-frames": 5}, 5), ({"num-frames": 6}, 5),
     ({"num-frames": 8}, 5), ({"num-frames": 9}, 9), ({"seconds": 1, "fps": 10}, 9)],
)  # fmt: skip
def test_a02_the_reported_number_is_in_the_file(
    checkpoints: Path, generate: Generate, asked: Mapping[str, int], made: int
) -> None:
    flags = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    size = ["--size", "32x32", "--num-inference-steps", "1"]
    event = generate(checkpoints / "t2v", "-p", "x", *size, *flags).first
    assert (event["frames"], event["parameters"]["num_frames"]) == (made, made)
    assert decoded(event["path"]) == (32, 32, made)
    rounded = asked.get("num-frames", 10) != made
    assert any("num_frames is" in line for line in event["warnings"]) is rounded


@pytest.mark.parametrize("count", ["0", "-3"])
def test_a02_no_frames_are_refused(checkpoints: Path, generate: Generate, count: str) -> None:
    generate(checkpoints / "t2v", "-p", "x", "--num-frames", count).refuses(
        f"--num-frames='{count}'", "from 1 to"
    )


# A03: steps


@pytest.mark.parametrize("way", ["flag", "file", "environment", "python"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "ten", "true", "100001"])
def test_a03_wrong_steps_are_refused_everywhere(
    checkpoints: Path,
    generate: Generate,
    monkeypatch: pytest.MonkeyPatch,
    t2v: sgld.Model,
    way: str,
    value: str,
) -> None:
    words = "must be a whole number from 1 to 1000 (steps)"
    arguments = [checkpoints / "t2v", "-p", "x", *QUICK[:2]]
    if way == "python":
        typed = {"ten": "ten", "true": True}.get(value)
        number = float(value) if "." in value else value if typed is not None else int(value)
        with pytest.raises(ParameterError, match="num_inference_steps") as caught:
            t2v.generate(prompt="x", num_inference_steps=typed if typed is not None else number)
        assert words in str(caught.value)
        return
    if way == "flag":
        arguments += ["--num-inference-steps", value]
    elif way == "file":
        Path("c.yaml").write_text(f"num_inference_steps: {value}\n", encoding="utf-8")
        arguments += ["--config", "c.yaml"]
    else:
        monkeypatch.setenv("SGLD_NUM_INFERENCE_STEPS", value)
    generate(*arguments).refuses("steps", words)


def test_a03_null_is_the_models_own(checkpoints: Path, generate: Generate) -> None:
    Path("c.yaml").write_text("num_inference_steps: null\n", encoding="utf-8")
    event = generate(
        checkpoints / "t2v", "-p", "x", "--config", "c.yaml", "--size=16x16", "--num-frames=1"
    ).first
    assert event["parameters"]["num_inference_steps"] == 8  # the preset of tiny checkpoints


# A04: file names from prompts


def test_a04_a_long_prompt_twice_in_one_second(checkpoints: Path, generate: Generate) -> None:
    prompt = "kite" * 1000
    arguments = [checkpoints / "t2v", "-p", prompt, "--size", "16x16", *QUICK, "--seed", "1"]
    paths = [Path(generate(*arguments).first["path"]) for _ in range(2)]
    assert paths[0] != paths[1]
    for path in paths:
        assert len(os.fsencode(path.name)) <= 255
        assert decoded(path) == (16, 16, 1)
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert record["parameters"]["prompt"] == prompt
        assert record["versions"]["sgld-wan"] == sgld.__version__
        embedded = read_metadata(path)
        assert embedded["parameters"]["prompt"] == prompt


# A05: seeds


@pytest.fixture(scope="module")
def t2v(checkpoints: Path) -> Iterator[sgld.Model]:
    """The text-to-video model, one call per forward."""
    with sgld.load(str(checkpoints / "t2v"), batching="off") as model:
        yield model


def test_a05_every_output_can_be_made_again_alone(checkpoints: Path, t2v: sgld.Model) -> None:
    three = t2v.generate(prompt="a lamp", seed=11, num_outputs_per_prompt=3, **SMALL)
    assert [output.seed for output in three.outputs] == [11, 12, 13]
    alone = [t2v.generate(prompt="a lamp", seed=seed, **SMALL) for seed in (11, 12, 13)]
    for one, output in zip(alone, three.outputs, strict=True):
        assert one.frames.tobytes() == output.frames.tobytes()
    assert alone[0].frames.tobytes() != alone[1].frames.tobytes()
    with sgld.load(str(checkpoints / "t2v"), batching="off") as again:
        assert again.generate(prompt="a lamp", seed=12, **SMALL).frames.tobytes() == (
            alone[1].frames.tobytes()
        )
    # Rows that share a forward are added up in another order; in float32 that moves a pixel by
    # one of 256 levels at most.
    with sgld.load(str(checkpoints / "t2v"), batching=8) as batched:
        together = batched.generate(prompt="a lamp", seed=11, num_outputs_per_prompt=3, **SMALL)
    for one, output in zip(alone, together.outputs, strict=True):
        assert np.abs(one.frames.astype(int) - output.frames.astype(int)).max() <= 1


# A06: number of outputs


def test_a06_four_are_four(checkpoints: Path, generate: Generate) -> None:
    arguments = [checkpoints / "t2v", "-p", "x", "--size", "16x16", *QUICK, "--seed", "1"]
    result = generate(*arguments, "--num-outputs-per-prompt", "4")
    events = result.events
    assert result.code == 0
    assert sorted(event["index"] for event in events) == [0, 1, 2, 3]
    assert {event["seed"] - event["index"] for event in events} == {1}
    assert len({Path(event["path"]).read_bytes() for event in events}) == 4


@pytest.mark.parametrize("count", ["0", "-1", "11", str(10**9), "two"])
def test_a06_other_numbers_are_refused(checkpoints: Path, generate: Generate, count: str) -> None:
    generate(checkpoints / "t2v", "-p", "x", "--num-outputs-per-prompt", count).refuses(
        "--num-outputs-per-prompt=", "from 1 to 10 (outputs)"
    )


# A07: guidance


def test_a07_guidance_reaches_the_sampler(t2v: sgld.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgld_wan.models.dit import WanTransformer

    forwards: list[int] = []
    forward = WanTransformer.forward

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        forwards.append(1)
        return forward(self, *arguments, **named)

    monkeypatch.setattr(WanTransformer, "forward", counted)

    def run(scale: float, **negative: str) -> tuple[bytes, int, Any]:
        forwards.clear()
        result = t2v.generate(prompt="a lamp", seed=3, guidance_scale=scale, **negative, **SMALL)
        return result.frames.tobytes(), len(forwards), result.parameters["guidance_scale"]

    unguided, steps = run(1.0), SMALL["num_inference_steps"]
    assert run(1.0, negative_prompt="blur") == unguided
    assert unguided[1:] == (steps, 1.0)
    blur, empty, own = run(5.0, negative_prompt="blur"), run(5.0, negative_prompt=""), run(5.0)
    assert {one[1:] for one in (blur, empty, own)} == {(2 * steps, 5.0)}
    assert len({unguided[0], blur[0], empty[0], own[0]}) == 4


# A14: absurd sizes


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--size", "90000x90000"], "the limit of this model is 8294400 pixels"),
     (["--size", "99999999x1"], "WIDTHxHEIGHT"), (["--size", "64x0"], "WIDTHxHEIGHT"),
     (["--size", "x"], "WIDTHxHEIGHT"), (["--size", "64*64"], "WIDTHxHEIGHT"),
     (["--size", "64x64x64"], "WIDTHxHEIGHT"), (["--width", "64"], "needs height beside it"),
     (["--num-frames", "100000"], "the limit of this model is 4093")],
)  # fmt: skip
def test_a14_absurd_sizes_cost_nothing(
    checkpoints: Path, generate: Generate, flags: list[str], words: str
) -> None:
    arguments = [checkpoints / "t2v", "-p", "x", *flags]
    generate(*arguments)  # what is imported once does not count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = [generate(*arguments) for _ in range(5)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
    results[0].refuses(words)
    assert min(result.seconds for result in results) < 0.1


@pytest.mark.parametrize("spelling", ["auto", " 96 x 64 ", "96X64"])
def test_a14_other_spellings_of_a_size(
    checkpoints: Path, generate: Generate, spelling: str
) -> None:
    event = generate(checkpoints / "t2v", "-p", "x", *QUICK, "--size", spelling).first
    assert decoded(event["path"])[:2] == (96, 64)


# A19: spellings of a path


def test_a19_five_spellings_of_one_folder(
    checkpoints: Path, generate: Generate, place: Path
) -> None:
    folder = place / "sgld case" / "my model"
    shutil.copytree(checkpoints / "t2v", folder)
    (place / "link").mkdir()
    (place / "link" / "my model").symlink_to(folder)
    files = set()
    for spelling in (
        str(folder), f"{folder}/", f"{folder}//", "./sgld case/my model", "link/my model",
    ):  # fmt: skip
        plan = generate(spelling, "-p", "x", "--dry-run").out
        assert json.loads(plan)["plan"]["model"] == "my model", spelling
        event = generate(spelling, "-p", "x", "--size", "16x16", *QUICK, "--seed", "1").first
        with av.open(event["path"]) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        files.add(np.stack(frames).tobytes())
    assert len(files) == 1


# A20: a cache that only looks complete


@pytest.fixture
def hub(checkpoints: Path, place: Path) -> Path:
    """A hub cache with the snapshot of `acme/tiny`: links to blobs; gives the snapshot's folder."""
    repository = place / "home" / "hub" / "models--acme--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    (repository / "blobs").mkdir()
    source = checkpoints / "t2v"
    for number, path in enumerate(sorted(path for path in source.rglob("*") if path.is_file())):
        link = snapshot / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, repository / "blobs" / f"{number:040x}")
        up = "../" * len(link.relative_to(repository).parent.parts)
        link.symlink_to(f"{up}blobs/{number:040x}")
    return snapshot


@pytest.fixture
def offline(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub library in offline mode with that cache, and no socket to be had."""
    from huggingface_hub import constants

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was asked")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "home" / "hub"))
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def only_the_index(snapshot: Path) -> None:
    for child in snapshot.iterdir():
        if child.is_dir():
            shutil.rmtree(child)


def no_vae_weights(snapshot: Path) -> None:
    for path in (snapshot / "vae").glob("*.safetensors"):
        path.unlink()


def dangling_link(snapshot: Path) -> None:
    next((snapshot / "transformer").glob("*.safetensors")).resolve().unlink()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("damage", "words"),
    [(only_the_index, ["'vae'", "vae/config.json is missing", "'text_encoder'", "'tokenizer'"]),
     (no_vae_weights, ["'vae'", "diffusion_pytorch_model.safetensors is missing"]),
     (dangling_link, ["'transformer'", "is a broken link to"])],
)  # fmt: skip
def test_a20_an_incomplete_snapshot_is_named(
    hub: Path, generate: Generate, damage: Callable[[Path], None], words: list[str]
) -> None:
    damage(hub)
    result = generate("acme/tiny", "-p", "x")
    assert result.code == 2
    assert result.seconds < 2
    for word in [*words, "offline mode is on (HF_HUB_OFFLINE)", "hf download acme/tiny"]:
        assert word in result.err
    assert "Traceback" not in result.err


@pytest.mark.usefixtures("offline", "hub")
def test_a20_a_whole_snapshot_runs(generate: Generate) -> None:
    event = generate("acme/tiny", "-p", "x", "--size", "16x16", *QUICK).first
    assert decoded(event["path"]) == (16, 16, 1)


@pytest.mark.multi_process
def test_a20_the_variable_itself_is_obeyed(place: Path) -> None:
    guard = "import socket\ndef no(*a, **k): raise SystemExit('the network was asked')\n"
    guard += "socket.socket.connect = socket.getaddrinfo = no\n"
    (place / "sitecustomize.py").write_text(guard, encoding="utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "none")}
    command = [sys.executable, "-m", "sgld", "generate", "acme/tiny", "-p", "x"]
    result = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "offline mode is on (HF_HUB_OFFLINE)" in result.stderr
    assert "Traceback" not in result.stderr


# A21: configuration files


@pytest.fixture
def settings(checkpoints: Path) -> Path:
    """A file that says everything that a run needs."""
    path = Path("f.yaml")
    model = json.dumps(str(checkpoints / "t2v"))
    path.write_text(
        f"model_path: {model}\nprompt: a kite\nseed: 5\nsize: 16x16\nnum-frames: 1\n"
        "num_inference_steps: 1\nfps: 9\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(
    ("flags", "variable", "expected"),
    [([], None, (5, 9)), (["--fps", "12"], None, (5, 12)), ([], "11", (5, 11)),
     (["--fps", "12"], "11", (5, 12)), (["--fps", "16", "--seed", "42"], "11", (42, 16))],
)  # fmt: skip
def test_a21_a_file_alone_and_who_wins(
    settings: Path,
    generate: Generate,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    variable: str | None,
    expected: tuple[int, int],
) -> None:
    if variable is not None:
        monkeypatch.setenv("SGLD_FPS", variable)
    event = generate("--config", settings, *flags).first
    assert (event["seed"], int(event["fps"])) == expected
    shown = json.loads(generate("--config", settings, *flags, "--print-config").out)["sampling"]
    assert (shown["seed"]["value"], shown["fps"]["value"]) == expected
    origin = "flag --fps" if flags else "environment SGLD_FPS" if variable else "file f.yaml:7"
    assert shown["fps"]["origin"] == origin
    assert shown["num_frames"]["origin"] == "file f.yaml:5"
    assert shown["negative_prompt"]["origin"] == "built-in"
    assert shown["guidance_scale"]["origin"].startswith(("built-in", "model preset"))


def test_a21_json_works_too(settings: Path, generate: Generate, checkpoints: Path) -> None:
    values = {"model-path": str(checkpoints / "t2v"), "prompt": "x", "seed": 5, "size": "16x16"}
    path = settings.with_suffix(".json")
    path.write_text(json.dumps({**values, "num_frames": 1, "num-inference-steps": 1}))
    assert generate("--config", path).first["seed"] == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [("sede: 5\n", "Did you mean seed? (file g.yaml:1)"),
     ("seed: 5\nseed: 6\n", "g.yaml:2: seed is given twice, first in line 1"),
     ("num-frames: 5\nnum_frames: 5\n", "g.yaml:2: num_frames is given twice"),
     ("", "g.yaml: the file is empty"), ("a: [\n", "g.yaml:2: this is not YAML"),
     ("seed: '5'\n", "(file g.yaml:1)"), (None, "g.yaml: there is no such file")],
)  # fmt: skip
def test_a21_broken_files(
    checkpoints: Path, generate: Generate, text: str | None, words: str
) -> None:
    if text is not None:
        Path("g.yaml").write_text(text, encoding="utf-8")
    generate(checkpoints / "t2v", "-p", "x", "--config", "g.yaml").refuses(words)


# A28: odd sizes


@pytest.mark.parametrize(("height", "width"), [(47, 65), (48, 47), (45, 48), (48, 48)])
def test_a28_a_cut_or_enlarged_output_is_padded_never_scaled(
    t2v: sgld.Model, height: int, width: int
) -> None:
    output = t2v.generate(prompt="a lamp", seed=3, **SMALL).outputs[0]
    larger = output.frames.repeat(3, axis=1).repeat(3, axis=2)[:, :height, :width]
    saved = save_output(dataclasses.replace(output, frames=larger), folder="outputs")
    assert decoded(saved.path) == (saved.width, saved.height, 5)
    assert (saved.width, saved.height) == (width + width % 2, height + height % 2)
    assert saved.padded is bool(width % 2 or height % 2)
    assert any("padded" in line for line in saved.warnings) is saved.padded
    record = json.loads(saved.sidecar.read_text(encoding="utf-8"))["output"]
    assert (record["width"], record["height"]) == (saved.width, saved.height)


# A29: mixed precisions, and values that are no numbers


@pytest.fixture(scope="module")
def exact(checkpoints: Path) -> np.ndarray:
    """The frames of the picture-to-video model in float32."""
    return in_precision(checkpoints, "float32", "float32")


def in_precision(checkpoints: Path, transformer: str, vae: str) -> np.ndarray:
    picture = np.linspace(0, 255, 32 * 32 * 3).astype(np.uint8).reshape(32, 32, 3)
    precisions = {"transformer": transformer, "vae": vae}
    with sgld.load(str(checkpoints / "i2v"), component_precisions=precisions) as model:
        return model.generate(prompt="a lamp", seed=3, images=[picture], **SMALL).frames


@pytest.mark.parametrize("transformer", PRECISIONS)
@pytest.mark.parametrize("vae", PRECISIONS)
def test_a29_every_mix_of_precisions_works_on_both_sides(
    checkpoints: Path, exact: np.ndarray, transformer: str, vae: str
) -> None:
    frames = in_precision(checkpoints, transformer, vae)
    difference = np.abs(frames.astype(int) - exact.astype(int))
    coarsest = max(transformer, vae, key=list(BOUNDS).index)
    assert difference.mean() <= BOUNDS[coarsest]
    assert bool(difference.max() > 0) is (coarsest != "float32")


BOUNDS = {"float32": 0.0, "float16": 0.3, "bfloat16": 2.0}
"""Mean difference from float32 in levels of 256; at most 0.09 and 0.71 where this was written.
float16 keeps 11 bits of a number, bfloat16 8."""


def test_a29_a_decoder_that_gives_no_numbers_fails_by_name(
    checkpoints: Path, generate: Generate, place: Path
) -> None:
    model = place / "broken"
    shutil.copytree(checkpoints / "t2v", model)
    (path,) = (model / "vae").glob("*.safetensors")
    tensors = safetensors.numpy.load_file(path)
    tensors["decoder.conv_out.bias"] = np.full_like(tensors["decoder.conv_out.bias"], np.nan)
    safetensors.numpy.save_file(tensors, path)
    result = generate(model, "-p", "x", "--size", "16x16", *QUICK)
    assert result.code == 1
    assert "Traceback" not in result.err
    (event,) = result.events
    assert (event["event"], event["code"]) == ("failed", "non_finite_output")
    assert "stage decode" in event["message"]
    assert not any(Path("outputs").glob("*"))


def test_a29_a_transformer_that_explodes_names_the_step(
    t2v: sgld.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgld_wan.models.dit import WanTransformer

    before = t2v.generate(prompt="a lamp", seed=3, **SMALL)
    forward, count = WanTransformer.forward, [0]

    def exploding(self: Any, *arguments: Any, **named: Any) -> Any:
        count[0] += 1
        result = forward(self, *arguments, **named)
        return result * float("inf") if count[0] == 3 else result

    with monkeypatch.context() as patch:
        patch.setattr(WanTransformer, "forward", exploding)
        values = {**SMALL, "num_inference_steps": 4, "guidance_scale": 1.0}
        with pytest.raises(RequestError) as caught:
            t2v.generate(prompt="a lamp", seed=3, **values)
    assert caught.value.code == "non_finite_output"
    assert "stage denoise, step 3" in str(caught.value)
    again = t2v.generate(prompt="a lamp", seed=3, **SMALL)
    assert again.frames.tobytes() == before.frames.tobytes()
