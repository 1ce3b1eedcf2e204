"""Waiting until replication has carried into the store what a consistency token names."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.errors import TimedOut
from headrace.journal.topology import layout_key
from headrace.log import Log, check_token
from headrace.model import ConsistencyToken, TokenPlace, TopicPartition
from headrace.protocol import Layout
from headrace.store import Store

__all__ = ["wait_until_replicated"]

_LOOK_AGAIN_S = 0.05
_decode = msgspec.json.Decoder(Layout).decode


async def wait_until_replicated(log: Log, store: Store, token: ConsistencyToken, *, timeout_s: float) -> None:
    """Wait until the store has the records of journals that the token names. Other topics are not replicated.

    Raises TimedOut, and what `check_token` raises if the log has no such records.
    """
    await check_token(log, token)
    waiting = list(token.places)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                waiting = [place for place in waiting if not await _is_replicated(store, place)]
                if not waiting:
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError as error:
        place = waiting[0]
        what = f"waiting until offset {place.offset} of {place.topic}[{place.partition}] is replicated"
        raise TimedOut(f"{what} (is `headrace pipeline replicate` running?)", timeout_s) from error


async def _is_replicated(store: Store, place: TokenPlace) -> bool:
    """Return True if the store has the record, or if its topic holds no journals."""
    stored = await store.settings.get(layout_key(place.topic))
    if stored is None:
        return True
    layout = _decode(stored)
    if layout.topic_id != place.topic_id:
        return False  # the store does not know yet that the topic was created again
    found = layout.of_topic(await store.reader.replicated(TopicPartition(place.topic, place.partition)))
    return found is not None and found.offset >= place.offset
