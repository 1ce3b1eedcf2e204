"""Plain cassandra-driver in several processes: full journal rows in batches of one partition, or row by row."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

from cassandra.query import BatchStatement, BatchType

from benchmarks.bounds.cassandra_sessions import execute_all, raw_cluster
from benchmarks.harness import BenchFailed
from benchmarks.workloads.events import events
from headrace.config import CassandraStoreSettings
from headrace.store.cassandra.columns import EVENT, META, event_values, meta_values
from headrace.store.cassandra.writer import cut
from headrace.store.rows import EventRow, JournalMeta, meta_segment, write_time

__all__ = ["IN_FLIGHT", "RowWriters", "journal_row"]

TOPIC = "raw"
SEGMENT_SIZE = 10_000
META_SEGMENTS = CassandraStoreSettings().meta_segments
NOW_MS = 1_790_000_000_000
TIMEOUT_S = 600.0
# As many keys as replication writes at a time; with more, a server on two cores answers with time-outs.
IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class Part:
    """What one process writes: `rows` rows of `keys` journals from seq_nr `first` on, batched or row by row.

    With `has_heads` it writes the head of each journal behind its rows.
    """

    first: int
    rows: int
    is_single: bool
    in_flight: int
    has_heads: bool = False


class RowWriters:
    """Processes that write rows of other journals, as many and as large as the job's."""

    def __init__(self, host: str, port: int, keyspace: str, *, processes: int, keys: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for nr in range(processes):
            ours, theirs = context.Pipe()
            arguments = (theirs, host, port, keyspace, range(nr, keys, processes))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        self._written = 0

    def make(self, count: int, *, is_single: bool = False, in_flight: int = IN_FLIGHT, has_heads: bool = False) -> None:
        """Let the processes make their rows."""
        for pipe in self._pipes:
            pipe.send(Part(self._written, count // len(self._pipes), is_single, in_flight, has_heads))
        self._written += count
        self._wait()

    def write(self) -> None:
        """Let all of them write, and wait for the last."""
        for pipe in self._pipes:
            pipe.send(None)
        self._wait()

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(10)

    def _wait(self) -> None:
        for pipe in self._pipes:
            if not pipe.poll(TIMEOUT_S):
                raise BenchFailed(f"a writer took more than {TIMEOUT_S:g} s")
            if (problem := pipe.recv()) is not None:
                raise BenchFailed(f"Cassandra refused rows: {problem}")


class _Table:
    """The connection of one process."""

    def __init__(self, host: str, port: int, keyspace: str) -> None:
        self._cluster = raw_cluster(host, port)
        self._session = self._cluster.connect()
        self._settings = CassandraStoreSettings()
        columns = ", ".join(EVENT)
        marks = ", ".join("?" * (len(EVENT) + 3))
        self._insert = self._session.prepare(
            f"INSERT INTO {keyspace}.journal (id, topic, segment, {columns}) VALUES ({marks}) USING TIMESTAMP ?"
        )
        self._put_meta = self._session.prepare(
            f"INSERT INTO {keyspace}.metajournal (topic, segment, {', '.join(META)}, created_date) "
            f"VALUES ({', '.join('?' * (len(META) + 3))}) USING TIMESTAMP ?"
        )

    def batches(self, rows: dict[str, list[EventRow]]) -> Iterator[Any]:
        """Yield the rows in batches as large as the store's."""
        limits = self._settings
        for id_, own in rows.items():
            for some in cut(own, max_rows=limits.batch_max_rows, max_bytes=limits.batch_max_bytes):
                batch = BatchStatement(BatchType.UNLOGGED)
                for row in some:
                    batch.add(self._insert.bind((id_, TOPIC, row.segment, *event_values(row))))
                yield batch

    def singles(self, rows: dict[str, list[EventRow]]) -> Iterator[Any]:
        """Yield the rows one by one."""
        for id_, own in rows.items():
            for row in own:
                yield self._insert.bind((id_, TOPIC, row.segment, *event_values(row)))

    def heads(self, rows: dict[str, list[EventRow]]) -> Iterator[Any]:
        """Yield the head of each journal."""
        for id_, own in rows.items():
            meta = _head(id_, own[-1])
            where = (TOPIC, meta_segment(id_, META_SEGMENTS))
            yield self._put_meta.bind((*where, *meta_values(meta), write_time(meta.place)))

    def execute(self, statements: Iterator[Any], *, in_flight: int) -> None:
        """Execute all statements, with a limited number in flight."""
        execute_all(self._session, statements, in_flight=in_flight)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.shutdown()


def journal_row(nr: int, payload: bytes, *, keys: int) -> EventRow:
    """Return the row of event `nr`, when events go round the keys."""
    seq_nr = nr // keys + 1
    return EventRow(
        segment=(seq_nr - 1) // SEGMENT_SIZE,
        seq_nr=seq_nr,
        generation=0,
        partition=0,
        offset=nr,
        log_time_ms=NOW_MS + nr // 10,
        timestamp_ms=NOW_MS + nr // 10,
        record_id=UUID(int=1),
        payload_type="binary",
        payload=payload,
    )


def _head(id_: str, last: EventRow) -> JournalMeta:
    return JournalMeta(
        topic=TOPIC,
        id=id_,
        generation=last.generation,
        partition=last.partition,
        offset=last.offset,
        seq_nr=last.seq_nr,
        segment_size=SEGMENT_SIZE,
        last_append=last.place,
        created_ms=NOW_MS,
        updated_ms=last.timestamp_ms,
        record_id=last.record_id,
    )


def _serve(pipe: Connection, host: str, port: int, keyspace: str, keys: Sequence[int]) -> None:
    """Make rows and write them on request, until the pipe is closed."""
    table = _Table(host, port, keyspace)
    try:
        while True:
            part: Part = pipe.recv()
            rows = _rows(part, keys)
            pipe.send(None)
            pipe.recv()
            pipe.send(_written(table, part, rows))
    except (EOFError, OSError):
        pass
    finally:
        table.close()


def _written(table: _Table, part: Part, rows: dict[str, list[EventRow]]) -> str | None:
    try:
        statements = table.singles(rows) if part.is_single else table.batches(rows)
        heads = table.heads(rows) if part.has_heads else iter(())
        table.execute(chain(statements, heads), in_flight=part.in_flight)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _rows(part: Part, keys: Sequence[int]) -> dict[str, list[EventRow]]:
    made: dict[str, list[EventRow]] = {}
    for nr, event in enumerate(islice(events(part.rows, keys=len(keys)), part.rows)):
        id_ = f"raw-{keys[nr % len(keys)]:04d}"
        made.setdefault(id_, []).append(journal_row(part.first + nr, event.value, keys=len(keys)))
    return made
