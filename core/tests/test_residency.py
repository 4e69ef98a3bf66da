"""Residency: the same output in every mode, and no more on the device than the mode promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sgld.api.errors import FeatureError
from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore, Mode
from sgld.messages import Event, Request
from sgld.testing.second_device import FakeDeviceMover
from sgld.testing.toy import ToyParams, ToyPipeline, ToyTransformer, toy_modules

CPU = torch.device("cpu")
MODES: list[Mode] = ["resident", "component-offload", "layerwise-offload"]


def latents(modes: dict[str, Mode], mover: Any, fail: bool = False) -> np.ndarray:
    events: list[Event] = []
    engine = Engine(
        pipeline=ToyPipeline({}),
        validate=ToyParams.model_validate,
        store=ComponentStore(toy_modules(), modes, mover),
        device=CPU,
        emit=events.append,
        settings=EngineSettings(batching="off"),
    )
    engine.submit(Request("r", {"num_inference_steps": 3}, (7,), want_latents=True))
    while engine.turn():
        pass
    output = events[-2].output
    assert output is not None, events[-1].message
    assert output.latents is not None
    engine.close()
    return output.latents


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_output(mode: Mode) -> None:
    reference = latents({}, TorchMover(CPU))
    mover = FakeDeviceMover()
    modes: dict[str, Mode] = {"transformer": mode, "text_encoder": "component-offload"}
    assert np.array_equal(latents(modes, mover), reference)
    assert mover.bytes_now == 0


def test_offloaded_components_take_turns_on_the_device() -> None:
    mover = FakeDeviceMover()
    modules = toy_modules()
    sizes = {name: sum(t.nbytes for t in m.parameters()) for name, m in modules.items()}
    latents(dict.fromkeys(modules, "component-offload"), mover)
    assert mover.bytes_peak == max(sizes.values())
    assert mover.uploads == 3  # text encoder, transformer, vae: once each, not once per step


def test_layerwise_holds_at_most_two_layers_and_the_rest() -> None:
    mover = FakeDeviceMover()
    transformer = ToyTransformer(layers=9)
    layer = sum(t.nbytes for t in transformer.blocks[0].parameters())
    rest = sum(t.nbytes for t in transformer.parameters()) - 9 * layer
    expected = ToyTransformer(layers=9)
    expected.load_state_dict(transformer.state_dict())
    store = ComponentStore(
        {"transformer": transformer}, {"transformer": "layerwise-offload"}, mover
    )
    inputs = (torch.randn(1, 4, 8), torch.zeros(1), torch.randn(1, 8))
    with torch.inference_mode():
        with store.acquire("transformer") as module:
            result = module(*inputs)
        assert torch.equal(result, expected(*inputs))
    assert mover.bytes_peak <= rest + 2 * layer
    assert mover.bytes_now == 0


def test_a_layer_that_raises_leaves_nothing_behind() -> None:
    mover = FakeDeviceMover()
    transformer = ToyTransformer(layers=4)
    store = ComponentStore(
        {"transformer": transformer}, {"transformer": "layerwise-offload"}, mover
    )
    with torch.inference_mode():
        with pytest.raises(RuntimeError), store.acquire("transformer") as module:
            module(torch.randn(1, 4, 5), torch.zeros(1), torch.randn(1, 8))
        assert mover.bytes_now == 0
        with store.acquire("transformer") as module:
            assert torch.isfinite(
                module(torch.randn(1, 4, 8), torch.zeros(1), torch.randn(1, 8))
            ).all()


def test_tied_tensors_move_once() -> None:
    mover = FakeDeviceMover()
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    module = torch.nn.Sequential(first, second)
    store = ComponentStore({"m": module}, {"m": "component-offload"}, mover)
    with torch.inference_mode(), store.acquire("m") as held:
        held(torch.randn(1, 4))
        assert first.weight is second.weight
    assert mover.bytes_peak == first.weight.nbytes + first.bias.nbytes + second.bias.nbytes


class Odd(torch.nn.Module):
    """Layers called in a given order, by position; what they share is set by the test."""

    def __init__(self, order: Sequence[int], layers: int = 6) -> None:
        super().__init__()
        self.order = order
        self.inlet = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList(Layer(number) for number in range(layers))
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inlet(x) + self.shift
        for position in self.order:
            x = self.blocks[position](x)
        return x


class Layer(torch.nn.Module):
    """A residual layer with a buffer."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.tensor(1.0 + number / 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 4:
            raise ValueError("a layer that raises")
        return x + torch.tanh(self.mix(x)) * self.scale


