"""MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.outbox.dialects.speech import Condition, Speech

__all__ = ["MYSQL"]


def _with_ids(ids: Sequence[int]) -> Condition:
    return f"id IN ({','.join(map(str, map(int, ids)))})", {}


MYSQL = Speech(
    name="mysql",
    placeholder="%s",
    key="`key`",
    now_ms="CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)",
    insert_or_ignore=("INSERT IGNORE", ""),
    # Answered by a loose scan of the index.
    pending_places="SELECT DISTINCT topic, bucket FROM kafka_messages",
    # A small table would be scanned as a whole, and the scan waits for the rows of transactions that are still open:
    # the relay would stand still for as long as the slowest writer.
    delete_messages="DELETE m FROM kafka_messages AS m FORCE INDEX (PRIMARY) WHERE ",
    lock_rows="FOR UPDATE",
    with_ids=_with_ids,
)
