"""Components that are lent to the engine: a pipeline calls them as ever, and the engine runs them.

lent = Lent("transformer", module)     what the engine's store holds
lent.listen(talk)                      calls on the pipeline's thread become wishes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from sgld.engine.call import Call
from sgld_diffusers.talk import Talk

METHODS: Final = ("encode", "decode")
"""Methods beside `forward` by which pipelines use autoencoders; one call each, as in diffusers'
own offloading."""


class Lent(nn.Module):
    """A component whose calls are wishes.

    The component itself is changed: its `forward` (and an autoencoder's `encode` and `decode`) ask
    the engine when the pipeline's thread calls them, and compute when the engine does.
    """

    def __init__(self, name: str, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.name = name
        self.inner = module
        self._device = device
        self._talk: Talk | None = None
        self._real: dict[str, Callable[..., Any]] = {}
        for method in ("forward", *METHODS):
            if method == "forward" or _is_autoencoder(module, method):
                self._real[method] = getattr(module, method)
                setattr(module, method, self._asking(method))

    def listen(self, talk: Talk | None) -> None:
        """Whose calls become wishes from now on; None: nobody's."""
        self._talk = talk

    def forward(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the engine runs: the component's own method, with inputs where its weights are."""
        args, kwargs = self._here(args), self._here(kwargs)
        return self._real[method](*args, **kwargs)

    def _asking(self, method: str) -> Callable[..., Any]:
        real = self._real[method]

        def ask(*args: Any, **kwargs: Any) -> Any:
            talk = self._talk
            if talk is None or not talk.mine():
                return real(*args, **kwargs)
            inputs = {"method": method, "args": args, "kwargs": kwargs}
            return talk.ask(Call(self.name, inputs))

        ask.__wrapped__ = real  # pyright: ignore[reportFunctionMemberAccess]  (signatures are asked for)
        return ask

    def _here(self, value: Any) -> Any:
        """A nest of inputs with its tensors on the device: an offloaded component says `cpu` when a
        pipeline asks where it is."""
        if isinstance(value, torch.Tensor):
            return value if value.device == self._device else value.to(self._device)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self._here(item) for item in value)
        if type(value) is list:
            return [self._here(item) for item in value]
        if type(value) is dict:
            return {key: self._here(item) for key, item in value.items()}
        return value


def _is_autoencoder(module: nn.Module, method: str) -> bool:
    return callable(getattr(module, method, None)) and hasattr(module, "decode")
