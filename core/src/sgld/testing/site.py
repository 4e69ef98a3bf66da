"""Throw-away distributions without an installer: a folder that looks like `site-packages`.

    write_dist(site, "acme", ACME)      dist sgld-acme 1.0, plugin acme, module acme_plugin
    environ = site_environment(site)    variables with which a process sees it

For tests of what happens with many plugins, or with broken ones; nothing is compiled or resolved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sgld.api.hooks import GROUP

PLUGIN: Final = """
from sgld.api import Claims, PipelineSpec, Plugin, hookimpl

@hookimpl
def sgld_plugin():
    return Plugin({name!r}, {{"pipeline": 1}}, summary="A plugin for tests")

@hookimpl
def sgld_pipelines():
    yield PipelineSpec("{name}-t2v", "{module}:P", "{module}:Q", ("text-to-video",),
                       Claims(repos=("{name}/{name}",)))
"""
"""A plugin that is well formed; its targets are not there."""


def write_dist(
    site: Path,
    name: str,
    body: str | None = None,
    *,
    dist: str = "",
    version: str = "1.0",
    group: str = GROUP,
    requires: str = "sgld-core>=0.1,<0.2",
) -> str:
    """Write a distribution with one plugin; the result is the name of its module.

    Args:
        site: the folder, made when missing.
        name: of the plugin.
        body: text of the module; None: a plugin with one pipeline.
        dist: name of the distribution, `sgld-<name>` by default.
        version: of the distribution.
        group: of the entry point.
        requires: its range on sgld-core.
    """
    module = f"{name.replace('-', '_')}_plugin"
    dist = dist or f"sgld-{name}"
    info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    text = PLUGIN.format(name=name, module=module) if body is None else body
    (site / f"{module}.py").write_text(text, encoding="utf-8")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\nRequires-Dist: {requires}\n",
        encoding="utf-8",
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n", encoding="utf-8")
    return module


def site_environment(
    site: Path, environ: Mapping[str, str] | None = None, **more: str
) -> dict[str, str]:
    """The environment of a process that sees `site`, without settings of sgld but `more`."""
    environ = os.environ if environ is None else environ
    kept = {
        name: value for name, value in environ.items() if not name.startswith(("SGLD_", "SGLANG_"))
    }
    path = [str(site), *filter(None, [kept.get("PYTHONPATH", "")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **more}
