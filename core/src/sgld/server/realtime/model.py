"""What the served model's realtime sessions are: found in the plan, told to clients."""

from __future__ import annotations

from typing import Any

from sgld.params.table import parameter_rows
from sgld.plan import ModelPlan
from sgld.plugins.catalog import load_target
from sgld.server.bodies import Limits
from sgld.server.parameters import ModelFacts
from sgld.server.realtime.batches import FORMATS
from sgld.server.realtime.fields import SessionSettings
from sgld.server.realtime.opening import PROTOCOLS, UNSEEN, RealtimeModel

ADDRESS = "/v1/realtime_video/generate"


def realtime_model(plan: ModelPlan, facts: ModelFacts, limits: Limits) -> RealtimeModel | None:
    """The adapter of the plan's pipeline; None when it has none.

    Raises:
        PluginError: several plugins bring one, or the one that does is broken.
    """
    entry = plan.adapter
    if entry is None:
        return None
    return RealtimeModel(entry.spec.id, load_target(entry.spec.target, entry), facts, limits)


def capabilities(model: RealtimeModel | None) -> dict[str, Any] | None:
    """What a client may ask of a session, as JSON values; None without sessions."""
    if model is None:
        return None
    cls = model.params_class
    rows = parameter_rows(cls, model.facts.preset_layer.values)
    return {
        "path": ADDRESS,
        "protocols": list(PROTOCOLS),
        "adapter": model.id,
        "events": list(model.adapter.events),
        "needs_first_frame": model.adapter.needs_first_frame
        and not (model.facts.picture or model.facts.blank),
        "takes_first_frame": model.adapter.needs_first_frame or cls.takes_image,
        "init_fields": list(model.adapter.init_fields),
        "output_formats": list(FORMATS),
        "size_multiple": cls.spatial_multiple,
        "max_pixels": cls.max_pixels,
        "settings": parameter_rows(SessionSettings),
        "parameters": [row for row in rows if row["name"] not in UNSEEN],
    }
