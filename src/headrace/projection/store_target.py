"""The target that keeps offsets in the store's settings: at least once, for handlers without a SQL transaction.

`open_target` chooses between it and the target in the handler's database, which is in `sql_target`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from headrace.errors import DeadLettersFull, MissingExtra, ProjectionRebuilding
from headrace.projection.claims import HeldClaim, SlotClaims, StoredOffsets, check_stored, moved_to, parsed, text_of
from headrace.projection.commits import is_commit_due
from headrace.projection.delivery import Delivery, call, delivering
from headrace.projection.ports import REBUILDING, Offsets, Target
from headrace.projection.projection import DeadLetter, Projection
from headrace.projection.slots import check_slots, come_again, furthest, is_replay, moves, slot_of
from headrace.projection.workers import SharedValue
from headrace.runtime import crash_point
from headrace.store import SharedSettings
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["StoreDeadLetters", "StoreTarget", "open_target", "setting_of"]

_LETTERS_AT_MOST = 1000


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
        empty = StoredOffsets(projection.source, (None,) * projection.slots)
        self._stored = SharedValue(settings, setting_of(projection.name), empty)
        self._letters = SharedValue(settings, f"projection-dead-letters/{projection.name}", _Letters())
        self._replay_to: Offsets = {}
        self.claims = SlotClaims(self._stored, projection, now_s)

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
        check_stored(stored, self._projection)
        self._replay_to = parsed(stored.replay_to)
        return parsed(stored.offsets)

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset, *, attempt: int = 1) -> None:
        """Handle events one by one, or as a group, and store the offset as often as the projection says."""
        if not events:
            await self._save(known, to)
            return
        moving = moves(known, to, events, self._projection.slots)
        async with self.claims.hold(moving) as claim:
            if self._projection.grouped:
                claim.check()
                delivery = self._delivery(events[-1], attempt)
                await self._call(None, list(events), delivery, done=partial(claim.note_done, to))
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
        await self.claims.wait_until_free()
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

        def edit(stored: StoredOffsets) -> StoredOffsets:
            if REBUILDING in stored.offsets:
                raise ProjectionRebuilding(self._projection.name)
            taken = self._taken(stored)
            texts = {slot: text_of(place) for slot, place in places.items()}
            offsets = tuple(texts.get(slot, text) for slot, text in enumerate(stored.offsets))
            tag = self._projection.source if len(places) == self._projection.slots else stored.tag
            return StoredOffsets(tag, offsets, taken.replay_to, stored.claims)

        await self._stored.change(edit)
        crash_point("projection.beside.put")
        if again:
            await self._letters.change(lambda stored: _Letters(tuple(x for x in stored.letters if x not in again)))

    async def close(self) -> None:
        """Do nothing: nothing was opened."""

    async def _handle_each(self, claim: HeldClaim, events: Sequence[TaggedEvent], to: TagOffset, attempt: int) -> None:
        for index, event in enumerate(events):
            claim.check()
            done = partial(claim.note_done, event.tag_offset)  # it must not come again, also if the worker stops
            await self._call(index, event, self._delivery(event, attempt), done=done)
            crash_point("projection.beside.called")
            if is_commit_due(index + 1, len(events), save_every=self._projection.save_every):
                await claim.move(event.tag_offset)
        claim.note_done(to)

    async def _call(self, index: int | None, argument: object, delivery: Delivery, *, done: Callable[[], None]) -> None:
        with delivering(index, delivery):
            await call(self._projection.handler, argument, done=done)

    def _delivery(self, event: TaggedEvent, attempt: int) -> Delivery:
        return Delivery(is_replay(event, self._replay_to, self._projection.slots), attempt)

    async def _save(self, known: Offsets, to: TagOffset) -> None:
        moving = moves(known, to, (), self._projection.slots)
        await self._stored.change(lambda stored: moved_to(stored, moving, to, self._projection))

    def _taken(self, stored: StoredOffsets) -> StoredOffsets:
        """Take all slots from the workers, and remember their offsets: events up to there will be replays.

        Raises BadArgument if the projection has run with another number of slots.
        """
        check_slots(self._projection, len(stored.offsets))
        handled = parsed(tuple(None if text == REBUILDING else text for text in stored.offsets))
        before = parsed(stored.replay_to)
        replay_to = tuple(text_of(furthest(handled[slot], before.get(slot))) for slot in sorted(handled))
        return msgspec.structs.replace(stored, offsets=(REBUILDING,) * len(stored.offsets), replay_to=replay_to)

    def _put_all(self, stored: StoredOffsets, *, at: TagOffset | None, rebuild: str) -> StoredOffsets:
        if stored.rebuild != rebuild:
            raise ProjectionRebuilding(self._projection.name)
        return StoredOffsets(self._projection.source, (text_of(at),) * self._projection.slots, stored.replay_to)


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
        async with self._target.claims.hold({}, [slot]):
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


def _letters_up_to(letters: Sequence[DeadLetter], at: TagOffset | None) -> tuple[DeadLetter, ...]:
    return tuple(letter for letter in letters if at is not None and letter.tag_offset <= at)


def open_target(projection: Projection, settings: SharedSettings) -> Target:
    """Return the target of a projection. Raises MissingExtra if SQLAlchemy is needed and not installed."""
    if projection.database is None:
        return StoreTarget(settings, projection)
    try:
        from sqlalchemy import Engine, create_engine, make_url
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        from headrace.projection.sql_target import SqlTarget
    except ModuleNotFoundError as missing:
        raise MissingExtra("sqlalchemy", "projection") from missing
    database = projection.database
    if isinstance(database, Engine | AsyncEngine):
        return SqlTarget(database, projection, is_ours=False)
    url = make_url(database)
    make = create_async_engine if url.get_dialect().is_async else create_engine
    return SqlTarget(make(url), projection, is_ours=True)
