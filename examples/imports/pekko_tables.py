"""The events of Pekko (or Akka) Persistence Cassandra, as a frame for `import_journals`.

    frame = pekko_frame(spark, ["cassandra-1"], keyspace="pekko")
    import_journals(frame, endpoints, "accounts", partitions=8)

Its journal keeps one row for each event in `messages`, in partitions of persistence_id and partition_nr, and the number
up to which events were deleted in `metadata`. Spark's tasks read the ring of tokens in parts. Events stay as they were
serialized; what a deserializer needs (ser_id, ser_manifest, event_manifest) and the writer become the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["pekko_frame", "token_ranges"]

_FIRST_TOKEN, _LAST_TOKEN = -(1 << 63), (1 << 63) - 1
_EVENTS = (
    "id string, seq_nr bigint, payload binary, tags array<string>, metadata string, timestamp timestamp, "
    "deleted_to bigint"
)


def pekko_frame(
    spark: SparkSession, hosts: Sequence[str], *, keyspace: str, port: int = 9042, parts: int = 16
) -> DataFrame:
    """Return all events that are not deleted, read in `parts` tasks."""
    ranges = spark.createDataFrame(token_ranges(parts), "first bigint, last bigint").repartition(parts)
    contacts = list(hosts)

    # A function within a function is sent to the workers whole: they need not have this module.
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json
        from datetime import UTC, datetime
        from itertools import islice

        import pyarrow as pa
        from cassandra.cluster import Cluster, Session

        schema = pa.schema(
            [
                ("id", pa.string()),
                ("seq_nr", pa.int64()),
                ("payload", pa.binary()),
                ("tags", pa.list_(pa.string())),
                ("metadata", pa.string()),
                ("timestamp", pa.timestamp("us", tz="UTC")),
                ("deleted_to", pa.int64()),
            ]
        )
        gregorian_ticks, rows_at_once = 0x01B21DD213814000, 2000

        def deleted_to(session: Session, persistence_id: str) -> int:
            query = "SELECT deleted_to FROM metadata WHERE persistence_id = %s"
            found = session.execute(query, (persistence_id,)).one()
            return 0 if found is None else found.deleted_to or 0

        def rows_of(session: Session, first: int, last: int) -> Iterator[tuple[object, ...]]:
            query = (
                "SELECT persistence_id, sequence_nr, timestamp, event, tags, ser_id, ser_manifest, event_manifest, "
                "writer_uuid FROM messages WHERE token(persistence_id, partition_nr) >= %s "
                "AND token(persistence_id, partition_nr) <= %s"
            )
            before, deleted = "", 0
            for row in session.execute(query, (first, last)):
                if row.persistence_id != before:
                    before, deleted = row.persistence_id, deleted_to(session, row.persistence_id)
                told = {
                    name: getattr(row, name) for name in ("ser_id", "ser_manifest", "event_manifest", "writer_uuid")
                }
                moment = datetime.fromtimestamp((row.timestamp.time - gregorian_ticks) / 10_000_000, UTC)
                tags = sorted(row.tags or ())
                yield row.persistence_id, row.sequence_nr, row.event, tags, json.dumps(told), moment, deleted

        def batch_of(rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
            arrays = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

        cluster = Cluster(contacts, port=port)
        try:
            session = cluster.connect(keyspace)
            for batch in batches:
                for part in batch.to_pylist():
                    rows = rows_of(session, part["first"], part["last"])
                    while some := list(islice(rows, rows_at_once)):
                        yield batch_of(some)
        finally:
            cluster.shutdown()

    return ranges.mapInArrow(read, _EVENTS).where("seq_nr > deleted_to").drop("deleted_to")


def token_ranges(parts: int) -> list[tuple[int, int]]:
    """Return the ring of tokens in parts, first and last inclusive."""
    size = (_LAST_TOKEN - _FIRST_TOKEN) // parts
    firsts = [_FIRST_TOKEN + nth * size for nth in range(parts)]
    return [(first, nxt - 1) for first, nxt in zip(firsts, [*firsts[1:], _LAST_TOKEN + 1], strict=True)]
