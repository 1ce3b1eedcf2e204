"""A lock in a table, by lightweight transactions: who dies with it loses it when its time is up."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.errors import TimedOut
from headrace.runtime import Backoff
from headrace.store.cassandra.session import Session

__all__ = ["QUERIES", "Lock", "locked"]

# The rows' own time to live is the expiry that counts: it goes by the servers' clocks.
_TAKE = "INSERT INTO {keyspace}.locks (id, session, expiry) VALUES (?, ?, ?) IF NOT EXISTS USING TTL ?"
_RENEW = "UPDATE {keyspace}.locks USING TTL ? SET session = ?, expiry = ? WHERE id = ? IF session = ?"
_GIVE_BACK = "DELETE FROM {keyspace}.locks WHERE id = ? IF session = ?"
QUERIES = (_TAKE, _RENEW, _GIVE_BACK)

_WAITS = Backoff(first_s=0.05, limit_s=1.0)


class Lock:
    """A lock that is held."""

    def __init__(self, session: Session, name: str, *, ttl_s: int) -> None:
        self._session = session
        self._name = name
        self._ttl_s = ttl_s
        self._owner = str(uuid.uuid4())

    async def take(self) -> bool:
        """Try to get it."""
        values = (self._name, self._owner, self._expiry_ms(), self._ttl_s)
        return bool((await self._session.decide(f"take lock {self._name!r}", _TAKE, values))[0])

    async def renew(self) -> None:
        """Hold it for its whole time again. Raises TimedOut when it was lost."""
        values = (self._ttl_s, self._owner, self._expiry_ms(), self._name, self._owner)
        if not (await self._session.decide(f"renew lock {self._name!r}", _RENEW, values))[0]:
            raise TimedOut(f"work under the lock {self._name!r}", self._ttl_s, outcome_known=False)

    async def give_back(self) -> None:
        """Let others have it."""
        await self._session.decide(f"give back lock {self._name!r}", _GIVE_BACK, (self._name, self._owner))

    def _expiry_ms(self) -> int:
        return (time.time_ns() // 1_000_000) + self._ttl_s * 1000


@asynccontextmanager
async def locked(session: Session, name: str, *, ttl_s: int = 60, timeout_s: float = 180.0) -> AsyncIterator[Lock]:
    """Hold the lock for as long as the block runs; wait for it up to `timeout_s`."""
    lock = Lock(session, name, ttl_s=ttl_s)
    deadline_s, attempt = time.monotonic() + timeout_s, 0
    while not await lock.take():
        attempt += 1
        if time.monotonic() > deadline_s:
            raise TimedOut(f"waiting for the lock {name!r} of {session.address.text}", timeout_s)
        await asyncio.sleep(_WAITS.delay_s(attempt))
    try:
        yield lock
    finally:
        await lock.give_back()
