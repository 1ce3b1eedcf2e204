"""State by key, one partition at a time: in memory or in RocksDB, with a compacted topic of the log as the truth.

Promises: a write is in the log before it is in the store, and the store never gets ahead of its checkpoint; a copy that
could have missed a deletion is rebuilt; reads and subscribers see committed values only, with offsets at which nothing
is missing. Stores are found by the scheme of their address (`headrace.testing.conformance.KeyValueStoreConformance` is
the exam). Who owns a partition is decided elsewhere: an owner brings a `ChangelogWriter`.
"""

from headrace.state.arguments import (
    check_heartbeat,
    check_limit,
    check_offset,
    check_staleness,
    place_after,
)
from headrace.state.changelog import (
    BATCH_HEADER,
    BatchName,
    StateWrite,
    batch_header_of,
    changelog_config,
    ensure_changelog,
    is_reserved,
    new_record,
    parse_batch,
)
from headrace.state.claims import KeyLocks
from headrace.state.commits import ProducerWriter
from headrace.state.declaration import StateSpec, index_range, index_row
from headrace.state.expiry import Duration, is_due, ttl_in_ms
from headrace.state.keys import OWNERSHIP_KEY, RESERVED_PREFIX, OrderedKeys, decode_parts
from headrace.state.partition import StatePartition, place_of
from headrace.state.ports import ChangelogWriter, KeyValueStore, StoredPair, StoreWrite, open_state_store
from headrace.state.replica import StateReplica
from headrace.state.state import State, StateChange, StatePage, StateRead
from headrace.state.subscriptions import Heartbeat, PresentValue, RawChange, Subscription
from headrace.state.table import index_prefix
from headrace.state.unique_values import DuplicateValue, find_duplicates
from headrace.state.unit_of_work import UnitOfWork
from headrace.state.values import (
    AvroValues,
    BytesValues,
    IntValues,
    JsonValues,
    PlainValues,
    TextValues,
    ValueCodec,
    codec_of,
    is_prepared,
    kind_of,
    values_of,
)

__all__ = [
    "BATCH_HEADER",
    "OWNERSHIP_KEY",
    "RESERVED_PREFIX",
    "AvroValues",
    "BatchName",
    "BytesValues",
    "ChangelogWriter",
    "DuplicateValue",
    "Duration",
    "Heartbeat",
    "IntValues",
    "JsonValues",
    "KeyLocks",
    "KeyValueStore",
    "OrderedKeys",
    "PlainValues",
    "PresentValue",
    "ProducerWriter",
    "RawChange",
    "State",
    "StateChange",
    "StatePage",
    "StatePartition",
    "StateRead",
    "StateReplica",
    "StateSpec",
    "StateWrite",
    "StoreWrite",
    "StoredPair",
    "Subscription",
    "TextValues",
    "UnitOfWork",
    "ValueCodec",
    "batch_header_of",
    "changelog_config",
    "check_heartbeat",
    "check_limit",
    "check_offset",
    "check_staleness",
    "codec_of",
    "decode_parts",
    "ensure_changelog",
    "find_duplicates",
    "index_prefix",
    "index_range",
    "index_row",
    "is_due",
    "is_prepared",
    "is_reserved",
    "kind_of",
    "new_record",
    "open_state_store",
    "parse_batch",
    "place_after",
    "place_of",
    "ttl_in_ms",
    "values_of",
]
