"""A real engine in a real child process: results, fairness, cancelling, failures, leaks, ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgld.engine.executors.child import ChildExecutor
from sgld.engine.executors.folder import PREFIX, OwnedFolder
from sgld.engine.executors.state import EngineState
from sgld.messages import Event, Output, Request
from sgld.params.serving import ServingOptions
from sgld.plugins.catalog import load_catalog
from sgld.plugins.lock import make_lock
from sgld.testing.toy_checkpoint import write_image

pytestmark = pytest.mark.multi_process

PLUGIN = {"SGLD_EXTERNAL_MODEL_PACKAGE": "sgld.testing.toy_plugin"}
PICTURE = np.random.default_rng(3).integers(0, 255, (96, 160, 3), np.uint8)
PARAMS = {"prompt": "a lamp", "width": 64, "height": 48}


def environment() -> dict[str, str]:
    return {**os.environ, **PLUGIN, "OMP_NUM_THREADS": "1"}


def options(model: str | Path) -> ServingOptions:
    return ServingOptions.model_validate({"model_path": str(model), "device": "cpu"})


def request(id: str, *, seeds: tuple[int, ...] = (1,), **params: Any) -> Request:
    return Request(id, {**PARAMS, **params}, seeds)


def follow(executor: ChildExecutor, *ids: str, seconds: float = 30.0) -> list[Event]:
    """Events until each of the requests has ended."""
    found: list[Event] = []
    waiting, until = set(ids), time.monotonic() + seconds
    while waiting:
        assert time.monotonic() < until, (waiting, found, executor.state)
        event = executor.next_event(0.1)
        if event is not None:
            found.append(event)
            if event.kind in ("done", "failed", "cancelled"):
                waiting.discard(event.request_id)
    return found


def wait_for(true: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def outputs(events: list[Event]) -> list[Output]:
    return [event.output for event in events if event.output is not None]


def descriptors(pid: int | str = "self") -> list[str]:
    gc.collect()
    found: list[str] = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(found)


def ended(pid: int) -> bool:
    """Whether the process is gone, or only waits to be reaped by whoever adopted it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def segments() -> list[str]:
    """Shared memory with a name that could be ours; other programs have theirs there too."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(("sgld", "psm_"))]


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary folder of this module's own, so that what is left in it is ours."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> Iterator[ChildExecutor]:
    before = descriptors()
    catalog = load_catalog(environment())
    executor = ChildExecutor(
        options("tiny:toy-edit"),
        lock_json=make_lock(catalog, pipeline="toy-edit", platform="cpu").to_json(),
        environ=environment(),
        profile_folder=tmp_path_factory.mktemp("profiles"),
        first_delay=0.1,
    )
    yield executor
    pid = executor.state.pid
    executor.submit([request("running", num_inference_steps=1000, step_delay=0.02)])
    wait_for(lambda: getattr(executor.next_event(0.1), "step", 0) > 2)
    begin = time.monotonic()
    executor.close()
    assert time.monotonic() - begin < 8
    assert follow(executor, "running")[-1].kind == "cancelled"
    assert pid is not None
    assert ended(pid)
    assert descriptors() == before
    assert segments() == []
    assert list(temporary.glob(f"{PREFIX}*")) == []


def test_an_environment_that_changed_is_noticed_by_the_engine() -> None:
    lock = make_lock(load_catalog(environment()), pipeline="toy-edit", platform="cpu")
    rows = [row._replace(version="0.0.9") if row.name == "toy" else row for row in lock.plugins]
    executor = ChildExecutor(
        options("tiny:toy-edit"),
        lock_json=lock._replace(plugins=tuple(rows)).to_json(),
        environ=environment(),
    )
    try:
        wait_for(lambda: executor.state.status == "failed", 60.0)
        assert executor.state.reason.startswith("SGLD-P011 sgld-core")
        assert "toy_plugin is" in executor.state.reason
        assert "0.0.9 in the lock" in executor.state.reason
    finally:
        executor.close()


def test_results_equal_those_of_the_same_process(executor: ChildExecutor) -> None:
    from sgld.engine.build import build_engine
    from sgld.engine.executors.in_process import InProcessExecutor
    from sgld.plan import make_plan

    asked = Request(
        "same",
        {**PARAMS, "prompt": "ein Käse", "num_inference_steps": 5},
        (7, 8),
        (PICTURE,),
        want_latents=True,
        preview_every=2,
    )
    plan = make_plan(options("tiny:toy-edit"), environ=environment())
    here = InProcessExecutor(lambda emit: build_engine(plan, emit))
    results: list[list[Event]] = []
    for place in (here, executor):
        place.submit([asked])
        results.append(follow(place, "same"))  # pyright: ignore[reportArgumentType]
    here.close()
    plan.close()
    for one, two in zip(*results, strict=True):
        assert (one.kind, one.stage, one.step, one.index) == (
            two.kind,
            two.stage,
            two.step,
            two.index,
        )
        if one.latents is not None:
            assert two.latents is not None
            assert one.latents.tobytes() == two.latents.tobytes()
    pairs = list(zip(*map(outputs, results), strict=True))
    assert len(pairs) == 2
    for one, two in pairs:
        assert one.frames.tobytes() == two.frames.tobytes()
        assert one.frames.shape == two.frames.shape == (1, 48, 64, 3)
        assert one.latents is not None
        assert two.latents is not None
        assert one.latents.tobytes() == two.latents.tobytes()
        assert (one.seed, one.kind, one.fps, one.parameters) == (
            two.seed,
            two.kind,
            two.fps,
            two.parameters,
        )
        assert set(one.timings) == set(two.timings)


def test_the_state_tells_of_the_engine(executor: ChildExecutor) -> None:
    follow_one(executor, "state")
    state = executor.state
    assert state.status == "ready"
    assert {"text_encoder", "transformer", "vae"} <= set(state.loading)
    assert all(done == total > 0 for done, total in state.loading.values())
    assert state.capabilities["device"] == "cpu"
    assert state.capabilities["pipeline"] == "toy-edit"
    assert state.capabilities["max_running"] == 4
    assert state.device_memory is not None
    assert state.device_memory["total"] > state.device_memory["free"] > 0


def follow_one(executor: ChildExecutor, id: str, **params: Any) -> list[Event]:
    executor.submit([request(id, **params)])
    return follow(executor, id)


def test_two_requests_take_turns(executor: ChildExecutor) -> None:
    executor.submit(
        [
            request("long", num_inference_steps=40, step_delay=0.01),
            request("short", num_inference_steps=2, step_delay=0.01),
        ]
    )
    events = follow(executor, "long", "short")
    ends = [event.request_id for event in events if event.kind == "done"]
    assert ends == ["short", "long"]
    at = next(place for place, event in enumerate(events) if event.kind == "done")
    steps = [event for event in events[:at] if event.kind == "step"]
    assert 1 <= sum(event.request_id == "long" for event in steps) <= 4


def test_cancelling_stops_within_a_step(executor: ChildExecutor) -> None:
    executor.submit([request("c", num_inference_steps=200, step_delay=0.05)])
    seen = 0
    while seen < 3:
        event = executor.next_event(10)
        assert event is not None
        seen = max(seen, event.step)
    executor.cancel("c")
    rest = follow(executor, "c")
    assert rest[-1].kind == "cancelled"
    assert sum(event.kind == "step" for event in rest) <= 1


@pytest.mark.parametrize(
    ("trouble", "code", "text"),
    [
        ({"fail_at_step": 2}, "stage_failed", "told to fail at step 2"),
        ({"inf_at_step": 2}, "non_finite_output", "stage denoise, step 2"),
        ({"width": "wide"}, "", "width"),
        ({"nonsense": 1}, "", "nonsense"),
    ],
)
def test_a_failure_is_its_own_request_s(
    executor: ChildExecutor, trouble: dict[str, Any], code: str, text: str
) -> None:
    pid = executor.state.pid
    executor.submit([request("good", num_inference_steps=6), request("bad", **trouble)])
    events = follow(executor, "good", "bad")
    failed = next(event for event in events if event.kind == "failed")
    assert failed.request_id == "bad"
    assert failed.code == code or not code
    assert text in failed.message
    assert len(outputs(events)) == 1
    assert executor.state.pid == pid


def test_running_out_of_memory_says_what_helps(executor: ChildExecutor) -> None:
    pid = executor.state.pid
    failed = follow_one(executor, "oom", oom_at_step=2)[-1]
    assert failed.code == "out_of_memory"
    for text in ("20.00 GiB", "1.50 GiB is free", "--residency", "Without this request"):
        assert text in failed.message
    assert follow_one(executor, "after")[-1].kind == "done"
    assert executor.state.pid == pid


def test_a_profiled_request_leaves_a_trace(executor: ChildExecutor) -> None:
    executor.submit([Request("../trace me", PARAMS, (1,), profile=True)])
    done = follow(executor, "../trace me")[-1]
    path = Path(done.message)
    assert path.is_file()
    assert path.parent.name.startswith("profiles")
    assert follow_one(executor, "plain")[-1].message == ""


def test_requests_leak_nothing(executor: ChildExecutor) -> None:
    pid = executor.state.pid
    assert pid is not None

    def cycle(number: int) -> None:
        picture = np.full((300, 400, 3), number, np.uint8)
        asked = Request(
            f"leak-{number}",
            {**PARAMS, "width": 512, "height": 512, "num_inference_steps": 2},
            (number,),
            (picture, picture),
            want_latents=True,
            preview_every=1,
        )
        executor.submit([asked])
        assert follow(executor, asked.id)[-1].kind == "done"

    def resident(of: int | str) -> int:
        status = Path(f"/proc/{of}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    for number in range(5):
        cycle(number)
    # 30 results of 786 kB each way would show as 24 MB every time; the allocator's own growth or a
    # late collection of other tests' garbage shows once.
    grown: list[tuple[int, int]] = []
    for start in range(5, 95, 30):
        before = descriptors(), descriptors(pid), resident("self"), resident(pid)
        for number in range(start, start + 30):
            cycle(number)
        after = descriptors(), descriptors(pid), resident("self"), resident(pid)
        assert after[:2] == before[:2]
        grown.append((after[2] - before[2], after[3] - before[3]))
        if max(grown[-1]) < 15_000:
            return
    raise AssertionError(f"kB per 30 requests, here and in the engine: {grown}")


def test_only_the_parent_ends_the_engine(executor: ChildExecutor) -> None:
    pid = executor.state.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert os.getpgid(pid) != os.getpgid(0)
    assert follow_one(executor, "still there")[-1].kind == "done"
    assert executor.state.pid == pid


def test_a_killed_engine_comes_back_and_the_request_completes(executor: ChildExecutor) -> None:
    expected = outputs(follow_one(executor, "before"))[0].frames
    pid, restarts = executor.state.pid, executor.state.restarts
    assert pid is not None
    executor.submit([request("killed", num_inference_steps=4, step_delay=0.1)])
    wait_for(lambda: getattr(executor.next_event(0.1), "step", 0) == 1)
    os.kill(pid, signal.SIGKILL)
    events = follow(executor, "killed")
    assert [event.kind for event in events if event.kind in ("queued", "started", "done")] == [
        "queued",
        "started",
        "done",
    ]
    assert outputs(events)[0].frames.tobytes() == expected.tobytes()
    assert executor.state.restarts == restarts + 1
    assert executor.state.pid not in (None, pid)


def failure(model: str | Path, **settings: Any) -> EngineState:
    executor = ChildExecutor(options(model), environ=environment(), **settings)
    executor.submit([request("r")])
    event = follow(executor, "r")[-1]
    state = executor.state
    executor.close()
    assert (event.kind, event.code, state.status) == ("failed", "engine_lost", "failed")
    assert state.reason in event.message
    return state


def test_a_model_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    state = failure(tmp_path / "nowhere")
    assert "nowhere" in state.reason
    assert state.restarts == 0


def test_another_lock_is_a_reason() -> None:
    lock = json.loads(make_lock(load_catalog(environment())).to_json()) | {"core": "9"}
    assert "SGLD-P011" in failure("tiny:toy-image", lock_json=json.dumps(lock)).reason


def test_a_damaged_checkpoint_is_a_reason(tmp_path: Path) -> None:
    write_image(tmp_path / "toy")
    weights = tmp_path / "toy" / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    assert "vae" in failure(tmp_path / "toy").reason


def test_closing_while_loading_is_quick(tmp_path: Path) -> None:
    write_image(tmp_path / "toy")
    config = tmp_path / "toy" / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"load_delay": 60}))
    before = descriptors()
    executor = ChildExecutor(options(tmp_path / "toy"), environ=environment())
    wait_for(lambda: executor.state.loading.get("plan") == (1, 1))
    pid = executor.state.pid
    assert pid is not None
    begin = time.monotonic()
    executor.close()
    assert time.monotonic() - begin < 2
    assert ended(pid)
    assert descriptors() == before


NESTED = """
import sys, time
from sgld.engine.executors.child import ChildExecutor
from sgld.messages import Request
from sgld.params.serving import ServingOptions
model = ServingOptions.model_validate({"model_path": "tiny:toy-image", "device": "cpu"})
executor = ChildExecutor(model)
"""


def test_the_engine_ends_with_its_parent(tmp_path: Path) -> None:
    script = NESTED + (
        "while executor.state.loading.get('plan') != (1, 1): time.sleep(0.01)\n"
        "print(executor.state.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not ended(pid)
        parent.kill()
        wait_for(lambda: ended(pid), seconds=3)
    assert len(list(tmp_path.iterdir())) == 1
    OwnedFolder(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_the_parent_needs_no_torch_and_the_engine_logs_to_standard_error() -> None:
    script = NESTED + (
        "executor.submit([Request('r', {'prompt': 'a'}, (1,))])\n"
        "while executor.next_event().kind != 'done': pass\n"
        "executor.close()\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment() | {"SGLD_LOG_FORMAT": "json", "SGLD_LOG_LEVEL": "info"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(line["event"] == "model loaded" for line in lines)
