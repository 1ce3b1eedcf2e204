"""How test files are shared among workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distribution import HOMES, SECONDS, next_file

ROOT = Path(__file__).parents[2]
SPARK, CASSANDRA, KAFKA = range(3)
WAITING = {
    "tests/cli/test_help.py": 40,
    "tests/model/test_partitioner.py": 3,
    "tests/outbox/test_sent.py": 10,
    "tests/pipeline/test_opened.py": 3,
    "tests/pipeline/test_sql.py": 6,
    "tests/store/cassandra/test_parts.py": 20,
}


@pytest.mark.parametrize(
    ("worker", "file"),
    [
        (SPARK, "tests/pipeline/test_sql.py"),
        (CASSANDRA, "tests/store/cassandra/test_parts.py"),
        (KAFKA, "tests/outbox/test_sent.py"),
        (len(HOMES), "tests/cli/test_help.py"),
    ],
)
def test_a_worker_begins_with_the_longest_file_of_its_home(worker: int, file: str) -> None:
    """Servers and sessions are started by few workers, and no long file is left for the end."""
    assert next_file(worker, WAITING) == file


def test_a_worker_without_a_file_of_its_own_takes_those_without_servers_and_then_helps() -> None:
    """All workers end at about the same time, and few servers are started for that."""
    waiting, taken = dict(WAITING), []
    while waiting:
        taken.append(next_file(CASSANDRA, waiting))
        del waiting[taken[-1]]
    assert taken == [
        "tests/store/cassandra/test_parts.py",
        "tests/cli/test_help.py",
        "tests/model/test_partitioner.py",
        "tests/outbox/test_sent.py",
        "tests/pipeline/test_sql.py",
        "tests/pipeline/test_opened.py",
    ]


def test_the_tables_name_files_that_exist() -> None:
    """A file that is renamed must be renamed there, too."""
    named = [*SECONDS, *(path for home in HOMES for path in home)]
    assert [path for path in named if not (ROOT / path).exists()] == []
