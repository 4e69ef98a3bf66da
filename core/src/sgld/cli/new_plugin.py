"""`sgld plugins new`: the project of a plugin, which installs, passes its tests and serves."""

from __future__ import annotations

from typing import Annotated

import typer

from sgld.cli.quiet import write


def new_plugin(
    kind: Annotated[
        str, typer.Argument(help="pipeline, model, realtime, attention, kernel, platform or cache.")
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="Of the distribution and of the plugin: words joined by '-', such as acme-video; "
            "at most 32 characters, and not 'sgld-...', which is for sgld's own."
        ),
    ],
    into: Annotated[
        str, typer.Option("--into", help="The folder that the folder NAME is made in.")
    ] = ".",
    author: Annotated[str, typer.Option("--author", help="NAME <MAIL>, for pyproject.toml.")] = "",
    license: Annotated[
        str, typer.Option("--license", help="Of the code: Apache-2.0, BSD-3-Clause or MIT.")
    ] = "Apache-2.0",
) -> None:
    """Write the project of a new plugin, and say what to type next."""
    from pathlib import Path

    from sgld.cli.plugins import read_catalog
    from sgld.testing.projects import Project

    project = Project.of(kind, name, author=author, licence=license)
    project.check(read_catalog())
    folder = project.write(Path(into))
    # The commands alone go to stdout, so that they can be piped into a shell.
    typer.echo(f"{folder} is a plugin of kind {kind}. Next:", err=True)
    write("\n".join(project.commands(folder)))
