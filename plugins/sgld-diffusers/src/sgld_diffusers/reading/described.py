"""A pipeline class as far as it can be known without running it: what goes in, what comes out, and
on which grid."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.api.errors import ModelError
from sgld_diffusers.reading.evaluate import Instance, Unknown, local_values
from sgld_diffusers.reading.signature import UNKNOWN, Argument, read_signature
from sgld_diffusers.reading.source import ClassSource, lineage, method

PICTURES: Final = frozenset({"images", "image"})
CLIPS: Final = frozenset({"frames", "video", "videos"})
SOUND: Final = frozenset({"audio", "audios"})
SIDES: Final = ("width", "height")
IMAGE_ARGUMENTS: Final = ("image", "images", "input_images", "control_image", "input_image")
"""Names of the argument that takes the input pictures; the first one there is."""
VAE_FACTORS: Final = (
    "vae_scale_factor_spatial",
    "vae_spatial_compression_ratio",
    "vae_spatial_scale_factor",
    "vae_scale_factor",
)
"""Names under which classes keep how many pixels one latent is wide."""
FROM_PICTURE: Final = re.compile(
    r"Img2Img|Image2Image|Edit|Inpaint|ImageToVideo|Image2Video|I2V|I2I|ControlNet|Upscale|Pix2Pix"
)
"""Class names that mean: it starts from a picture, whatever its defaults say."""
SEVERAL: Final = frozenset(
    {
        "Flux2Pipeline",
        "Flux2KleinPipeline",
        "OmniGenPipeline",
        "QwenImageEditPlusPipeline",
        "QwenImageLayeredPipeline",
    }
)
"""Classes that take several pictures for one result; elsewhere a list is a batch."""


class Described(NamedTuple):
    """What is known of a pipeline class for one checkpoint.

    Args:
        kind: `image` or `video`.
        arguments: what `__call__` takes, in order.
        image: name of the argument for input pictures; empty: none.
        needs_image: it does not run without one.
        several: it takes several of them for one result.
        unit: both sides are multiples of it; 1 when it names none.
        stride: clips have `stride`·k + 1 frames; 1 when it names none.
        defaults: width, height and num_frames where the class computes them.
        steps: how it tells of its steps: `end` (callback_on_step_end), `old` (callback), or empty.
    """

    source: ClassSource
    kind: str
    arguments: Mapping[str, Argument]
    image: str
    needs_image: bool
    several: bool
    unit: int
    stride: int
    defaults: Mapping[str, int]
    steps: str

    @property
    def name(self) -> str:
        """The class's name."""
        return self.source.name


def describe(source: ClassSource, instance: Instance) -> Described:
    """Read a class; `instance` knows the checkpoint's configurations.

    Raises ModelError when it has no `__call__`, or makes what cannot be delivered.
    """
    call = method(source, "__call__")
    if call is None:
        raise ModelError(
            f"{source.name} has no __call__ that can be read.", code="model_not_recognised"
        )
    arguments = read_signature(call)
    image = next((name for name in IMAGE_ARGUMENTS if name in arguments), "")
    defaults = dict(_defaults(call, arguments, instance))
    steps = "old" if "callback" in arguments else ""
    return Described(
        source=source,
        kind=_kind(source, arguments),
        arguments=arguments,
        image=image,
        needs_image=bool(image) and _needs(source.name, arguments[image]),
        several=source.name in SEVERAL,
        unit=_unit(source, instance),
        stride=_stride(source, instance),
        defaults=defaults,
        steps="end" if "callback_on_step_end" in arguments else steps,
    )


def _kind(source: ClassSource, arguments: Mapping[str, Argument]) -> str:
    made = _made([cls for cls in lineage(source) if cls.method("__call__") is not None])
    if made & SOUND and made & CLIPS:
        raise ModelError(
            f"{source.name} makes sound beside its frames, and a clip is delivered without.",
            code="model_not_recognised",
        )
    if made & CLIPS:
        return "video"
    if made & PICTURES:
        return "image"
    if made:
        raise ModelError(
            f"{source.name} makes {', '.join(sorted(made))}; pictures and clips are what can be "
            "delivered.",
            code="model_not_recognised",
        )
    return "video" if "num_frames" in arguments else "image"


