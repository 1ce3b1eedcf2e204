"""The tables of the embedded store, in one file.

`written` is the place of the record that caused a row, as one number; rows put there by hand have none (-1) and
lose to everything. `event_deletions` and `snapshot_deletions` remember what was removed and at which place, so that
a late writer of older rows loses; they are removed after the grace period. An `up_to` below 0 is a range of segments.
"""

from __future__ import annotations

from headrace.sqlite import SCHEMA as LEASES
from headrace.store.rows import Place, write_time

__all__ = ["ALL_SLOTS", "BY_HAND", "FORMAT", "MAX_SEQ_NR", "TABLES", "written"]

FORMAT = 1
BY_HAND = -1
MAX_SEQ_NR = (1 << 63) - 1
ALL_SLOTS = -1

_FIRST = write_time(Place(0, 0))

TABLES = f"""
CREATE TABLE journals (
    number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, id TEXT NOT NULL, UNIQUE (topic, id)
);
CREATE TABLE events (
    journal INTEGER NOT NULL, segment INTEGER NOT NULL, seq_nr INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL,
    written INTEGER NOT NULL DEFAULT {BY_HAND}, generation INTEGER NOT NULL, partition INTEGER NOT NULL,
    offset INTEGER NOT NULL, log_time_ms INTEGER NOT NULL, record_id BLOB NOT NULL, tags BLOB,
    payload_type TEXT, payload BLOB, metadata TEXT, headers BLOB, origin TEXT, version TEXT,
    PRIMARY KEY (journal, segment, seq_nr, timestamp_ms)
) WITHOUT ROWID;
CREATE TABLE event_deletions (
    journal INTEGER NOT NULL, segment INTEGER NOT NULL, up_to INTEGER NOT NULL, written INTEGER NOT NULL,
    made_ms INTEGER NOT NULL, PRIMARY KEY (journal, segment, up_to)
) WITHOUT ROWID;
CREATE TABLE heads (
    journal INTEGER PRIMARY KEY, written INTEGER NOT NULL DEFAULT {BY_HAND}, expires_ms INTEGER,
    generation INTEGER NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL, seq_nr INTEGER NOT NULL,
    segment_size INTEGER NOT NULL, delete_to INTEGER NOT NULL DEFAULT 0, append_generation INTEGER,
    append_offset INTEGER, is_purged INTEGER NOT NULL DEFAULT 0, purged_generation INTEGER, purged_offset INTEGER,
    held_from INTEGER, created_ms INTEGER, updated_ms INTEGER, expire_after TEXT, expire_on_ms INTEGER,
    record_id BLOB, origin TEXT, properties BLOB, metadata TEXT
);
CREATE TABLE replicated (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, written INTEGER NOT NULL DEFAULT {BY_HAND},
    generation INTEGER NOT NULL, offset INTEGER NOT NULL, log_time_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL, segment_size INTEGER NOT NULL DEFAULT 10000, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    journal INTEGER NOT NULL, slot INTEGER NOT NULL, written INTEGER NOT NULL DEFAULT {BY_HAND},
    seq_nr INTEGER NOT NULL, generation INTEGER NOT NULL, offset INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL,
    record_id BLOB NOT NULL, payload_type TEXT, payload BLOB, metadata TEXT, origin TEXT, version TEXT,
    PRIMARY KEY (journal, slot)
);
CREATE TABLE snapshot_deletions (
    journal INTEGER NOT NULL, slot INTEGER NOT NULL, written INTEGER NOT NULL, made_ms INTEGER NOT NULL,
    PRIMARY KEY (journal, slot)
) WITHOUT ROWID;
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{LEASES};
"""


def written(place: Place) -> int:
    """Return a place as one number that rises with it, from 0."""
    return write_time(place) - _FIRST
