"""SQLite. Its clock is the machine's: whoever shares the file shares the clock."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.outbox.dialects.speech import Condition, Speech

__all__ = ["SQLITE"]


def _with_ids(ids: Sequence[int]) -> Condition:
    return "id IN (SELECT value FROM json_each(:ids))", {"ids": json.dumps(list(ids))}


SQLITE = Speech(
    name="sqlite",
    placeholder="?",
    key='"key"',
    now_ms="CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    insert_or_ignore=("INSERT OR IGNORE", ""),
    pending_places="SELECT DISTINCT topic, bucket FROM kafka_messages",
    delete_messages="DELETE FROM kafka_messages WHERE ",
    lock_rows="",  # a write transaction has the whole file
    with_ids=_with_ids,
)
