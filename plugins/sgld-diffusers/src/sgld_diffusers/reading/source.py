"""Where a class is written, without importing it.

find_class("StableDiffusionXLPipeline")     in the installed diffusers
class_in(path, "MyPipeline")                in one file
lineage(source)                             the class and the bases that can be read
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from sgld.api.errors import ModelError

CLASS: Final = re.compile(rb"^class (\w+)[(:]", re.MULTILINE)
ENDS_AT: Final = frozenset({"DiffusionPipeline", "ModelMixin", "ConfigMixin", "object"})


class ClassSource(NamedTuple):
    """A class as it is written.

    Args:
        node: its definition.
        path: the file.
        root: the folder of its package: other classes are looked for below it.
    """

    node: ast.ClassDef
    path: Path
    root: Path

    @property
    def name(self) -> str:
        """The class's name."""
        return self.node.name

    @property
    def module(self) -> str:
        """The module to import it from."""
        parts = self.path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def method(self, name: str) -> ast.FunctionDef | None:
        """A method of its own."""
        for item in self.node.body:
            if isinstance(item, ast.FunctionDef) and item.name == name:
                return item
        return None


@cache
def package_root(package: str) -> Path:
    """The folder of an installed top-level package, which is not imported.

    Raises ModelError when it is not installed.
    """
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found else []
    if not places:
        raise ModelError(f"the package {package!r} is not installed.", remedy="Install it.")
    return Path(places[0])


def module_file(module: str) -> tuple[Path | None, Path]:
    """The file of an installed module, which is not imported, and the folder of its package (that
    of the file for a module without one); no file when it is not there."""
    top, *rest = module.split(".")
    found = importlib.util.find_spec(top)
    if found is None:
        return None, Path()
    if not found.submodule_search_locations:
        path = Path(found.origin or "")
        return (path if not rest and path.is_file() else None), path.parent
    root = Path(next(iter(found.submodule_search_locations)))
    base = root.joinpath(*rest)
    paths = [base / "__init__.py", *([base.with_suffix(".py")] if rest else [])]
    return next((path for path in paths if path.is_file()), None), root


@cache
def _index(part: str, package: str) -> dict[str, Path]:
    """Name → file of every class below a folder of an installed package. A class of the folder
    `deprecated` is there only when no other has the name."""
    found: dict[str, Path] = {}
    paths = sorted((package_root(package) / part).rglob("*.py"))
    for path in sorted(paths, key=lambda path: "deprecated" in path.parts):
        for name in CLASS.findall(path.read_bytes()):
            found.setdefault(name.decode(), path)
    return found


def find_class(
    name: str, part: str = "pipelines", package: str = "diffusers"
) -> ClassSource | None:
    """A class of an installed package, below its folder `part`; None if there is none."""
    path = _index(part, package).get(name)
    return class_in(path, name, package_root(package)) if path is not None else None


def class_names(part: str = "pipelines", package: str = "diffusers") -> tuple[str, ...]:
    """Names of the pipeline classes of an installed package."""
    return tuple(sorted(name for name in _index(part, package) if name.endswith("Pipeline")))


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def class_in(path: Path, name: str, root: Path | None = None) -> ClassSource | None:
    """A class of one file.

    Raises ModelError when the file cannot be read as Python.
    """
    try:
        tree = _parse(path)
    except (OSError, ValueError, SyntaxError) as error:
        raise ModelError(f"{path}: cannot be read as Python ({error}).") from None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return ClassSource(node, path, root or path.parent)
    return None


def lineage(source: ClassSource) -> Iterator[ClassSource]:
    """The class, then those of its bases that are written in its file or in diffusers."""
    seen: set[str] = set()
    waiting = [source]
    while waiting:
        current = waiting.pop(0)
        if current.name in seen:
            continue
        seen.add(current.name)
        yield current
        for base in current.node.bases:
            name = ast.unparse(base).rpartition(".")[2]
            if name not in ENDS_AT and not name.endswith("Mixin"):
                found = class_in(current.path, name, current.root) or find_class(name)
                waiting += [found] if found is not None else []


def method(source: ClassSource, name: str) -> ast.FunctionDef | None:
    """A method of the class or of the nearest base that has it."""
    for cls in lineage(source):
        found = cls.method(name)
        if found is not None:
            return found
    return None
