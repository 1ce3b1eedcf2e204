"""Retention of a journal topic: its records stay in the log until the store has them, and then for a time.

The log itself never deletes a journal's records by time or by size: nothing must be lost while replication does not
run. Replication removes what is in the store and older than the topic's retention, which is a setting in the store.
A topic that is shared with other services keeps the retention that those gave it, and the time left is measured.

Another store may lack what this one has. So each store claims a topic, in a compacted topic of the log, before it
replicates it, and nothing is removed from a topic that another store claims too.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from headrace.errors import (
    JournalTopicExpires,
    RecordsExpireSoon,
    ReplayTooOld,
    RetentionTooLong,
    SeveralStores,
    UnknownTopic,
)
from headrace.journal.marks import state_layout
from headrace.log import Log, ensure_topic
from headrace.model import Bounds, Cleanup, NewRecord, Record, Topic, TopicConfig, TopicPartition
from headrace.observe import Probe
from headrace.protocol import Layout, layout_key
from headrace.runtime import crash_point
from headrace.store import ReplicatedOffset, SharedSettings, Store, StoreReader

__all__ = [
    "CLAIMS_TOPIC",
    "JOURNAL_TOPIC",
    "RETENTION_MS",
    "TimeLeft",
    "TopicTerms",
    "change_terms",
    "check_replay",
    "check_retention",
    "claim_topic",
    "drop_other_claims",
    "journal_config",
    "read_terms",
    "remove_replicated",
    "retention_probe",
    "time_left",
    "why_records_expire",
]

RETENTION_MS = 7 * 24 * 60 * 60 * 1000

_RETENTION_BYTES = "retention.bytes"
_UNLIMITED = "-1"
_SECOND_MS = 1000


class TopicTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a journal topic, stored for all processes. `retention_ms` applies to replicated records.

    `is_shared`: services that do not know this store use the topic too, and its configuration is theirs. `engine` is
    the command engine that is the only writer of the topic's journals; empty if there is none.
    """

    retention_ms: int = RETENTION_MS
    is_shared: bool = False
    engine: str = ""


_encode = msgspec.json.Encoder().encode
_decode_terms = msgspec.json.Decoder(TopicTerms).decode


def terms_key(topic: str) -> str:
    """Return the name of the setting that holds a topic's terms."""
    return f"terms/{topic}"


async def read_terms(settings: SharedSettings, topic: str) -> TopicTerms:
    """Return a topic's terms, or the default ones if none are stored."""
    stored = await settings.get(terms_key(topic))
    return TopicTerms() if stored is None else _decode_terms(stored)


async def change_terms(settings: SharedSettings, topic: str, change: Callable[[TopicTerms], TopicTerms]) -> TopicTerms:
    """Change a topic's terms; changes by other processes at the same time are kept."""
    while True:
        stored = await settings.get(terms_key(topic))
        changed = change(TopicTerms() if stored is None else _decode_terms(stored))
        if await settings.put(terms_key(topic), _encode(changed).decode(), expected=stored):
            return changed


def journal_config(config: TopicConfig) -> TopicConfig:
    """Return the configuration of a journal topic: the log never removes records of its own accord."""
    return msgspec.structs.replace(
        config,
        cleanup=Cleanup.DELETE,
        retention_ms=None,
        keep_until_released=False,
        extra={**config.extra, _RETENTION_BYTES: _UNLIMITED},
    )


JOURNAL_TOPIC = journal_config(TopicConfig())


def why_records_expire(config: TopicConfig) -> str | None:
    """Return why the log would drop records that are not replicated; None if it would not."""
    if config.cleanup.compacts:
        return f"its cleanup policy {config.cleanup.value!r} drops all but the last record of a key"
    if config.extra.get(_RETENTION_BYTES, _UNLIMITED) != _UNLIMITED:
        return f"the log drops its records beyond {config.extra[_RETENTION_BYTES]} bytes"
    if config.retention_ms is not None and not config.keep_until_released:
        return f"the log drops its records after {config.retention_ms} ms"
    return None


