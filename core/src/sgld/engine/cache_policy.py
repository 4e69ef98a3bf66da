"""From the record of a cache policy to the policy, with the settings of the family's parameters.

entry = choose_cache(catalog.caches.values(), spec.caches, prefer="pinned-sink")
policy = make_policy(entry, window=32, sink=8)
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from sgld.api.errors import FeatureError
from sgld.api.specs import CacheSpec
from sgld.causal.policies import Policy
from sgld.plugins.catalog import load_target
from sgld.plugins.resolve import Entry


def make_policy(which: Entry[CacheSpec] | str, **settings: Any) -> Policy:
    """The policy with these settings; those that are None are left to the policy.

    Args:
        which: the entry of a policy, or a target `module:attribute`.
        settings: by the names of the policy's fields.

    Raises:
        FeatureError: a setting that the policy does not have, or one that it needs is missing.
        ParameterError: a value that the policy refuses.
        PluginError: the target cannot be imported.
    """
    entry = None if isinstance(which, str) else which
    name = which if isinstance(which, str) else which.spec.id
    target = which if isinstance(which, str) else which.spec.target
    maker = load_target(target, entry)
    given = {key: value for key, value in settings.items() if value is not None}
    known = {
        key: field
        for key, field in inspect.signature(maker).parameters.items()
        if field.kind not in (field.VAR_POSITIONAL, field.VAR_KEYWORD)
    }
    unknown = sorted(given.keys() - known.keys())
    missing = sorted(
        key
        for key, field in known.items()
        if field.default is inspect.Parameter.empty and key not in given
    )
    if unknown or missing:
        wrong = [f"has no {key}" for key in unknown] + [f"needs {key}" for key in missing]
        raise FeatureError(
            f"cache policy {name!r} {' and '.join(wrong)}.",
            remedy=f"Its settings: {', '.join(known)}.",
        )
    return maker(**given)


def remake(chosen: Entry[CacheSpec] | None, own: Policy) -> Policy:
    """The policy that the user picked, with the settings of the one that the family would take.

    Args:
        chosen: None when the user picked none: the family's own it is.
        own: a dataclass; what stands at its default is left to the chosen one.

    Raises:
        FeatureError: the chosen one lacks one of these settings, or needs another.
    """
    if chosen is None:
        return own
    if not is_dataclass(own):
        raise TypeError(f"{own!r} is no dataclass, so its settings are unknown")
    rows = ((field, getattr(own, field.name)) for field in fields(own))
    settings = {
        field.name: v for field, v in rows if field.default is MISSING or v != field.default
    }
    return make_policy(chosen, **settings)
