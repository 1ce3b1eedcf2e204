"""Which worker runs which test file when several workers run (`make test`).

Every worker starts the servers and the Spark session that its own tests ask for, and pytest-xdist alone would hand out
files by their number of tests: every worker would start all of them, and the longest files would come last. So a worker
takes the files of its own home first, the longest of them first, then files that need no server, and then it helps
where most is left. Workers beyond those that have a home begin with the files that need no server.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadfile import LoadFileScheduling

# Files and folders by what they share. A file belongs to the first home that names it or its folder; if none does, it
# is nobody's, and needs no server.
HOMES: tuple[tuple[str, ...], ...] = (
    ("tests/pipeline/",),  # Spark
    (  # Cassandra
        "tests/cli/test_copy.py",
        "tests/journal/test_servers.py",
        "tests/projection/test_servers.py",
        "tests/services/",
        "tests/store/cassandra/",
        "tests/tags/test_memory.py",
        "tests/tags/test_servers.py",
    ),
    (  # Kafka, ZooKeeper, a registry, databases, and servers of their own
        "tests/cluster/",
        "tests/engine/test_inputs.py",
        "tests/engine/test_inputs_kafka.py",
        "tests/engine/test_kills.py",
        "tests/engine/test_nodes.py",
        "tests/engine/test_partition.py",
        "tests/engine/test_rebuild.py",
        "tests/engine/test_sagas.py",
        "tests/engine/test_timers.py",
        "tests/engine/test_tokens.py",
        "tests/keyspace/test_kafka.py",
        "tests/keyspace/test_nodes.py",
        "tests/keyspace/test_processes_kafka.py",
        "tests/keyspace/test_resizing.py",
        "tests/keyspace/test_streams.py",
        "tests/log/kafka/",
        "tests/outbox/",
        "tests/projection/",
        "tests/secured/",
        "tests/serde/",
        "tests/state/",
    ),
)
NOBODYS = len(HOMES)
# About how long the longest files take, in seconds.
SECONDS: dict[str, float] = {
    "tests/tags/test_servers.py": 200,
    "tests/secured/test_servers.py": 120,
    "tests/journal/test_servers.py": 100,
    "tests/pipeline/test_audit.py": 100,
    "tests/pipeline/test_plain_session.py": 80,
    "tests/pipeline/test_process.py": 80,
    "tests/outbox/test_relay.py": 70,
    "tests/outbox/test_kills.py": 60,
    "tests/pipeline/test_large.py": 60,
    "tests/pipeline/test_replication.py": 60,
    "tests/log/kafka/test_clusters.py": 45,
    "tests/log/kafka/test_kafka_conformance.py": 50,
    "tests/services/test_cli.py": 50,
    "tests/tags/test_embedded.py": 50,
    "tests/log/kafka/test_faults.py": 45,
    "tests/outbox/test_faults.py": 45,
    "tests/cluster/test_coordinators.py": 40,
    "tests/pipeline/test_frames.py": 40,
    "tests/tags/test_memory.py": 40,
    "tests/journal/test_embedded.py": 35,
    "tests/journal/test_growing.py": 35,
    "tests/pipeline/test_backfill.py": 35,
    "tests/projection/test_servers.py": 35,
    "tests/engine/test_simulation.py": 30,
    "tests/journal/test_streaming.py": 30,
    "tests/pipeline/test_tag_backfill.py": 30,
    "tests/pipeline/test_tag_judging.py": 30,
    "tests/store/cassandra/test_cassandra_conformance.py": 30,
    "tests/engine/test_inputs.py": 25,
    "tests/engine/test_kills.py": 20,
    "tests/engine/test_nodes.py": 20,
    "tests/engine/test_partition.py": 20,
    "tests/keyspace/test_processes.py": 29,
    "tests/cli/test_commands.py": 25,
    "tests/clients/test_javascript.py": 25,
    "tests/cluster/test_ownership_simulation.py": 25,
    "tests/journal/test_machine.py": 25,
    "tests/log/kafka/test_lost_answers.py": 25,
    "tests/pipeline/test_growth.py": 25,
    "tests/secured/test_submit.py": 25,
    "tests/keyspace/test_processes_kafka.py": 30,
    "tests/keyspace/test_resizing.py": 20,
    "tests/serde/test_registries.py": 25,
    "tests/services/test_orphans.py": 25,
    "tests/state/test_simulation.py": 25,
    "tests/benchmarks/test_command.py": 20,
    "tests/browser/test_console.py": 20,
    "tests/cli/test_console.py": 20,
    "tests/engine/test_inputs_kafka.py": 20,
    "tests/log/test_embedded_conformance.py": 20,
    "tests/log/test_embedded_machine.py": 20,
    "tests/pipeline/test_engines.py": 20,
    "tests/pipeline/test_expiry.py": 20,
    "tests/pipeline/test_operators.py": 20,
    "tests/pipeline/test_tag_audit.py": 20,
    "tests/projection/test_simulation.py": 20,
}
# How long a test takes in a file that is not named above.
SECONDS_OF_A_TEST = 0.1


def home_of(file: str) -> int:
    """Return the number of the home that a file belongs to."""
    return next((number for number, paths in enumerate(HOMES) if file.startswith(paths)), NOBODYS)


def next_file(worker: int, waiting: dict[str, int]) -> str:
    """Return the file that a worker runs next, of those that wait, given with how many tests they have."""
    seconds = {file: SECONDS.get(file, tests * SECONDS_OF_A_TEST) for file, tests in waiting.items()}
    homes: dict[int, list[str]] = {}
    for file in waiting:
        homes.setdefault(home_of(file), []).append(file)
    own = min(worker, NOBODYS)  # a fourth worker begins with the files that need no server

    def claim(home: int) -> tuple[bool, bool, float]:
        return home == own, home == NOBODYS, sum(seconds[file] for file in homes[home])

    return max(homes[max(homes, key=claim)], key=lambda file: seconds[file])


class HomeScheduling(LoadFileScheduling):
    """Hands out files by home; a file stays with one worker."""

    def _assign_work_unit(self, node: Any) -> None:
        worker = int(node.gateway.id.removeprefix("gw"))
        waiting = {file: len(tests) for file, tests in self.workqueue.items()}
        self.workqueue.move_to_end(next_file(worker, waiting), last=False)
        super()._assign_work_unit(node)
