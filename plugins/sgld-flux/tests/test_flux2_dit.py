"""The FLUX.2 networks alone: denoiser, text encoders, VAE and schedule against their references."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle2
import pytest
import torch
from safetensors.torch import load_file

from sgld.api.errors import ModelError
from sgld.ops import Ops
from sgld.testing.parity import ParityTable, relative_l2
from sgld_flux import configs2, tokenizers2, weights2
from sgld_flux.models import text2
from sgld_flux.models.config2 import Flux2Config, Grids
from sgld_flux.models.flux2 import Flux2Transformer, position_ids
from sgld_flux.models.vae2 import Vae, patched, unpatched
from sgld_flux.stages.sampler2 import check_scheduler, flux2_sampler, shift
from sgld_flux.stages.text2 import MistralPrompts, QwenPrompts

Tiny = Callable[..., Path]
TABLE = ParityTable("flux.2 networks")
LENGTH = 20
PICTURE: Grids = ((0, 4, 6),)
REFERENCES: Grids = ((10, 3, 5), (20, 4, 4))


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def ours(folder: Path, ops: Ops | None = None) -> Flux2Transformer:
    config = Flux2Config.from_json(
        oracle2.diffusers.Flux2Transformer2DModel.load_config(folder / "transformer")
    )
    with torch.device("meta"):
        model = Flux2Transformer(config, ops or Ops.torch())
    weights = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(grids: Grids) -> int:
    return sum(rows * columns for _, rows, columns in grids)


def inputs(grids: Grids, seed: int = 0) -> dict[str, Any]:
    return {
        "hidden_states": drawn(2, tokens(grids), 16, seed=seed),
        "encoder_hidden_states": drawn(2, LENGTH, 48, seed=seed + 1),
        "timestep": torch.tensor([967.384, 123.4]),
    }


def theirs(model: Any, grids: Grids, given: dict[str, Any], **more: Any) -> Any:
    """diffusers' forward; it takes times as levels and positions as ids."""
    dtype = given["hidden_states"].dtype
    return model(
        hidden_states=given["hidden_states"],
        encoder_hidden_states=given["encoder_hidden_states"],
        timestep=given["timestep"].to(dtype) / 1000,
        img_ids=position_ids(grids, 0),
        txt_ids=position_ids((), LENGTH),
        return_dict=False,
        **more,
    )


@pytest.mark.parity
@pytest.mark.parametrize("variant", ["klein", "dev"])
@pytest.mark.parametrize("grids", [PICTURE, PICTURE + REFERENCES], ids=["alone", "references"])
@pytest.mark.parametrize("ops", ["torch", "reference"])
def test_forward(tiny: Tiny, variant: str, grids: Grids, ops: str) -> None:
    folder = tiny(variant, "testing2")
    guidance = torch.tensor([4.0, 1.3]) if variant == "dev" else None
    given = inputs(grids)
    expected = theirs(oracle2.components(folder)["transformer"], grids, given, guidance=guidance)[0]
    found = ours(folder, getattr(Ops, ops)())(**given, grids=grids, guidance=guidance)
    count = tokens(PICTURE)
    assert found.shape == (2, count, 16)
    TABLE.check(f"{variant}, {len(grids)} pictures, {ops}", found, expected[:, :count], 1e-5)


@pytest.mark.parity
def test_remembered_references_equal_the_extracting_and_the_cached_pass(tiny: Tiny) -> None:
    """One pass over the references alone gives what diffusers extracts inside the first step."""
    folder = tiny("klein_kv", "testing2")
    model = oracle2.pipeline(folder).transformer
    oracle2.pipeline(folder)._set_kv_attn_processors()
    references = drawn(2, tokens(REFERENCES), 16, seed=9)
    given = inputs(PICTURE)
    both = given | {"hidden_states": torch.cat([references, given["hidden_states"]], dim=1)}
    first, cache = theirs(
        model, REFERENCES + PICTURE, both, kv_cache_mode="extract",
        num_ref_tokens=tokens(REFERENCES),
    )  # fmt: skip
    later = inputs(PICTURE, seed=4)
    second = theirs(model, PICTURE, later, kv_cache=cache, kv_cache_mode="cached")[0]
    own = ours(folder)
    memory = own.remember(references, REFERENCES)
    layers = [*cache.double_block_caches, *cache.single_block_caches]
    assert memory.shape == (2, len(layers), 2, tokens(REFERENCES), 2, 32)
    for index, layer in enumerate(layers):
        TABLE.check(f"keys of layer {index}", memory[:, index, 0], layer.k_ref, 1e-5)
        TABLE.check(f"values of layer {index}", memory[:, index, 1], layer.v_ref, 1e-5)
    for name, case, expected in (("first", given, first), ("later", later, second)):
        TABLE.check(f"{name} step", own(**case, grids=PICTURE, memory=memory), expected, 1e-5)
    without = own(**given, grids=PICTURE)
    assert relative_l2(without, first) > 0.01


