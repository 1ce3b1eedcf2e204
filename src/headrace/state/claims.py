"""Claims: which keys have writes on their way to the log, and who waits for those to end.

A unit of work that depends on what it has read waits until nobody else writes those keys: only then it can be sure that
they have not changed. One that depends on nothing need not wait: its records go behind those of the others, in the same
transaction even. But it does not overtake a unit that waits, or a key that is written all the time would never be free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

__all__ = ["ClaimHolder", "ClaimPlace", "KeyClaims", "KeyLocks"]


class ClaimHolder:
    """Something on its way to the log, whose end others wait for. They go on in the order in which they came."""

    # Of the class, until a caller waits: there is one for each write, and nearly always nobody does.
    _is_ended = False
    _waiting: list[asyncio.Future[None]] | None = None

    async def wait(self) -> None:
        """Return when it has ended."""
        if not self._is_ended:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(ended)
            await ended

    def end(self) -> None:
        """Let those who wait go on. They have their turn before later ones."""
        self._is_ended = True
        for ended in self._waiting or ():
            if not ended.done():
                ended.set_result(None)


class ClaimPlace(ClaimHolder):
    """The place in line of a unit that waits for claims, until it has had its turn."""

    def __init__(self) -> None:
        self.claims: set[object] = set()


class KeyClaims:
    """The claims of one partition. A claim is any value: a key of a state, or a value that must be unique."""

    def __init__(self) -> None:
        self._holders: dict[object, ClaimHolder] = {}
        self._lines: dict[object, list[ClaimPlace]] = {}

    def take(self, claims: Collection[object], holder: ClaimHolder) -> None:
        """Note who writes. Holders of one claim end in the order in which they took it, so the last one counts."""
        for claim in claims:
            self._holders[claim] = holder

    def drop(self, claims: Collection[object], holder: ClaimHolder) -> None:
        """Forget a holder that has ended, and let those who wait for it go on."""
        for claim in claims:
            if self._holders.get(claim) is holder:
                del self._holders[claim]
        holder.end()

    def are_free(self, claims: Collection[object]) -> bool:
        """Return True if nobody writes any of them."""
        return not self._holders or self._holders.keys().isdisjoint(claims)

    def are_awaited(self, claims: Collection[object]) -> bool:
        """Return True if a caller waits for one of them."""
        return bool(self._lines) and not self._lines.keys().isdisjoint(claims)

    async def wait_in_line(self, claims: Collection[object], place: ClaimPlace) -> None:
        """Wait for one of those who write. The place is kept: others may have begun by then, and it waits again."""
        for claim in claims:
            if claim not in place.claims:
                place.claims.add(claim)
                self._lines.setdefault(claim, []).append(place)
        for claim in claims:
            if claim in self._holders:
                await self._holders[claim].wait()
                return

    def leave(self, place: ClaimPlace) -> None:
        """Give up a place, and let those behind it go on."""
        for claim in place.claims:
            line = self._lines[claim]
            line.remove(place)
            if not line:
                del self._lines[claim]
        place.end()

    async def wait_behind(self, claims: Collection[object]) -> None:
        """Wait until those who wait now have had their turn; not for those who come later."""
        for place in [each for claim in claims for each in self._lines.get(claim, ())]:
            await place.wait()


class KeyLocks:
    """A lock for each key in use, so that updates of one key take turns."""

    def __init__(self) -> None:
        self._locks: dict[object, _KeyLock] = {}

    def is_held(self, key: object) -> bool:
        """Return True if a caller holds the key's lock, or waits for it."""
        return key in self._locks

    def hold(self, key: object) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the key's lock while the block runs."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = _KeyLock(self._locks, key)
        return lock


class _KeyLock(contextlib.AbstractAsyncContextManager[None]):
    """One key's lock; it is forgotten when nobody holds it or waits for it."""

    __slots__ = ("_key", "_lock", "_locks", "_users")

    def __init__(self, locks: dict[object, _KeyLock], key: object) -> None:
        self._locks = locks
        self._key = key
        self._lock = asyncio.Lock()
        self._users = 0

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            del self._locks[self._key]
