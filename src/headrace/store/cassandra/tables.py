"""The tables, as of the last version, and the steps that lead older ones there.

A step must be repeatable: a process may die after it and before its number is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GROUNDWORK", "LAST", "TABLES", "Schema", "schema"]

# What the lock and the version need; made before anything can be locked.
GROUNDWORK = (
    "CREATE TABLE IF NOT EXISTS {keyspace}.locks (id text PRIMARY KEY, session text, expiry timestamp)",
    """CREATE TABLE IF NOT EXISTS {keyspace}.setting (
        key text PRIMARY KEY, value text, timestamp timestamp, origin text
    )""",
)

_GAPS = """CREATE TABLE IF NOT EXISTS {keyspace}.journal_gaps (
        id text, topic text, after_segment bigint, next_segment bigint, PRIMARY KEY ((id, topic), after_segment)
    ) WITH gc_grace_seconds = %(gc_grace_s)d"""

TABLES = (
    """CREATE TABLE IF NOT EXISTS {keyspace}.journal (
        id text, topic text, segment bigint, seq_nr bigint, timestamp timestamp, generation int, partition int,
        offset bigint, log_time timestamp, origin text, version text, meta_record_id uuid, tags frozen<list<text>>,
        metadata text, payload_type text, payload_txt text, payload_bin blob, headers map<text, text>,
        PRIMARY KEY ((id, topic, segment), seq_nr, timestamp)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.metajournal (
        id text, topic text, segment bigint, generation int, partition int, offset bigint,
        last_append frozen<tuple<int, bigint>>, purged boolean, purged_at frozen<tuple<int, bigint>>,
        held_from bigint, segment_size int, seq_nr bigint, delete_to bigint, created timestamp, created_date date,
        updated timestamp, expire_after text, expire_on timestamp, record_id uuid, origin text,
        properties map<text, text>, metadata text,
        PRIMARY KEY ((topic, segment), id)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.pointer2 (
        topic text, partition int, offset bigint, generation int, log_time timestamp, created timestamp,
        updated timestamp, segment_size int, PRIMARY KEY ((topic, partition))
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.snapshot (
        id text, topic text, buffer_idx int, seq_nr bigint, generation int, offset bigint, timestamp timestamp,
        record_id uuid, payload_type text, payload_txt text, payload_bin blob, metadata text, origin text, version text,
        PRIMARY KEY ((id, topic), buffer_idx)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    _GAPS,
)

# version -> what leads there from the version before
STEPS: Mapping[int, Sequence[str]] = {2: (_GAPS,)}
LAST = 2


@dataclass(frozen=True, slots=True)
class Schema:
    """What a keyspace must hold: `tables` make version `last` at once, `steps` lead there one by one."""

    last: int
    tables: Sequence[str]
    steps: Mapping[int, Sequence[str]]


def schema(*, gc_grace_s: float) -> Schema:
    """Return this version's schema, with deletions kept for that long."""
    values = {"gc_grace_s": gc_grace_s}
    steps = {version: [step % values for step in made] for version, made in STEPS.items()}
    return Schema(LAST, [table % values for table in TABLES], steps)
