"""`headrace pipeline package`: what a cluster needs, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.options import AsJson, answer
from headrace.pipeline import package
from headrace.services import Terminal

__all__ = ["add_package"]


def add_package(app: typer.Typer) -> None:
    """Add the command to `headrace pipeline`."""
    app.command("package")(_package)


def _package(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that is not there yet.")],
    own: Annotated[
        list[str] | None,
        typer.Option("--with", help="A package of your own, with all it requires; may be given again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the modules and jars that spark-submit needs into a folder. See docs/cluster.md.

    Example: headrace pipeline package ./submit --with shop
    """
    package(folder, own=own or (), watcher=Terminal(Console(stderr=True)))
    command = "spark-submit --master MASTER --properties-file spark.conf main.py pipeline replicate"
    answer(f"cd {folder}\n{command}", as_json=as_json, folder=str(folder), command=command)
