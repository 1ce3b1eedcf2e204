"""Back-fill and repair on Kafka and Cassandra, task by task: killed, run twice, with growth in between.

The oracle shares nothing with what is tested: records are read with confluent-kafka, rows with cassandra-driver.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from tests.cql import cql_cluster
from tests.pipeline.test_jobs_meanwhile import Here
from tests.suites.journal_setting import replicate

from headrace.journal import Journal, grow_topic
from headrace.log import Log
from headrace.pipeline import Endpoints
from headrace.pipeline.audits import second_look
from headrace.pipeline.audits.second_look import AuditTask
from headrace.pipeline.spark.process import close_all
from headrace.services import RunningService
from headrace.store import Store

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

KEYSPACE = "jobs_on_servers"
KILLED = 9

# Runs the tasks, and dies in the middle of what they write.
_DYING = """
import os, sys
from tests.pipeline.local_looks import audit_here, backfill_here
from headrace.pipeline import Endpoints
from headrace.store.cassandra.writer import CassandraWriter

job, log, store, topic, writes = sys.argv[1:]
write_rows, left = CassandraWriter.write_rows, [int(writes)]


async def dying(self, topic, id_, rows):
    await write_rows(self, topic, id_, rows[: len(rows) // 2 + 1])
    left[0] -= 1
    if not left[0]:
        os._exit(9)
    await write_rows(self, topic, id_, rows)


CassandraWriter.write_rows = dying
endpoints = Endpoints.of(log, store=store)
audit_here(endpoints, topic, repair=True) if job == "audit" else backfill_here(endpoints, topic)
"""


class Servers(Here):
    """A topic of its own, on real servers."""

    def __init__(self, kafka: RunningService, cassandra: RunningService) -> None:
        super().__init__(Endpoints.of(f"kafka://{kafka.address}", store=f"cassandra://{cassandra.address}/{KEYSPACE}"))
        self.topic = f"p-{uuid.uuid4().hex[:12]}"
        self.partitions = 2
        self.busy = 0
        self._kafka = kafka.address
        host, _, port = cassandra.address.partition(":")
        self._cluster = cql_cluster(host, int(port))
        self._session = self._cluster.connect()

    def close(self) -> None:
        self._cluster.shutdown()

    def live(self) -> None:
        """Write journals, delete from some, grow, and write on; all of it is replicated."""
        self.write(1, 3, partitions=self.partitions)
        self.delete(["k1", "k5"], to=2)
        self.grow_to(5)
        self.write(4, 6)
        self.delete(["k2", "k5"], to=4)

    def delete(self, ids: list[str], *, to: int) -> None:
        async def delete(log: Log, store: Store) -> None:
            journal = Journal(log, store, self.topic, cache=None, lease_s=0.05)
            for id_ in ids:
                await journal.delete(id_, to=to)
            await replicate(log, store, self.topic)

        self.on(delete)

    def grow_to(self, partitions: int) -> None:
        self.grow(partitions)
        self.partitions = partitions

    def lose_rows(self) -> None:
        """Lose all rows there are, without a trace: a deletion would be one."""
        self._session.execute(f"TRUNCATE {KEYSPACE}.journal")

    def die_in(self, job: str, *, writes: int) -> None:
        """Run a job in a process that is gone after some writes."""
        endpoints = self.endpoints
        command = [sys.executable, "-c", _DYING, job, endpoints.log, endpoints.store, self.topic]
        died = subprocess.run([*command, str(writes)], capture_output=True, text=True, timeout=90, check=False)
        assert died.returncode == KILLED, died.stderr

    def backfill_all(self) -> int:
        """Run a back-fill of all partitions; returns how many rows it restored."""
        return sum(report.restored for report in self.backfill())

    def audit_all(self, *, repair: bool = False) -> tuple[int, int]:
        """Run an audit of all partitions; returns how much was found, and how much of it repaired."""
        reports, _ = self.audit(repair=repair)
        self.busy = sum(report.busy for report in reports)
        return sum(report.findings for report in reports), sum(report.repaired for report in reports)

    def in_log(self) -> dict[str, set[int]]:
        """Return which numbers of each journal are alive, from the records alone."""
        written: dict[str, set[int]] = {}
        deleted: dict[str, int] = {}
        for key, action in self._actions():
            if (append := action.get("append")) is not None:
                written.setdefault(key, set()).update(range(append["range"]["from"], append["range"]["to"] + 1))
            elif (delete := action.get("delete")) is not None:
                deleted[key] = max(deleted.get(key, 0), delete["to"])
        return {key: {n for n in found if n > deleted.get(key, 0)} for key, found in written.items()}

    def in_store(self) -> dict[str, set[int]]:
        """Return which numbers of each journal have a row."""
        query = f"SELECT seq_nr FROM {KEYSPACE}.journal WHERE id = %s AND topic = %s AND segment = 0"
        return {key: {row.seq_nr for row in self._session.execute(query, (key, self.topic))} for key in self.in_log()}

    def _actions(self) -> Iterator[tuple[str, dict[str, Any]]]:
        consumer = Consumer({"bootstrap.servers": self._kafka, "group.id": "oracle", "enable.partition.eof": True})
        consumer.assign([Place(self.topic, partition, 0) for partition in range(self.partitions)])
        ended: set[int] = set()
        while len(ended) < self.partitions:
            for message in consumer.consume(500, 1.0):
                if message.error() is not None:
                    ended.add(message.partition())
                else:
                    yield message.key().decode(), json.loads(dict(message.headers())["journal.action"])
        consumer.close()


@pytest.fixture
def servers(kafka: RunningService, cassandra: RunningService) -> Iterator[Servers]:
    made = Servers(kafka, cassandra)
    yield made
    made.close()
    close_all()


@pytest.mark.parametrize("job", ["backfill", "audit"])
def test_a_job_that_was_killed_is_run_again_and_twice(servers: Servers, job: str) -> None:
    """K14, K15: all rows were lost after a topic grew; a job dies in the middle, the next one restores the rest."""
    servers.live()
    alive = servers.in_log()
    assert servers.in_store() == alive
    servers.lose_rows()
    servers.die_in(job, writes=4)
    half = sum(map(len, servers.in_store().values()))
    assert 0 < half < sum(map(len, alive.values()))
    if job == "backfill":
        assert servers.backfill_all() == sum(map(len, alive.values())) - half
        assert servers.backfill_all() == 0
    else:
        found, repaired = servers.audit_all(repair=True)
        assert found == repaired == sum(map(len, alive.values())) - half
    assert servers.in_store() == alive
    assert servers.audit_all() == (0, 0)


def test_a_topic_that_grows_between_the_window_and_the_repair(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K15: rows are lost, and journals move between the first look and the second: two repairs restore all of them."""
    servers.live()
    alive = servers.in_log()
    servers.lose_rows()
    look_again = AuditTask._look_again

    async def grow_first(task: AuditTask, log: Log, store: Store, suspects: list[str]) -> Any:
        if (await log.admin.describe(servers.topic)).partitions == servers.partitions:
            await grow_topic(log, store.settings, servers.topic, partitions=servers.partitions + 3, lease_s=0.0)
            for _ in range(2):  # behind a boundary partitions wait for one another
                await replicate(log, store, servers.topic)
        return await look_again(task, log, store, suspects)

    monkeypatch.setattr(AuditTask, "_look_again", grow_first)
    monkeypatch.setattr(second_look, "_LOOK_AGAIN_S", 0.0)
    first = servers.audit_all(repair=True)
    assert (first[0], servers.busy > 0) == (first[1], True)
    monkeypatch.setattr(AuditTask, "_look_again", look_again)
    servers.partitions += 3
    second = servers.audit_all(repair=True)
    assert (second[0], servers.busy) == (second[1], 0)
    assert servers.in_store() == servers.in_log() == alive
    assert servers.audit_all() == (0, 0)
