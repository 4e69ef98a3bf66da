"""The pipeline's stages by hand: what a chunk sees, what a prompt changes, and what is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lingbot_bench import Opened, open_pipeline
from lingbot_oracle import Oracle, Sizes
from safetensors.torch import load_file

from sgld.api.errors import ParameterError
from sgld.causal.blocks import Chunk
from sgld.causal.state import CausalState
from sgld.media.images import fit_image
from sgld.params.merge import Layer, build
from sgld_lingbot import testing
from sgld_lingbot.models.camera import Track, walk
from sgld_lingbot.models.camera import plucker as rays
from sgld_lingbot.params import LingBotParams
from sgld_lingbot.schedules import make_schedule
from sgld_lingbot.stages.chunk import CAMERA
from sgld_lingbot.stages.condition import piece_of
from sgld_wan.stages.causal import kv_cache
from sgld_wan.stages.text import tokenize

WALK = {"prompt": "a castle", "actions": [["w"], ["w", "l"], []]}
STAND = {"prompt": "a castle"}
PICTURE = np.random.default_rng(3).integers(0, 255, (37, 81, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def opened(tiny: Path) -> Opened:
    return open_pipeline(tiny)


def params(**values: Any) -> LingBotParams:
    given = {"prompt": "a castle", "width": 48, "height": 32, "num_frames": 21, **values}
    return build(LingBotParams, [Layer("call", given)]).params


def history(job: Any) -> torch.Tensor:
    """Keys and values of every layer, in order of time."""
    kv = kv_cache(job.slots.state)
    return torch.stack([torch.stack([*kv.ordered(layer)]) for layer in range(kv.shape.layers)])


def test_numbers_come_from_the_request_then_the_checkpoint(opened: Opened) -> None:
    pipeline = opened.pipeline
    assert pipeline.memory(params()) == (3, 9, 3)
    assert pipeline.memory(params(realtime_causal_sink_size=0)) == (3, 9, 0)
    asked = params(recipe="v2-script", realtime_causal_kv_cache_num_frames=20)
    assert pipeline.memory(asked) == (4, 20, 6)


def test_what_does_not_go_with_the_checkpoint_is_refused_before_anything_is_done(
    opened: Opened,
) -> None:
    asked = params(realtime_causal_kv_cache_num_frames=5)  # its own sink and chunk are 3 and 3
    for begin in (opened.pipeline.open_stages, opened.pipeline.state_bytes, opened.pipeline.plan):
        with pytest.raises(ParameterError, match="at least 6") as caught:
            begin(asked)
        assert caught.value.problems[0].field == "realtime_causal_kv_cache_num_frames"


@pytest.mark.parametrize(
    ("frames", "chunk", "chunks"),
    [(33, 3, [3, 3, 3]), (20, None, [3]), (1, 4, [4]), (33, 4, [4, 4])],
)
def test_a_clip_is_whole_chunks(
    opened: Opened, frames: int, chunk: int | None, chunks: list[int]
) -> None:
    asked = params(num_frames=frames, **({"chunk_latents": chunk} if chunk else {}))
    assert [one.frames for one in opened.pipeline.plan(asked).chunks()] == chunks


@pytest.mark.parametrize(
    ("chunk", "frames", "kept", "wanted"),
    [
        (Chunk(0, 0, 3), 6, 6, [0, 1, 2]),
        (Chunk(1, 3, 3), 6, 6, [3, 4, 5]),
        (Chunk(2, 6, 3), 6, 6, [3, 4, 5]),
        (Chunk(9, 27, 3), 6, 6, [3, 4, 5]),
        (Chunk(2, 8, 4), 8, 8, [4, 5, 6, 7]),
        (Chunk(10, 30, 3), 40, 30, [29, 29, 29]),
        (Chunk(9, 28, 3), 40, 30, [28, 29, 29]),
    ],
)
def test_which_piece_of_the_still_clip_a_chunk_is_shown(
    chunk: Chunk, frames: int, kept: int, wanted: list[int]
) -> None:
    numbers = torch.arange(kept, dtype=torch.float32)[None, None, :, None, None]
    assert piece_of(chunk, numbers, frames).flatten().tolist() == wanted


def test_chunks_are_shown_the_stretched_picture_then_what_follows_it(opened: Opened) -> None:
    asked = params()
    job = opened.job(asked, PICTURE)
    image = fit_image(PICTURE, 32, 48, "stretch")
    video = torch.zeros(1, 3, 21, 32, 48)
    video[0, :, 0] = torch.from_numpy(image).permute(2, 0, 1) / 127.5 - 1
    encoded = opened.modules["vae"].encode(video)
    whole = opened.pipeline.parts["latent_scale"].normalise(encoded)
    for index, first in enumerate([0, 3, 3]):
        opened.chunk(job, index, STAND)
        shown = job.slots.shown
        torch.testing.assert_close(shown[:, 4:], whole[:, :, first : first + 3])
        mask = torch.zeros(1, 4, 3, 4, 6)
        mask[:, :, 0] = index == 0
        assert torch.equal(shown[:, :4], mask)


def test_a_short_still_clip_is_two_chunks_long_so_that_the_picture_does_not_come_again(
    opened: Opened,
) -> None:
    short, long = opened.job(params(num_frames=9), PICTURE), opened.job(params(), PICTURE)
    for index in range(3):
        for job in (short, long):
            opened.chunk(job, index, STAND)
        assert torch.equal(short.slots.shown, long.slots.shown)


def test_frames_are_nine_and_then_twelve(opened: Opened) -> None:
    job = opened.job(params(), PICTURE)
    for index, frames in enumerate([9, 12, 12]):
        latents, _ = opened.chunk(job, index, WALK, frames=True)
        assert latents.shape == (1, 16, 3, 4, 6)
        assert job.slots.frames.shape == (frames, 32, 48, 3)
        assert opened.pipeline.frames(job.slots.chunk) == frames
        assert 0 <= job.slots.frames.min() < job.slots.frames.max() <= 1


@pytest.mark.parity
def test_four_chunks_against_an_independent_network_and_loop(opened: Opened, tiny: Path) -> None:
    """All stages at once: noise and its order, schedule, picture, mask, rays, text, commit, window.

    Chunk 2 is not steered, chunk 3 has another prompt.
    """
    asked = params(timestep_table="unipc")
    controls = [WALK, WALK, STAND, {"prompt": "fog", "actions": [["d"], ["i"], ["w", "j"]]}]
    job = opened.job(asked, PICTURE, seed=11)
    state = load_file(tiny / "transformer" / "diffusion_pytorch_model.safetensors")
    oracle = Oracle(state, Sizes(testing.HEADS, testing.LAYERS, 32, 512), window=9, sink=3)
    draw, steered = torch.Generator().manual_seed(11), Track.start()
    times = make_schedule(asked.dmd_denoising_steps, 5.0, "unipc")
    for index, control in enumerate(controls):
        ours, _ = opened.chunk(job, index, control)
        plucker = None
        if "actions" in control:
            moves, steered = walk(steered, control["actions"])
            plucker = rays(torch.from_numpy(moves).float(), 32, 48)[0]
        noise = [torch.randn(16, 3, 4, 6, generator=draw) for _ in range(4)]
        text = opened.modules["text_encoder"](**_tokens(opened, control["prompt"]))[0]
        theirs = oracle.chunk(noise, job.slots.shown[0], text, plucker, *times)
        torch.testing.assert_close(ours[0].double(), theirs, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(
        history(job)[1, 0, 0].double(),
        torch.cat([pair[0] for pair in oracle.past[1]]),
        atol=2e-4,
        rtol=2e-4,
    )


def test_noise_is_drawn_channel_by_channel(opened: Opened) -> None:
    asked = params(dmd_denoising_steps=(1000,))
    job = opened.job(asked, PICTURE, seed=11)
    latents, _ = opened.chunk(job, 0, STAND)
    again = opened.job(asked, PICTURE, seed=11)
    again.slots.chunk, again.slots.controls = Chunk(0, 0, 3), STAND
    kv_cache(again.slots.state).begin(3)
    noise = torch.randn(16, 3, 4, 6, generator=torch.Generator().manual_seed(11))[None]
    text = opened.modules["text_encoder"](**_tokens(opened))
    velocity = opened.modules["transformer"](
        torch.cat([noise, job.slots.shown], dim=1),
        torch.full((1, 3), 1000.0),
        text,
        again.slots.state["kv"],
        again.slots.state["text"],
    )
    torch.testing.assert_close(latents, noise - velocity)


def _tokens(opened: Opened, prompt: str = "a castle") -> dict[str, torch.Tensor]:
    return tokenize(opened.pipeline.parts["tokenizer"], prompt, 512)


def test_a_camera_that_stands_is_not_no_camera(opened: Opened) -> None:
    made = []
    for controls in (STAND, {**STAND, "actions": [[], [], []]}, WALK):
        made.append(opened.chunk(opened.job(params(), PICTURE), 0, controls)[0])
    assert all((a - b).abs().max() > 0.01 for a, b in zip(made, made[1:] + made[:1], strict=True))


def test_too_few_keys_go_on_as_the_last_ones(opened: Opened) -> None:
    made = []
    for actions in ([["w"]], [["w"], ["w"], ["w"]], [["w"]] * 5):
        job = opened.job(params(), PICTURE)
        made.append(opened.chunk(job, 0, {**STAND, "actions": actions})[0])
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_a_prompt_is_encoded_once_and_a_new_one_leaves_the_history_alone(opened: Opened) -> None:
    job = opened.job(params(realtime_causal_kv_cache_num_frames=12), PICTURE)
    again = opened.job(params(realtime_causal_kv_cache_num_frames=12), PICTURE)
    called = [opened.chunk(job, index, WALK)[1] for index in range(2)]
    assert called[0].count("text_encoder.forward") == 1
    assert called[1].count("text_encoder.forward") == 0
    assert called[1].count("transformer.forward") == 4
    assert called[1][-1] == "transformer.remember"
    for index in range(2):
        opened.chunk(again, index, WALK)
    before = history(job)
    switched, called = opened.chunk(job, 2, {**WALK, "prompt": "fog over the sea"})
    assert called.count("text_encoder.forward") == 1
    tokens = before.shape[3]
    assert torch.equal(history(job)[:, :, :, :tokens], before)
    kept, _ = opened.chunk(again, 2, WALK)
    assert (switched - kept).abs().max() > 1e-3


def test_switching_to_the_same_prompt_changes_nothing_and_the_sink_stays(opened: Opened) -> None:
    # Case A26: a switch must not empty the protected part of the cache.
    for sink in (0, 2):
        asked = params(realtime_causal_sink_size=sink, realtime_causal_kv_cache_num_frames=7)
        plain, same, other = (opened.job(asked, PICTURE) for _ in range(3))
        for index in range(5):
            late = index >= 3
            wanted, _ = opened.chunk(plain, index, WALK)
            again, _ = opened.chunk(same, index, {**WALK, "prompt": "a castle"})
            changed, _ = opened.chunk(
                other, index, {**WALK, "prompt": "fog" if late else "a castle"}
            )
            assert torch.equal(wanted, again)
            assert torch.equal(wanted, changed) != late
        cut = sink * kv_cache(plain.slots.state).shape.frame_tokens
        assert torch.equal(history(plain)[:, :, :, :cut], history(other)[:, :, :, :cut])
        assert history(other).isfinite().all()
        assert (history(other).abs().amax(dim=(0, 1, 2, 4, 5)) > 0).all()


def test_chunks_that_are_taken_back_come_again_to_the_bit(opened: Opened) -> None:
    job = opened.job(params(), PICTURE, undo=3)
    controls = [WALK, STAND, {**WALK, "prompt": "fog"}, {**WALK, "actions": [["d"], ["i"], []]}]
    first = [opened.chunk(job, i, row, frames=i > 1)[0] for i, row in enumerate(controls)]
    frames = job.slots.frames
    job.slots.state.rollback(3)
    for index in range(1, 4):
        latents, _ = opened.chunk(job, index, controls[index], frames=index > 1)
        assert torch.equal(latents, first[index])
    assert torch.equal(job.slots.frames, frames)


def test_a_snapshot_and_a_fork_go_on_to_the_bit(opened: Opened) -> None:
    job = opened.job(params(), PICTURE)
    for index in range(3):
        opened.chunk(job, index, WALK, frames=True)
    data = job.slots.state.snapshot()
    forked, restored = opened.job(params(), PICTURE), opened.job(params(), PICTURE, seed=99)
    forked.slots.state = job.slots.state.fork()
    restored.slots.state.restore(data)
    wanted: list[torch.Tensor] = []
    for one in (job, forked, restored):
        one.generator = one.slots.state.generator
        for index in (3, 4):
            opened.chunk(one, index, {**WALK, "prompt": "fog"}, frames=True)
        wanted.append(one.slots.frames)
    assert torch.equal(wanted[0], wanted[1])
    assert torch.equal(wanted[0], wanted[2])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"width": 64, "height": 48, "realtime_causal_kv_cache_num_frames": 12},
        {"recipe": "v2-script", "num_frames": 61},
        {"chunk_latents": 1, "realtime_causal_sink_size": 0},
        {"num_frames": 301},
    ],
)
def test_a_session_holds_what_the_budget_says(opened: Opened, values: dict[str, Any]) -> None:
    asked = params(**values)
    budget = opened.pipeline.state_bytes(asked, undo=2)
    job = opened.job(asked, PICTURE, undo=2)
    for index in range(3):
        opened.chunk(job, index, {**WALK, "prompt": f"prompt {index}"}, frames=True)
        assert job.slots.state.nbytes() <= budget
    assert job.slots.state.nbytes() == budget
    opened.chunk(job, 3, STAND)
    assert job.slots.state[CAMERA].nbytes() == 0
    job.slots.state.free()
    assert job.slots.state.nbytes() == 0


@pytest.mark.parametrize("undo", [0, 2])
def test_undo_holds_what_the_budget_says(
    opened: Opened, undo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another prompt in every chunk, looked at while the most is held: before each commit."""
    asked = params(realtime_causal_kv_cache_num_frames=6, realtime_causal_sink_size=1)
    held: list[int] = []
    advance = CausalState.advance

    def noted(state: CausalState, chunk: Any, **more: Any) -> None:
        held.append(state.host_nbytes())
        advance(state, chunk, **more)

    monkeypatch.setattr(CausalState, "advance", noted)
    job = opened.job(asked, PICTURE, undo=undo)
    for index in range(undo + 5):
        opened.chunk(job, index, {**WALK, "prompt": f"prompt {index}"}, frames=True)
    budget = opened.pipeline.undo_bytes(asked, undo=undo, device=torch.device("cpu"))
    assert max(held) == budget
    assert (budget > 0) == (undo > 0)
    pinned = opened.pipeline.undo_bytes(asked, undo=undo, device=torch.device("cuda"))
    assert budget <= pinned <= 2 * budget


