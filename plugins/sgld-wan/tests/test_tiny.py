"""Tiny checkpoints: liveliness, and that upstream libraries accept them. That they are small and
the same each time is in `test_contract`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sgld.testing.parity import relative_l2
from sgld_wan import blueprints

Tiny = Callable[[str], Path]
VARIANTS = ("t2v", "i2v", "t2v_a14b", "i2v_a14b", "ti2v_5b", "dmd", "causal_t2v", "longlive2")
CAT = "a cat on the sea"


def fingerprints(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_tensor_is_constant(tiny: Tiny, variant: str) -> None:
    for file in tiny(variant).rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert torch.isfinite(tensor).all(), name
            assert tensor.numel() == 1 or tensor.std() > 0, f"{file}: {name}"


def test_experts_differ(tiny: Tiny) -> None:
    file = "diffusion_pytorch_model.safetensors"
    high = load_file(tiny("t2v_a14b") / "transformer" / file)
    low = load_file(tiny("t2v_a14b") / "transformer_2" / file)
    assert high.keys() == low.keys()
    assert not any(torch.equal(high[name], low[name]) for name in high)


def test_fastwan_has_the_weights_of_t2v_under_its_own_class(tiny: Tiny) -> None:
    weights = {
        name: value for name, value in fingerprints(tiny("t2v")).items() if "safetensors" in name
    }
    fast = fingerprints(tiny("dmd"))
    assert weights.items() <= fast.items()
    index = json.loads((tiny("dmd") / "model_index.json").read_text())
    assert index["_class_name"] == "WanDMDPipeline"


@pytest.mark.parametrize(
    ("variant", "image", "size"),
    [
        ("t2v", False, (32, 48)),
        ("i2v", True, (32, 48)),
        ("t2v_a14b", False, (32, 48)),
        ("i2v_a14b", True, (32, 48)),
        ("ti2v_5b", False, (64, 96)),
        ("ti2v_5b", True, (64, 96)),
    ],
)
def test_reference_output_is_sane_and_follows_its_inputs(
    tiny: Tiny, variant: str, image: bool, size: tuple[int, int]
) -> None:
    import oracle

    folder, (height, width) = tiny(variant), size
    picture = oracle.picture() if image else None
    options = {"image": picture, "height": height, "width": width, "steps": 3}
    one = oracle.run(folder, prompt=CAT, **options)
    assert one.frames.shape == (9, height, width, 3)
    assert np.isfinite(one.frames).all()
    assert one.frames.std() > 0.05
    assert ((one.frames <= 0) | (one.frames >= 1)).mean() < 0.02
    # Every input must move the latents far more than the 1e-4 that parity allows.
    others = {
        "prompt": oracle.run(folder, prompt="red car 12345", **options),
        "negative prompt": oracle.run(folder, prompt=CAT, negative_prompt="blurry", **options),
        "guidance": oracle.run(folder, prompt=CAT, guidance=1.0, **options),
        "seed": oracle.run(folder, prompt=CAT, seed=1, **options),
        "shift": oracle.run(folder, prompt=CAT, flow_shift=2.0, **options),
    }
    if picture is not None:
        options["image"] = picture.rotate(180)
        others["image"] = oracle.run(folder, prompt=CAT, **options)
    for name, other in others.items():
        assert relative_l2(other.latents, one.latents) > 0.01, name


def test_both_experts_are_used_and_have_their_own_guidance(tiny: Tiny) -> None:
    import oracle

    for variant, image in (("t2v_a14b", None), ("i2v_a14b", oracle.picture())):
        same = oracle.run(tiny(variant), prompt=CAT, image=image, guidance=3.0, guidance_2=3.0)
        other = oracle.run(tiny(variant), prompt=CAT, image=image, guidance=3.0, guidance_2=6.0)
        assert relative_l2(other.latents, same.latents) > 0.01


def test_reference_repeats_itself(tiny: Tiny) -> None:
    import oracle

    one = oracle.run(tiny("t2v"), prompt=CAT, flow_shift=5.0)
    two = oracle.run(tiny("t2v"), prompt=CAT, flow_shift=5.0)
    assert torch.equal(one.latents, two.latents)


def test_dmd_reference(tiny: Tiny) -> None:
    import oracle

    # The values that the public FastWan samplers reach with shift 8 and shift 5.
    assert [round(oracle.nearest_sigma(step, 8.0), 6) for step in oracle.DMD_STEPS] == [
        1.0,
        0.756757,
        0.521739,
    ]
    assert round(oracle.nearest_sigma(757, 5.0), 6) == 0.757098
    one = oracle.run_dmd(tiny("dmd"), prompt=CAT)
    assert one.latents.shape == (1, 16, 3, 4, 6)
    assert np.isfinite(one.frames).all()
    assert relative_l2(oracle.run_dmd(tiny("dmd"), prompt=CAT, seed=1).latents, one.latents) > 0.1
    assert relative_l2(oracle.run_dmd(tiny("dmd"), prompt="b").latents, one.latents) > 0.01
    # A single step ends at x0 = x - v of the starting noise; nothing else is drawn.
    short = oracle.run_dmd(tiny("dmd"), prompt=CAT, steps=(1000,))
    assert relative_l2(short.latents, one.latents) > 0.1


@pytest.mark.parametrize("name", blueprints.BLUEPRINTS)
def test_blueprint_builds_the_released_size(name: str, tmp_path: Path) -> None:
    from oracle import diffusers

    blueprints.BLUEPRINTS[name](tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
    billions = {
        "wan2.1-t2v-1.3b": 1.42,
        "wan2.1-t2v-14b": 14.29,
        "wan2.1-i2v-14b-480p": 16.40,
        "wan2.2-t2v-a14b": 14.29,
        "wan2.2-i2v-a14b": 14.29,
        "wan2.2-ti2v-5b": 5.00,
        "wan2.1-causal-t2v-1.3b": 1.42,
        "longlive2-5b": 5.00,
    }
    model_class = diffusers.WanTransformer3DModel
    with torch.device("meta"):
        model = model_class.from_config(model_class.load_config(tmp_path / "transformer"))
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(
        billions[name], abs=0.01
    )


def test_blueprint_encoders_have_the_released_size(tmp_path: Path) -> None:
    from oracle import diffusers, transformers

    blueprints.wan21_i2v_14b_480p(tmp_path / "a")
    blueprints.wan22_ti2v_5b(tmp_path / "b")
    with torch.device("meta"):
        text = transformers.UMT5EncoderModel(
            transformers.AutoConfig.from_pretrained(tmp_path / "a" / "text_encoder")
        )
        image = transformers.CLIPVisionModel(
            transformers.CLIPVisionConfig.from_pretrained(tmp_path / "a" / "image_encoder")
        )
        vaes = [
            diffusers.AutoencoderKLWan.from_config(
                diffusers.AutoencoderKLWan.load_config(tmp_path / name / "vae")
            )
            for name in "ab"
        ]
    sizes = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (text, image, *vaes)]
    assert sizes == pytest.approx([5681, 631, 127, 705], abs=2)


def test_blueprints_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sgld_wan import blueprints;"
        f"[write(Path({str(tmp_path)!r}) / name) for name, write in blueprints.BLUEPRINTS.items()];"
        "found = {'torch', 'transformers', 'diffusers'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
