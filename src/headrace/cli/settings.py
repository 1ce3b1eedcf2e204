"""`headrace config`: what is set, and by whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.config import HeadraceSettings

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Files = Annotated[list[Path] | None, typer.Argument(help="TOML files, later ones win; else HEADRACE_CONFIG says.")]


@app.command("show")
def show(files: Files = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show every setting's value and the layer it came from."""
    values = HeadraceSettings.load(files=files or []).describe()
    if as_json:
        typer.echo(json.dumps([{"key": v.key, "value": v.value, "source": v.source} for v in values], default=str))
        return
    table = Table("setting", "value", "from", box=None)
    for value in values:
        table.add_row(value.key, str(value.value), value.source)
    Console().print(table)


@app.command("check")
def check(files: Files = None) -> None:
    """Load the settings and report all mistakes at once."""
    HeadraceSettings.load(files=files or [])
    typer.echo("the settings are valid")
