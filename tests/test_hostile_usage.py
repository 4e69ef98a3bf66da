"""What a hostile or hurried user does to `sgld generate`: one clear line, nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgld.api.errors import ParameterError
from sgld.cli.main import main
from sgld.params.seeds import MAX_SEED, seeds_for

QUICK = ["--size", "16x16", "--num-frames", "1", "--num-inference-steps", "1", "--seed", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny text-to-video checkpoint."""
    from sgld_wan import testing

    folder = tmp_path_factory.mktemp("models") / "t2v"
    testing.tiny_t2v(folder)
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str]) -> Run:
    """`sgld generate` in this process: exit code, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["generate", *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("flags", "line"),
    [(["--device", "tpu"], "--device='tpu': there is no such platform. There are: auto, cpu, cuda"),
     (["--device", "cpu:3"], "--device='cpu:3': the last one here is cpu:0."),
     (["--device", "auto:1"], "--device='auto:1': auto takes no number."),
     (["--attention", "nonsense"], "--attention='nonsense': there is no such backend. There are:"),
     (["--attention", "self=nonsense"], "--attention='self=nonsense': there is no such backend."),
     (["--residency", "dit2=resident"], "--residency='dit2=resident': dit2 is neither"),
     (["--component-path.nonsense", "x"],
      "--component-path.nonsense='x': this model has no component 'nonsense'."),
     (["--component-path.vea", "x"], "Did you mean vae?"),
     (["--component-path.vae", "nowhere"], "--component-path.vae='nowhere': no such file"),
     (["--vae-weights-path=nowhere"], "--component-weights-path.vae='nowhere': no such file"),
     (["--vae-precision", "int3"], "vae='int3' must be one of auto, float32"),
     (["--prefer", "pipeline:wan-t2v=nobody"], "no distribution 'nobody' brings a plugin."),
     (["--prefer", "pipeline:wan-t2w=sgld-wan"], "Did you mean wan-t2v?"),
     (["--prefer", "colour:x=y"], "--prefer='colour:x=y': no plugin brings colour 'x'."),
     (["--model-id", "nope"], "--model-id='nope': no plugin knows this id"),
     (["--model-id", "Wan-AI/Wan2.1-T2V-1.3B"], ""), (["--device", "cpu:0"], ""),
     (["--vae-precision", "float32"], ""),
     (["--revision", "main"], "is on this machine, where it has no revisions. Leave it out.")],
)  # fmt: skip
def test_names_that_nothing_has(model: Path, generate: Run, flags: list[str], line: str) -> None:
    code, out, err = generate(model, "-p", "x", *QUICK, "--quiet", *flags)
    if not line:
        assert (code, err) == (0, "")
        assert Path(out.strip()).exists()
        return
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert line in err
    assert not Path("outputs").exists()


def test_a_device_without_driver_is_a_wrong_wish(
    model: Path, generate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    code, _, err = generate(model, "-p", "x", "--device", "cuda")
    assert code == 2
    assert "--device='cuda': no device can be used: cuda: CUDA_VISIBLE_DEVICES='-1'" in err
    assert "Use device=auto" in err


def test_every_wrong_name_is_said_at_once(model: Path, generate: Run) -> None:
    flags = ["--device", "npu", "--attention", "nonsense", "--model-id", "nope", "--fps", "0"]
    code, _, err = generate(model, "-p", "x", *flags)
    assert code == 2
    assert [line.split("=")[0] for line in err.splitlines()] == [
        "error: --device", "error: --attention", "error: --model-id",
    ]  # fmt: skip


@pytest.mark.multi_process
@pytest.mark.parametrize(
    "flags",
    [["--fps", "0"], ["--output-path", "taken"], ["--device", "npu"], ["--vea-path", "x"],
     ["--output-file-name", "../a.mp4"], ["--attention", "nonsense"]],
)  # fmt: skip
def test_a_tiny_model_is_not_even_written_for_a_wrong_request(
    place: Path, flags: list[str]
) -> None:
    (place / "taken").write_text("in the way", encoding="utf-8")
    script = (
        "import sys\nfrom sgld.cli.main import main\n"
        f"code = main(['generate', 'tiny:wan-t2v', '-p', 'x', *{flags!r}])\n"
        "heavy = {'torch', 'diffusers', 'transformers'} & set(sys.modules)\n"
        "sys.exit(code if not heavy else f'imported {heavy}')"
    )
    (place / "temporary").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(place / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert not list((place / "temporary").iterdir())


def test_fifty_prompts(model: Path, generate: Run) -> None:
    prompts = "\ufeff" + "\r\n\r\n".join(f"prompt {number}" for number in range(50))
    Path("p.txt").write_bytes(prompts.encode())
    code, out, err = generate(model, "--prompt-file", "p.txt", *QUICK, "--quiet")
    assert (code, err) == (0, "")
    names = [Path(line).name for line in out.splitlines()]
    assert len(set(names)) == 50
    seeds = {name.split("_")[1]: name.split("seed")[1].split("_")[0] for name in names}
    assert seeds["0"] == "1"
    assert seeds["49"] == "50"


def test_weights_without_files_are_counted(generate: Run) -> None:
    arguments = ["--model-path", "config:wan2.1-t2v-1.3b", "--load-format", "dummy", "-p", "x"]
    code, out, _ = generate(*arguments, "--dry-run", "--json", "--dtype", "bfloat16")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["plan"]["components"]}
    assert rows["transformer"]["parameters"] == 1_418_996_800
    assert rows["vae"]["parameters"] == 126_892_531
    # Most weights take two bytes; norms and time embeddings stay float32.
    assert 2.0 < rows["transformer"]["bytes"] / rows["transformer"]["parameters"] < 2.1


@pytest.mark.parametrize("drawn", [0, MAX_SEED - 2])
def test_a_drawn_seed_never_runs_out(drawn: int) -> None:
    below: list[int] = []

    def draw(limit: int) -> int:
        below.append(limit)
        return min(drawn, limit - 1)

    assert seeds_for(None, 1, 3, draw) == [(drawn, drawn + 1, drawn + 2)]
    assert below == [MAX_SEED - 1]


@pytest.mark.parametrize(
    ("variant", "picture", "words"),
    [("i2v", np.zeros((4, 4), np.float32), "must be RGB uint8"), ("i2v", 3, "must be an array"),
     ("i2v", b"x", "is not a picture"), ("t2v", np.zeros((4, 4, 3), np.uint8), "are not taken")],
)  # fmt: skip
def test_python_says_what_is_wrong_with_a_picture(
    variant: str, picture: Any, words: str, place: Path
) -> None:
    import sgld
    from sgld_wan import testing

    getattr(testing, f"tiny_{variant}")(place / "m")
    with sgld.load("m") as loaded, pytest.raises(ParameterError, match=words):
        loaded.generate(prompt="x", images=[picture])


def test_a_path_object_is_a_picture(place: Path) -> None:
    import sgld
    from sgld_wan import testing

    testing.tiny_i2v(place / "m")
    Image.new("RGB", (32, 32)).save("p.png")
    with sgld.load(place / "m") as loaded:
        result = loaded.generate(
            prompt="x", image_path=Path("p.png"), size="16x16", num_frames=1, num_inference_steps=1
        )
    assert result.frames.shape == (1, 16, 16, 3)


@pytest.mark.multi_process
def test_python_prints_nothing_on_standard_output(model: Path) -> None:
    script = (
        f"import sgld\nwith sgld.load({str(model)!r}) as m: m.generate(prompt='x', size='16x16'"
    )
    script += ", num_frames=1, num_inference_steps=1)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


# Endings: Ctrl-C and a full disk. These need processes of their own.


def start(model: Path, *flags: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sgld", "generate", str(model), "-p", "x", "--seed", "1"]
    return subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        **options,
    )


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"ended without saying {words!r}")


LONG = ["--size", "128x128", "--num-frames", "33", "--num-inference-steps", "200"]
HEAVY_DECODE = ["--size", "384x384", "--num-frames", "33", "--num-inference-steps", "1"]


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize(
    ("moment", "flags", "presses"),
    [("loaded text_encoder", LONG, 1), ("loaded vae", LONG, 1), ("denoise 20/200", LONG, 1),
     ("denoise 1/1", HEAVY_DECODE, 2)],
)  # fmt: skip
def test_ctrl_c_at_any_moment(model: Path, moment: str, flags: list[str], presses: int) -> None:
    process = start(model, *flags)
    wait_for(process, moment)
    begin = time.perf_counter()
    for _ in range(presses):
        time.sleep(0.3 if presses > 1 else 0.0)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert time.perf_counter() - begin < 15
    assert "stop" in output
    assert "Traceback" not in output
    assert not list(Path.cwd().glob("outputs/*"))


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize("form", ["mp4", "webm", "gif", "frames"])
def test_a_full_disk_leaves_nothing(
    model: Path, generate: Run, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The limit on file sizes gives the same error as a full disk, at any size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = [model, "-p", "x", "--num-inference-steps", "1", "--output-format", form]
    begin = time.perf_counter()
    before, after = signal.getsignal(signal.SIGXFSZ), limits
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, limits[1]))
    try:
        code, out, err = generate(*arguments, "--json", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, after)
        signal.signal(signal.SIGXFSZ, before)
    assert time.perf_counter() - begin < 60
    assert code == 1, err
    event = json.loads(out)
    assert (event["event"], event["code"]) == ("failed", "disk_full"), event
    assert "Free some space" in event["message"]
    assert not list(Path("outputs").glob("*"))
    shutil.rmtree("outputs")
