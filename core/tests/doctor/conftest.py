"""A folder of throw-away distributions, with metadata as an installer writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sgld.plugins.describe import HOOKS

V1 = "sgld.plugins.v1"
HEAD = """\
from sgld.api import *
from sgld.api import hookimpl

@hookimpl
def sgld_plugin():
    return Plugin({name!r}, {contracts!r}, needs={needs!r})

"""


class Site:
    """A folder for `sys.path`; `add` puts a distribution into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        hooks: str = "",
        *,
        first: str = "",
        contracts: dict[str, int] | None = None,
        needs: tuple[str, ...] = (),
        metadata: tuple[str, ...] = (),
        entry: str = "",
        group: str = V1,
        dist: str = "",
        **modules: str,
    ) -> None:
        """A distribution `NAME-dist` whose plugin module is `first`, the required hook, `hooks`.

        `modules` are further modules of its package, as name → text.
        """
        dist = dist or f"{name}-dist"
        package = self.package(dist.replace("-", "_"), **modules)
        kinds = [kind for hook, (kind, _) in HOOKS.items() if f"def {hook}(" in hooks]
        head = HEAD.format(
            name=name,
            contracts=dict.fromkeys(kinds, 1) if contracts is None else contracts,
            needs=tuple(needs),
        )
        (package / "plugin.py").write_text(f"{first}\n{head}{hooks}")
        info = self.folder / f"{package.name}-1.0.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {dist}", "Version: 1.0", *metadata]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        text = f"[{group}]\n{entry or name} = {package.name}.plugin\n"
        (info / "entry_points.txt").write_text(text)

    def package(self, name: str, **modules: str) -> Path:
        """A bare package with these modules."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "__init__.py").touch()
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        return folder


@pytest.fixture(scope="session")
def new_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Site]:
    """Makes an empty site folder."""
    return lambda: Site(tmp_path_factory.mktemp("site"))
