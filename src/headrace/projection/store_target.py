"""The target that keeps offsets in the store's settings: at least once, for handlers without a SQL transaction."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from headrace.errors import (
    BadArgument,
    DeadLettersFull,
    HeadraceError,
    ProjectionChanged,
    ProjectionRebuilding,
    SlotsMoved,
    Unavailable,
)
from headrace.observe import get_logger
from headrace.projection.commits import is_commit_due
from headrace.projection.delivery import Delivery, StoppedAfter, call, delivering
from headrace.projection.ports import REBUILDING, Offsets
from headrace.projection.projection import DeadLetter, Projection
from headrace.projection.slots import come_again, furthest, is_replay, moved, moves, slot_of
from headrace.projection.workers import Claim, ClaimWatch, SharedValue
from headrace.runtime import crash_point
from headrace.store import SharedSettings
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["StoreDeadLetters", "StoreTarget", "setting_of"]

_logger = get_logger(__name__)

_LETTERS_AT_MOST = 1000
_LOOK_AGAIN_S = 0.05
_BEATS_PER_LEASE = 4


class _Stored(msgspec.Struct, frozen=True):
    tag: str
    offsets: tuple[str | None, ...]
    replay_to: tuple[str | None, ...] = ()
    claims: dict[str, Claim] = {}
    rebuild: str = ""


class _Letters(msgspec.Struct, frozen=True):
    letters: tuple[DeadLetter, ...] = ()


def setting_of(name: str) -> str:
    """Return the name of the setting that holds a projection's offsets."""
    return f"projection/{name}"


