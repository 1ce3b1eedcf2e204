"""Consistency tokens against the log: whether it has what they name, and waiting until readers can see it."""

from __future__ import annotations

import asyncio

from headrace.errors import BadArgument, TimedOut, TokenAhead, TokenOfOtherTopic, UnknownTopic
from headrace.log.ports import Log
from headrace.model import Bounds, ConsistencyToken, TokenPlace, Topic, TopicPartition

__all__ = ["check_token", "wait_for_token"]

_LOOK_AGAIN_S = 0.02


async def check_token(log: Log, token: ConsistencyToken) -> None:
    """Check that the log has every record that the token names.

    Raises TokenOfOtherTopic if a topic is gone or was created again, BadToken if it has no such partition, and
    TokenAhead if the partition ends before.
    """
    await _bounds_of(log, token)


async def wait_for_token(log: Log, token: ConsistencyToken, *, timeout_s: float) -> None:
    """Wait until readers of the log can see every record that the token names: open transactions may hide some.

    Raises what `check_token` raises, and TimedOut.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = await _bounds_of(log, token)
                if all(place.offset < bounds.end for place, bounds in found):
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError as error:
        raise TimedOut("waiting until open transactions let the token's records be read", timeout_s) from error


async def _bounds_of(log: Log, token: ConsistencyToken) -> list[tuple[TokenPlace, Bounds]]:
    """Return the bounds of each partition that the token names."""
    names = list(dict.fromkeys(place.topic for place in token.places))
    topics = dict(zip(names, await asyncio.gather(*(_topic(log, name) for name in names)), strict=True))
    for place in token.places:
        found = topics[place.topic]
        if found is None:
            raise TokenOfOtherTopic(place.topic, place.topic_id, "")
        place.check(found)
    found_bounds = await asyncio.gather(*(_bounds(log, place) for place in token.places))
    return list(zip(token.places, found_bounds, strict=True))


async def _topic(log: Log, name: str) -> Topic | None:
    try:
        return await log.admin.describe(name)
    except (UnknownTopic, BadArgument):  # a name that no topic can have, because the token was made up
        return None


async def _bounds(log: Log, place: TokenPlace) -> Bounds:
    """Return the bounds of the place's partition. Raises TokenAhead if the log says twice that it ends before."""
    at = TopicPartition(place.topic, place.partition)
    bounds = await log.bounds(at)
    try:
        place.check_end(bounds.high_watermark)
    except TokenAhead:  # a broker that has just become the leader may not know the end yet
        bounds = await log.bounds(at)
        place.check_end(bounds.high_watermark)
    return bounds
