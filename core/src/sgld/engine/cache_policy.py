"""From the record of a cache policy to the policy, with the settings of the family's parameters.

entry = choose_cache(catalog.caches.values(), spec.caches, prefer="pinned-sink")
policy = make_policy(entry, window=32, sink=8)
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from sgld.api.errors import FeatureError, PluginError
from sgld.api.specs import CacheSpec
from sgld.causal.policies import Policy
from sgld.plugins.catalog import load_target
from sgld.plugins.failures import failure
from sgld.plugins.resolve import Entry


def check_policy(chosen: Entry[CacheSpec] | None) -> None:
    """Refuse a policy that can never be made, before anything waits for the weights.

    Raises PluginError (SGLD-P007): the target does not import, or is not what the contract says.
    """
    if chosen is None:
        return
    maker = load_target(chosen.spec.target, chosen)
    if isinstance(maker, type):
        wrong = _no_policy(maker, f"is class {maker.__qualname__}")
        left = sorted(getattr(maker, "__abstractmethods__", ()))
        if not wrong and left:
            wrong = f"is class {maker.__qualname__}, which does not implement {', '.join(left)}"
    else:
        # A function can be judged by what it makes only: see `make_policy`.
        wrong = "" if callable(maker) else f"is {maker!r:.60}, which cannot be called"
    if wrong:
        raise _bad_policy(chosen.spec.target, chosen, f"{wrong}.")


def _no_policy(cls: type[Any], what: str) -> str:
    """What keeps a class from being a policy; empty when nothing does."""
    if issubclass(cls, Policy):
        return ""
    wanted = sorted(name for name in vars(Policy) if not name.startswith("_"))
    lacks = [name for name in wanted if not hasattr(cls, name)]
    names = f" and lacks {', '.join(lacks)}" if lacks else ""
    return f"{what}, which is not derived from sgld.causal.policies.Policy{names}"


def _bad_policy(target: str, entry: Entry[CacheSpec] | None, wrong: str) -> PluginError:
    owner = entry or Entry(None, "sgld", "", "")
    named = f"cache {entry.spec.id!r}: " if entry else ""
    row = failure(
        "SGLD-P007",
        owner.plugin,
        f"{named}target {target!r} {wrong}",
        dist=owner.dist,
        version=owner.version,
    )
    return PluginError(str(row), failures=(row,), remedy="Correct the target.")


def make_policy(which: Entry[CacheSpec] | str, **settings: Any) -> Policy:
    """The policy with these settings; those that are None are left to the policy.

    Args:
        which: the entry of a policy, or a target `module:attribute`.
        settings: by the names of the policy's fields.

    Raises:
        FeatureError: a setting that the policy does not have, or one that it needs is missing.
        ParameterError: a value that the policy refuses.
        PluginError: the target cannot be imported, or makes no `Policy`.
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
    made = maker(**given)
    if wrong := _no_policy(type(made), f"makes an object of class {type(made).__qualname__}"):
        raise _bad_policy(target, entry, f"{wrong}.")
    return made


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
