"""Claims of stores on topics: which stores replicate a topic, kept in a compacted topic of the log.

Replication removes records that its own store has, and another store may lack them. So each store claims a topic before
it replicates it, and nothing is removed from a topic that another store claims too.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping

import msgspec

from headrace.errors import SeveralStores, UnknownTopic
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.protocol import Layout
from headrace.store import SharedSettings

__all__ = ["CLAIMS_TOPIC", "check_sole_store", "claim_topic", "drop_other_claims"]

CLAIMS_TOPIC = "__headrace_stores"

_AT = TopicPartition(CLAIMS_TOPIC, 0)
_CONFIG = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None)
_STORE_ID = "store/id"


class StoreClaim(msgspec.Struct, frozen=True, array_like=True):
    """A claim of one store on one topic; `topic_id` tells the topic from earlier ones of the same name."""

    topic: str
    store_id: str
    topic_id: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoreClaim).decode


async def claim_topic(log: Log, settings: SharedSettings, layout: Layout) -> None:
    """Claim a topic for this store, so that no other store's process removes records it needs.

    Call it before replication begins. A claim that was dropped by mistake is made again when the store's replication
    starts the next time.
    """
    claim = StoreClaim(layout.topic, await _store_id(settings), layout.topic_id)
    if claim not in await _read_claims(log):
        await ensure_topic(log.admin, CLAIMS_TOPIC, partitions=1, config=_CONFIG)
        await log.append([NewRecord(CLAIMS_TOPIC, _key(claim), _encode(claim), partition=0)])


async def check_sole_store(log: Log, settings: SharedSettings, layout: Layout) -> None:
    """Raise SeveralStores if another store replicates the topic: it may lack what this one has."""
    store_id = await _store_id(settings)
    others = others_of(await _read_claims(log), layout, store_id)
    if others:
        raise SeveralStores(layout.topic, store_id, tuple(sorted(claim.store_id for claim in others)))


async def drop_other_claims(log: Log, settings: SharedSettings, layout: Layout) -> int:
    """Drop the claims of other stores on a topic, because those stores are gone; return their number."""
    others = others_of(await _read_claims(log), layout, await _store_id(settings))
    if others:
        await log.append([NewRecord(CLAIMS_TOPIC, _key(claim), None, partition=0) for claim in others])
    return len(others)


def others_of(claims: Iterable[StoreClaim], layout: Layout, store_id: str) -> list[StoreClaim]:
    """Return the claims of other stores on the topic as it is now."""
    topic = (layout.topic, layout.topic_id)
    return [claim for claim in claims if (claim.topic, claim.topic_id) == topic and claim.store_id != store_id]


def claims_in(records: Iterable[Record], known: Mapping[bytes, StoreClaim]) -> dict[bytes, StoreClaim]:
    """Return the claims that records make: the last record of a key counts, and one without a value drops it."""
    claims = dict(known)
    for record in records:
        key = record.key or b""
        if record.value is None:
            claims.pop(key, None)
        else:
            claims[key] = _decode(record.value)
    return claims


async def _read_claims(log: Log) -> list[StoreClaim]:
    claims: dict[bytes, StoreClaim] = {}
    with contextlib.suppress(UnknownTopic):  # no store has claimed anything yet
        bounds = await log.bounds(_AT)
        # Up to the high watermark: an acknowledged claim lies below it, also while transactions are open.
        async for batch in log.read(_AT, bounds.start, bounds.high_watermark):
            claims = claims_in(batch.records, claims)
    return list(claims.values())


async def _store_id(settings: SharedSettings) -> str:
    """Return the id of a store; it is made once and never changes."""
    while (known := await settings.get(_STORE_ID)) is None:
        await settings.put(_STORE_ID, uuid.uuid4().hex, expected=None)
    return known


def _key(claim: StoreClaim) -> bytes:
    return _encode((claim.topic, claim.store_id))
