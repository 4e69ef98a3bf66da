"""Works out the few numbers that a class computes from its configurations, such as its grid.

    facts = Instance(source, locals, children)
    facts.attribute("vae_scale_factor")        8

Only arithmetic on configuration values is followed; whatever is more raises `Unknown`. No code of
the class is run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from sgld_diffusers.reading.source import ClassSource, lineage


class Unknown(Exception):
    """The value is not one that reading alone can tell."""


OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "len": len, "sum": sum, "max": max, "min": min, "int": int, "list": list, "tuple": tuple,
    "bool": bool, "abs": abs,
}  # fmt: skip
MOST_READS: Final = 100_000
"""Expressions looked at for one object; local values that use each other grow without end."""
BIGGEST: Final = 2**24
"""Grids and sizes are small; larger numbers are a sign of something that was not understood."""


class Config:
    """A component's configuration: `config.x` and `config["x"]`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def attribute(self, name: str) -> Any:
        """One value."""
        if name not in self.values:
            raise Unknown(name)
        return self.values[name]


class Instance:
    """An object of a class that is only read.

    Args:
        source: the class; None when it is not to be found.
        given: names of its `__init__`, such as a model's configuration.
        children: attributes that are other instances, such as a pipeline's components; None for one
            that the checkpoint leaves out.
        config: what its `config` is.
    """

    def __init__(
        self,
        source: ClassSource | None,
        given: Mapping[str, Any] | None = None,
        children: Mapping[str, Instance | None] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = source
        self._given = dict(given or {})
        self._children = dict(children or {})
        self._config = Config(config or {})
        self._busy: set[str] = set()
        self._reads = 0

    def count(self) -> None:
        """One more expression is looked at; raises Unknown when these are too many."""
        self._reads += 1
        if self._reads > MOST_READS:
            raise Unknown("too much to follow")

    def attribute(self, name: str) -> Any:
        """An attribute that `__init__` or the class body sets, or a configuration value.

        Raises Unknown.
        """
        if name in self._children:
            return self._children[name]
        if name == "config":
            return self._config
        if name in self._busy:
            raise Unknown(name)
        self._busy.add(name)
        try:
            return self._assigned(name)
        finally:
            self._busy.discard(name)

    def evaluate(self, node: ast.AST, names: Mapping[str, ast.expr] | None = None) -> Any:
        """The value of an expression in one of its methods; `names` are local variables."""
        value = _Reader(self, self._given, names or {}).read(node)
        if isinstance(value, int | float) and abs(value) > BIGGEST:
            raise Unknown("too large")
        return value

    def _assigned(self, name: str) -> Any:
        for cls in lineage(self._source) if self._source is not None else ():
            begin = cls.method("__init__")
            value = _set_in(begin, name) if begin is not None else None
            if begin is not None and value is not None:
                return self.evaluate(value, local_values(begin))
            for item in cls.node.body:
                if isinstance(item, ast.Assign) and _named(item.targets, name):
                    return self.evaluate(item.value)
        return self._config.attribute(name)


def _set_in(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """What a method assigns to `self.name` first."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(_is_own(target, name) for target in node.targets):
            return node.value
    return None


def _is_own(target: ast.AST, name: str) -> bool:
    return (
        isinstance(target, ast.Attribute)
        and target.attr == name
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


def _named(targets: list[ast.expr], name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def local_values(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Local variables that are assigned exactly once, with what they are assigned."""
    seen: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                seen.setdefault(target.id, []).append(node.value)
    return {name: values[0] for name, values in seen.items() if len(values) == 1}


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


class _Reader:
    """Follows one expression."""

    def __init__(
        self, owner: Instance, given: Mapping[str, Any], names: Mapping[str, ast.expr]
    ) -> None:
        self._owner, self._given, self._names = owner, given, names
        self._busy: set[str] = set()

    def read(self, node: ast.AST) -> Any:
        self._owner.count()
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unknown(type(node).__name__)
        try:
            return method(node)
        except Unknown:
            raise
        except Exception as error:  # arithmetic on values of another kind than expected
            raise Unknown(str(error)) from None

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id == "self":
            return self._owner
        if node.id in self._given:
            return self._given[node.id]
        if node.id in self._names and node.id not in self._busy:
            self._busy.add(node.id)
            try:
                return self.read(self._names[node.id])
            finally:
                self._busy.discard(node.id)
        raise Unknown(node.id)

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self.read(node.value)
        if isinstance(owner, Instance | Config):
            return owner.attribute(node.attr)
        raise Unknown(node.attr)

    def _subscript(self, node: ast.Subscript) -> Any:
        owner, key = self.read(node.value), self.read(node.slice)
        return owner.attribute(key) if isinstance(owner, Config) else owner[key]

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.read(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub):
            return -value
        raise Unknown("operator")

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 32 or abs(left) > 64):
            raise Unknown("too large")
        if isinstance(node.op, ast.Mult | ast.Mod) and not _are_numbers(left, right):
            raise Unknown("a text or a list made longer")
        return OPERATORS[type(node.op)](left, right)

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for item in node.values:
            value = self.read(item)
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return value

    def _compare(self, node: ast.Compare) -> Any:
        left = self.read(node.left)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self.read(item)
            if not OPERATORS[type(op)](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.read(node.body if self.read(node.test) else node.orelse)

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.read(item) for item in node.elts)

    def _list(self, node: ast.List) -> Any:
        return [self.read(item) for item in node.elts]

    def _call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if node.keywords or name not in ("getattr", "hasattr", *FUNCTIONS):
            raise Unknown("call")
        values = [self.read(argument) for argument in node.args]
        if name in FUNCTIONS:
            return FUNCTIONS[name](*values)
        owner, wanted = values[0], values[1]
        if not isinstance(owner, Instance | Config):
            raise Unknown(wanted)
        if isinstance(owner, Instance):
            found = owner.attribute(wanted) if wanted in owner._children else None
            if name == "hasattr" or wanted in owner._children:
                return found is not None if name == "hasattr" else found
            return owner.attribute(wanted)
        present = wanted in owner.values
        if name == "hasattr":
            return present
        if present or len(values) < 3:
            return owner.attribute(wanted)
        return values[2]
