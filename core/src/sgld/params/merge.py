"""Layers of settings become one validated object: flag > env > file > call > preset > built-in.

* `Layer(kind, values, ...)`: what one source said, under names as the user spelled them.
* `build(cls, layers) -> Built`: layers strongest first; raises one `ParameterError` with every
  problem, each under the spelling and with the value that the user gave.
* `env_layer(cls..., environ)`: the `SGLD_<NAME>` variables that any of the classes knows.
* `split(layers, classes)`: one list of layers per class, plus the problems of unknown names.

`None` means "not given" in every layer. An empty environment variable counts as not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from sgld.api.errors import ParameterError, Problem
from sgld.params.nearest import canonical, did_you_mean
from sgld.params.options import (
    LAYERED,
    Auto,
    Deferred,
    Finding,
    Options,
    Unreadable,
    extras,
    from_text,
    rule,
    scalar,
)

Kind = Literal["flag", "env", "file", "call", "preset"]
T = TypeVar("T", bound=Options)


class Layer(NamedTuple):
    """What one source said.

    Args:
        kind: `flag` and `env` hold text, the others typed values; `preset` is not the user's own.
        values: name → value; names may use dashes or underscores.
        source: the file or preset, for the origin shown to the user.
        lines: name → line number, for files.
        spelled: name → how the user wrote it, where that differs from the kind's usual way.
    """

    kind: Kind
    values: Mapping[str, Any]
    source: str = ""
    lines: Mapping[str, int] = {}
    spelled: Mapping[str, str] = {}

    def spell(self, name: str) -> str:
        """The name as the user of this layer writes it."""
        if name in self.spelled:
            return self.spelled[name]
        if self.kind == "flag":
            return "--" + canonical(name).replace("_", "-")
        return f"SGLD_{canonical(name).upper()}" if self.kind == "env" else name

    def origin(self, name: str) -> str:
        """Where a value came from, for `--print-config`."""
        if self.kind == "file":
            line = self.lines.get(name)
            return f"file {self.source}" + (f":{line}" if line else "")
        if self.kind == "preset":
            return f"model preset {self.source}".rstrip()
        return {"flag": "flag ", "env": "environment ", "call": "argument "}[
            self.kind
        ] + self.spell(name)


class Built(NamedTuple, Generic[T]):
    """The validated object, where each value came from, what was adjusted, what the user named."""

    params: T
    origins: dict[str, str]
    notes: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()


class _Slot(NamedTuple):
    """One merged value with the layer and the name under which it was written."""

    value: Any
    layer: Layer
    name: str

    @property
    def shown(self) -> Any:
        given = self.layer.values.get(self.name, self.value)
        # A flag that may be repeated is a list; given once, show what was typed.
        once = self.layer.kind == "flag" and isinstance(given, list) and len(given) == 1
        return given[0] if once else given

    def problem(self, message: str, remedy: str = "", code: str = "invalid_value") -> Problem:
        field = self.layer.spell(self.name)
        if self.layer.kind in ("file", "preset"):
            remedy = f"{remedy} ({self.layer.origin(self.name)})".strip()
        return Problem(field, self.shown, message, remedy, code)


def build(cls: type[T], layers: Sequence[Layer]) -> Built[T]:
    """Merge `layers` (strongest first) over the built-in defaults of `cls` and validate.

    Raises `ParameterError` listing every unknown name, wrong value and broken cross-field rule.
    """
    problems: list[Problem] = []
    slots = _merge(cls, layers, problems)
    values = {name: slot.value for name, slot in slots.items()}
    good = _check_fields(cls, values, slots, layers, problems)
    given = frozenset(name for name, slot in slots.items() if slot.layer.kind != "preset")
    settled = cls.settle(good, given)
    problems += [_blame(finding, slots, layers) for finding in settled.findings]
    if problems:
        raise ParameterError(distinct(problems))
    params = cls.model_validate(settled.values, context=LAYERED)
    origins = {
        name: slots[name].layer.origin(slots[name].name) if name in slots else "built-in"
        for name in cls.model_fields
    }
    return Built(params, origins, settled.notes, given)


def distinct(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without repetitions, in order."""
    return list({str(problem): problem for problem in problems}.values())


def _merge(
    cls: type[Options], layers: Sequence[Layer], problems: list[Problem]
) -> dict[str, _Slot]:
    merged: dict[str, _Slot] = {}
    base: dict[str, _Slot] = {}
    for layer in reversed(layers):
        for name, slot in _read(cls, layer, problems).items():
            if isinstance(slot.value, Auto):
                merged.pop(name, None)
                merged |= {name: base[name]} if name in base else {}
                continue
            merged[name] = _overlay(cls, name, slot, merged.get(name))
            if layer.kind == "preset":
                base[name] = merged[name]
    return merged


def _overlay(cls: type[Options], name: str, slot: _Slot, under: _Slot | None) -> _Slot:
    by_keys = extras(cls.model_fields[name]).get("merge") == "keys"
    if by_keys and under and isinstance(slot.value, Mapping) and isinstance(under.value, Mapping):
        return slot._replace(value={**under.value, **slot.value})
    return slot


def _read(cls: type[Options], layer: Layer, problems: list[Problem]) -> dict[str, _Slot]:
    """One layer as field → slot; what cannot be read becomes a problem."""
    read: dict[str, _Slot] = {}
    for name, raw in layer.values.items():
        if raw is None or (layer.kind == "env" and raw == ""):
            continue
        key = canonical(name)
        slot = _Slot(raw, layer, name)
        if key not in cls.accepted():
            problems.append(_unknown(cls, slot, key))
            continue
        for field, value in _fields(cls, key, slot, problems).items():
            if field in read and read[field].value != value:
                other = layer.spell(read[field].name)
                problems.append(slot.problem(f"contradicts {other}.", "Give one of them."))
            read[field] = slot._replace(value=value)
    return read


