"""How the command starts: quickly, because it imports what it needs and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cli.conftest import Command, all_commands

# What takes long to import; `--help` at the root needs none of it.
HEAVY = {"pydantic", "rich", "structlog", "msgspec", "prometheus_client", "sqlalchemy", "confluent_kafka", "cassandra"}
ROOMS = {"headrace.app", "headrace.config", "headrace.errors", "headrace.journal", "headrace.pipeline"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_root_imports_no_command(option: str) -> None:
    """Help and version are there at once: no room and no driver is imported for them."""
    program = (
        "import sys, headrace.__main__ as m\ntry: m.main()\nfinally: print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True, check=True)
    assert done.stdout
    imported = set(done.stderr.splitlines())
    assert imported & (HEAVY | ROOMS) == set()


def test_a_misspelt_command_is_told_the_nearest_one(command: Command) -> None:
    """The names of commands are known without importing them."""
    done = command("jurnal", "read")
    assert done.exit_code == 2
    assert "No such command 'jurnal'. Did you mean 'journal'?" in done.stderr


def test_the_list_of_commands_says_what_the_commands_are(command: Command) -> None:
    """Each command of the list can be imported, and its own help is there."""
    listed = command("--help").stdout
    for name in {path[0] for path in all_commands()}:
        assert f"  {name} " in listed
        assert command(name, "--help").exit_code == 0
