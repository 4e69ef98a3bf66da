"""Which class serves a checkpoint, and whose code may run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgld.api.errors import FeatureError, ModelError, ParameterError
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.plugins.catalog import load_target
from sgld.testing.engine_rig import EngineRig, picture
from sgld.weights.components import Listed
from sgld_diffusers.checkpoint import absent_classes, foreign_code
from sgld_diffusers.reading.exists import has_class
from sgld_diffusers.tiny import BLUEPRINTS

SIZE = {"width": 64, "height": 64}
OWN = """
from pathlib import Path

from diffusers import StableDiffusion3Pipeline

Path(__file__).with_name("ran").touch()


class LoudPipeline(StableDiffusion3Pipeline):
    def __call__(self, prompt: str, height: int = 64, width: int = 64, num_inference_steps: int = 2,
                 loudness: float = 1.0, generator=None, output_type="np"):
        made = super().__call__(
            prompt, height=height, width=width, num_inference_steps=num_inference_steps,
            generator=generator, output_type=output_type,
        )
        made.images = made.images * loudness
        return made
"""


@pytest.fixture(scope="module")
def sd3(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("sd3")


def planned(folder: Path | str, **more: Any) -> ModelPlan:
    return make_plan(ServingOptions(model_path=str(folder), device="cpu", **more))


def copied(sd3: Path, tmp_path: Path, **index: Any) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(sd3, folder)
    path = folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | index))
    return folder


def test_auto_takes_a_native_pipeline_where_there_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "sana"
    load_target(BLUEPRINTS["sana"])(folder)
    for backend, pipeline in (("auto", "sana"), ("native", "sana"), ("diffusers", "diffusers")):
        with_backend = planned(folder, backend=backend)
        assert with_backend.spec.id == pipeline
        with_backend.close()


def test_a_blueprint_of_the_fallback_is_served_by_it() -> None:
    plan = planned("tiny:diffusers:sana")
    assert plan.spec.id == "diffusers"
    plan.close()


def test_only_native_says_what_is_missing(sd3: Path) -> None:
    with pytest.raises(ModelError, match="StableDiffusion3Pipeline"):
        planned(sd3, backend="native")


def test_a_backend_that_is_not_there(sd3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="There are: auto, native, diffusers"):
        planned(sd3, backend="tensorrt")
    monkeypatch.setenv("SGLD_PLUGINS", "-diffusers")
    with pytest.raises(ParameterError, match="pip install sgld-diffusers"):
        planned(sd3, backend="diffusers")


@pytest.mark.parametrize("name", ["diffusers", "StableDiffusion3Pipeline", None])
def test_the_checkpoints_own_class(sd3: Path, name: str | None) -> None:
    plan = planned(sd3, pipeline_class_name=name)
    assert plan.params_class.pipeline == "StableDiffusion3Pipeline"
    assert plan.tasks == ("text-to-image",)
    plan.close()


def test_another_class_of_diffusers_serves_the_same_checkpoint(sd3: Path) -> None:
    plan = planned(sd3, pipeline_class_name="StableDiffusion3Img2ImgPipeline")
    assert plan.tasks == ("image-to-image",)
    with EngineRig(plan, SIZE) as rig:
        weak = rig.run(rig.request(images=[picture()], strength=0.4, num_inference_steps=4))
        other = rig.run(rig.request(images=[picture()], strength=0.9, num_inference_steps=4))
    assert not np.array_equal(weak.frames, other.frames)


def test_a_class_that_is_nowhere(sd3: Path) -> None:
    for name in ("StableDiffusion4Pipeline", "nowhere.at_all:Mine", "json:Mine", "a b:Mine"):
        with pytest.raises(ModelError):
            planned(sd3, pipeline_class_name=name)
    with pytest.raises(ModelError, match="Did you mean StableDiffusion3Pipeline"):
        planned(sd3, pipeline_class_name="StableDiffusion3Pipelin")


def test_code_of_a_checkpoint_runs_only_when_it_is_trusted(sd3: Path, tmp_path: Path) -> None:
    folder = copied(sd3, tmp_path, _class_name=["pipeline", "LoudPipeline"])
    (folder / "pipeline.py").write_text(OWN)
    with pytest.raises(FeatureError) as caught:
        planned(folder)
    assert "--trust-remote-code is off" in str(caught.value)
    assert "LoudPipeline is in pipeline.py" in str(caught.value)
    plan = planned(folder, trust_remote_code=True)
    assert not (folder / "ran").exists(), "planning reads it and does not run it"
    with EngineRig(plan, SIZE) as rig:
        assert (folder / "ran").exists()
        quiet = rig.run(rig.request(loudness=0.25)).frames
        loud = rig.run(rig.request()).frames
        with pytest.raises(ParameterError, match="guidance_scale"):
            rig.request(guidance_scale=3.0)
    assert np.allclose(quiet, loud / 4, atol=1)


def test_a_class_of_an_installed_module(
    sd3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_pipelines.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "loud_pipelines:LoudPipeline"
    plan = planned(sd3, pipeline_class_name=name)
    assert "loud_pipelines" not in sys.modules
    try:
        with EngineRig(plan, SIZE) as rig:
            assert rig.run(rig.request(loudness=0.0)).frames.max() == 0
    finally:
        sys.modules.pop("loud_pipelines", None)


@pytest.mark.parametrize(
    "entry", [["os", "system"], ["my_code", "MyModel"], ["subprocess", "Popen"], ["..", "X"]]
)
def test_packages_that_a_checkpoint_names_are_its_code(
    sd3: Path, tmp_path: Path, entry: list[str]
) -> None:
    folder = copied(sd3, tmp_path, feature=entry)
    for name in ("config.json", "model.safetensors"):
        (folder / "feature").mkdir(exist_ok=True)
        shutil.copy(
            next((sd3 / "vae").glob(f"*.{name.partition('.')[2]}")), folder / "feature" / name
        )
    with pytest.raises(FeatureError, match="trust-remote-code"):
        planned(folder)


def test_a_component_with_code_of_its_own(sd3: Path, tmp_path: Path) -> None:
    folder = copied(sd3, tmp_path)
    config = folder / "text_encoder" / "config.json"
    values = json.loads(config.read_text()) | {"auto_map": {"AutoModel": "mine.Mine"}}
    config.write_text(json.dumps(values))
    with pytest.raises(FeatureError, match="auto_map"):
        planned(folder)
    assert foreign_code(planned(sd3).files) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer/tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}}),
        ("scheduler/mine.py", "raise SystemExit"),
        ("text_encoder/inner/other.json", {"auto_map": {"AutoModel": "mine.Mine"}}),
        ("scheduler/stable_diffusion.py", ""),
    ],
)
def test_code_anywhere_in_a_component_is_refused(
    sd3: Path, tmp_path: Path, file: str, text: Any
) -> None:
    folder = copied(sd3, tmp_path)
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    if not isinstance(text, str):
        text = json.dumps((json.loads(path.read_text()) if path.exists() else {}) | text)
    path.write_text(text)
    component, _, inside = file.partition("/")
    with pytest.raises(FeatureError, match="--trust-remote-code is off") as caught:
        planned(folder)
    assert f"component '{component}' brings code of its own" in str(caught.value)
    assert inside in str(caught.value)
    planned(folder, trust_remote_code=True).close()


def test_code_in_another_folder_for_a_component_is_refused(sd3: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(sd3 / "text_encoder", folder)
    config = folder / "config.json"
    values = json.loads(config.read_text()) | {"auto_map": {"AutoModel": "mine.Mine"}}
    config.write_text(json.dumps(values))
    with pytest.raises(FeatureError, match=r"--trust-remote-code.*'text_encoder'.*config\.json"):
        planned(sd3, component_paths={"text_encoder": str(folder)})


@pytest.mark.parametrize(
    ("name", "entry", "library"),
    [
        ("vae", ["diffusers", "NoSuchVAE"], "diffusers"),
        ("text_encoder", ["transformers", "CLIPTextModelWithMagic"], "transformers"),
        ("transformer", ["stable_diffusion", "NoSuchModel"], "stable_diffusion of diffusers"),
    ],
)
def test_a_component_of_a_class_that_is_nowhere_is_found_while_planning(
    sd3: Path, tmp_path: Path, name: str, entry: list[str], library: str
) -> None:
    folder = copied(sd3, tmp_path, **{name: entry})
    with pytest.raises(ModelError, match=f"'{name}' is {entry[1]}, which the installed {library} "):
        planned(folder)


def test_every_tiny_checkpoints_classes_are_found(checkpoint: Callable[[str], Path]) -> None:
    for family in BLUEPRINTS:
        plan = planned(checkpoint(family), backend="diffusers")
        assert absent_classes(plan.files) == []
        plan.close()
    for entry in [
        ("transformers", "T5TokenizerFast"),
        ("transformers", "CLIPVisionModelWithProjection"),
        ("stable_diffusion", "StableDiffusionSafetyChecker"),
    ]:
        assert has_class(Listed(*entry))


@pytest.mark.parametrize("name", ["../other/vae", "/tmp/vae", "..", "a.b"])
def test_a_component_is_in_the_checkpoint(sd3: Path, tmp_path: Path, name: str) -> None:
    folder = copied(sd3, tmp_path, **{name: ["diffusers", "AutoencoderKL"]})
    shutil.copytree(sd3 / "vae", tmp_path / "other" / "vae")
    with pytest.raises(ModelError, match="is no name of a component") as caught:
        planned(folder)
    assert repr(name) in str(caught.value)


def test_a_native_pipeline_never_runs_code_of_a_checkpoint() -> None:
    with pytest.raises(FeatureError, match="remote-code"):
        planned("tiny:wan-t2v", trust_remote_code=True)


def test_a_checkpoint_that_cannot_be_served_says_why(sd3: Path, tmp_path: Path) -> None:
    folder = copied(sd3, tmp_path, _class_name="StableAudioPipeline")
    with pytest.raises(ModelError, match="makes audios"):
        planned(folder)


def test_replaced_components(sd3: Path, tmp_path: Path) -> None:
    folder = tmp_path / "vae"
    shutil.copytree(sd3 / "vae", folder)
    from safetensors.torch import load_file, save_file

    path = next(folder.glob("*.safetensors"))
    save_file({name: value * 0.5 for name, value in load_file(path).items()}, path)
    plain, other = planned(sd3), planned(sd3, component_paths={"vae": str(folder)})
    with EngineRig(plain, SIZE) as one, EngineRig(other, SIZE) as two:
        assert not np.array_equal(one.run(one.request()).frames, two.run(two.request()).frames)