def _fields(cls: type[Options], key: str, slot: _Slot, problems: list[Problem]) -> dict[str, Any]:
    text = slot.layer.kind in ("flag", "env")
    if key in cls.conveniences:
        value = slot.value
        if text and key != "size":
            value = scalar(value)
        try:
            return {} if value is None else cls.expand(key, value)
        except Unreadable as error:
            problems.append(slot.problem(f"{error}."))
            return {}
    value = from_text(cls.model_fields[key], slot.value) if text else slot.value
    return {} if value is None else {key: value}


def _unknown(cls: type[Options], slot: _Slot, key: str) -> Problem:
    if key in cls.refused:
        return slot.problem("is not taken here.", cls.refused[key], "unsupported_parameter")
    names = [slot.layer._replace(spelled={}).spell(name) for name in sorted(cls.accepted())]
    return slot.problem("is unknown.", did_you_mean(key, names), "unknown_parameter")


def _check_fields(
    cls: type[Options],
    values: Mapping[str, Any],
    slots: Mapping[str, _Slot],
    layers: Sequence[Layer],
    problems: list[Problem],
) -> dict[str, Any]:
    """The values that are right on their own, with defaults; the others become problems."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Deferred)}
    deferred = {name: value for name, value in values.items() if isinstance(value, Deferred)}
    wrong: set[str] = set()
    try:
        checked = cls.model_validate(plain, context=LAYERED)
    except ValidationError as error:
        for entry in error.errors(include_url=False, include_input=False):
            name = str(entry["loc"][0])
            if name not in wrong and name not in deferred:
                problems.append(_field_problem(cls, name, entry, slots, layers))
            wrong.add(name)
        defaults = {
            name: field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
            if not field.is_required()
        }
        good = {name: value for name, value in {**defaults, **plain}.items() if name not in wrong}
        return good | deferred
    return {name: getattr(checked, name) for name in cls.model_fields} | deferred


def _field_problem(
    cls: type[Options],
    name: str,
    entry: Any,
    slots: Mapping[str, _Slot],
    layers: Sequence[Layer],
) -> Problem:
    field = cls.model_fields[name]
    if name not in slots:
        spelled = layers[0].spell(name) if layers else name
        return Problem(spelled, None, f"is required: {field.description}", "", "missing_parameter")
    message = f"must be {rule(field)}."
    if entry["type"] == "value_error":
        message = str(entry["ctx"]["error"]).rstrip(".")
        message += "" if message.endswith(("?", "!")) else "."
    remedy = ""
    if entry["type"] == "literal_error" and isinstance(slots[name].value, str):
        remedy = did_you_mean(slots[name].value, literals(cls, name), limit=0)
    return slots[name].problem(message, remedy)


def literals(cls: type[Options], name: str) -> tuple[str, ...]:
    """The words that a `Literal` field allows; empty for other fields."""
    words = rule(cls.model_fields[name])
    return tuple(words.removeprefix("one of ").split(", ")) if words.startswith("one of") else ()


def _blame(finding: Finding, slots: Mapping[str, _Slot], layers: Sequence[Layer]) -> Problem:
    if finding.name in slots:
        return slots[finding.name].problem(finding.message, finding.remedy, finding.code)
    spelled = layers[0].spell(finding.name) if layers else finding.name
    return Problem(spelled, None, finding.message, finding.remedy, finding.code)


def env_layer(classes: Iterable[type[Options]], environ: Mapping[str, str]) -> Layer:
    """The `SGLD_<NAME>` variables that one of the classes knows; other variables are left alone."""
    names = {name for cls in classes for name in cls.accepted()}
    found = {
        name: environ[f"SGLD_{name.upper()}"]
        for name in sorted(names)
        if environ.get(f"SGLD_{name.upper()}")
    }
    return Layer("env", found)


def split(
    layers: Sequence[Layer], classes: Sequence[type[Options]], also: Iterable[str] = ()
) -> tuple[list[list[Layer]], list[Problem]]:
    """Share the layers out: for each class the layers with its own names; unknown names are
    given as problems with the nearest name of any class or of `also`."""
    problems: list[Problem] = []
    shares: list[list[Layer]] = [[] for _ in classes]
    switches = frozenset(also)
    every = switches.union(*(cls.accepted() for cls in classes))
    for layer in layers:
        owned: list[dict[str, Any]] = [{} for _ in classes]
        for name, value in layer.values.items():
            owner = next(
                (
                    i
                    for i, cls in enumerate(classes)
                    if canonical(name) in cls.accepted() or canonical(name) in cls.refused
                ),
                None,
            )
            if owner is None and canonical(name) in switches and layer.kind != "flag":
                slot = _Slot(value, layer, name)
                flag = "--" + canonical(name).replace("_", "-")
                problems.append(slot.problem("is no setting.", f"It is a flag: {flag}."))
            elif owner is None:
                plain = layer._replace(spelled={})
                guess = did_you_mean(name, [plain.spell(known) for known in every])
                problems.append(
                    _Slot(value, layer, name).problem("is unknown.", guess, "unknown_parameter")
                )
            else:
                owned[owner][name] = value
        for share, values in zip(shares, owned, strict=True):
            share.append(layer._replace(values=values))
    return shares, problems
