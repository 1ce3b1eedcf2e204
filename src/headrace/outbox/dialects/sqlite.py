"""SQLite. Its clock is the machine's: whoever shares the file shares the clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from headrace.outbox.dialects.dialect import Condition, Dialect

__all__ = ["SQLITE"]


def _with_ids(ids: Sequence[int]) -> Condition:
    return "id IN (SELECT value FROM json_each(:ids))", {"ids": json.dumps(list(ids))}


def _without_ids(ids: Sequence[int]) -> Condition:
    return "m.id NOT IN (SELECT value FROM json_each(:without))", {"without": json.dumps(list(ids))}


def _with_messages(event_ids: Mapping[int, str]) -> Condition:
    condition, asked = _with_ids(list(event_ids))
    exact = "event_id IN (SELECT value FROM json_each(:event_ids))"
    return f"{condition} AND {exact}", {**asked, "event_ids": json.dumps(list(event_ids.values()))}


SQLITE = Dialect(
    name="sqlite",
    key='"key"',
    now_ms="CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    insert_or_ignore=("INSERT OR IGNORE", ""),
    pending_lanes="SELECT DISTINCT topic, bucket FROM kafka_messages",
    delete_messages="DELETE FROM kafka_messages WHERE ",
    lock_rows="",  # a write transaction has the whole file
    row_bytes=(
        'COALESCE(length(m.message), 0) + COALESCE(length(m."key"), 0) + COALESCE(length(CAST(m.headers AS BLOB)), 0)'
    ),
    with_ids=_with_ids,
    without_ids=_without_ids,
    with_messages=_with_messages,
)
