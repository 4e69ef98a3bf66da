"""Serving and output options: tables, residency selectors, batching, formats."""

from __future__ import annotations

from typing import Any

import pytest

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build
from sgld.params.output import OutputOptions
from sgld.params.serving import ServingOptions, resolve_residency

COMPONENTS = {
    "transformer": "dit",
    "transformer_2": "dit",
    "text_encoder": "text_encoder",
    "image_encoder": "image_encoder",
    "vae": "vae",
}
OFF, LAYERS, STAY = "component-offload", "layerwise-offload", "resident"


def serving(way: str, **values: Any) -> Any:
    return build(ServingOptions, [Layer(way, {"model_path": "m", **values})]).params  # pyright: ignore[reportArgumentType]


def output(way: str, **values: Any) -> Any:
    return build(OutputOptions, [Layer(way, values)]).params  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [({}, [STAY] * 5),
     ({"all": OFF}, [OFF] * 5),
     ({"dit": LAYERS}, [LAYERS, LAYERS, STAY, STAY, STAY]),
     ({"all": OFF, "dit": LAYERS}, [LAYERS, LAYERS, OFF, OFF, OFF]),
     ({"dit": LAYERS, "all": OFF, "transformer_2": STAY}, [LAYERS, STAY, OFF, OFF, OFF]),
     ({"text_encoder": OFF, "vae": OFF}, [STAY, STAY, OFF, STAY, OFF])],
)  # fmt: skip
def test_exact_beats_group_beats_all(selectors: dict[str, str], expected: list[str]):
    assert list(resolve_residency(selectors, COMPONENTS).values()) == expected


def test_unknown_selectors_name_the_valid_ones():
    with pytest.raises(ParameterError) as caught:
        resolve_residency({"dits": OFF, "clip": OFF}, COMPONENTS)
    first, second = map(str, caught.value.problems)
    assert "Did you mean dit?" in first
    assert "Valid names: dit, text_encoder, image_encoder, vae, all, transformer" in second


@pytest.mark.parametrize("way", ["flag", "file"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [("component-offload", {"all": OFF}), ("dit=layerwise-offload", {"dit": LAYERS}),
     ("dit=layerwise-offload,vae=resident", {"dit": LAYERS, "vae": STAY}),
     (["dit=layerwise-offload", "component-offload"], {"dit": LAYERS, "all": OFF})],
)  # fmt: skip
def test_residency_spellings(way: str, value: Any, expected: dict[str, str]):
    assert serving(way, residency=value).residency == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("residency", "dit=offload", "must be one of resident, component-offload"),
     ("residency", {"dit": 5}, "must be one of"),
     ("residency", 5, "a table of NAME=VALUE"),
     ("component_precisions", {"vae": "fp32"}, "must be one of auto, float32"),
     ("dtype", "bf16", "must be one of auto, float32, bfloat16, float16"),
     ("dtype", "bfloat", "Did you mean bfloat16"),
     ("device", "Cuda:0", "must be auto, cpu, cuda"),
     ("device", "cuda:", "must be auto, cpu, cuda"),
     ("batching", "on", "off, auto, or a whole number from 1 to 64"),
     ("batching", 0, "from 1 to 64"), ("batching", 65, "from 1 to 64"),
     ("batching", True, "from 1 to 64"), ("max_running", 0, "from 1 to 256"),
     ("load_format", "random", "one of auto, dummy"), ("allow_pickle", 1, "true or false"),
     ("allow_pickle", "true", "true or false"), ("revision", True, "must be text"),
     ("trust_remote_code", "yes", "true or false"), ("model_path", "", "not empty")],
)  # fmt: skip
def test_wrong_serving_options(name: str, value: Any, message: str):
    with pytest.raises(ParameterError, match=message) as caught:
        serving("file", **{name: value})
    assert caught.value.problems[0].field == name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("batching", "8", 8), ("batching", "off", "off"), ("allow_pickle", "true", True),
     ("allow_pickle", "False", False), ("revision", "123", "123"), ("device", "cuda:1", "cuda:1"),
     ("device", "npu:0", "npu:0"), ("component_paths", "vae=a=b", {"vae": "a=b"}),
     ("attention", "sdpa", {"all": "sdpa"}),
     ("attention", "self=fa,cross=sdpa", {"self": "fa", "cross": "sdpa"})],
)  # fmt: skip
def test_texts_of_flags(name: str, text: str, value: Any):
    assert getattr(serving("flag", **{name: text}), name) == value


def test_a_number_as_revision_in_a_file():
    assert serving("file", revision=123).revision == "123"


def test_a_missing_model_is_one_readable_problem():
    with pytest.raises(ParameterError, match=r"--model-path.*is required"):
        build(ServingOptions, [Layer("flag", {})])


@pytest.mark.parametrize(
    ("values", "format"),
    [({}, None), ({"output_file_name": "a.PNG"}, "png"), ({"output_file_name": "a.jpg"}, "jpeg"),
     ({"output_file_name": "a", "output_format": "gif"}, "gif"), ({"output_format": "jpg"}, "jpeg"),
     ({"output_file_name": "a.tar"}, None)],
)  # fmt: skip
def test_the_ending_chooses_the_format(values: dict[str, Any], format: str | None):
    assert output("file", **values).output_format == format


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("output_file_name", "../a.png", "plain file name"), ("output_file_name", "a/b", "plain"),
     ("output_file_name", "a\\b", "plain"), ("output_file_name", " ", "plain"),
     ("output_file_name", "a\0b", "plain"), ("output_file_name", "..", "plain"),
     ("output_file_name", "x" * 256, "longer than 243 bytes"),
     ("output_file_name", 5, "must be text"),
     ("output_quality", 101, "0 to 100"), ("output_quality", -1, "0 to 100"),
     ("output_quality", True, "0 to 100"), ("output_quality", "best", "maximum, high"),
     ("output_format", "avi", "one of mp4"), ("x264_preset", "quick", "one of ultrafast"),
     ("output_path", "", "not empty")],
)  # fmt: skip
def test_wrong_output_options(name: str, value: Any, message: str):
    with pytest.raises(ParameterError, match=message) as caught:
        output("file", **{name: value})
    assert caught.value.problems[0].field == name


def test_a_format_that_contradicts_the_ending():
    with pytest.raises(ParameterError, match=r"contradicts the ending \.png"):
        output("file", output_file_name="a.png", output_format="gif")


@pytest.mark.parametrize(
    ("quality", "number"),
    [("default", None), ("maximum", 100), ("high", 90), ("medium", 55), ("low", 35), (0, 0)],
)
def test_quality_words(quality: Any, number: int | None):
    assert output("file", output_quality=quality).quality == number
