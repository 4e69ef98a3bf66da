"""`sgld generate` against a fake model: what is typed, what is refused, what is written."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sgld.api.errors import DeviceError, ModelError
from sgld.cli import generate as command
from sgld.messages import Event, Output, Request
from sgld.params.merge import Layer
from sgld.params.options import option
from sgld.params.sampling import Guided, TakesImage, VideoParams
from sgld.plugins.lock import Lock


class Clip(TakesImage, Guided, VideoParams):
    """A tiny family with one parameter of its own."""

    size_from_image: ClassVar[bool] = True
    width: int = option(32, "Width of a frame.", ge=1, le=100_000)
    height: int = option(32, "Height of a frame.", ge=1, le=100_000)
    num_frames: int = option(5, "Frames.", unit="frames", ge=1, le=100_000)
    num_inference_steps: int = option(3, "Steps.", unit="steps", ge=1, le=1000)
    boundary_ratio: float = option(0.9, "Switch.", ge=0.0, le=1.0)


class Plan:
    """What `make_plan` gives, without a checkpoint."""

    params_class = Clip
    components: ClassVar[dict[str, str]] = {"transformer": "dit", "vae": "vae"}
    preset_layer = Layer("preset", {"fps": 8, "num_inference_steps": 4}, source="tiny")
    local_layer = preset_layer
    lock = Lock(core="0", plugins=(), platform="cpu", pipeline="clip")
    warnings: ClassVar[tuple[str, ...]] = ("1 plugin is not fully usable: acme",)

    def __init__(self, options: Any) -> None:
        self.options = options
        self.closed = False

    def describe(self, params: Any) -> dict[str, Any]:
        return {"components": {"vae": {"bytes": 123}}, "schedule": [params.num_inference_steps]}

    def close(self) -> None:
        self.closed = True


class FakeModel:
    """Runs requests in order; prompts that contain `fail` fail, `press` is called at step 1."""

    def __init__(self, plan: Any, progress: Any, press: Callable[[], object] | None = None) -> None:
        self.press, self.cancelled, self.steps = press, set[str](), 0
        self.requests: Sequence[Request] = ()
        progress("vae", 5, 10)
        progress("vae", 10, 10)

    def cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)

    def close(self) -> None:
        self.closed = True

    def run(self, requests: Sequence[Request]) -> Iterator[Event]:
        self.requests = requests
        for request in requests:
            yield from self._one(request)

    def _one(self, request: Request) -> Iterator[Event]:
        total = request.params["num_inference_steps"]
        for step in range(1, total + 1):
            if request.id in self.cancelled:
                yield Event("cancelled", request.id)
                return
            self.steps += 1
            yield Event("step", request.id, stage="denoise", step=step, total=total, seconds=0.1)
            if self.press and self.steps == 1:
                self.press()
                time.sleep(0.2)
            if request.preview_every and step % request.preview_every == 0:
                yield Event("preview", request.id, step=step, latents=np.zeros((1, 2), np.float32))
        if "fail" in request.params["prompt"]:
            yield Event("failed", request.id, code="stage_failed", message="decode broke")
            return
        for index, seed in enumerate(request.seeds):
            yield Event("output", request.id, index, output=picture(request, index, seed))
        yield Event("done", request.id)


def picture(request: Request, index: int, seed: int) -> Output:
    """A clip of the asked size whose grey is the seed."""
    params = request.params
    shape = (params["num_frames"], params["height"], params["width"], 3)
    frames = np.full(shape, seed % 256, np.uint8)
    latents = np.ones((2, 2), np.float32) if request.want_latents else None
    return Output(
        index, seed, "video", frames, params["fps"], params, latents, timings={"total": 0.5}
    )


class Case:
    """One place to run the command in: a working folder, the plans and models it made."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.plans: list[Plan] = []
        self.models: list[FakeModel] = []
        self.press: Callable[[], object] | None = None
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("SGLD_")]:
            patch.delenv(name)
        # Whatever is installed here carries no model.
        patch.setattr("sgld.bundled.only_model", lambda catalog: None)
        patch.setattr(command, "plan_model", self._plan)
        patch.setattr(command, "open_model", self._open)

    def _plan(self, options: Any) -> Plan:
        self.plans.append(Plan(options))
        return self.plans[-1]

    def _open(self, plan: Any, progress: Any) -> FakeModel:
        self.models.append(FakeModel(plan, progress, self.press))
        return self.models[-1]

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(command.generate, list(arguments), input=stdin)

    def config(self, text: str, name: str = "c.yaml") -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    @property
    def written(self) -> list[str]:
        """Names of the files below the output folder."""
        return sorted(path.name for path in (self.folder / "outputs").rglob("*"))

    def refuses(self, result: Any, *words: str) -> None:
        """Exit 2, every word on standard error, nothing loaded, nothing written."""
        assert result.exit_code == 2, result.output
        shown = " ".join(result.stderr.split())
        for word in words:
            assert word in shown or word in result.stderr
        assert "Traceback" not in result.output
        assert not self.models
        assert not (self.folder / "outputs").exists()
        assert all(plan.closed for plan in self.plans)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def test_two_prompts_make_two_files(case: Case):
    result = case("m", "-p", "a kite", "--prompt", "a boat", "--seed", "11")
    assert result.exit_code == 0, result.output
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [path.suffix for path in paths] == [".mp4", ".mp4"]
    assert all(path.stat().st_size > 0 for path in paths)
    assert ["kite" in paths[0].name, "boat" in paths[1].name] == [True, True]
    assert [request.seeds for request in case.models[0].requests] == [(11,), (12,)]
    assert "loaded vae" in result.stderr
    assert "[2/2] denoise 4/4" in result.stderr
    assert case.plans[0].closed
    assert case.models[0].closed


