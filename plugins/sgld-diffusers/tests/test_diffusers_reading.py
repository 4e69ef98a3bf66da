"""What is read of a pipeline class without running it: signature, grid, kind, needs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ModelError, SgldError
from sgld_diffusers.inspecting import check_arguments
from sgld_diffusers.params import make_params
from sgld_diffusers.reading.described import describe
from sgld_diffusers.reading.evaluate import Instance, Unknown
from sgld_diffusers.reading.signature import UNKNOWN, read_signature
from sgld_diffusers.reading.source import class_in, class_names, find_class, method
from sgld_diffusers.tiny import FAMILIES


def written(tmp_path: Path, text: str, name: str = "Mine") -> Any:
    path = tmp_path / "mine.py"
    path.write_text(text)
    found = class_in(path, name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", sorted({family.pipeline for family in FAMILIES.values()}))
def test_the_signature_is_the_one_that_python_sees(name: str) -> None:
    import diffusers

    source = find_class(name)
    assert source is not None
    call = method(source, "__call__")
    assert call is not None
    read = read_signature(call)
    real = inspect.signature(inspect.unwrap(getattr(diffusers, name).__call__)).parameters
    named = [key for key, row in real.items() if row.kind is not inspect.Parameter.VAR_KEYWORD]
    assert list(read) == named[1:]
    for key, argument in read.items():
        assert argument.required == (real[key].default is inspect.Parameter.empty)
        if argument.default is not UNKNOWN:
            assert argument.default == real[key].default


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from sgld_diffusers.reading.described import describe\n"
        "from sgld_diffusers.reading.source import find_class\n"
        "from sgld_diffusers.reading.evaluate import Instance\n"
        "from sgld_diffusers.params import make_params\n"
        "source = find_class('FluxPipeline')\n"
        "make_params(describe(source, Instance(source)))\n"
        "print([m for m in ('torch', 'diffusers', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_class_of_diffusers_is_served_or_refused_with_a_reason() -> None:
    served, refused = [], {}
    for name in class_names()[::6]:
        source = find_class(name)
        assert source is not None
        try:
            described = describe(source, Instance(source))
            check_arguments(described)
            make_params(described)
        except SgldError as error:
            refused[name] = str(error)
            continue
        served.append(name)
    assert len(served) > 3 * len(refused)
    assert all(name in text for name, text in refused.items())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("StableAudioPipeline", "makes audios"),
        ("MarigoldDepthPipeline", "prediction"),
        ("WanAnimatePipeline", "needs pose_video"),
        ("DiTPipeline", "needs class_labels"),
        ("KandinskyV22PriorPipeline", "image_embeds"),
    ],
)
def test_what_cannot_be_served_says_why(name: str, reason: str) -> None:
    source = find_class(name)
    assert source is not None
    with pytest.raises(ModelError, match=reason):
        check_arguments(describe(source, Instance(source)))


ANNOTATIONS = [
    ("int", (int,)), ("float | None", (float,)), ("Optional[Union[str, List[str]]]", (str,)),
    ("str | list[str]", (str,)), ("torch.Tensor | None", ()), ("list[int]", ()), ("'int'", (int,)),
    ("float | list[float]", (float,)), ("Union[int, float]", (int, float)), ("bool", (bool,)),
    ("tuple[int, int]", ()), ("dict[str, Any] | None", ()), ("Callable[[int], None]", ()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kinds"), ANNOTATIONS)
def test_scalars_of_an_annotation(text: str, kinds: tuple[type, ...]) -> None:
    [function] = ast.parse(f"def f(self, x: {text} = None): pass").body
    assert isinstance(function, ast.FunctionDef)
    assert read_signature(function)["x"].scalars == kinds


def test_docs_defaults_and_keyword_only_arguments() -> None:
    text = '''
def f(self, a, b=2, *, c: float = -1.5, d=object()):
    """Does.

    Args:
        b (`int`, *optional*):
            The second one. More of it.
            And more.
        c (`float`): The third.
        d (`object`): One without a full stop
    Examples:
        nothing
    """
'''
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    read = read_signature(function)
    assert [row.required for row in read.values()] == [True, False, False, False]
    assert read["b"].scalars == (int,)
    assert read["b"].doc == "The second one."
    assert (read["c"].default, read["c"].doc) == (-1.5, "The third.")
    assert read["d"].doc == "One without a full stop."
    assert read["d"].default is UNKNOWN


MINE = """
class Mine:
    def __init__(self, vae, transformer):
        self.vae_scale_factor = (
            2 ** (len(self.vae.config.block_out_channels) - 1) if getattr(self, "vae", None) else 8
        )
        self.odd = open("x")
        self.loop = self.loop + 1
        self.patch = self.transformer.config.patch_size if self.transformer is not None else 2
        self.sample = getattr(self.vae.config, "missing", 7)
        self.huge = 64 ** 32

    def check_inputs(self, height, width):
        both = self.vae_scale_factor * self.patch
        if height % both != 0 or width % both != 0:
            raise ValueError

    def __call__(self, prompt: str, height=None, width=None, num_frames: int = 9):
        height = height or self.sample * self.vae_scale_factor
        width = width if width is not None else 32
        if (num_frames - 1) % 4 != 0:
            raise ValueError
        return Out(frames=0)