class StoreTarget:
    """Calls the handler, then moves the offsets: after a crash in between the last events are handled again.

    A worker claims its slots while it works on them, so that rivals and rebuilds wait for it instead of handling the
    same events at the same time.
    """

    def __init__(
        self, settings: SharedSettings, projection: Projection, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._projection = projection
        self._now_s = now_s
        self._worker = uuid.uuid4().hex
        empty = _Stored(projection.source, (None,) * projection.slots)
        self._stored = SharedValue(settings, setting_of(projection.name), empty)
        self._letters = SharedValue(settings, f"projection-dead-letters/{projection.name}", _Letters())
        self._replay_to: Offsets = {}
        self._claiming = asyncio.Lock()

    @property
    def is_transactional(self) -> bool:
        """False: the handler's work stays even if the offsets can't be stored."""
        return False

    @property
    def letters(self) -> StoreDeadLetters:
        """The dead letters, in the store's settings."""
        return StoreDeadLetters(self, self._letters, self._projection)

    async def load(self) -> Offsets:
        """Return the offset of each slot."""
        stored = await self._stored.get()
        self._check(stored)
        self._replay_to = _parsed(stored.replay_to)
        return _parsed(stored.offsets)

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset, *, attempt: int = 1) -> None:
        """Handle events one by one, or as a group, and store the offset as often as the projection says."""
        if not events:
            await self._save(known, to)
            return
        moving = moves(known, to, events, self._projection.slots)
        async with self.claim(moving) as claim:
            if self._projection.grouped:
                claim.check()
                try:
                    await self._call(None, list(events), self._delivery(events[-1], attempt))
                except StoppedAfter:
                    claim.done_up_to = to
                    raise
                await claim.move(to)
            else:
                await self._handle_each(claim, events, to, attempt)

    async def bury(self, letter: DeadLetter, known: Offsets, to: TagOffset) -> None:
        """Store the letter, then move the slots: after a crash in between the same letter is stored again."""

        def add(stored: _Letters) -> _Letters:
            others = tuple(each for each in stored.letters if each.offset != letter.offset)
            if len(others) >= _LETTERS_AT_MOST:
                raise DeadLettersFull(self._projection.name, _LETTERS_AT_MOST)
            return _Letters((*others, letter))

        await self._letters.change(add)
        crash_point("projection.beside.buried")
        await self._save(known, to)

    async def begin_again(self, at: TagOffset | None) -> None:
        """Take the slots, wait for workers in the middle of a batch, reset the handler's work, set the new offset.

        Raises ProjectionRebuilding if another rebuild took the slots meanwhile: it resets the work after this one, and
        sets the offsets.
        """
        mine = uuid.uuid4().hex
        await self._stored.change(lambda stored: msgspec.structs.replace(self._taken(stored), rebuild=mine))
        crash_point("projection.beside.taken")
        await self._wait_for_claims()
        if self._projection.reset is not None:
            await call(self._projection.reset)
        crash_point("projection.beside.reset")
        await self._letters.change(lambda stored: _Letters(_letters_up_to(stored.letters, at)))
        await self._stored.change(partial(self._put_all, at=at, rebuild=mine))

    async def put(self, places: Offsets) -> None:
        """Set some slots to other offsets; a worker in the middle of a batch stops after the current event.

        Dead letters of events that come again are removed; a letter that a worker stores from now on stays.
        """
        again = come_again((await self._letters.get()).letters, places, self._projection.slots)

        def edit(stored: _Stored) -> _Stored:
            if REBUILDING in stored.offsets:
                raise ProjectionRebuilding(self._projection.name)
            taken = self._taken(stored)
            texts = {slot: _text(place) for slot, place in places.items()}
            offsets = tuple(texts.get(slot, text) for slot, text in enumerate(stored.offsets))
            tag = self._projection.source if len(places) == self._projection.slots else stored.tag
            return _Stored(tag, offsets, taken.replay_to, stored.claims)

        await self._stored.change(edit)
        crash_point("projection.beside.put")
        if again:
            await self._letters.change(lambda stored: _Letters(tuple(x for x in stored.letters if x not in again)))

    async def close(self) -> None:
        """Do nothing: nothing was opened."""

    @asynccontextmanager
    async def claim(self, known: Offsets, slots: Sequence[int] = ()) -> AsyncIterator[_HeldClaim]:
        """Claim the slots of `known`, which must be where the caller knows them, or `slots`, wherever they are.

        Raises SlotsMoved if they are elsewhere.
        """
        async with self._claiming:  # a worker and a replay of the same process have the same name
            acquired_s = await self._acquire(known, {*known, *slots})
            held = _HeldClaim(self._stored, self._worker, known, self._projection, acquired_s, self._now_s)
            beating = asyncio.create_task(held.beat_on(self._projection.lease_s / _BEATS_PER_LEASE))
            try:
                yield held
            except asyncio.CancelledError:
                await self._release_quietly(held)
                raise
            except Exception:
                await _to_its_end(held.release())  # store what is done, so that it does not come again
                raise
            finally:
                await _stop(beating)
            await _to_its_end(held.release())

    async def _release_quietly(self, held: _HeldClaim) -> None:
        """Store what is done before a worker stops. The worker stops in any case, so an error is only logged."""
        try:
            await _to_its_end(held.release())
        except HeadraceError as error:
            what = "a projection's worker stopped and could not store how far it was"
            _logger.warning(what, projection=self._projection.name, error=str(error))

    async def _handle_each(self, claim: _HeldClaim, events: Sequence[TaggedEvent], to: TagOffset, attempt: int) -> None:
        for index, event in enumerate(events):
            claim.check()
            try:
                await self._call(index, event, self._delivery(event, attempt))
            except StoppedAfter:  # it was handled and must not come again
                claim.done_up_to = event.tag_offset
                raise
            claim.done_up_to = event.tag_offset
            crash_point("projection.beside.called")
            if is_commit_due(index + 1, len(events), save_every=self._projection.save_every):
                await claim.move(event.tag_offset)
        claim.done_up_to = to

    async def _call(self, index: int | None, argument: object, delivery: Delivery) -> None:
        with delivering(index, delivery):
            await call(self._projection.handler, argument)

    def _delivery(self, event: TaggedEvent, attempt: int) -> Delivery:
        return Delivery(is_replay(event, self._replay_to, self._projection.slots), attempt)

    async def _wait_for_claims(self) -> None:
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

            def edit(stored: _Stored) -> _Stored:
                nonlocal is_free
                if known:
                    _check_known(stored, known, self._projection)
                else:
                    self._check(stored)
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

    def _unclaimed(self, stored: _Stored) -> _Stored:
        claims = {worker: claim for worker, claim in stored.claims.items() if worker != self._worker}
        return msgspec.structs.replace(stored, claims=claims)

    async def _save(self, known: Offsets, to: TagOffset) -> None:
        moving = moves(known, to, (), self._projection.slots)
        await self._stored.change(lambda stored: _moved(stored, moving, to, self._projection))

    def _taken(self, stored: _Stored) -> _Stored:
        """Take all slots from the workers, and remember their offsets: events up to there will be replays."""
        handled = _parsed(tuple(None if text == REBUILDING else text for text in stored.offsets))
        before = _parsed(stored.replay_to)
        replay_to = tuple(_text(furthest(handled[slot], before.get(slot))) for slot in sorted(handled))
        return msgspec.structs.replace(stored, offsets=(REBUILDING,) * len(stored.offsets), replay_to=replay_to)

    def _put_all(self, stored: _Stored, *, at: TagOffset | None, rebuild: str) -> _Stored:
        if stored.rebuild != rebuild:
            raise ProjectionRebuilding(self._projection.name)
        return _Stored(self._projection.source, (_text(at),) * self._projection.slots, stored.replay_to)

    def _check(self, stored: _Stored) -> None:
        name = self._projection.name
        if REBUILDING in stored.offsets:
            raise ProjectionRebuilding(name)
        if len(stored.offsets) != self._projection.slots:
            rule = f"projection {name!r} has run with {len(stored.offsets)}; keep that, or rename it"
            raise BadArgument("slots", self._projection.slots, rule)
        if stored.tag != self._projection.source:
            raise ProjectionChanged(name, stored.tag, self._projection.source)


