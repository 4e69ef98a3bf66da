"""The toy families as an external plugin, so that whole servers can be tested in seconds.

    export SGLD_EXTERNAL_MODEL_PACKAGE=sgld.testing.toy_plugin
    sgld serve --model-path tiny:toy-image

`toy-image` makes pictures from text, `toy-edit` mixes input pictures in (and works without one),
`toy-video` makes clips, `toy-world` clips in chunks and realtime sessions. All take the hooks of
`sgld.testing.toy_params.Hooks` (a slow step, a failure, a crash). Neither this module nor the
parameters nor the blueprints import torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgld.api import Claims, PipelineSpec, Plugin, RealtimeSpec, Where, features, hookimpl


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    contracts = {"pipeline": 1, "realtime": 1}
    return Plugin("toy", contracts=contracts, summary="Toy families for tests")


@hookimpl
def sgld_pipelines() -> Iterator[PipelineSpec]:
    """A picture, an edited picture and a clip."""
    yield _spec("image", ("text-to-image",), "Toy pictures")
    yield _spec("edit", ("text-to-image", "image-to-image"), "Toy pictures from pictures")
    yield _spec("video", ("text-to-video",), "Toy clips")
    world = _spec("world", ("text-to-video", "image-to-video"), "Toy worlds")
    yield world._replace(
        target="sgld.testing.toy_world:ToyWorldPipeline",
        params="sgld.testing.toy_world_params:ToyWorldParams",
        features=frozenset({features.COMPONENT_OFFLOAD, features.DUMMY_WEIGHTS}),
        caches=("rolling", "*"),
    )


@hookimpl
def sgld_realtime() -> Iterator[RealtimeSpec]:
    """How a toy world is steered."""
    yield RealtimeSpec(
        id="toy-world",
        pipeline="toy-world",
        target="sgld.testing.toy_world_params:ToyWorldAdapter",
        events=("camera_actions", "prompt"),
    )


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