def test_every_tensor_is_made_where_the_work_is_done(tiny: Path) -> None:
    """On a device without memory, where any use of a tensor from elsewhere fails."""
    opened = open_pipeline(tiny)
    modules = {name: module.to("meta") for name, module in opened.modules.items()}
    # The library's encoder looks at the values of its mask.
    modules["text_encoder"] = lambda **given: torch.zeros(1, 512, 32, device="meta")
    there = Opened(opened.pipeline, modules)
    job = there.job(params(width=32, dmd_denoising_steps=(1000, 500)), PICTURE, device="meta")
    for index, controls in enumerate([WALK, {**STAND, "prompt": "fog"}]):
        latents, _ = there.chunk(job, index, controls, frames=index == 0)
        assert latents.device.type == job.slots.frames.device.type == "meta"


def test_a_clip_of_one_frame_is_the_last_of_its_chunk(opened: Opened) -> None:
    still, clip = params(num_frames=1), params(num_frames=9)
    chunk = opened.pipeline.plan(still).chunk(0)
    assert (chunk.frames, opened.pipeline.plan(still).count) == (3, 1)
    assert list(range(9))[opened.pipeline.clip_part(still, chunk)] == [8]
    assert list(range(9))[opened.pipeline.clip_part(clip, chunk)] == list(range(9))
    assert opened.pipeline.used(opened.job(still, PICTURE))["num_frames"] == 1


def test_what_a_request_left_out_is_told(opened: Opened) -> None:
    job = opened.job(params(num_frames=20), PICTURE)
    assert opened.pipeline.used(job) == {
        "num_frames": 9,
        "flow_shift": 5.0,
        "chunk_latents": 3,
        "realtime_causal_kv_cache_num_frames": 9,
        "realtime_causal_sink_size": 3,
    }