class _HeldClaim:
    """A claim that a worker holds, and the progress since the offsets were last stored."""

    def __init__(
        self,
        stored: SharedValue[_Stored],
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
        await self._stored.change(lambda stored: _moved(stored, self._known, to, self._projection))
        self._known = moved(self._known, to)
        self.done_up_to = None

    async def release(self) -> None:
        """Store what is done, and free the slots for others. Raises SlotsMoved if they were taken meanwhile."""
        if self.done_up_to is not None:
            crash_point("projection.beside.before-save")
        lost = False

        def edit(stored: _Stored) -> _Stored:
            nonlocal lost
            lost = False
            try:
                if self.done_up_to is not None:
                    stored = _moved(stored, self._known, self.done_up_to, self._projection)
            except SlotsMoved:
                lost = True
            claims = {worker: claim for worker, claim in stored.claims.items() if worker != self._worker}
            return msgspec.structs.replace(stored, claims=claims)

        await self._stored.change(edit)
        if lost:
            raise SlotsMoved(self._name)

    def _beaten(self, stored: _Stored) -> _Stored:
        mine = stored.claims.get(self._worker)
        if mine is None:
            raise SlotsMoved(self._name)
        self.is_lost = self.is_lost or not _are_known(stored, self._known, self._projection)
        return msgspec.structs.replace(stored, claims={**stored.claims, self._worker: Claim(mine.slots, mine.beat + 1)})


class StoreDeadLetters:
    """Dead letters in the store's settings."""

    def __init__(self, target: StoreTarget, letters: SharedValue[_Letters], projection: Projection) -> None:
        self._target = target
        self._letters = letters
        self._projection = projection

    async def all(self) -> Sequence[DeadLetter]:
        """Return them in the order of their events."""
        return sorted((await self._letters.get()).letters, key=lambda letter: letter.tag_offset)

    async def replay(self, letter: DeadLetter, event: TaggedEvent) -> bool:
        """Handle the event, then remove the letter; the journal's worker waits meanwhile."""
        slot = slot_of(letter.topic, letter.id, self._projection.slots)
        async with self._target.claim({}, [slot]):
            if letter not in (await self._letters.get()).letters:
                return False
            with delivering(0, Delivery(is_replay=False, attempt=letter.attempts + 1)):
                await call(self._projection.handler, [event] if self._projection.grouped else event)
            await self.remove([letter])
        return True

    async def remove(self, letters: Sequence[DeadLetter]) -> int:
        """Remove letters; return the number removed."""
        gone, count = {letter.offset for letter in letters}, 0

        def edit(stored: _Letters) -> _Letters:
            nonlocal count
            kept = tuple(letter for letter in stored.letters if letter.offset not in gone)
            count = len(stored.letters) - len(kept)
            return _Letters(kept)

        await self._letters.change(edit)
        return count


def _moved(stored: _Stored, known: Offsets, to: TagOffset, projection: Projection) -> _Stored:
    """Return the stored value with slots moved that are still where a worker knows them. Raises SlotsMoved."""
    _check_known(stored, known, projection)
    offsets = list(stored.offsets)
    for slot, place in moved(known, to).items():
        offsets[slot] = _text(place)
    return msgspec.structs.replace(stored, offsets=tuple(offsets))


def _check_known(stored: _Stored, known: Offsets, projection: Projection) -> None:
    if not _are_known(stored, known, projection):
        raise SlotsMoved(projection.name)


def _are_known(stored: _Stored, known: Offsets, projection: Projection) -> bool:
    """Return True if slots are where a worker knows them and still have its tags."""
    offsets = stored.offsets
    return stored.tag == projection.source and all(
        slot < len(offsets) and offsets[slot] == _text(place) for slot, place in known.items()
    )


def _letters_up_to(letters: Sequence[DeadLetter], at: TagOffset | None) -> tuple[DeadLetter, ...]:
    return tuple(letter for letter in letters if at is not None and letter.tag_offset <= at)


def _parsed(texts: Sequence[str | None]) -> dict[int, TagOffset | None]:
    return {slot: TagOffset.parse(text) if text else None for slot, text in enumerate(texts)}


def _text(place: TagOffset | None) -> str | None:
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
