"""How test files are shared among workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distribution import HOMES, SECONDS, home_of, next_file

ROOT = Path(__file__).parents[2]
SPARK, CASSANDRA, REST = range(3)
WAITING = {
    "tests/cli/test_help.py": 40,
    "tests/model/test_partitioner.py": 3,
    "tests/pipeline/test_opened.py": 3,
    "tests/tags/test_values.py": 20,
    "tests/tags/test_made_again.py": 5,
}


@pytest.mark.parametrize(
    ("worker", "file"),
    [
        (SPARK, "tests/pipeline/test_opened.py"),
        (CASSANDRA, "tests/tags/test_values.py"),
        (REST, "tests/cli/test_help.py"),
        (len(HOMES) + SPARK, "tests/pipeline/test_opened.py"),
    ],
)
def test_a_worker_begins_with_the_longest_file_of_its_home(worker: int, file: str) -> None:
    """Servers and sessions are started by few workers, and no long file is left for the end."""
    assert next_file(worker, WAITING) == file


def test_a_worker_without_a_file_of_its_own_helps_where_most_is_left() -> None:
    """All workers end at about the same time."""
    del (waiting := dict(WAITING))["tests/pipeline/test_opened.py"]
    assert next_file(SPARK, waiting) == "tests/cli/test_help.py"


def test_every_file_is_handed_out_once_by_any_number_of_workers() -> None:
    """Nothing is left, whoever asks."""
    for workers in (1, 2, 3, 5):
        waiting, turn = dict(WAITING), 0
        while waiting:
            del waiting[next_file(turn % workers, waiting)]
            turn += 1
        assert turn == len(WAITING)


def test_the_table_names_files_that_exist() -> None:
    """A file that was renamed must be renamed there, too."""
    named = [*SECONDS, *(path for home in HOMES for path in home)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert {home_of(file) for file in SECONDS} <= set(range(len(HOMES)))
