"""The eventual store: what replication has carried out of the log, by key, in SQLite or in Cassandra.

Promises: writes converge by the place of the record that caused them, whatever their order and however often they are
repeated; a reader gets what was acknowledged; pages follow the reader's demand.
Does not promise: to be up to date. Journals merge it with the head of the log.
"""

from headrace.store.limits import MAX_ID_BYTES, MAX_TAG_BYTES, why_id_is_refused, why_tags_are_refused
from headrace.store.opening import open_store
from headrace.store.ports import Settings, Snapshots, Store, StoreReader, StoreWriter, TagNumbers, Tags, TagViews
from headrace.store.rows import (
    DEFAULT_SEGMENT_SIZE,
    EventRow,
    JournalMeta,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
    SnapshotRow,
    java_hash,
    meta_segment,
    segment_of,
    write_time,
)
from headrace.store.tag_rows import TagNumber, TagRow, TagTime, tag_time_of, timeuuid

__all__ = [
    "DEFAULT_SEGMENT_SIZE",
    "MAX_ID_BYTES",
    "MAX_TAG_BYTES",
    "EventRow",
    "JournalMeta",
    "Place",
    "ReplicatedOffset",
    "RowDeletion",
    "SegmentGap",
    "Settings",
    "SnapshotRow",
    "Snapshots",
    "Store",
    "StoreReader",
    "StoreWriter",
    "TagNumber",
    "TagNumbers",
    "TagRow",
    "TagTime",
    "TagViews",
    "Tags",
    "java_hash",
    "meta_segment",
    "open_store",
    "segment_of",
    "tag_time_of",
    "timeuuid",
    "why_id_is_refused",
    "why_tags_are_refused",
    "write_time",
]
