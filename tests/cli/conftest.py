"""The `headrace` command, called in this process: a test that needs no process of its own takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from headrace.cli.main import app

Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command, to be called in an empty folder of its own."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return run


def all_commands() -> dict[tuple[str, ...], Any]:
    """Return every command that does something, by the words that call it."""
    return dict(_within((), get_command(app)))


def _within(path: tuple[str, ...], found: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(found, "list_commands"):
        yield path, found
        return
    for name in found.list_commands(None):
        yield from _within((*path, name), found.get_command(None, name))