def test_the_sidecar_holds_the_parameters(case: Case):
    result = case("m", "-p", "a kite", "--num-frames", "8", "--seed", "3")
    sidecar = Path(result.stdout.strip()).with_suffix(".json")
    record = json.loads(sidecar.read_text(encoding="utf-8"))
    assert record["parameters"]["num_frames"] == 5
    assert record["seed"] == 3
    assert "num_frames is 5 instead of 8" in json.dumps(record)
    assert "note: num_frames is 5 instead of 8" in result.stderr


@pytest.mark.parametrize("way", ["flag", "file", "environment", "param"])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("num_inference_steps", "0", "from 1 to 1000 (steps)"),
     ("num_inference_steps", "-1", "from 1 to 1000 (steps)"),
     ("num_inference_steps", "1.5", "from 1 to 1000 (steps)"),
     ("num_inference_steps", "ten", "from 1 to 1000 (steps)"),
     ("num_inference_steps", "true", "from 1 to 1000 (steps)"),
     ("num_inference_steps", "100001", "from 1 to 1000 (steps)"),
     ("num_outputs_per_prompt", "11", "from 1 to 10 (outputs)"),
     ("num_frames", "-3", "from 1 to 100000 (frames)"), ("num_frames", "0", "from 1 to 100000"),
     ("size", "90000x90000", "pixels; the limit of this model is"),
     ("size", "64*64", "WIDTHxHEIGHT"), ("size", "64x0", "WIDTHxHEIGHT"),
     ("size", "120x128", "112x128 and 128x128"), ("width", "64", "needs height beside it"),
     ("guidance_scale", "-1", "from 0.0 to 100.0"), ("seed", "-1", "from 0 to 4294967295"),
     ("boundary_ratio", "1.5", "from 0.0 to 1.0"), ("fps", "0", "from 1 to 240"),
     ("image_path", "none.png", "none.png")],
)  # fmt: skip
def test_bad_input_is_refused_in_the_same_words_everywhere(
    case: Case, monkeypatch: pytest.MonkeyPatch, way: str, name: str, value: str, words: str
):
    flag = "--" + name.replace("_", "-")
    arguments = ["m", "-p", "x"]
    spelled = name
    if way == "flag":
        arguments, spelled = [*arguments, flag, value], flag
    elif way == "param":
        arguments, spelled = [*arguments, "--param", f"{name}={value}"], f"--param {name}"
    elif way == "file":
        arguments += ["--config", case.config(f"{name}: {value}\n")]
    else:
        spelled = f"SGLD_{name.upper()}"
        monkeypatch.setenv(spelled, value)
    case.refuses(case(*arguments), f"error: {spelled}=", words)


