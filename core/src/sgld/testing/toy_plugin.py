"""The toy families as an external plugin, so that whole servers can be tested in seconds.

    export SGLD_EXTERNAL_MODEL_PACKAGE=sgld.testing.toy_plugin
    sgld serve --model-path tiny:toy-image

`toy-image` makes pictures from text, `toy-edit` mixes input pictures in (and works without one),
`toy-video` makes clips. All take the hooks of `sgld.testing.toy_params.Hooks` (a slow step, a
failure, a crash). Neither this module nor the parameters nor the blueprints import torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgld.api import Claims, PipelineSpec, Plugin, Where, features, hookimpl


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin("toy", contracts={"pipeline": 1}, summary="Toy families for tests")


@hookimpl
def sgld_pipelines() -> Iterator[PipelineSpec]:
    """A picture, an edited picture and a clip."""
    yield _spec("image", ("text-to-image",), "Toy pictures")
    yield _spec("edit", ("text-to-image", "image-to-image"), "Toy pictures from pictures")
    yield _spec("video", ("text-to-video",), "Toy clips")


def _spec(kind: str, tasks: tuple[str, ...], summary: str) -> PipelineSpec:
    name = kind.capitalize()
    return PipelineSpec(
        id=f"toy-{kind}",
        target=f"sgld.testing.toy_pipelines:Toy{name}Pipeline",
        params=f"sgld.testing.toy_params:Toy{name}Params",
        tasks=tasks,
        claims=Claims(
            rules=((Where("model_index.json", "_class_name", "==", f"Toy{name}Pipeline"),),)
        ),
        components={"text_encoder": "text_encoder", "transformer": "dit", "vae": "vae"},
        features=frozenset(
            {
                features.STEP_BATCHING,
                features.COMPONENT_OFFLOAD,
                features.LAYERWISE_OFFLOAD,
                features.CFG,
                features.DUMMY_WEIGHTS,
            }
        ),
        blueprints={"tiny": f"sgld.testing.toy_checkpoint:write_{kind}"},
        summary=summary,
    )