ORDERS = {
    "in order": [0, 1, 2, 3, 4, 5],
    "backwards": [5, 4, 3, 2, 1, 0],
    "each thrice": [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5],
    "looped": [0, 1, 2, 3, 4, 5] * 3,
    "jumping": [3, 0, 5, 1, 1, 4, 2, 0],
    "some never": [1, 4],
}


@pytest.mark.parametrize("tied", ["none", "two layers", "layer and rest", "one layer twice"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_layers_in_any_order_with_any_tie(order: list[int], tied: str) -> None:
    module = Odd(order).eval().requires_grad_(False)
    if tied == "two layers":
        module.blocks[4].mix.weight = module.blocks[1].mix.weight  # type: ignore[union-attr]
    elif tied == "layer and rest":
        module.inlet.weight = module.blocks[2].mix.weight  # type: ignore[union-attr,assignment]
    elif tied == "one layer twice":
        module.blocks[3] = module.blocks[0]
    x = torch.randn(2, 4)
    mover = FakeDeviceMover()
    with torch.inference_mode():
        expected = module(x)
        layer = sum(t.nbytes for t in (*module.blocks[0].parameters(), module.blocks[0].scale))  # type: ignore[misc,union-attr]
        everything = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
        store = ComponentStore({"m": module}, {"m": "layerwise-offload"}, mover)
        for _ in range(2):
            with store.acquire("m") as held:
                assert torch.equal(held(x), expected)
            assert mover.bytes_now == 0
    if tied == "none":
        assert mover.bytes_peak <= everything - 6 * layer + 2 * layer


def test_a_layer_that_raises_out_of_order_leaves_nothing_behind() -> None:
    mover = FakeDeviceMover()
    module = Odd([4, 2, 0]).eval()
    store = ComponentStore({"m": module}, {"m": "layerwise-offload"}, mover)
    module.inlet = torch.nn.Identity()  # type: ignore[assignment]
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match="a layer that raises"),
        store.acquire("m") as held,
    ):
        held(torch.randn(2, 5))
    assert mover.bytes_now == 0


@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
@pytest.mark.parametrize("room", [0, 1, 2])
def test_no_room_on_the_device_leaves_nothing_behind(mode: Mode, room: int) -> None:
    class Full(FakeDeviceMover):
        limit: int = room

        def upload(self, tensors: Any) -> Any:
            if self.limit == 0:
                raise torch.OutOfMemoryError("full")
            self.limit -= 1
            return super().upload(tensors)

    mover = Full()
    module = Odd([0, 1, 2, 3, 4, 5]).eval().requires_grad_(False)
    x = torch.randn(2, 4)
    with torch.inference_mode():
        expected = module(x)
        store = ComponentStore({"m": module}, {"m": mode}, mover)
        if mode == "layerwise-offload" or room == 0:
            with pytest.raises(torch.OutOfMemoryError), store.acquire("m") as held:
                held(x)
            assert mover.bytes_now == 0
        mover.limit = 1000
        with store.acquire("m") as held:
            assert torch.equal(held(x), expected)
        store.close()
    assert mover.bytes_now == 0


def test_a_component_without_layers_cannot_be_streamed() -> None:
    with pytest.raises(FeatureError, match="component-offload"):
        ComponentStore({"m": torch.nn.Linear(2, 2)}, {"m": "layerwise-offload"}, FakeDeviceMover())


def test_an_unknown_component_is_named() -> None:
    store = ComponentStore(toy_modules(), {}, TorchMover(CPU))
    with pytest.raises(KeyError, match="vae"), store.acquire("decoder"):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_offload_equals_resident_on_a_gpu(mode: Mode) -> None:
    device = torch.device("cuda")
    inputs = [t.to(device) for t in (torch.randn(1, 4, 8), torch.zeros(1), torch.randn(1, 8))]
    reference = toy_modules()["transformer"].to(device)
    store = ComponentStore(toy_modules(), {"transformer": mode}, TorchMover(device))
    with torch.inference_mode():
        for _ in range(3):
            with store.acquire("transformer") as module:
                assert torch.equal(module(*inputs), reference(*inputs))