@pytest.mark.parametrize("value", ["null", ""])
def test_null_in_a_file_is_the_default(case: Case, value: str):
    name = case.config(f"num_inference_steps: {value}\n")
    assert case("m", "-p", "x", "--config", name).exit_code == 0
    assert case.models[0].requests[0].params["num_inference_steps"] == 4


def test_every_problem_is_printed(case: Case):
    result = case("--fps", "0", "--prompt", "", "--dtype", "bf16", "--overwrite=perhaps")
    case.refuses(result, "--model-path", "--dtype='bf16'", "--overwrite='perhaps'")
    result = case("m", "--fps", "0", "--prompt", "", "--typo", "1", "--output-quality", "101")
    case.refuses(result, "--fps='0'", "--prompt=''", "--typo='1'", "--output-quality='101'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--num-frame", "5"], "Did you mean --num-frames?"),
     (["--steps=5"], "Did you mean --num-inference-steps?"),
     (["--quite"], "Did you mean --quiet?"), (["--drury"], "--drury='true': is unknown"),
     (["--output-pth", "x"], "Did you mean --output-path?"),
     (["--param", "boundary_ration=0.5"], "Did you mean --boundary-ratio?"),
     (["--param", "boundary_ratio"], "must be NAME=VALUE"),
     (["--param", "fps=5", "--fps", "6"], "is given twice"),
     (["--size", "32x32", "--720p"], "are several sizes"),
     (["--component-path.vea", "x"], "vea is no component of this model. Did you mean vae?"),
     (["--residency", "dti=resident"], "Did you mean dit?"),
     (["--model-path", "other"], "contradicts --model-path"),
     (["--prompt", "b", "--output-file-name", "one.mp4"], "but there are 2 prompts"),
     (["--output-file-name", "a/b.mp4"], "plain file name"),
     (["--output-format", "png"], "png"), (["--dry-run=perhaps"], "must be true or false"),
     (["--image-path", "1", "--image-path", "2", "--image-path", "3"], "3 pictures for one prompt"),
     (["--seed", "1,2,3"], "must have 1"), (["--config", "none.yaml"], "no such file"),
     (["-x"], "-x"), (["--size", ""], "--size=''"), (["--model-id", ""], "--model-id=''"),
     (["--residency", "nonsense"], "--residency='nonsense': all='nonsense' must be one of"),
     (["--residency", "="], "must be a table"), (["--prefer", "a=b"], "KIND:ID"),
     (["--attention", "lateral=sdpa"], "roles: all, self, cross"),
     (["--output-file-name", "a.mov"], "ends in .mov, which cannot be written. Use .mp4"),
     (["--output-file-name", "a.json"], "ends in .json"),
     (["--output-file-name", "a.png", "--num-frames", "5"], "--output-file-name='a.png'"),
     (["--component-path.vea", "x"], "vea is no component"),
     (["--drury"], "See `sgld generate --help`")],
)  # fmt: skip
def test_wrong_usage(case: Case, arguments: list[str], words: str):
    case.refuses(case("m", "-p", "a", *arguments), words)


@pytest.mark.parametrize(
    "arguments",
    [["--component-path.vae", "x"], ["--component_paths.vae=x"], ["--vae-path", "x"],
     ["--component-paths.vae", "x"], ["--vae_path=x"], ["--param", "component_paths.vae=x"]],
)  # fmt: skip
def test_spellings_of_component_paths(case: Case, arguments: list[str]):
    assert case("m", "-p", "a", *arguments).exit_code == 0
    assert case.plans[0].options.component_paths == {"vae": "x"}