@pytest.mark.parametrize("variant", ["klein", "dev"])
def test_bfloat16_is_no_further_from_float32_than_diffusers(tiny: Tiny, variant: str) -> None:
    folder = tiny(variant, "testing2")
    grids = PICTURE + REFERENCES
    guidance = torch.tensor([4.0, 1.3]) if variant == "dev" else None
    given = inputs(grids)
    model = oracle2.components(folder)["transformer"]
    exact = theirs(model, grids, given, guidance=guidance)[0][:, : tokens(PICTURE)]
    half = {name: value if name == "timestep" else value.bfloat16()
            for name, value in given.items()}  # fmt: skip
    pipe = oracle2.halve(oracle2.pipeline(folder))
    rough = theirs(pipe.transformer, grids, half, guidance=guidance)[0][:, : tokens(PICTURE)]
    found = ours(folder).to(torch.bfloat16)(**half, grids=grids, guidance=guidance)
    reference, error = relative_l2(rough, exact), relative_l2(found, exact)
    print(f"{variant}: ours {error:.2e}, diffusers {reference:.2e}")
    assert found.dtype is torch.bfloat16
    assert 1e-4 < reference < 0.2
    assert error <= 1.1 * reference


def test_rows_do_not_touch_each_other(tiny: Tiny) -> None:
    model = ours(tiny("klein_kv", "testing2"))
    given, memory = inputs(PICTURE), model.remember(drawn(2, 31, 16), REFERENCES)
    both = model(**given, grids=PICTURE, memory=memory)
    for row in range(2):
        alone = {name: value[row : row + 1] for name, value in given.items()}
        single = model(**alone, grids=PICTURE, memory=memory[row : row + 1])
        assert relative_l2(both[row : row + 1], single) < 1e-5


def test_rotary_tables_are_kept_by_size_and_few(tiny: Tiny) -> None:
    model = ours(tiny("klein", "testing2"))
    first = model.rotary(PICTURE, LENGTH, torch.device("cpu"))
    assert model.rotary(PICTURE, LENGTH, torch.device("cpu"))[0] is first[0]
    assert first[0].shape == (LENGTH + 24, 16)
    for size in range(1, 40):
        model.rotary(((0, size, 1),), 0, torch.device("cpu"))
    assert model.rotary(PICTURE, LENGTH, torch.device("cpu"))[0] is not first[0]
    assert torch.equal(model.rotary(PICTURE, LENGTH, torch.device("cpu"))[0], first[0])