async def check_topic(settings: SharedSettings, topic: Topic) -> str | None:
    """Raise JournalTopicExpires for a topic that would lose records. Return why a shared topic may lose them.

    A compacted topic is refused even if it is shared: nobody could measure the time that is left.
    """
    reason = why_records_expire(topic.config)
    if reason is None:
        return None
    if topic.config.cleanup.compacts or not (await read_terms(settings, topic.name)).is_shared:
        raise JournalTopicExpires(topic.name, reason)
    return reason


def check_retention(topic: str, retention_ms: int, *, marker_ttl_s: float, gc_grace_s: float) -> None:
    """Raise RetentionTooLong unless the store remembers deletions and purges for longer than records stay."""
    retention_s = retention_ms / _SECOND_MS
    for setting, kept_s in (("store.gc_grace_s", gc_grace_s), ("store.marker_ttl_s", marker_ttl_s)):
        if kept_s <= retention_s:
            raise RetentionTooLong(topic, retention_s, setting, kept_s)


def removable_before(bounds: Bounds, stored: ReplicatedOffset | None, first_generation: int, young: int | None) -> int:
    """Return the offset before which records may be removed: they are in the store, and below `young`, which stays.

    A replicated offset of an earlier topic of the same name does not count.
    """
    if stored is None or stored.generation < first_generation:
        return bounds.start
    keep_from = bounds.end if young is None else young
    return max(bounds.start, min(stored.offset + 1, keep_from, bounds.end))


async def remove_replicated(log: Log, store: Store, layout: Layout, *, retention_ms: int, now_ms: int) -> int:
    """Remove the records that the store has and that are older than the retention; return the number of offsets.

    The layout must be current. The replicated offsets are read from the store. A topic that is growing is left alone,
    because its boundaries are searched from before it began to grow. If a topic has grown, the layout is stated in the
    log again before a mark that states it is removed. Raises SeveralStores if another store claims the topic.
    """
    if layout.growing_to is not None:
        return 0
    ends: dict[int, tuple[int, int]] = {}
    for partition in range(layout.partitions):
        at = TopicPartition(layout.topic, partition)
        start, before = await _removable(log, store.reader, layout, at, now_ms - retention_ms)
        if before > start:
            ends[partition] = start, before
    if ends:
        await _check_sole_store(log, store.settings, layout)
    if ends and layout.generation > 0:
        await _keep_stated(log, store.settings, layout, before=ends.get(0, (0, 0))[1])
    crash_point("retention.before-removal")
    removed = 0
    for partition, (start, before) in ends.items():
        removed += await log.retention.truncate(TopicPartition(layout.topic, partition), before=before) - start
    return removed


async def _removable(
    log: Log, reader: StoreReader, layout: Layout, at: TopicPartition, older_than_ms: int
) -> tuple[int, int]:
    """Return the log's start, and the offset before which records may be removed."""
    stored = await reader.replicated(at)
    bounds = await log.bounds(at)
    first = layout.first_generation(at.partition)
    if removable_before(bounds, stored, first, None) == bounds.start:
        return bounds.start, bounds.start
    young = await log.offset_at(at, timestamp_ms=older_than_ms)
    return bounds.start, removable_before(bounds, stored, first, young)


class _Statement(msgspec.Struct, frozen=True):
    """The offset in the first partition of a mark that states the layout of a generation."""

    topic_id: str
    generation: int
    offset: int


async def _keep_stated(log: Log, settings: SharedSettings, layout: Layout, *, before: int) -> None:
    """Make sure that a mark behind what is about to be removed from the first partition states the layout."""
    key = f"stated/{layout.topic}"
    stored = await settings.get(key)
    known = None if stored is None else msgspec.json.decode(stored, type=_Statement)
    is_known = known is not None and (known.topic_id, known.generation) == (layout.topic_id, layout.generation)
    if known is not None and is_known and known.offset >= before:
        return
    statement = _Statement(layout.topic_id, layout.generation, await state_layout(log, layout))
    await settings.put(key, msgspec.json.encode(statement).decode(), expected=stored)


