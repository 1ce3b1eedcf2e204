"""Which worker runs which test file when several workers run (`make test`).

Every worker starts the servers and the Spark session that its own tests ask for, and pytest-xdist alone would hand out
files by their number of tests: every worker would start all of them, and the longest files would come last. So a worker
takes the files of its home first, the longest of them first, and then helps where most is left.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from xdist.scheduler.loadfile import LoadFileScheduling

# Files and folders by what they share. A file belongs to the first home that names it, or its folder, and else to the last.
HOMES: tuple[tuple[str, ...], ...] = (
    ("tests/pipeline/", "tests/secured/"),  # Spark
    ("tests/journal/test_servers.py", "tests/projection/", "tests/store/", "tests/tags/"),  # Cassandra
    (),
)
# How long the longest files take, in seconds.
SECONDS: dict[str, float] = {}
# How long a test takes in a file that is not named above.
SECONDS_OF_A_TEST = 0.1


def home_of(file: str) -> int:
    """Return the number of the home that a file belongs to."""
    for number, paths in enumerate(HOMES):
        if file.startswith(paths):
            return number
    return len(HOMES) - 1


def next_file(worker: int, waiting: dict[str, int]) -> str:
    """Return the file that a worker runs next, of those that wait, given with how many tests they have.

    From its own home the longest; when that is empty, the longest of the home that has most left.
    """
    seconds = {file: SECONDS.get(file, tests * SECONDS_OF_A_TEST) for file, tests in waiting.items()}
    homes: dict[int, list[str]] = {}
    for file in waiting:
        homes.setdefault(home_of(file), []).append(file)
    own = worker % len(HOMES)
    busiest = max(homes, key=lambda home: (home == own, sum(seconds[file] for file in homes[home])))
    return max(homes[busiest], key=lambda file: seconds[file])


class HomeScheduling(LoadFileScheduling):
    """Hands out files by home; a file stays with one worker."""

    def _assign_work_unit(self, node: Any) -> None:
        worker = int(node.gateway.id.removeprefix("gw"))
        waiting = {file: len(tests) for file, tests in self.workqueue.items()}
        self.workqueue.move_to_end(next_file(worker, waiting), last=False)
        super()._assign_work_unit(node)
