"""`/v1/models`: the served model, its tasks, defaults and every parameter with its range."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from sgld.params.table import parameter_rows
from sgld.server.answers import ModelDetails, ModelList
from sgld.server.errors import not_found
from sgld.server.openapi import answers
from sgld.server.realtime.model import capabilities
from sgld.server.services import Services


def model_routes(services: Services) -> APIRouter:
    """The model routes over these services."""
    router = APIRouter()
    created = int(services.readiness.started)

    def card() -> dict[str, Any]:
        spec, entry = services.plan.spec, services.plan.recognition.entry
        return {
            "id": services.name,
            "object": "model",
            "created": created,
            "owned_by": "sgld",
            "root": services.plan.options.model_path,
            "pipeline": spec.id,
            "plugin": f"{entry.dist} {entry.version}".strip(),
            "task_type": services.plan.tasks[0],
            "supported_task_types": list(services.plan.tasks),
        }

    @router.get(
        "/v1/models",
        summary="The served models",
        response_model=None,
        responses=answers(ModelList),
    )
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @router.get(
        "/v1/models/{name:path}",
        summary="One model with its parameters",
        response_model=None,
        responses=answers(ModelDetails, 404),
    )
    async def model(request: Request, name: str) -> dict[str, Any]:
        if name != services.name:
            raise not_found("model", name, remedy=f"This server serves {services.name!r}.")
        plan = services.plan
        defaults = plan.params_class.model_validate(
            {"prompt": "-", **plan.preset_defaults}, context={"layered": True}
        ).model_dump(mode="json")
        if "prompt" not in plan.preset_defaults:
            defaults.pop("prompt", None)
        return {
            **card(),
            "features": sorted(plan.spec.features),
            "components": dict(plan.components),
            "defaults": defaults,
            "parameters": parameter_rows(plan.params_class, plan.preset_defaults),
            "limits": services.limits.as_dict(),
            "realtime": capabilities(services.sessions.model),
        }

    return router
