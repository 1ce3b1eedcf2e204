"""`headrace config`: the settings, and the layer that each comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headrace.cli.options import AsJson, answer, plain_console, print_json
from headrace.config import HeadraceSettings

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="TOML files; later ones win. Those of HEADRACE_CONFIG are always read."),
]


@app.command("show")
def show(files: Files = None, as_json: AsJson = False) -> None:
    """Show the value of every setting and the layer that it came from.

    Example: headrace config show production.toml
    """
    values = HeadraceSettings.load(files=files or []).describe()
    if as_json:
        for v in values:
            print_json({"key": v.key, "value": v.value, "source": v.source})
        return
    table = Table("setting", "value", "from", box=None)
    for value in values:
        table.add_row(value.key, str(value.value), value.source)
    plain_console().print(table)


@app.command("check")
def check(files: Files = None, as_json: AsJson = False) -> None:
    """Load the settings and report all mistakes at once.

    Example: headrace config check production.toml
    """
    HeadraceSettings.load(files=files or [])
    answer("the settings are valid", as_json=as_json, valid=True)