@pytest.mark.parametrize(
    "arguments", [["--component-weights-path.vae", "x"], ["--vae-weights-path", "x"]]
)
def test_spellings_of_weight_paths(case: Case, arguments: list[str]):
    assert case("m", "-p", "a", *arguments, "--transformer-weights-path=y").exit_code == 0
    options = case.plans[0].options
    assert options.component_weights_paths == {"vae": "x", "transformer": "y"}


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(["--allow-pickle"], True), (["--allow_pickle", "true"], True),
     (["--allow-pickle=TRUE"], True),
     (["--no-allow-pickle"], False), (["--allow-pickle", "false"], False),
     (["--no-allow-pickle=false"], True), ([], False)],
)  # fmt: skip
def test_switches_take_an_optional_value(case: Case, arguments: list[str], value: bool):
    result = case(*arguments, "m", "-p", "a", "--quiet", "false")
    assert result.exit_code == 0, result.output
    assert case.plans[0].options.allow_pickle is value


def test_the_order_of_layers(case: Case, monkeypatch: pytest.MonkeyPatch):
    text = "model-path: m\nprompt: from file\nseed: 5\nnum_inference_steps: 2\nfps: 9\n"
    name = case.config(text)
    monkeypatch.setenv("SGLD_FPS", "12")
    result = case("--config", name, "--seed", "42", "--print-config", "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["sampling"]["seed"] == {"value": 42, "origin": "flag --seed"}
    assert shown["sampling"]["fps"] == {"value": 12, "origin": "environment SGLD_FPS"}
    assert shown["sampling"]["num_inference_steps"] == {"value": 2, "origin": "file c.yaml:4"}
    assert shown["sampling"]["num_frames"] == {"value": 5, "origin": "built-in"}
    assert shown["serving"]["model_path"] == {"value": "m", "origin": "file c.yaml:1"}
    assert shown["output"]["output_path"] == {"value": "outputs", "origin": "built-in"}
    assert not case.models
    assert case.plans[0].closed
    table = case("--config", name, "--print-config").stdout
    assert "file c.yaml:1" in table
    preset = case("m", "-p", "x", "--print-config").stdout
    assert "model preset tiny" in preset


def test_a_flag_equal_to_the_built_in_beats_preset_and_file(case: Case):
    name = case.config('{"num-inference-steps": 7}', "c.json")
    assert case("m", "-p", "x", "--config", name, "--num-inference-steps", "3").exit_code == 0
    assert case.models[0].requests[0].params["num_inference_steps"] == 3


def test_dry_run_shows_plan_and_requests(case: Case):
    arguments = ["m", "-p", "a", "-p", "b", "--dry-run", "--seed", "1", "--guidance-scale", "1"]
    result = case(*arguments, "--json")
    shown = json.loads(result.stdout)
    assert shown["plan"]["components"]["vae"]["bytes"] == 123
    assert [request["seeds"] for request in shown["requests"]] == [[1], [2]]
    assert shown["requests"][0]["forwards_per_step"] == 1
    assert "bytes: 123" in case(*arguments).stdout
    assert not case.models
    assert not case.written


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_prompts_from_a_file(case: Case, source: str):
    text = "one\n\n  two  \r\n\tдва\rthree\x0cstill\u2028three\n"
    if source == "file":
        case.config("\ufeff" + text, "p.txt")
        result = case("m", "--prompt-file", "p.txt", "--seed", "1")
    else:
        result = case("m", "--prompt-file", "-", "--seed", "1", stdin=text)
    assert result.exit_code == 0, result.output
    prompts = [request.params["prompt"] for request in case.models[0].requests]
    assert prompts == ["one", "two", "два", "three\x0cstill\u2028three"]


@pytest.mark.parametrize(
    ("arguments", "data", "words"),
    [(["--prompt-file", "-"], b"", "holds no prompt"), (["--prompt-file", "-"], b" \n", "holds no"),
     (["--prompt-file", "-"], b"\xff", "not UTF-8"), (["--prompt-file", "no.txt"], b"", "no.txt"),
     (["--prompt-file", "-", "-p", "x"], b"y", "cannot be used together with --prompt"),
     ([], b"", "--prompt")],
)  # fmt: skip
def test_bad_prompt_files(case: Case, arguments: list[str], data: bytes, words: str):
    case.refuses(case("m", *arguments, stdin=data), words)


def test_a_switch_in_a_file_is_explained(case: Case):
    name = case.config("dry_run: true\n")
    case.refuses(case("m", "-p", "a", "--config", name), "is no setting. It is a flag: --dry-run.")


def test_what_a_sketch_knows_is_refused_before_the_model_is_written(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "sketch_model", lambda options: Plan(options))
    result = case("m", "-p", "a", "--fps", "0", "--param", "boundary_ratio=2")
    case.refuses(result, "error: --fps='0'", "error: --param boundary_ratio='2'")
    assert not case.plans
    assert case("m", "-p", "a").exit_code == 0
    assert len(case.plans) == 1


def test_failures_are_counted_and_the_others_done(case: Case):
    result = case("m", "-p", "a", "-p", "fail", "-p", "c")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert "[2/3] failed (stage_failed): decode broke" in result.stderr
    assert "1 of 3 requests failed" in result.stderr


@pytest.mark.parametrize("quiet", [True, False])
def test_a_file_that_cannot_be_written_is_a_failure(case: Case, quiet: bool):
    case.press = lambda: (case.folder / "outputs").write_text("in the way", encoding="utf-8")
    result = case("m", "-p", "a", "-p", "b", *(["--quiet"] if quiet else []))
    assert result.exit_code == 1
    assert "[2/2] failed" in result.stderr
    assert "output_path='outputs'" in result.stderr
    assert ("2 of 2 requests failed" in result.stderr) is not quiet


@pytest.mark.parametrize("path", ["taken", "taken/below", "a\0b"])
def test_a_folder_that_cannot_be_written_is_found_before_anything_runs(case: Case, path: str):
    (case.folder / "taken").write_text("in the way", encoding="utf-8")
    case.refuses(case("m", "-p", "a", "--output-path", path), "error: --output-path='")


def test_a_folder_without_permission_is_found_before_anything_runs(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    case.refuses(case("m", "-p", "a"), "error: output_path=", "may not be written to")


def test_the_home_folder_has_its_short_name(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(case.folder / "home"))
    (case.folder / "home").mkdir()
    Image.new("RGB", (32, 32)).save(case.folder / "home" / "p.png")
    result = case("m", "-p", "a", "--output-path=~/videos", "--image-path=~/p.png")
    assert result.exit_code == 0, result.output
    assert not (case.folder / "~").exists()
    assert Path(result.stdout.strip()).parent == case.folder / "home" / "videos"


def test_json_lines(case: Case):
    result = case("m", "-p", "a", "-p", "fail", "--json", "--quiet", "--save-latents")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["event"], line["request"]) for line in lines] == [
        ("output", "request-1"), ("failed", "request-2")]  # fmt: skip
    assert Path(lines[0]["path"]).exists()
    assert Path(lines[0]["latents"]).exists()
    assert (lines[0]["frames"], lines[0]["width"], lines[0]["fps"]) == (5, 32, 8.0)
    assert result.stderr == ""
    wrong = json.loads(case("m", "-p", "a", "--fps", "0", "--json").stdout)
    assert wrong["event"] == "error"
    assert wrong["problems"][0]["field"] == "--fps"


