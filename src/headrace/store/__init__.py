"""The eventual store: what replication has carried out of the log, by key, in SQLite or in Cassandra.

Promises: writes converge by the place of the record that caused them, whatever their order and however often they are
repeated; a reader gets what was acknowledged; pages follow the reader's demand.
Does not promise: to be up to date. Journals merge it with the head of the log.
"""

from headrace.store.backends import open_store
from headrace.store.limits import (
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_TAG_BYTES,
    why_id_is_refused,
    why_tags_are_refused,
)
from headrace.store.plain_rows import PlainRows
from headrace.store.ports import (
    BatchWriter,
    SharedSettings,
    Snapshots,
    Store,
    StoreReader,
    StoreWriter,
    TagNumbers,
    Tags,
    TagViews,
)
from headrace.store.rows import (
    DEFAULT_SEGMENT_SIZE,
    FIRST_TAG_TIME,
    LAST_TAG_TIME,
    EventRow,
    HeadShare,
    JournalMeta,
    JournalWrite,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
    SnapshotRow,
    TagNumber,
    TagRow,
    TagTime,
    java_hash,
    meta_segment,
    segment_of,
    tag_time_of,
    timeuuid,
    write_time,
)

__all__ = [
    "DEFAULT_SEGMENT_SIZE",
    "FIRST_TAG_TIME",
    "LAST_TAG_TIME",
    "MAX_ID_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MAX_TAG_BYTES",
    "BatchWriter",
    "EventRow",
    "HeadShare",
    "JournalMeta",
    "JournalWrite",
    "Place",
    "PlainRows",
    "ReplicatedOffset",
    "RowDeletion",
    "SegmentGap",
    "SharedSettings",
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
