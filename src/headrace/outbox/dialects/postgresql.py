"""PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.outbox.dialects.speech import Condition, Speech

__all__ = ["POSTGRESQL"]


def _with_ids(ids: Sequence[int]) -> Condition:
    # As text: the driver would look at each number for the smallest type that holds it.
    return "id = ANY(CAST(:ids AS bigint[]))", {"ids": f"{{{','.join(map(str, ids))}}}"}


# DISTINCT would read a backlog of millions at each look; this jumps from place to place along the index.
_PLACES = """
WITH RECURSIVE places(topic, bucket) AS (
  (SELECT topic, bucket FROM kafka_messages ORDER BY topic, bucket LIMIT 1)
  UNION ALL
  SELECT following.topic, following.bucket FROM places CROSS JOIN LATERAL (
    SELECT m.topic, m.bucket FROM kafka_messages m
    WHERE (m.topic, m.bucket) > (places.topic, places.bucket) ORDER BY m.topic, m.bucket LIMIT 1
  ) following
) SELECT topic, bucket FROM places
"""

POSTGRESQL = Speech(
    name="postgresql",
    placeholder="%s",
    key="key",
    now_ms="CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    insert_or_ignore=("INSERT", "ON CONFLICT DO NOTHING"),
    pending_places=_PLACES,
    delete_messages="DELETE FROM kafka_messages WHERE ",
    lock_rows="FOR UPDATE",
    with_ids=_with_ids,
)