async def check_replay(
    log: Log, store: Store, layout: Layout, *, now_ms: int, marker_ttl_s: float, gc_grace_s: float
) -> None:
    """Raise ReplayTooOld if a partition would be replayed from further back than the store remembers deletions.

    That is so if the store has journals of the partition but not its replicated offset. A deleted event whose deletion
    the store has forgotten would appear again until the replay reaches the deletion. The time at which replication of
    a partition first began is stored, so that a process that died before its first offset can go on.
    """
    kept_ms = int(min(marker_ttl_s, gc_grace_s) * _SECOND_MS)
    for partition in range(layout.partitions):
        at = TopicPartition(layout.topic, partition)
        if await store.reader.replicated(at) is not None:
            continue
        oldest_ms = await _time_of_next(log, at, 0)
        if oldest_ms is None or now_ms - await _begun_ms(store, at, now_ms, oldest_ms, kept_ms) <= kept_ms:
            continue
        raise ReplayTooOld(at.topic, partition, (now_ms - oldest_ms) / _SECOND_MS, kept_ms / _SECOND_MS)


async def _begun_ms(store: Store, at: TopicPartition, now_ms: int, oldest_ms: int, kept_ms: int) -> int:
    """Return the earliest time at which replication of a partition may have begun."""
    key = f"begun/{at.topic}"
    while True:
        stored = await store.settings.get(key)
        begun: dict[str, int] = {} if stored is None else msgspec.json.decode(stored, type=dict[str, int])
        if (known := begun.get(str(at.partition))) is not None:
            return max(known, oldest_ms)
        if now_ms - oldest_ms > kept_ms and await _has_journals(store.reader, at):
            return oldest_ms
        begun[str(at.partition)] = now_ms
        if await store.settings.put(key, msgspec.json.encode(begun).decode(), expected=stored):
            return now_ms


class TimeLeft(NamedTuple):
    """How long the log will still keep the oldest record of a partition that is not replicated."""

    at: TopicPartition
    left_s: float


async def time_left(log: Log, store: Store, topic: Topic, *, now_ms: int) -> list[TimeLeft]:
    """Return the time left in each partition that has records to replicate, of a topic with its own retention."""
    if topic.config.retention_ms is None:
        return []
    found = []
    layout = await _layout_of(store.settings, topic)
    for partition in range(topic.partitions):
        at = TopicPartition(topic.name, partition)
        stored = layout.of_topic(await store.reader.replicated(at)) if layout is not None else None
        oldest_ms = await _time_of_next(log, at, 0 if stored is None else stored.offset + 1)
        if oldest_ms is not None:
            found.append(TimeLeft(at, (oldest_ms + topic.config.retention_ms - now_ms) / _SECOND_MS))
    return found


def retention_probe(log: Log, store: Store, topic: str, *, least_s: float, now_ms: Callable[[], int]) -> Probe:
    """Return a probe for `Health.check`: down if records that are not replicated leave the log within `least_s`."""

    async def probe() -> None:
        described = await log.admin.describe(topic)
        for at, left_s in await time_left(log, store, described, now_ms=now_ms()):
            if left_s < least_s:
                raise RecordsExpireSoon(at.topic, at.partition, left_s)

    return probe


async def _layout_of(settings: SharedSettings, topic: Topic) -> Layout | None:
    """Return the stored layout of the topic; None if there is none, or only that of an earlier topic of that name."""
    stored = await settings.get(layout_key(topic.name))
    layout = None if stored is None else msgspec.json.decode(stored, type=Layout)
    return layout if layout is not None and layout.topic_id == topic.topic_id else None


async def _has_journals(reader: StoreReader, at: TopicPartition) -> bool:
    async for page in reader.metas(at.topic, partition=at.partition, page_size=1):
        if page:
            return True
    return False


