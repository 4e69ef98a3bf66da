"""Causal Wan and LongLive 2.0 through the engine, on tiny checkpoints: chunks, prompts that take
over, given frames, and state that is gone however a request ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import causal_drive as drive
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sgld
from sgld.api.errors import ParameterError, RequestError
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Rolling
from sgld.causal.state import CausalState
from sgld.messages import Event
from sgld_wan import weights
from sgld_wan.causal_params import LongLive2Params, WanCausalParams
from sgld_wan.models.vae import Vae
from sgld_wan.pipelines.causal import WanCausalDMDPipeline
from sgld_wan.pipelines.longlive import LongLive2Pipeline
from sgld_wan.stages.causal import CLEAN, chunks_of, kv_cache

pytestmark = pytest.mark.usefixtures("one_thread")
Folder = Callable[[str], Path]
SMALL: dict[str, Any] = {"width": 48, "height": 32, "seed": 3}
LONG: dict[str, Any] = {"width": 64, "height": 32, "seed": 3}


def load(folder: Path, **options: Any) -> sgld.Model:
    return sgld.load(str(folder), **{"device": "cpu", "dtype": "float32", **options})


@pytest.fixture(scope="module")
def causal(tiny: Folder) -> Iterator[sgld.Model]:
    with load(tiny("causal_t2v")) as model:
        yield model


@pytest.fixture(scope="module")
def longlive(tiny: Folder) -> Iterator[sgld.Model]:
    with load(tiny("longlive2")) as model:
        yield model


def made(model: sgld.Model, **params: Any) -> sgld.Result:
    result = model.generate(want_latents=True, **params)
    assert isinstance(result, sgld.Result)
    return result


def latents(result: sgld.Result) -> Any:
    found = result.outputs[0].latents
    assert found is not None
    return found


def parts(model: sgld.Model, **params: Any) -> tuple[list[Event], Any]:
    events = list(model.stream(**params))
    output = next(event.output for event in events if event.output is not None)
    return [event for event in events if event.kind == "frames"], output


def test_frames_come_chunk_by_chunk_and_make_up_the_output(causal: sgld.Model) -> None:
    chunks, output = parts(causal, prompt="a kite", num_frames=33, **SMALL)
    assert [(event.step, event.total, len(event.frames)) for event in chunks] == [
        (1, 3, 9),
        (2, 3, 12),
        (3, 3, 12),
    ]
    assert np.array_equal(np.concatenate([event.frames for event in chunks]), output.frames)
    assert output.parameters["chunk_latents"] == 3
    assert (output.parameters["window_latents"], output.parameters["sink_latents"]) == (6, 1)


def test_steps_are_counted_over_the_whole_clip(causal: sgld.Model) -> None:
    events = causal.stream(prompt="a kite", num_frames=21, **SMALL)
    steps = [(event.step, event.total, event.stage) for event in events if event.kind == "step"]
    assert steps == [(step, 8, "denoise") for step in range(1, 9)]


def test_chunks_decode_to_what_the_whole_clip_decodes_to(causal: sgld.Model, tiny: Folder) -> None:
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    result = made(causal, prompt="a kite", num_frames=21, **SMALL)
    vae: Any = AutoencoderKLWan.from_pretrained(tiny("causal_t2v") / "vae")
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        video = vae.decode(torch.from_numpy(latents(result)) * std + mean).sample
    wanted = video[0].permute(1, 2, 3, 0).div(2).add(0.5).clamp(0, 1).mul(255).round()
    assert np.abs(result.frames.astype(int) - wanted.numpy()).max() <= 1


@pytest.mark.parametrize("which", ["causal", "longlive"])
def test_a_clip_is_the_same_alone_and_in_company(
    which: str, request: pytest.FixtureRequest
) -> None:
    model, size = request.getfixturevalue(which), SMALL if which == "causal" else LONG
    frames = 21 if which == "causal" else 13
    asked = {**size, "num_frames": frames, "prompt": "a kite"}
    alone = made(model, **asked)
    both = model.generate(**{**asked, "num_outputs_per_prompt": 2})
    assert np.array_equal(both.outputs[0].frames, alone.frames)
    assert not np.array_equal(both.outputs[1].frames, alone.frames)
    assert np.array_equal(both.outputs[1].frames, made(model, **{**asked, "seed": 4}).frames)


def test_what_a_chunk_sees_changes_what_comes_later(causal: sgld.Model) -> None:
    asked = {**SMALL, "num_frames": 45, "prompt": "a kite"}
    wide = latents(made(causal, **asked, window_latents=-1))
    narrow = latents(made(causal, **asked, window_latents=3, sink_latents=0))
    middle = latents(made(causal, **asked, window_latents=7, sink_latents=2))
    assert np.array_equal(wide[:, :, :3], narrow[:, :, :3])
    assert not np.allclose(wide[:, :, 3:6], narrow[:, :, 3:6], atol=1e-3)
    # Window 7 holds two chunks and one frame: nothing is dropped before the third chunk.
    assert np.array_equal(wide[:, :, :6], middle[:, :, :6])
    assert not np.allclose(wide[:, :, 6:9], middle[:, :, 6:9], atol=1e-3)


def test_the_first_frame_may_be_a_chunk_of_its_own(causal: sgld.Model) -> None:
    chunks, output = parts(
        causal, prompt="a kite", num_frames=25, independent_first_frame=True, **SMALL
    )
    assert [len(event.frames) for event in chunks] == [1, 12, 12]
    assert len(output.frames) == 25


def test_a_checkpoint_with_other_chunks_makes_every_frame(causal: sgld.Model) -> None:
    """The length is rounded by what the request knows; the last chunk takes what is left."""
    cut = WanCausalDMDPipeline({**causal_parts(), "causal": chunked(4)})
    params = WanCausalParams(prompt="x", num_frames=33, **SMALL)
    assert [chunk.frames for chunk in cut.plan(params).chunks()] == [4, 4, 1]


def causal_parts() -> dict[str, Any]:
    golden = drive.golden("selfforcing")
    return drive.parts_for(golden.network.config)


def chunked(size: int) -> Any:
    return causal_parts()["causal"]._replace(chunk=size)


def test_prompts_take_over_at_their_chunk(causal: sgld.Model) -> None:
    asked = {**SMALL, "num_frames": 45, "window_latents": 6}
    one = latents(made(causal, prompt="a kite", **asked))
    same = latents(made(causal, shot_prompts=["a kite", "a kite"], **asked))
    other = latents(made(causal, shot_prompts=["a kite", "the sea"], **asked))
    early = latents(
        made(causal, shot_prompts=["a kite", "the sea"], shot_durations=[1, 3], **asked)
    )
    plain = latents(made(causal, shot_prompts=["a kite", "the sea"], refill_history=False, **asked))
    assert np.array_equal(one, same)
    assert np.array_equal(one[:, :, :6], other[:, :, :6])
    assert not np.allclose(one[:, :, 6:9], other[:, :, 6:9], atol=1e-3)
    assert np.array_equal(one[:, :, :3], early[:, :, :3])
    assert not np.allclose(one[:, :, 3:6], early[:, :, 3:6], atol=1e-3)
    assert np.array_equal(plain[:, :, :6], other[:, :, :6])
    assert not np.allclose(plain[:, :, 6:9], other[:, :, 6:9], atol=1e-4)


def golden_run(**params: Any) -> tuple[Any, drive.Golden, Any]:
    """A job of the golden network, driven to its end with two prompts p0 and p1."""
    golden = drive.golden("selfforcing")
    pipeline = WanCausalDMDPipeline(drive.parts_for(golden.network.config))
    asked = WanCausalParams(
        height=32, width=48, shot_prompts=("p0", "p1"), shot_durations=(2, 2), **params
    )
    job = drive.new_job(asked, pipeline.parts)
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(2, 16, golden.about["config"]["text_dim"], generator=generator)
    modules = {"transformer": golden.network, "text_encoder": drive.text_states(table)}
    return drive.chunks(pipeline, job, modules), golden, (job, table, modules)


def test_refilled_history_is_what_the_new_prompt_would_have_left() -> None:
    """Nothing is dropped here, so the network may simply run over the clean frames again."""
    run, golden, (job, table, _) = golden_run(num_frames=45, window_latents=-1)
    clean = [made for _, made in run]
    network, config = golden.network, golden.network.config
    shape = KvShape(
        config.num_layers, config.num_attention_heads, 16, 6, torch.float32, torch.device("cpu")
    )
    fresh, words = KvCache(shape, Rolling(0, limit=12)), type("Words", (), {"held": {}})()
    words.read = words.held.get
    words.write = lambda layer, k, v: words.held.update({layer: (k, v)})
    for piece in clean:
        fresh.begin(piece.shape[2])
        network.remember(piece, torch.zeros(1, 3), table[1][None], fresh, words)
        fresh.commit()
    for layer in range(config.num_layers):
        for found, wanted in zip(
            kv_cache(job.slots.state).ordered(layer), fresh.ordered(layer), strict=True
        ):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "sink"), [(6, 1), (5, 2), (4, 0)])
def test_refilling_keeps_frames_places_and_latents(window: int, sink: int) -> None:
    run, _, (job, _, _) = golden_run(num_frames=45, window_latents=window, sink_latents=sink)
    for chunk, _ in run:
        state = job.slots.state
        kept = [frame.index for frame in kv_cache(state).kept]
        last = chunk.first + chunk.frames
        assert kept == sorted({*range(min(sink, last)), *range(max(0, last - window + sink), last)})
        assert state[CLEAN].get("frames") == kept
        assert state[CLEAN].get("latents").shape[2] == len(kept)
        for layer in range(2):
            for held in kv_cache(state).ordered(layer):
                assert torch.isfinite(held).all()
                assert (held.abs().amax((0, 2, 3)) > 0).all()


def test_chunks_of_kept_frames() -> None:
    cache = KvCache(KvShape(1, 1, 2, 1, torch.float32, "cpu"), Rolling(6, 1))
    for _ in range(4):
        cache.begin(3)
        cache.write(0, torch.zeros(1, 3, 1, 2), torch.zeros(1, 3, 1, 2))
        cache.commit()
    assert list(chunks_of(cache.kept)) == [(0,), (7, 8), (9, 10, 11)]


def test_given_frames_begin_the_clip(causal: sgld.Model) -> None:
    draw = np.random.default_rng(0)
    pictures = [draw.integers(0, 255, (32, 48, 3), dtype=np.uint8) for _ in range(5)]
    chunks, output = parts(causal, prompt="a kite", images=pictures, num_frames=29, **SMALL)
    # Two latent frames are given; of the other six, chunks of three are made.
    assert [len(event.frames) for event in chunks] == [5 + 12, 12]
    assert len(output.frames) == 29
    other = [255 - picture for picture in pictures]
    changed = made(causal, prompt="a kite", images=other, num_frames=29, **SMALL)
    same = made(causal, prompt="a kite", images=pictures, num_frames=29, **SMALL)
    assert np.array_equal(same.frames, output.frames)
    assert latents(same).shape[2] == 8
    assert not np.allclose(latents(same)[:, :, 2:], latents(changed)[:, :, 2:], atol=1e-3)
    plain = made(causal, prompt="a kite", num_frames=21, **SMALL)
    assert not np.allclose(latents(same)[:, :, 2:5], latents(plain)[:, :, :3], atol=1e-3)


@pytest.mark.parametrize("count", [2, 4, 6])
def test_pictures_that_begin_no_clip_are_refused(causal: sgld.Model, count: int) -> None:
    pictures = [np.zeros((32, 48, 3), np.uint8)] * count
    with pytest.raises(ParameterError, match=f"image_path: {count} pictures"):
        causal.generate(prompt="a kite", images=pictures, num_frames=21, **SMALL)


def test_one_picture_is_held_fast_in_the_first_chunk_of_longlive(
    longlive: sgld.Model, tiny: Folder
) -> None:
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    picture = np.random.default_rng(1).integers(0, 255, (32, 64, 3), dtype=np.uint8)
    result = made(longlive, prompt="a kite", images=[picture], num_frames=13, **LONG)
    vae: Any = AutoencoderKLWan.from_pretrained(tiny("longlive2") / "vae")
    pixels = torch.from_numpy(picture).float().permute(2, 0, 1)[None, :, None] / 127.5 - 1
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        wanted = (vae.encode(pixels).latent_dist.mode() - mean) / std
    assert latents(result).shape[2] == 4
    np.testing.assert_allclose(latents(result)[:, :, :1], wanted.numpy(), atol=1e-4)
    plain = made(longlive, prompt="a kite", num_frames=13, **LONG)
    assert not np.allclose(latents(plain)[:, :, 1:], latents(result)[:, :, 1:], atol=1e-3)


def test_shots_of_longlive(longlive: sgld.Model) -> None:
    asked = {**LONG, "num_frames": 29, "shot_prompts": ["a kite", "the sea"]}
    cut = latents(made(longlive, **asked))
    one = latents(made(longlive, **{**LONG, "num_frames": 29, "prompt": "a kite"}))
    uncut = latents(made(longlive, **asked, scene_cut_prefix=""))
    near = latents(made(longlive, **asked, multi_shot_rope_offset=0.0))
    forgetful = latents(made(longlive, **asked, shot_clean_recache=True))
    assert np.array_equal(cut[:, :, :4], one[:, :, :4])
    for other in (uncut, near):
        assert np.array_equal(cut[:, :, :4], other[:, :, :4])
        assert not np.allclose(cut[:, :, 4:6], other[:, :, 4:6], atol=1e-3)
    # The history is cut before the clean pass, so the next chunk is the first to see less.
    assert np.array_equal(cut[:, :, :6], forgetful[:, :, :6])
    assert not np.allclose(cut[:, :, 6:], forgetful[:, :, 6:], atol=1e-4)


def test_guidance_of_longlive_remembers_twice(longlive: sgld.Model) -> None:
    asked = {**LONG, "num_frames": 13, "prompt": "a kite"}
    plain = latents(made(longlive, **asked))
    guided = latents(made(longlive, **asked, guidance_scale=3.0))
    steered = latents(made(longlive, **asked, guidance_scale=3.0, negative_prompt="mud"))
    assert not np.allclose(plain, guided, atol=1e-3)
    assert not np.allclose(steered, guided, atol=1e-4)


def test_a_chunk_of_another_size_may_be_asked_for(longlive: sgld.Model) -> None:
    asked = {**LONG, "num_frames": 29, "prompt": "a kite"}
    chunks, _ = parts(longlive, **asked, chunk_latents=4, window_latents=8, sink_latents=1)
    assert [len(event.frames) for event in chunks] == [13, 16]


# -- state ----------------------------------------------------------------------------------------


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[CausalState]:
    """Every state that is made from now on."""
    found: list[CausalState] = []
    make = CausalState.__init__

    def note(self: CausalState, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(CausalState, "__init__", note)
    return found


def test_state_is_freed_when_a_clip_is_done(causal: sgld.Model, states: list[CausalState]) -> None:
    made(causal, prompt="a kite", num_frames=21, **SMALL)
    assert [state.nbytes() for state in states] == [0]


@pytest.mark.parametrize("when", ["step", "frames"])
def test_state_is_freed_when_a_clip_is_cancelled(
    causal: sgld.Model, states: list[CausalState], when: str
) -> None:
    events = causal.stream(prompt="a kite", num_frames=33, **SMALL)
    for event in events:
        if event.kind == when:
            causal.cancel(event.request_id)
            break
    assert [event.kind for event in events][-1] == "cancelled"
    assert [state.nbytes() for state in states] == [0]


@pytest.mark.parametrize(
    ("where", "method", "calls"),
    [
        ("decode", "decode_chunk", 2),
        ("encode", "encode_chunk", 1),
        ("first decode", "decode_chunk", 1),
    ],
)
def test_state_is_freed_when_a_clip_fails(
    causal: sgld.Model,
    states: list[CausalState],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    method: str,
    calls: int,
) -> None:
    original, count = getattr(Vae, method), [0]

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == calls:
            raise RuntimeError("no memory")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Vae, method, fail)
    pictures = [np.zeros((32, 48, 3), np.uint8)] if where == "encode" else []
    with pytest.raises(RequestError, match="no memory"):
        causal.generate(prompt="a kite", num_frames=21, images=pictures, **SMALL)
    assert [state.nbytes() for state in states] == [0]


def test_frames_that_are_not_finite_are_never_handed_out(
    causal: sgld.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, count = Vae.decode_chunk, [0]

    def spoil(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        video, history = original(self, *args, **kwargs)
        return (video * float("nan") if count[0] == 2 else video), history

    monkeypatch.setattr(Vae, "decode_chunk", spoil)
    events = list(causal.stream(prompt="a kite", num_frames=33, **SMALL))
    assert [event.step for event in events if event.kind == "frames"] == [1]
    assert (events[-1].kind, events[-1].code) == ("failed", "non_finite_output")
    assert "decode of chunk 1" in events[-1].message


BYTES: list[tuple[Any, Any, dict[str, Any]]] = [
    (WanCausalDMDPipeline, WanCausalParams, {"num_frames": 33}),
    (WanCausalDMDPipeline, WanCausalParams, {"num_frames": 33, "window_latents": 4}),
    (
        WanCausalDMDPipeline,
        WanCausalParams,
        {"num_frames": 45, "window_latents": 5, "sink_latents": 1, "shot_prompts": ("p0", "p1")},
    ),
    (LongLive2Pipeline, LongLive2Params, {"num_frames": 21, "chunk_latents": 2}),
    (
        LongLive2Pipeline,
        LongLive2Params,
        {
            "num_frames": 45,
            "chunk_latents": 2,
            "window_latents": 7,
            "sink_latents": 2,
            "guidance_scale": 2.0,
            "negative_prompt": "n1",
            "shot_prompts": ("p0", "p1", "p0"),
        },
    ),
]


def bench(pipeline: Any, options: Any, asked: dict[str, Any]) -> tuple[Any, Any, Any]:
    """A pipeline with its golden network, its parameters and its modules."""
    wide = pipeline is LongLive2Pipeline
    golden = drive.golden("longlive2" if wide else "selfforcing")
    stride = 16 if wide else 8
    light = drive.parts_for(golden.network.config, stride=stride)
    # The decoder must have the channels of the network, whatever its statistics are.
    config = {**light["vae_config"], "z_dim": golden.network.config.out_channels}
    light["vae_config"] = config
    table = torch.randn(10, 16, golden.about["config"]["text_dim"])
    modules = {
        "transformer": golden.network,
        "text_encoder": drive.text_states(table),
        "vae": Vae({**config, "latents_mean": None, "latents_std": None}).eval(),
    }
    asked = {"prompt": "p0", **asked, "max_sequence_length": 16}
    return pipeline(light), options(height=32, width=64, **asked), modules


@pytest.mark.parametrize(("pipeline", "options", "asked"), BYTES)
def test_state_holds_exactly_its_budget(pipeline: Any, options: Any, asked: Any) -> None:
    made, params, modules = bench(pipeline, options, asked)
    job = drive.new_job(params, made.parts)
    run = drive.chunks(made, job, modules, frames=True)
    most = 0
    with torch.no_grad():
        for _ in run:
            most = max(most, job.slots.state.nbytes())
    assert most == made.state_bytes(params)


UNDO: list[tuple[Any, Any, dict[str, Any], bool]] = [
    (WanCausalDMDPipeline, WanCausalParams, {"window_latents": 4}, True),
    (WanCausalDMDPipeline, WanCausalParams, {"window_latents": 7, "sink_latents": 1}, True),
    (WanCausalDMDPipeline, WanCausalParams, {}, False),  # nothing is ever overwritten
    (
        WanCausalDMDPipeline,
        WanCausalParams,
        {"window_latents": 5, "sink_latents": 1, "refill_history": True},
        True,
    ),
    (
        LongLive2Pipeline,
        LongLive2Params,
        {
            "chunk_latents": 2,
            "window_latents": 7,
            "sink_latents": 2,
            "guidance_scale": 2.0,
            "negative_prompt": "n1",
        },
        False,  # the text that is guided away from does not change
    ),
]


@pytest.mark.parametrize(("pipeline", "options", "asked", "exact"), UNDO)
def test_undo_holds_no_more_than_its_budget(
    pipeline: Any,
    options: Any,
    asked: dict[str, Any],
    exact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With another prompt in every chunk, looked at while the most is held: before each commit."""
    undo = 2
    asked = {"num_frames": 69, "shot_prompts": tuple(f"p{n}" for n in range(6)), **asked}
    made, params, modules = bench(pipeline, options, asked)
    if "refill_history" not in asked:
        monkeypatch.setattr(pipeline, "_refills", lambda self, params: False)
    monkeypatch.setattr(pipeline, "controls", lambda self, params, index: {"prompt": f"p{index}"})
    held: list[int] = []
    advance = CausalState.advance

    def noted(state: CausalState, chunk: Any, **more: Any) -> None:
        held.append(state.host_nbytes())
        advance(state, chunk, **more)
        held.append(state.host_nbytes())

    monkeypatch.setattr(CausalState, "advance", noted)
    job = drive.new_job(params, made.parts)
    job.slots.undo = undo
    with torch.no_grad():
        assert sum(1 for _ in drive.chunks(made, job, modules, frames=True)) >= 6
    budget = made.undo_bytes(params, undo=undo, device=torch.device("cpu"))
    assert max(held) <= budget
    assert (max(held) == budget) == exact
    assert max(held) >= budget / 4
    assert made.undo_bytes(params, undo=0, device=torch.device("cpu")) == 0
    pinned = made.undo_bytes(params, undo=undo, device=torch.device("cuda"))
    assert budget <= pinned <= 2 * budget


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_training_checkpoint_replaces_the_transformer(tiny: Folder, tmp_path: Path) -> None:
    """Self-Forcing publishes a pickle with the tensors under `generator_ema`, behind `model.`."""
    folder = tiny("causal_t2v")
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = {f"model.{weights.original_dit(k)}": v for k, v in load_file(file).items()}
    asked = {**SMALL, "num_frames": 9, "prompt": "a kite"}
    with load(folder) as model:
        wanted = made(model, **asked).frames
    changed = {name: tensor * 1.1 for name, tensor in tensors.items()}
    torch.save({"generator": changed, "generator_ema": tensors}, tmp_path / "same.pt")
    torch.save({"generator_ema": changed}, tmp_path / "other.pt")
    for name, same in (("same.pt", True), ("other.pt", False)):
        replaced = {"transformer": str(tmp_path / name)}
        with load(folder, component_weights_paths=replaced, allow_pickle=True) as model:
            assert np.array_equal(made(model, **asked).frames, wanted) is same


def test_an_ordinary_checkpoint_runs_causally_when_asked(tiny: Folder) -> None:
    with load(tiny("t2v"), pipeline_class_name="wan-causal-t2v") as model:
        result = made(model, prompt="a kite", num_frames=21, **SMALL)
    assert result.parameters["chunk_latents"] == 3
    assert result.parameters["window_latents"] == -1


def test_layers_may_pass_through_the_device_one_by_one(causal: sgld.Model, tiny: Folder) -> None:
    asked = {**SMALL, "num_frames": 21, "shot_prompts": ["a kite", "the sea"]}
    with load(tiny("causal_t2v"), residency={"all": "layerwise-offload", "vae": "resident"}) as m:
        found = made(m, **asked)
    assert np.array_equal(found.frames, made(causal, **asked).frames)