"""


def test_grid_and_defaults_follow_the_configurations(tmp_path: Path) -> None:
    source = written(tmp_path, MINE)
    vae = Instance(None, config={"block_out_channels": [1, 2, 3]})
    transformer = Instance(None, config={"patch_size": [1, 6, 6]})
    transformer_int = Instance(None, config={"patch_size": 6})
    own = Instance(source, children={"vae": vae, "transformer": transformer_int})
    found = describe(source, own)
    assert (found.kind, found.unit, found.stride) == ("video", 24, 4)
    assert found.defaults == {"width": 32, "height": 28, "num_frames": 9}
    for name in ("odd", "loop", "huge", "nowhere"):
        with pytest.raises(Unknown):
            own.attribute(name)
    absent = Instance(source, children={"vae": None, "transformer": None})
    assert describe(source, absent).unit == 16
    # A patch of several sides: only the last one is of a frame.
    listed = Instance(source, children={"vae": vae, "transformer": transformer})
    assert describe(source, listed).unit == 24


@pytest.mark.parametrize(
    "text",
    ["self.x()", "__import__('os')", "[i for i in (1, 2)]", "lambda: 1", "self.a[0]", "1 / 0",
     "getattr(self.config, 'x')", "x", "-'a'", "10 ** 99"],
)  # fmt: skip
def test_what_is_more_than_arithmetic_is_not_followed(text: str) -> None:
    with pytest.raises(Unknown):
        Instance(None).evaluate(ast.parse(text, mode="eval").body)


NUMBERS = st.recursive(
    st.integers(0, 20).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)


@given(NUMBERS)
def test_arithmetic_is_pythons(text: str) -> None:
    node = ast.parse(text, mode="eval").body
    try:
        expected = eval(compile(ast.Expression(node), "x", "eval"))
    except ZeroDivisionError:
        with pytest.raises(Unknown):
            Instance(None).evaluate(node)
        return
    if abs(expected) <= 2**24:
        assert Instance(None).evaluate(node) == expected


def test_a_base_class_brings_its_call(tmp_path: Path) -> None:
    text = "class Mine(StableDiffusion3Pipeline):\n    pass\n"
    source = written(tmp_path, text)
    found = describe(source, Instance(source))
    assert "max_sequence_length" in found.arguments
    assert found.steps == "end"


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("class Mine(\n")
    with pytest.raises(ModelError, match=r"broken\.py"):
        class_in(path, "Mine")


HANDING = """
class Mine(StableDiffusion3Pipeline):
    def __call__(self, prompt: str, num_inference_steps: int = 4):
        return super().__call__(prompt=prompt, num_inference_steps=num_inference_steps)

class Clip(LTXPipeline):
    def __call__(self, prompt: str):
        made = super().__call__(prompt=prompt, audio=1)
        return made

class Frames:
    def __call__(self, prompt: str, num_frames: int = 9):
        return self.finish(prompt=prompt)

class Plain:
    def __call__(self, prompt: str):
        return super().__call__(prompt=prompt)

class Sound(StableAudioPipeline):
    def __call__(self, prompt: str):
        return super().__call__(prompt)
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Mine", "image"), ("Clip", "video"), ("Frames", "video"), ("Plain", "image")],
)
def test_a_call_that_hands_over_makes_what_its_base_makes(
    tmp_path: Path, name: str, kind: str
) -> None:
    source = written(tmp_path, HANDING, name)
    assert describe(source, Instance(source)).kind == kind


def test_a_call_that_hands_over_to_a_maker_of_sound_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, HANDING, "Sound")
    with pytest.raises(ModelError, match="Sound makes audios"):
        describe(source, Instance(source))


HOSTILE = """
class Mine:
    def __init__(self):
        self.vae_scale_factor = len([0] * 10**9) + len("x" * 10**9)
        self.listed = [0] * 10**9
        self.text = "%1000000000d" % 1

    def __call__(self, a: "str|" = {[]: 1}, b: "int" = 2, height=None, width=None):
        height = height or len((0,) * 10**9)
        if height % self.vae_scale_factor or width % len(self.listed):
            raise ValueError
"""


def test_source_that_is_odd_is_only_unknown(tmp_path: Path) -> None:
    source = written(tmp_path, HOSTILE)
    own = Instance(source)
    found = describe(source, own)
    assert (found.arguments["a"].scalars, found.arguments["a"].default) == ((), UNKNOWN)
    assert found.arguments["b"].scalars == (int,)
    assert (found.unit, dict(found.defaults)) == (1, {})
    for name in ("vae_scale_factor", "listed", "text"):
        with pytest.raises(Unknown):
            own.attribute(name)


def test_values_that_grow_without_end_are_unknown(tmp_path: Path) -> None:
    lines = "\n".join(f"        a{n + 1} = a{n} + a{n}" for n in range(200))
    text = f"class Mine:\n    def __init__(self):\n        a0 = [0]\n{lines}\n"
    source = written(tmp_path, f"{text}        self.patch = len(a200)\n")
    with pytest.raises(Unknown):
        Instance(source).attribute("patch")
