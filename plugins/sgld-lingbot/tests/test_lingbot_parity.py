"""The network and its loop against golden tensors, and against an independent implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lingbot_bench import Generation, drawn, network
from lingbot_golden import network_config, same, settings, tensors
from lingbot_oracle import Oracle, Sizes

from sgld.api.errors import ParameterError
from sgld.causal.policies import Rolling
from sgld.ops import Ops
from sgld.testing.randomness import reinitialise
from sgld_lingbot.models.config import LingBotConfig
from sgld_lingbot.models.dit import ChunkCamera, LingBotTransformer, camera_bytes
from sgld_lingbot.schedules import V2_STEPS, Schedule, make_schedule
from sgld_wan.models.config import WanConfig
from sgld_wan.weights import original_dit

CONFIG = LingBotConfig.from_json(network_config())
TOKENS = 6
SCRIPT = make_schedule(V2_STEPS, 10.0, "unipc")
SERVER = make_schedule(V2_STEPS, 5.0, "self-forcing")


@pytest.fixture(scope="module")
def model() -> LingBotTransformer:
    return network(CONFIG, tensors("causal_fast_weights"))


def generate(model: LingBotTransformer, case: dict[str, Any], schedule: Schedule) -> Any:
    given = tensors("causal_fast")
    recent = case.get("recent_window_frames")
    policy = Rolling(case["window_frames"], case["sink_frames"], limit=15, recent=recent)
    generation = Generation(model, policy, TOKENS, given["text_embeds"], CONFIG.text_length)
    chunks = [
        generation.chunk(
            drawn(given["noise_init"][i], given["renoise"][i]),
            given["cond"][i],
            given["plucker"][i],
            schedule,
        )
        for i in range(len(given["noise_init"]))
    ]
    return generation, chunks


def check_history(generation: Generation, golden: dict[str, torch.Tensor], case: str) -> None:
    for layer in range(CONFIG.wan.num_layers):
        k, v = generation.kv.ordered(layer)
        same(k, golden[f"{case}.final_k.layer{layer}"])
        same(v, golden[f"{case}.final_v.layer{layer}"])


@pytest.mark.parity
@pytest.mark.parametrize("case", settings("causal_fast")["cases"])
def test_the_published_loop(model: LingBotTransformer, case: str) -> None:
    golden = tensors("causal_fast")
    generation, chunks = generate(model, settings("causal_fast")["cases"][case], SCRIPT)
    same(torch.cat([chunk.first for chunk in chunks]), golden[f"{case}.flow_step0"])
    same(torch.cat([chunk.latents for chunk in chunks]), golden[f"{case}.latents"])
    same(torch.cat([chunk.clean for chunk in chunks]), golden[f"{case}.ctx_out"])
    check_history(generation, golden, case)


@pytest.mark.parity
@pytest.mark.parametrize("case", settings("realtime_dmd")["cases"])
def test_the_realtime_loop(model: LingBotTransformer, case: str) -> None:
    golden = tensors("realtime_dmd")
    generation, chunks = generate(model, settings("realtime_dmd")["cases"][case], SERVER)
    same(torch.cat([chunk.latents for chunk in chunks]), golden[f"{case}.latents"])
    check_history(generation, golden, case)


@pytest.mark.parity
def test_what_the_layers_compute_on_the_way(model: LingBotTransformer) -> None:
    golden, seen = tensors("causal_fast"), {}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: seen.setdefault(name, output)

    first = model.blocks[0]
    parts = {
        "act.patch_embedding": model.patch_embedding,
        "act.text_embedding": model.condition_embedder.text_embedder,
        "act.time_embedding": model.condition_embedder.time_embedder,
        "act.time_projection": model.condition_embedder.time_proj,
        "act.cam_patch": model.patch_embedding_wancamctrl,
        "act.self_attn0": first.attn1.to_out[0],
        "act.cross_attn0": first.attn2.to_out[0],
        "act.ffn0": first.ffn,
        "act.block0": first,
        "act.block1": model.blocks[1],
        "act.head": model.proj_out,
    }
    handles = [part.register_forward_hook(keep(name)) for name, part in parts.items()]
    try:
        generate(model, settings("causal_fast")["cases"]["global"], SCRIPT)
    finally:
        for handle in handles:
            handle.remove()
    assert seen.keys() == parts.keys() == {name for name in golden if name.startswith("act.")}
    for name, ours in seen.items():
        theirs = golden[name]
        if name == "act.patch_embedding":
            theirs = theirs.flatten(2).transpose(1, 2)
        if name.startswith("act.time"):  # ours is one per frame, theirs one per token
            ours = ours.flatten(2).repeat_interleave(TOKENS, dim=1)
        same(ours.reshape(theirs.shape), theirs)


def small(heads: int, head_dim: int, layers: int = 2) -> WanConfig:
    return WanConfig(
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        in_channels=13,
        out_channels=5,
        text_dim=9,
        freq_dim=20,
        ffn_dim=24,
        num_layers=layers,
    )


CASES = {
    # heads, head width, latent size, chunk, window, sink
    "one-head": (1, 12, (4, 4), 3, 9, 3),
    "three-heads": (3, 16, (2, 6), 2, 7, 1),
    "five-heads": (5, 12, (4, 2), 4, 10, 3),
    "window-no-multiple-of-the-chunk": (2, 16, (2, 4), 3, 8, 1),
    "window-of-sink-and-chunk": (2, 12, (2, 4), 2, 5, 3),
    "single-frames": (2, 12, (4, 4), 1, 4, 2),
    "no-sink": (2, 16, (2, 2), 3, 7, 0),
    "everything-is-kept": (2, 12, (2, 4), 2, 40, 0),
}


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES)
def test_other_sizes_against_an_independent_network(case: str) -> None:
    heads, head_dim, (height, width), frames, window, sink = CASES[case]
    config = small(heads, head_dim)
    model = reinitialise(LingBotTransformer(config, Ops.torch()), seed=3)
    state = {original_dit(name): tensor for name, tensor in model.state_dict().items()}
    draw = torch.Generator().manual_seed(5)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw)

    text, tokens = random(3, config.text_dim), height * width // 4
    ours = Generation(model, Rolling(window, sink), tokens, text, rows=6)
    theirs = Oracle(state, Sizes(heads, config.num_layers, config.freq_dim, 6), window, sink)
    schedule = make_schedule((1000, 500, 100), 3.0, "self-forcing")
    for index in range(5):
        noise = [random(config.out_channels, frames, height, width) for _ in schedule.times]
        shown = random(config.in_channels - config.out_channels, frames, height, width)
        # Chunk 1 is not steered: then the camera's branch is left out altogether.
        plucker = None if index == 1 else random(384, frames, height, width)
        wanted = theirs.chunk(noise, shown, text, plucker, *schedule)
        made = ours.chunk(noise, shown, plucker, schedule)
        torch.testing.assert_close(made.latents[0].double(), wanted, atol=2e-5, rtol=2e-5)
    for layer in range(config.num_layers):
        k, v = ours.kv.ordered(layer)
        past = theirs.past[layer]
        assert k.shape[1] == len(past) * tokens == min(5 * frames, window) * tokens
        wanted = torch.cat([pair[0] for pair in past]), torch.cat([pair[1] for pair in past])
        torch.testing.assert_close(k[0].double(), wanted[0], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(v[0].double(), wanted[1], atol=2e-5, rtol=2e-5)


def test_what_is_kept_of_a_camera_changes_nothing_and_is_what_the_budget_says(
    model: LingBotTransformer,
) -> None:
    given = tensors("causal_fast")

    def forward(camera: ChunkCamera) -> torch.Tensor:
        policy = Rolling(6)
        generation = Generation(model, policy, TOKENS, given["text_embeds"], CONFIG.text_length)
        generation.kv.begin(3)
        latents, time = given["noise_init"][:1], torch.full((1, 3), 500.0)
        return generation.forward(latents, given["cond"][0], time, camera)

    camera = ChunkCamera(given["plucker"][:1])
    fresh, again = forward(camera), forward(camera)
    assert torch.equal(fresh, again)
    assert not torch.allclose(fresh, forward(ChunkCamera(given["plucker"][1:2])), atol=1e-2)
    assert camera.plucker is None
    assert camera.nbytes() == camera_bytes(CONFIG.wan, 3 * TOKENS, 4)


@pytest.mark.parametrize(
    ("camera", "message"),
    [
        (torch.zeros(1, 384, 3, 4, 6), "is no ChunkCamera"),
        (ChunkCamera(torch.zeros(1, 384, 2, 4, 6)), "for this chunk"),
        (ChunkCamera(torch.zeros(1, 6, 3, 4, 6)), "for this chunk"),
    ],
)
def test_a_camera_of_another_form_is_refused(
    model: LingBotTransformer, camera: Any, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        model.conditions(camera, (3, 2, 3))


def test_a_camera_of_another_chunk_is_refused(model: LingBotTransformer) -> None:
    camera = ChunkCamera(torch.zeros(1, 384, 3, 4, 6))
    assert model.conditions(camera, (3, 2, 3)) is camera
    with pytest.raises(ParameterError, match="is of a chunk of 18 tokens, not 12"):
        model.conditions(camera, (2, 2, 3))
