"""PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.outbox.dialects.dialect import Condition, Dialect

__all__ = ["POSTGRESQL"]


def _with_ids(ids: Sequence[int]) -> Condition:
    # As text: the driver would look at each number for the smallest type that holds it.
    return "id = ANY(CAST(:ids AS bigint[]))", {"ids": _array(ids)}


def _without_ids(ids: Sequence[int]) -> Condition:
    # Asked of a subquery, which is hashed by every version; a list is hashed by the newer ones only.
    return "m.id NOT IN (SELECT unnest(CAST(:without AS bigint[])))", {"without": _array(ids)}


def _with_messages(event_ids: Mapping[int, str]) -> Condition:
    condition, asked = _with_ids(list(event_ids))
    return f"{condition} AND event_id = ANY(CAST(:event_ids AS text[]))", {
        **asked,
        "event_ids": list(event_ids.values()),
    }


def _array(ids: Sequence[int]) -> str:
    return f"{{{','.join(map(str, ids))}}}"


# DISTINCT would read a backlog of millions at each look; this jumps from lane to lane along the index.
_LANES = """
WITH RECURSIVE lanes(topic, bucket) AS (
  (SELECT topic, bucket FROM kafka_messages ORDER BY topic, bucket LIMIT 1)
  UNION ALL
  SELECT following.topic, following.bucket FROM lanes CROSS JOIN LATERAL (
    SELECT m.topic, m.bucket FROM kafka_messages m
    WHERE (m.topic, m.bucket) > (lanes.topic, lanes.bucket) ORDER BY m.topic, m.bucket LIMIT 1
  ) following
) SELECT topic, bucket FROM lanes
"""

POSTGRESQL = Dialect(
    name="postgresql",
    key="key",
    now_ms="CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    insert_or_ignore=("INSERT", "ON CONFLICT DO NOTHING"),
    pending_lanes=_LANES,
    delete_messages="DELETE FROM kafka_messages WHERE ",
    lock_rows="FOR UPDATE",
    row_bytes=(
        "COALESCE(octet_length(m.message), 0) + COALESCE(octet_length(m.key), 0) + COALESCE(octet_length(m.headers), 0)"
    ),
    with_ids=_with_ids,
    without_ids=_without_ids,
    with_messages=_with_messages,
)
