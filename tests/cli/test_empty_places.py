"""Commands in a place where nothing is: they say so, and make nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command

from headrace.errors import NothingThere

LOOKING = [
    ("journal", "read", "t", "a"),
    ("journal", "pointer", "t", "a"),
    ("journal", "ids", "t"),
    ("journal", "history", "t", "a"),
    ("journal", "stats", "t"),
    ("journal", "delete", "t", "a", "--all"),
    ("journal", "purge", "t", "a", "--yes"),
    ("topic", "list"),
    ("topic", "describe", "t"),
    ("topic", "cat", "t"),
    ("topic", "tail", "t"),
    ("topic", "delete", "t", "--yes"),
    ("topic", "grow", "t", "--partitions", "2"),
    ("tags", "list"),
    ("tags", "follow", "vip", "--current"),
    ("schema", "list"),
    ("schema", "show", "orders-value"),
    ("pipeline", "quarantine", "list"),
    ("pipeline", "audit"),
    ("pipeline", "replicate", "--once"),
    ("sql", "select 1"),
]


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_a_command_that_looks_makes_nothing(command: Command, arguments: tuple[str, ...]) -> None:
    """An empty folder stays empty; the error names the address, and the command that makes a log there."""
    done = command(*arguments)
    assert isinstance(done.exception, NothingThere), done.output
    assert "embedded:./data" in str(done.exception)
    assert "headrace topic create NAME --journal --log embedded:./data" in str(done.exception)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("arguments", [("list",), ("show", "orders-value")], ids=" ".join)
def test_a_registry_that_is_not_there_is_not_made(command: Command, arguments: tuple[str, ...]) -> None:
    """A folder of schemas is made by registering one, not by looking."""
    done = command("schema", *arguments, "--registry", "folder:schemas")
    assert isinstance(done.exception, NothingThere)
    assert "headrace schema register SUBJECT FILE --registry folder:schemas" in str(done.exception)
    assert list(Path.cwd().iterdir()) == []


def test_services_that_were_never_started_leave_no_folder(command: Command) -> None:
    """`services down` and `status` have nothing to write down."""
    assert "was not up" in command("services", "down", "kafka").stdout
    assert "was never started here" in command("services", "down", "kafka", "--purge").stdout
    assert command("services", "status").exit_code == 0
    assert list(Path.cwd().iterdir()) == []


def test_an_outbox_that_is_not_there_is_not_made(command: Command) -> None:
    """SQLite makes a file that it is asked about; the command asks first."""
    assert "outbox migrate" in str(command("outbox", "status", "--database", "sqlite:///app.db").exception)
    assert list(Path.cwd().iterdir()) == []


def test_the_command_of_the_message_makes_the_place(command: Command) -> None:
    """After it, the commands that look have something to look at."""
    advice = str(command("topic", "list").exception).rpartition("headrace ")[2]
    assert command(*advice.split()).exit_code == 0
    assert command("topic", "list").stdout == "NAME\n"
    assert command("journal", "read", "NAME", "a").exit_code == 0


def test_a_command_that_writes_makes_its_place(command: Command) -> None:
    """The first append of a newcomer needs no preparation."""
    assert command("journal", "append", "acc", "a", "1").exit_code == 0
    assert (Path.cwd() / "data" / "log.db").exists()


def test_settings_that_say_so_make_the_place(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sets create_folder means it, also for commands that look."""
    monkeypatch.setenv("HEADRACE__LOG__EMBEDDED__CREATE_FOLDER", "true")
    assert command("topic", "list").exit_code == 0
