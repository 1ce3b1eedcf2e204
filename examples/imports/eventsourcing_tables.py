"""The events of PyPI's `eventsourcing` (9.x) in SQLite, as a frame for `import_journals`.

    frame = eventsourcing_frame(spark, Path("bank.db"))
    import_journals(frame, endpoints, "accounts", partitions=8)

Its recorder keeps one row for each event in `stored_events`: originator_id, originator_version (from 1), topic (the
event's class) and state (JSON of the attributes, unless the application compresses or encrypts it). The class becomes
the event's metadata and its tag; the time is the attribute `timestamp` in the state.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["eventsourcing_frame", "imported_event"]

_COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("seq_nr", pa.int64()),
        ("payload", pa.binary()),
        ("payload_type", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("metadata", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def eventsourcing_frame(spark: SparkSession, file: Path, *, table: str = "stored_events") -> DataFrame:
    """Return all stored events of a database. The driver reads them: they must fit into its memory."""
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
        rows = list(_rows(database, table))
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in _COLUMNS]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=_COLUMNS))


def _rows(database: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    if not table.isidentifier():
        raise ValueError(f"{table!r} is no name of a table")
    query = f"SELECT originator_id, originator_version, topic, state FROM {table}"  # noqa: S608 - checked above
    for originator_id, version, topic, state in database.execute(query):
        yield imported_event(originator_id, version, topic, bytes(state))


def imported_event(originator_id: str, version: int, topic: str, state: bytes) -> dict[str, Any]:
    """Return a stored event as a row to import. A state that is not JSON stays binary, and has no time."""
    row: dict[str, Any] = {
        "id": originator_id,
        "seq_nr": version,
        "payload": state,
        "payload_type": "binary",
        "tags": [topic.rpartition(":")[2]],
        "metadata": json.dumps({"topic": topic}),
        "timestamp": None,
    }
    try:
        attributes = json.loads(state)
    except ValueError:  # compressed or encrypted
        return row
    moment = attributes.get("timestamp") if isinstance(attributes, dict) else None
    is_time = isinstance(moment, dict) and moment.get("_type_") == "datetime_iso"
    return row | {"payload_type": "json", "timestamp": datetime.fromisoformat(moment["_data_"]) if is_time else None}
