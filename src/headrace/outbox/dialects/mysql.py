"""MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.outbox.dialects.dialect import Condition, Dialect

__all__ = ["MYSQL"]


def _with_ids(ids: Sequence[int]) -> Condition:
    return f"id IN ({_listed(ids)})", {}


def _without_ids(ids: Sequence[int]) -> Condition:
    # Added to nothing, or the optimizer may walk through the whole primary key around them.
    return f"m.id + 0 NOT IN ({_listed(ids)})", {}


def _with_messages(event_ids: Mapping[int, str]) -> Condition:
    condition, asked = _with_ids(list(event_ids))
    exact = ",".join(f"0x{event_id.encode().hex()}" for event_id in event_ids.values())
    return f"{condition} AND event_id IN ({exact})", asked


def _listed(ids: Sequence[int]) -> str:
    return ",".join(map(str, map(int, ids)))


MYSQL = Dialect(
    name="mysql",
    key="`key`",
    now_ms="CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)",
    insert_or_ignore=("INSERT IGNORE", ""),
    # Answered by a loose scan of the index.
    pending_lanes="SELECT DISTINCT topic, bucket FROM kafka_messages",
    # A small table would be scanned as a whole, and the scan waits for the rows of transactions that are still open:
    # the relay would stand still for as long as the slowest writer.
    delete_messages="DELETE m FROM kafka_messages AS m FORCE INDEX (PRIMARY) WHERE ",
    lock_rows="FOR UPDATE",
    row_bytes=(
        "COALESCE(OCTET_LENGTH(m.message), 0) + COALESCE(OCTET_LENGTH(m.`key`), 0) "
        "+ COALESCE(OCTET_LENGTH(m.headers), 0)"
    ),
    with_ids=_with_ids,
    without_ids=_without_ids,
    with_messages=_with_messages,
)
