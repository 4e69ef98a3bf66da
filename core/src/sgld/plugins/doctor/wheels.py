"""Compare what a distribution's metadata asks for with what is installed.

Public: `wheel_rows(found) -> list[Row]`. The installer decided once; this tells what has changed.
"""

from __future__ import annotations

import platform
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from sgld.plugins.doctor.rows import Row, counted
from sgld.plugins.find import Found


def wheel_rows(found: Found) -> list[Row]:
    """A row for each requirement that does not hold, or one that says how many do."""
    try:
        dist = metadata.distribution(found.dist)
        texts = list(dist.requires or ())
        python = (dist.metadata.get_all("Requires-Python") or [""])[0]
    except metadata.PackageNotFoundError:
        kind = "a package named by the environment" if found.source == "local" else "not installed"
        return [Row("ok", "wheel", f"{found.dist} is {kind}; there is no metadata to compare")]
    except Exception as error:
        text = f"the metadata of {found.dist} cannot be read: {type(error).__name__}: {error}."
        return [_bad(text, f"Reinstall {found.dist}.")]
    rows = [row for text in texts if (row := _requirement(found, text)) is not None]
    rows += _python(found, python)
    if rows:
        return rows
    text = f"{counted(len(texts), 'requirement')} of {found.dist}, each holds or is optional"
    return [Row("ok", "wheel", text)]


def _requirement(found: Found, text: str) -> Row | None:
    try:
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            return None
    except (InvalidRequirement, ValueError) as error:
        return _bad(f"{found.dist} asks for {text!r}, which is no requirement: {error}.", "")
    try:
        version = metadata.version(need.name)
        holds = need.specifier.contains(version, prereleases=True)
    except metadata.PackageNotFoundError:
        text = f"{found.dist} needs {need.name}{need.specifier}, which is not installed."
        return _bad(text, f"pip install '{need.name}{need.specifier}'")
    except InvalidVersion:
        holds = False
        version = "unknown"
    if holds:
        return None
    return _bad(
        f"{found.dist} needs {need.name}{need.specifier}; {version} is installed.",
        f"Install {need.name}{need.specifier}, or a version of {found.dist} that takes {version}.",
    )


def _python(found: Found, text: str) -> list[Row]:
    here = platform.python_version()
    try:
        if not text or SpecifierSet(text).contains(here, prereleases=True):
            return []
    except InvalidSpecifier:
        return [_bad(f"{found.dist} asks for Python {text!r}, which is no range.", "")]
    return [_bad(f"{found.dist} needs Python {text}; this is {here}.", "Use another Python.")]


def _bad(text: str, remedy: str) -> Row:
    return Row("bad", "wheel", text, "SGLD-P020", remedy or "This is for its author to mend.")