def test_ctrl_c_stops_within_a_step_and_leaves_nothing(case: Case):
    case.press = lambda: os.kill(os.getpid(), signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    result = case("m", "-p", "a", "-p", "b")
    assert result.exit_code == 130
    assert case.models[0].steps == 1
    assert case.models[0].cancelled == {"request-1", "request-2"}
    assert case.models[0].closed
    assert not case.written
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_stops_as_ctrl_c_does(case: Case):
    case.press = lambda: os.kill(os.getpid(), signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    result = case("m", "-p", "a", "-p", "b")
    assert result.exit_code == 143
    assert case.models[0].cancelled == {"request-1", "request-2"}
    assert case.models[0].closed
    assert not case.written
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_the_last_call_gives_after_a_signal_is_not_saved(case: Case, number: int, code: int):
    """The engine cannot cancel it any more: it gives the clip and says that all is done."""
    case.press = lambda: os.kill(os.getpid(), number)
    result = case("m", "-p", "a", "--num-inference-steps", "1", "--json")
    assert result.exit_code == code
    assert "stopping after this step" in result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["cancelled"]
    assert not case.written


def test_sigterm_while_loading_tidies_up(case: Case, monkeypatch: pytest.MonkeyPatch):
    def load(plan: Any, progress: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(command, "open_model", load)
    result = case("m", "-p", "a")
    assert result.exit_code == 143
    assert case.plans[0].closed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_stops_at_once(case: Case, number: int, code: int):
    def twice() -> None:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)

    case.press = twice
    result = case("m", "-p", "a")
    assert result.exit_code == code
    assert "stopped" in result.stderr
    assert case.models[0].closed


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (DeviceError("no memory"), 1), (ModelError("no weights"), 2)],
)
def test_trouble_while_loading(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
):
    def trouble(plan: Any, progress: Any) -> Any:
        raise error

    monkeypatch.setattr(command, "open_model", trouble)
    result = case("m", "-p", "a")
    assert result.exit_code == code
    assert case.plans[0].closed
    assert not case.written