def test_positions() -> None:
    found = position_ids(((0, 1, 2), (10, 2, 1)), 2).tolist()
    assert found == [
        [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [10, 0, 0, 0], [10, 1, 0, 0],
    ]  # fmt: skip


SIZES = {"flux2_klein_4b": 3.88e9, "flux2_klein_9b": 9.08e9, "flux2_dev": 32.2e9}


@pytest.mark.parametrize("name", SIZES)
def test_real_sizes_have_diffusers_parameters(name: str, tmp_path: Path) -> None:
    from sgld_flux import blueprints2

    getattr(blueprints2, name)(tmp_path)
    reference_class = oracle2.diffusers.Flux2Transformer2DModel
    config = reference_class.load_config(tmp_path / "transformer")
    with torch.device("meta"):
        own = Flux2Transformer(Flux2Config.from_json(config), Ops.torch())
        reference = reference_class.from_config(config)
    shapes = {key: tuple(value.shape) for key, value in own.state_dict().items()}
    assert shapes == {key: tuple(value.shape) for key, value in reference.state_dict().items()}
    count = sum(parameter.numel() for parameter in own.parameters())
    assert count == pytest.approx(SIZES[name], rel=0.02)
    assert len(own.layer_groups()) == own.config.blocks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"colour": 1}, "colour=1: unknown key"),
        ({"patch_size": 2}, "patch_size=2: only 1"),
        ({"num_layers": 0}, "num_layers=0: must be a positive whole number"),
        ({"num_layers": True}, "num_layers=True"),
        ({"axes_dims_rope": [32, 32, 32]}, "must be 4 even numbers"),
        ({"axes_dims_rope": [32, 32, 32, 31]}, "must be 4 even numbers"),
        ({"axes_dims_rope": [16, 16, 16, 16]}, "must add up to attention_head_dim=128"),
        ({"eps": 1e-5}, "eps=1e-05"),
        ({"mlp_ratio": "3"}, "mlp_ratio='3': must be a positive number"),
        ({"guidance_embeds": 1}, "guidance_embeds=1: must be true or false"),
        ({"in_channels": None}, "in_channels=None: must be given"),
        ({"timestep_guidance_channels": 255}, "must be even"),
        ({"patch_size": 3, "num_layers": 1.5}, "num_layers=1.5"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        Flux2Config.from_json(configs2.transformer(**changes))
    assert said in str(caught.value)


def test_the_name_map_is_that_of_diffusers(tiny: Tiny) -> None:
    """Original names made by ours, read by diffusers' converter and by ours: the same tensors."""
    from diffusers.loaders.single_file_utils import (
        convert_flux2_transformer_checkpoint_to_diffusers,
    )

    file = tiny("dev", "testing2") / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    original = weights2.original_transformer(tensors)
    assert weights2.is_original(original)
    assert not weights2.is_original(tensors)
    assert set(original).isdisjoint(set(tensors))
    converted = convert_flux2_transformer_checkpoint_to_diffusers(dict(original))
    assert converted.keys() == tensors.keys()
    assert all(torch.equal(converted[name], tensors[name]) for name in tensors)
    for prefix in ("", "model.diffusion_model."):
        renamed = {weights2.rename(prefix + name): tensor for name, tensor in original.items()}
        targets = weights2.convert([name for name in renamed if name])
        made = {name: tensor for name, tensor in renamed.items() if name in tensors}
        for target in targets:
            assert target.combine is not None
            made[target.name] = target.combine([renamed[name] for name in target.sources])
        assert made.keys() == tensors.keys()
        assert all(torch.equal(made[name], tensors[name]) for name in tensors)


def test_names_that_no_rule_knows_stay() -> None:
    for name in ("double_blocks.0.img_attn.scale.weight", "lora.a", "single_blocks.x.linear1"):
        assert weights2.rename(name) == name
        assert weights2.original_name(name) is None


@pytest.mark.parity
@pytest.mark.parametrize("variant", ["klein", "dev"])
@pytest.mark.parametrize("prompt", ["a cat", "", "l’été 猫", "word " * 200])
def test_text_states(tiny: Tiny, variant: str, prompt: str) -> None:
    folder = tiny(variant, "testing2")
    pipe = oracle2.pipeline(folder)
    expected, _ = pipe.encode_prompt(prompt)
    model = text_encoder(folder, lambda name: name)
    prompts = {"klein": QwenPrompts, "dev": MistralPrompts}[variant](pipe.tokenizer)
    batch = prompts(prompt, 512)
    assert batch["input_ids"].shape == (1, 512)
    found = model(**batch)
    assert found.shape == (1, 512, 48)
    TABLE.check(f"{variant} text {prompt[:8]!r}", found, expected, 1e-6)


SAVED: dict[str, Callable[[str], str]] = {
    "as saved": lambda name: name,
    "newer": lambda name: name.replace("language_model.model.", "model.language_model."),
    "language model alone": lambda name: name.replace("language_model.model.", "model."),
}


@pytest.mark.parametrize("way", SAVED)
def test_mistral_is_read_however_it_was_saved(tiny: Tiny, way: str) -> None:
    folder = tiny("dev", "testing2")
    plain, model = text_encoder(folder, SAVED["as saved"]), text_encoder(folder, SAVED[way])
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def text_encoder(folder: Path, saved: Callable[[str], str]) -> Any:
    """Our text encoder, loaded strictly from what remains after renaming and leaving out."""
    from fnmatch import fnmatch

    from sgld.weights.files import read_json

    config = read_json(folder / "text_encoder" / "config.json")
    kind, layers = str(config["model_type"]), (config.get("text_config") or config)
    weights = load_file(folder / "text_encoder" / "model.safetensors")
    names = {name: text2.rename(saved(name)) for name in weights}
    left_out = text2.unused(kind, layers["num_hidden_layers"])
    kept = {
        new: weights[old]
        for old, new in names.items()
        if new is not None and not any(fnmatch(new, pattern) for pattern in left_out)
    }
    with torch.device("meta"):
        model = text2.TextEncoder(config, torch.float32)
    model.load_state_dict(kept, strict=True, assign=True)
    for part in model.modules():
        if isinstance(part, text2.TextEncoder):
            part.materialise_buffers(torch.device("cpu"))
    assert len(model.layer_groups()) == text2.LAYERS[kind][-1]
    return model.eval()


def test_a_language_model_with_no_layers_left_over_keeps_its_norm() -> None:
    config = configs2.qwen3(
        head_dim=8, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=320, num_hidden_layers=27, bos_token_id=None,
        eos_token_id=2,
    )  # fmt: skip
    model = text2.TextEncoder(config, torch.float32)
    assert "model.norm.weight" in model.state_dict()
    assert "model.norm.weight" not in text2.unused("qwen3", 27)
    ids = torch.arange(6)[None]
    states = model.model(ids, torch.ones_like(ids), output_hidden_states=True).hidden_states
    assert torch.equal(model(ids, torch.ones_like(ids))[..., 32:], states[27])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (configs2.qwen3(num_hidden_layers=26), "num_hidden_layers=26"),
        (configs2.qwen3(model_type="gemma2"), "model_type='gemma2'"),
    ],
)
def test_another_language_model_is_refused(config: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        text2.TextEncoder(config, torch.float32)


def test_tokenizers_write_the_templates(tmp_path: Path) -> None:
    tokenizers2.write_qwen(tmp_path / "qwen")
    tokenizers2.write_mistral(tmp_path / "mistral")
    load = oracle2.transformers.AutoTokenizer.from_pretrained
    qwen, mistral = load(tmp_path / "qwen"), load(tmp_path / "mistral")
    found = QwenPrompts(qwen)("hé", 64)
    shown = qwen.decode(found["input_ids"][0][found["attention_mask"][0] == 1])
    assert shown == (
        "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert found["attention_mask"][0, 0] == 1
    assert found["attention_mask"][0, -1] == 0
    found = MistralPrompts(mistral)("a [IMG]b", 512)
    text = mistral.decode(found["input_ids"][0][found["attention_mask"][0] == 1])
    assert text.startswith("<s>[SYSTEM_PROMPT]You are an AI")
    assert "object\nattribution" in text
    assert text.endswith("[INST]a b[/INST]")
    assert found["attention_mask"][0, 0] == 0
    assert found["attention_mask"][0, -1] == 1


def test_vae_normalises_by_its_own_statistics(tiny: Tiny) -> None:
    parts = oracle2.components(tiny("klein", "testing2"))
    own = Vae(dict(parts["vae"].config))
    own.model.load_state_dict(parts["vae"].state_dict())
    own.eval()
    picture = drawn(1, 3, 64, 96).clamp(-1, 1)
    pipe = oracle2.pipeline(tiny("klein", "testing2"))
    expected = pipe._encode_vae_image(picture, None)
    found = own.encode(picture)
    assert found.shape == (1, 16, 4, 6)
    TABLE.check("vae encode", found, expected, 1e-6)
    decoded = pipe.image_processor.postprocess(own.decode(found), output_type="np")[0]
    TABLE.check("vae decode", decoded, oracle2.decode(pipe, expected), 1e-5)


def test_patches_are_ordered_as_in_diffusers() -> None:
    latents = drawn(2, 4, 6, 8)
    pipe = oracle2.diffusers.Flux2KleinPipeline
    assert torch.equal(patched(latents), pipe._patchify_latents(latents))
    assert torch.equal(unpatched(patched(latents)), latents)


@pytest.mark.parametrize(
    ("tokens_", "steps", "expected"),
    [(4096, 4, 2.291180), (4096, 50, 2.023351), (1024, 4, 2.030690), (4301, 4, 1.184697)],
)
def test_the_shift_law(tokens_: int, steps: int, expected: float) -> None:
    """Values of the public formula; above 4300 tokens the steps have no say."""
    assert shift(tokens_, steps) == pytest.approx(expected, abs=1e-5)


def test_the_schedule_of_klein_at_full_size() -> None:
    sampler = flux2_sampler(configs2.scheduler(), 4096, 4, torch.device("cpu"))
    levels = [time / 1000 for time in sampler.times]
    assert levels == pytest.approx([1.0, 0.967384, 0.908144, 0.767200], abs=1e-5)
    latents = torch.zeros(1, 2)
    for index in range(4):
        latents = sampler.step(torch.ones(1, 2), index, latents)
    assert torch.allclose(latents, torch.full((1, 2), -1.0), atol=1e-6)


def test_another_scheduler_is_refused() -> None:
    with pytest.raises(ModelError, match="_class_name='DDIM'"):
        check_scheduler({"_class_name": "DDIM"})
