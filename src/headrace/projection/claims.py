"""Claims: a worker holds its slots while it works on them, and stores how far it is, in the store's settings.

The value of a setting changes as a whole, so that a claim, the offsets and a rebuild never overlap.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headrace.errors import (
    HeadraceError,
    ProjectionChanged,
    ProjectionRebuilding,
    SlotsMoved,
    Unavailable,
)
from headrace.observe import get_logger
from headrace.projection.ports import REBUILDING, Offsets
from headrace.projection.projection import Projection
from headrace.projection.slots import check_slots, moved
from headrace.projection.workers import Claim, ClaimWatch, SharedValue
from headrace.runtime import crash_point
from headrace.tags import TagOffset

__all__ = ["HeldClaim", "SlotClaims", "StoredOffsets", "check_stored", "moved_to", "parsed", "text_of"]

_logger = get_logger(__name__)

_LOOK_AGAIN_S = 0.05
_BEATS_PER_LEASE = 4


class StoredOffsets(msgspec.Struct, frozen=True):
    """The value of the setting: how far each slot is, and which worker holds which slots."""

    tag: str
    offsets: tuple[str | None, ...]
    replay_to: tuple[str | None, ...] = ()
    claims: dict[str, Claim] = {}
    rebuild: str = ""


class SlotClaims:
    """Gives one worker at a time the slots it asks for. A claim that is not renewed ends with its lease."""

    def __init__(
        self, stored: SharedValue[StoredOffsets], projection: Projection, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stored = stored
        self._projection = projection
        self._now_s = now_s
        self._worker = uuid.uuid4().hex
        self._claiming = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, known: Offsets, slots: Sequence[int] = ()) -> AsyncIterator[HeldClaim]:
        """Claim the slots of `known`, which must be where the caller knows them, or `slots`, wherever they are.

        Raises SlotsMoved if they are elsewhere.
        """
        async with self._claiming:  # a worker and a replay of the same process have the same name
            acquired_s = await self._acquire(known, {*known, *slots})
            held = HeldClaim(self._stored, self._worker, known, self._projection, acquired_s, self._now_s)
            beating = asyncio.create_task(held.beat_on(self._projection.lease_s / _BEATS_PER_LEASE))
            try:
                yield held
            except asyncio.CancelledError:
                await self._release_quietly(held)
                raise
            except Exception:
                await _to_its_end(held.release())  # store what is done, so that it does not come again
                raise
            else:
                await _to_its_end(held.release())
            finally:
                await _stop(beating)  # last: a cancellation here must not leave the claim behind

    async def _release_quietly(self, held: HeldClaim) -> None:
        """Store what is done before a worker stops. The worker stops in any case, so an error is only logged."""
        try:
            await _to_its_end(held.release())
        except HeadraceError as error:
            what = "a projection's worker stopped and could not store how far it was"
            _logger.warning(what, projection=self._projection.name, error=str(error))

    async def wait_until_free(self) -> None:
        """Wait until no worker holds a slot."""
        watch, every_slot = ClaimWatch(self._projection.lease_s), range(self._projection.slots)
        while True:
            stored = await self._stored.get()
            if not watch.living(stored.claims, every_slot):
                return
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _acquire(self, known: Offsets, slots: Set[int]) -> float:
        """Claim slots as soon as no other worker has them; return the time from which on the claim counts."""
        watch, has_waited = ClaimWatch(self._projection.lease_s), False
        while True:
            is_free, began_s = False, self._now_s()

            def edit(stored: StoredOffsets) -> StoredOffsets:
                nonlocal is_free
                if known:
                    _check_known(stored, known, self._projection)
                else:
                    check_stored(stored, self._projection)
                others = {worker: claim for worker, claim in stored.claims.items() if worker != self._worker}
                living = watch.living(others, slots)
                is_free = not living
                if living:
                    return stored
                kept = {worker: claim for worker, claim in others.items() if not slots & set(claim.slots)}
                return msgspec.structs.replace(stored, claims={**kept, self._worker: Claim(tuple(sorted(slots)))})

            try:
                await _to_its_end(self._stored.change(edit))
            except asyncio.CancelledError:
                if is_free:
                    await _to_its_end(self._stored.change(self._unclaimed))
                raise
            if is_free:
                return began_s
            if not has_waited:
                what = "a projection waits for a worker that has its slots, or for the lease of one that died"
                _logger.info(what, projection=self._projection.name, lease_s=self._projection.lease_s)
                has_waited = True
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _unclaimed(self, stored: StoredOffsets) -> StoredOffsets:
        claims = {worker: claim for worker, claim in stored.claims.items() if worker != self._worker}
        return msgspec.structs.replace(stored, claims=claims)


class HeldClaim:
    """A claim that a worker holds, and the progress since the offsets were last stored."""

    def __init__(
        self,
        stored: SharedValue[StoredOffsets],
        worker: str,
        known: Offsets,
        projection: Projection,
        seen_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._seen_s = seen_s
        self._now_s = now_s
        self._stored = stored
        self._worker = worker
        self._known = known
        self._name = projection.name
        self._projection = projection
        self.is_lost = False
        self.done_up_to: TagOffset | None = None

    def check(self) -> None:
        """Raise SlotsMoved if others may have the slots. It is called before an event is handled.

        Waiting for the next beat would be too late if the process has been suspended for a whole lease.
        """
        if self.is_lost or self._now_s() - self._seen_s >= self._projection.lease_s:
            raise SlotsMoved(self._name)

    def note_done(self, up_to: TagOffset) -> None:
        """Note that the events up to an offset are handled; it is stored with the next move, or at the release."""
        self.done_up_to = up_to

    async def beat_on(self, every_s: float) -> None:
        """Show that the worker is alive, even if its slots were moved: it is still handling the current event."""
        while True:
            await asyncio.sleep(every_s)
            began_s = self._now_s()
            try:
                await self._stored.change(self._beaten)
                self._seen_s = began_s
            except SlotsMoved:
                self.is_lost = True
                return
            except Unavailable as error:  # the next beat may succeed; if none does, the lease ends
                _logger.debug("a projection's claim was not renewed", projection=self._name, error=str(error))

    async def move(self, to: TagOffset) -> None:
        """Store the worker's progress. Raises SlotsMoved."""
        await _to_its_end(self._move(to))

    async def _move(self, to: TagOffset) -> None:
        await self._stored.change(lambda stored: moved_to(stored, self._known, to, self._projection))
        self._known = moved(self._known, to)
        self.done_up_to = None

    async def release(self) -> None:
        """Store what is done, and free the slots for others. Raises SlotsMoved if they were taken meanwhile."""
        if self.done_up_to is not None:
            crash_point("projection.beside.before-save")
        lost = False

        def edit(stored: StoredOffsets) -> StoredOffsets:
            nonlocal lost
            lost = False
            try:
                if self.done_up_to is not None:
                    stored = moved_to(stored, self._known, self.done_up_to, self._projection)
            except SlotsMoved:
                lost = True
            claims = {worker: claim for worker, claim in stored.claims.items() if worker != self._worker}
            return msgspec.structs.replace(stored, claims=claims)

        await self._stored.change(edit)
        if lost:
            raise SlotsMoved(self._name)

    def _beaten(self, stored: StoredOffsets) -> StoredOffsets:
        mine = stored.claims.get(self._worker)
        if mine is None:
            raise SlotsMoved(self._name)
        self.is_lost = self.is_lost or not _are_known(stored, self._known, self._projection)
        return msgspec.structs.replace(stored, claims={**stored.claims, self._worker: Claim(mine.slots, mine.beat + 1)})