def test_a_long_prompt_twice_in_one_second(case: Case):
    prompt = "word " * 800
    paths = {case("m", "-p", prompt, "--seed", "1").stdout.strip() for _ in range(2)}
    assert len(paths) == 2
    for path in map(Path, paths):
        assert path.exists()
        assert len(path.name.encode()) <= 255
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert record["parameters"]["prompt"] == prompt


def test_pictures_decide_the_shape_and_are_checked_first(case: Case):
    Image.new("RGB", (120, 60)).save(case.folder / "wide.png")
    assert case("m", "-p", "a", "--image-path", "wide.png", "--size", "auto").exit_code == 0
    request = case.models[0].requests[0]
    assert (request.params["width"], request.params["height"]) == (32, 16)
    assert request.images[0].shape == (60, 120, 3)
    (case.folder / "bad.png").write_bytes(b"nothing")
    case.models.clear()
    result = case("m", "-p", "a", "--image-path", "bad.png")
    assert result.exit_code == 2
    assert "--image-path=" in result.stderr
    assert not case.models


def test_outputs_and_previews_of_one_prompt(case: Case):
    arguments = ["--num-outputs-per-prompt", "3", "--seed", "11", "--preview-every", "2"]
    result = case("m", "-p", "a", *arguments, "--output-file-name", "x.mp4")
    assert result.exit_code == 0, result.output
    assert case.models[0].requests[0].seeds == (11, 12, 13)
    assert {"x_0.mp4", "x_1.mp4", "x_2.mp4"} <= set(case.written)
    assert sum(name.startswith("preview_request-1_0_step") for name in case.written) == 2


def test_nothing_is_written_without_saving(case: Case):
    result = case("m", "-p", "a", "--no-save-output", "--json", "--preview-every", "1")
    assert json.loads(result.stdout)["event"] == "output"
    assert not (case.folder / "outputs").exists()


def test_size_shortcuts(case: Case):
    assert case("m", "-p", "a", "--480p", "--dry-run", "--json").exit_code == 0
    shown = json.loads(case("m", "-p", "a", "--480p", "--dry-run", "--json").stdout)
    assert (shown["requests"][0]["width"], shown["requests"][0]["height"]) == (832, 480)


def test_debug_shows_where_an_error_came_from(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SGLD_DEBUG", "1")
    result = case("m", "-p", "a", "--fps", "0")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "error: --fps='0'" in result.stderr


def test_help_names_every_shared_flag(case: Case):
    text = case("--help").output
    for flag in ("--prompt-file", "--num-frames", "--residency", "--output-path", "--dry-run"):
        assert flag in text