def _made(classes: Sequence[ClassSource]) -> set[str]:
    """What the first class's `__call__` makes, by the fields of the outputs that it returns; where
    it names none and hands over to its base, what that one makes."""
    call = classes[0].method("__call__") if classes else None
    if call is None:
        return set()
    made = {
        row.arg or ""
        for node in ast.walk(call)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).endswith("Output")
        for row in node.value.keywords
        if not _is_none(row.value)
    }
    if not made and any(map(_hands_over, ast.walk(call))):
        return _made(classes[1:])
    return made


def _hands_over(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "__call__"
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _needs(name: str, argument: Argument) -> bool:
    return argument.required or FROM_PICTURE.search(name) is not None


def _functions(source: ClassSource) -> Iterator[ast.FunctionDef]:
    for name in ("check_inputs", "__call__", "prepare_latents"):
        function = method(source, name)
        if function is not None:
            yield function


def _unit(source: ClassSource, instance: Instance) -> int:
    """The grid of both sides: what the class asks them to be divisible by, and the patches of its
    transformer, which not every class checks."""
    patch = _patch(instance)
    for kind in (ast.Mod, ast.FloorDiv):
        found = [
            value
            for function in _functions(source)
            for value in _divisors(function, kind, instance, SIDES)
            if 1 < value <= 1024
        ]
        if found:
            return math.lcm(patch, *found)
    return patch


def _patch(instance: Instance) -> int:
    """Pixels of one patch of the transformer; 1 when that is not to be known."""
    try:
        size = instance.evaluate(ast.parse("self.transformer.config.patch_size", mode="eval").body)
    except Unknown:
        return 1
    size = size[-1] if isinstance(size, list | tuple) and size else size
    for name in VAE_FACTORS:
        try:
            factor = instance.attribute(name)
        except Unknown:
            continue
        if isinstance(size, int) and isinstance(factor, int) and size > 0 and factor > 0:
            return size * factor
    return 1


def _stride(source: ClassSource, instance: Instance) -> int:
    for kind in (ast.Mod, ast.FloorDiv):
        found = [
            value
            for function in _functions(source)
            for value in _divisors(function, kind, instance, ("num_frames",))
            if 1 < value <= 64
        ]
        if found:
            return math.lcm(*found)
    return 1


def _divisors(
    function: ast.FunctionDef, kind: type[ast.operator], instance: Instance, names: tuple[str, ...]
) -> Iterator[int]:
    """The values by which one of `names` (or it minus one) is divided."""
    local = local_values(function)
    for node in ast.walk(function):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, kind):
            continue
        if _subject(node.left) in names:
            try:
                value = instance.evaluate(node.right, local)
            except Unknown:
                continue
            if isinstance(value, int | float) and value == int(value):
                yield int(value)


def _subject(node: ast.expr) -> str:
    """The variable that an expression is about: `x`, `int(x)`, `x - 1`."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return _subject(node.args[0])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _subject(node.left)
    return node.id if isinstance(node, ast.Name) else ""


def _defaults(
    call: ast.FunctionDef, arguments: Mapping[str, Argument], instance: Instance
) -> Iterator[tuple[str, int]]:
    """Sizes that the signature leaves open and `__call__` fills in."""
    for name in (*SIDES, "num_frames"):
        argument = arguments.get(name)
        if argument is None:
            continue
        if isinstance(argument.default, int):
            yield name, argument.default
            continue
        value = _filled(call, name, instance) if argument.default is None else UNKNOWN
        if isinstance(value, int | float) and value == int(value) and value > 0:
            yield name, int(value)


def _filled(call: ast.FunctionDef, name: str, instance: Instance) -> Any:
    for node in ast.walk(call):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        for target, value in _pairs(node.targets[0], node.value):
            if not isinstance(target, ast.Name) or target.id != name:
                continue
            try:
                return instance.evaluate(_instead(value, name), {})
            except Unknown:
                return UNKNOWN
    return UNKNOWN


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _instead(node: ast.expr, name: str) -> ast.expr:
    """What takes the place of a `name` that is None: `name or X`, `name if ... else X`."""
    if (
        isinstance(node, ast.BoolOp)
        and isinstance(node.op, ast.Or)
        and _subject(node.values[0]) == name
    ):
        return node.values[-1]
    if isinstance(node, ast.IfExp) and _subject(node.body) == name:
        return node.orelse
    return node
