"""The help of every command: an example that works, the same names for the same things, facts as JSON."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, all_commands

COMMANDS = all_commands()
# Commands that print no facts of their own: lines of records or of servers, a show, or nothing until they are stopped.
WITHOUT_FACTS = {
    ("topic", "cat"),  # JSON lines anyway
    ("topic", "tail"),
    ("services", "logs"),
    ("outbox", "relay"),
    ("demo",),
    ("version",),
}
# Words that need a second reading, or name a thing that has another name here.
UNWANTED = re.compile(r"\b(so many|anew|for ever|begin so|begins so|mend|mended|somebody|pid|else the)\b")

named = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def options_of(command: Any) -> dict[str, Any]:
    return {name: each for each in command.params for name in each.opts}


@named
def test_every_command_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    """The example of a command's help calls that command, with arguments that it takes."""
    (example,) = re.findall(r"Example: (.*(?:\n .*)*)", COMMANDS[path].help or "") or [""]
    words = shlex.split(example.partition(" < ")[0].replace('eval "$(', "").replace(')"', ""))
    assert words[: len(path) + 1] == ["headrace", *path]
    COMMANDS[path].make_context("headrace", words[len(path) + 1 :])


@named
def test_help_is_in_plain_words(path: tuple[str, ...]) -> None:
    """The first line is a sentence, every option and argument is explained, and nothing is called by two names."""
    command = COMMANDS[path]
    first = (command.help or "").partition("\n")[0]
    assert first[:1].isupper()
    assert first.endswith(".")
    texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
    assert [name for name, each in options_of(command).items() if not getattr(each, "help", None)] == []
    assert UNWANTED.findall(" ".join(text for text in texts if text)) == []


@named
def test_facts_can_be_had_as_json(path: tuple[str, ...]) -> None:
    """Whatever prints facts takes --json, under that name and with that meaning."""
    options = options_of(COMMANDS[path])
    assert ("--json" in options) == (path not in WITHOUT_FACTS)
    if "--json" in options:
        assert options["--json"].help == "Print JSON: one object, or one a line."


def test_what_commands_print_as_json_is_objects(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object, or one a line, of every command that needs no server: no lists, no bare words."""
    monkeypatch.setenv("HEADRACE__JOURNAL__LEASE_S", "0.1")  # a topic that grows waits twice for the lease
    (tmp_path / "empty" / "s.avsc").write_text('{"type": "record", "name": "R", "fields": []}')
    for arguments in (
        "topic create plain",
        "journal append accounts a 1 2 --tag vip",
        "topic configure accounts --journal",
        "topic list",
        "topic describe accounts",
        "topic grow accounts --partitions 9",
        "journal read accounts a",
        "journal pointer accounts a",
        "journal history accounts a",
        "journal stats accounts",
        "journal ids accounts",
        "journal delete accounts a --to 1",
        "journal purge accounts a --yes",
        "tags list",
        "tags follow vip --current",
        "tags rebuild --all",
        "tags off --yes",
        "pipeline quarantine list",
        "schema register r-value s.avsc",
        "schema check r-value s.avsc",
        "schema list",
        "schema show r-value",
        "outbox migrate --database sqlite:///app.db",
        "outbox status --database sqlite:///app.db",
        "outbox dead list --database sqlite:///app.db",
        "outbox sent --database sqlite:///app.db",
        "copy embedded:./data embedded:./other",
        "config show",
        "config check",
        "services status",
        "services down",
        "topic delete plain --yes",
    ):
        done = command(*arguments.split(), "--json")
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        values = [json.loads(line) for line in done.stdout.splitlines()]
        assert [value for value in values if not isinstance(value, dict)] == [], arguments