def check_stored(stored: StoredOffsets, projection: Projection) -> None:
    """Raise if a rebuild has the slots, or if the projection has run with other slots or tags."""
    name = projection.name
    if REBUILDING in stored.offsets:
        raise ProjectionRebuilding(name)
    check_slots(projection, len(stored.offsets))
    if stored.tag != projection.source:
        raise ProjectionChanged(name, stored.tag, projection.source)


def moved_to(stored: StoredOffsets, known: Offsets, to: TagOffset, projection: Projection) -> StoredOffsets:
    """Return the stored value with slots moved that are still where a worker knows them. Raises SlotsMoved."""
    _check_known(stored, known, projection)
    offsets = list(stored.offsets)
    for slot, place in moved(known, to).items():
        offsets[slot] = text_of(place)
    return msgspec.structs.replace(stored, offsets=tuple(offsets))


def _check_known(stored: StoredOffsets, known: Offsets, projection: Projection) -> None:
    if not _are_known(stored, known, projection):
        raise SlotsMoved(projection.name)


def _are_known(stored: StoredOffsets, known: Offsets, projection: Projection) -> bool:
    """Return True if slots are where a worker knows them and still have its tags."""
    offsets = stored.offsets
    return stored.tag == projection.source and all(
        slot < len(offsets) and offsets[slot] == text_of(place) for slot, place in known.items()
    )


def parsed(texts: Sequence[str | None]) -> dict[int, TagOffset | None]:
    """Return stored offsets by slot."""
    return {slot: TagOffset.parse(text) if text else None for slot, text in enumerate(texts)}


def text_of(place: TagOffset | None) -> str | None:
    """Return an offset as it is stored."""
    return str(place) if place is not None else None


async def _to_its_end(work: Coroutine[Any, Any, object]) -> None:
    """Wait for a write to end, also when cancelled: half of it could leave a claim, or lose handled events."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.warning("a projection's worker stopped while it stored how far it was", error=str(error))
        raise


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