async def _time_of_next(log: Log, at: TopicPartition, offset: int) -> int | None:
    """Return the timestamp of the first record from an offset on; None if there is none."""
    bounds = await log.bounds(at)
    start = max(offset, bounds.start)
    if start >= bounds.end:
        return None
    async for batch in log.read(at, start, bounds.end, headers_only=True, max_records=1):
        for record in batch.records:
            return record.timestamp_ms
    return None


CLAIMS_TOPIC = "__headrace_stores"

_CLAIMS_AT = TopicPartition(CLAIMS_TOPIC, 0)
_CLAIMS_CONFIG = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None)
_STORE_ID = "store/id"


class _StoreClaim(msgspec.Struct, frozen=True, array_like=True):
    """A claim of one store on one topic; `topic_id` tells the topic from earlier ones of the same name."""

    topic: str
    store_id: str
    topic_id: str


_decode_claim = msgspec.json.Decoder(_StoreClaim).decode


async def claim_topic(log: Log, settings: SharedSettings, layout: Layout) -> None:
    """Claim a topic for this store, so that no other store's process removes records it needs.

    Call it before replication begins. A claim that was dropped by mistake is made again when the store's replication
    starts the next time.
    """
    claim = _StoreClaim(layout.topic, await _store_id(settings), layout.topic_id)
    if claim not in await _read_claims(log):
        await ensure_topic(log.admin, CLAIMS_TOPIC, partitions=1, config=_CLAIMS_CONFIG)
        await log.append([NewRecord(CLAIMS_TOPIC, _claim_key(claim), _encode(claim), partition=0)])


async def _check_sole_store(log: Log, settings: SharedSettings, layout: Layout) -> None:
    """Raise SeveralStores if another store replicates the topic: it may lack what this one has."""
    store_id = await _store_id(settings)
    others = _others_of(await _read_claims(log), layout, store_id)
    if others:
        raise SeveralStores(layout.topic, store_id, tuple(sorted(claim.store_id for claim in others)))


async def drop_other_claims(log: Log, settings: SharedSettings, layout: Layout) -> int:
    """Drop the claims of other stores on a topic, because those stores are gone; return their number."""
    others = _others_of(await _read_claims(log), layout, await _store_id(settings))
    if others:
        await log.append([NewRecord(CLAIMS_TOPIC, _claim_key(claim), None, partition=0) for claim in others])
    return len(others)


def _others_of(claims: Iterable[_StoreClaim], layout: Layout, store_id: str) -> list[_StoreClaim]:
    """Return the claims of other stores on the topic as it is now."""
    topic = (layout.topic, layout.topic_id)
    return [claim for claim in claims if (claim.topic, claim.topic_id) == topic and claim.store_id != store_id]


def _claims_in(records: Iterable[Record], known: Mapping[bytes, _StoreClaim]) -> dict[bytes, _StoreClaim]:
    """Return the claims that records make: the last record of a key counts, and one without a value drops it."""
    claims = dict(known)
    for record in records:
        key = record.key or b""
        if record.value is None:
            claims.pop(key, None)
        else:
            claims[key] = _decode_claim(record.value)
    return claims


async def _read_claims(log: Log) -> list[_StoreClaim]:
    claims: dict[bytes, _StoreClaim] = {}
    with contextlib.suppress(UnknownTopic):  # no store has claimed anything yet
        bounds = await log.bounds(_CLAIMS_AT)
        # Up to the high watermark: an acknowledged claim lies below it, also while transactions are open.
        async for batch in log.read(_CLAIMS_AT, bounds.start, bounds.high_watermark):
            claims = _claims_in(batch.records, claims)
    return list(claims.values())


async def _store_id(settings: SharedSettings) -> str:
    """Return the id of a store; it is made once and never changes."""
    while (known := await settings.get(_STORE_ID)) is None:
        await settings.put(_STORE_ID, uuid.uuid4().hex, expected=None)
    return known


def _claim_key(claim: _StoreClaim) -> bytes:
    return _encode((claim.topic, claim.store_id))
