"""Slots: the shares that a projection's work is divided into, by journal."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import BadArgument, OffsetAhead
from headrace.model import murmur2
from headrace.projection.ports import Offsets
from headrace.projection.projection import DeadLetter, Projection
from headrace.tags import TaggedEvent, TagOffset

__all__ = [
    "below",
    "check_not_ahead",
    "check_slots",
    "come_again",
    "earliest",
    "fresh",
    "furthest",
    "is_replay",
    "late",
    "moved",
    "moves",
    "owned",
    "slot_of",
]

# The log accepts timestamps up to a minute ahead; an hour more can't come from clock skew.
_AHEAD_MS = 3_600_000


def slot_of(topic: str, id_: str, slots: int) -> int:
    """Return the slot of a journal: the same in every process, forever."""
    return murmur2(f"{topic}\n{id_}".encode()) % slots


def owned(worker: int, workers: int, slots: int) -> list[int]:
    """Return the slots of one of several workers, counted from 0."""
    if workers < 1:
        raise BadArgument("workers", workers, "it must be a whole number, at least 1")
    if not 0 <= worker < workers:
        raise BadArgument("worker", worker, f"of {workers} workers the numbers are 0 to {workers - 1}")
    if workers > slots:
        raise BadArgument("workers", workers, f"the projection has {slots} slots to share")
    return list(range(worker, slots, workers))


def earliest(offsets: Offsets) -> TagOffset | None:
    """Return the lowest offset; None if a slot has none."""
    places = list(offsets.values())
    return None if None in places or not places else min(place for place in places if place is not None)


def furthest(one: TagOffset | None, other: TagOffset | None) -> TagOffset | None:
    """Return the higher of two offsets; None is the beginning."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def below(offsets: Offsets, to: TagOffset) -> Offsets:
    """Return the slots that have not reached an offset: a batch up to there moves them."""
    return {slot: place for slot, place in offsets.items() if place is None or not place.covers(to)}


def moved(offsets: Offsets, to: TagOffset) -> Offsets:
    """Return the slots after a batch up to an offset. A slot that is further on stays where it is."""
    return {**offsets, **dict.fromkeys(below(offsets, to), to)}


def come_again(letters: Iterable[DeadLetter], places: Offsets, slots: int) -> list[DeadLetter]:
    """Return the dead letters whose events come again when slots are set to these offsets."""
    found = []
    for letter in letters:
        slot = slot_of(letter.topic, letter.id, slots)
        if slot in places and ((place := places[slot]) is None or not place.covers(letter.tag_offset)):
            found.append(letter)
    return found


def moves(offsets: Offsets, to: TagOffset, events: Iterable[TaggedEvent], slots: int) -> Offsets:
    """Return the slots whose offset a worker must know: those that move, and those of the events."""
    needed = {slot_of(event.topic, event.id, slots) for event in events}
    return {slot: place for slot, place in offsets.items() if slot in needed or place is None or not place.covers(to)}


def is_replay(event: TaggedEvent, replay_to: Offsets, slots: int) -> bool:
    """Return True if the event's slot had passed the event before it was set back."""
    place = replay_to.get(slot_of(event.topic, event.id, slots))
    return place is not None and place.covers(event.tag_offset)


def fresh(events: Iterable[TaggedEvent], offsets: Offsets, slots: int) -> list[TaggedEvent]:
    """Return the events of these slots that were not handled yet."""
    return [event for event in events if _is_after(event, offsets, slots)]


def late(events: Iterable[TaggedEvent], began: Offsets, read_up_to: TagOffset, slots: int) -> list[TaggedEvent]:
    """Return the events that a query gives out of order and that these slots had not handled when it began.

    A query gives its events in order, except those that were missing and found later. By then events of other journals
    may have moved the slots past them.
    """
    return [event for event in events if event.tag_offset <= read_up_to and _is_after(event, began, slots)]


def _is_after(event: TaggedEvent, offsets: Offsets, slots: int) -> bool:
    slot = slot_of(event.topic, event.id, slots)
    if slot not in offsets:
        return False
    done = offsets[slot]
    return done is None or not done.covers(event.tag_offset)


def check_slots(projection: Projection, stored: int) -> None:
    """Raise BadArgument if a projection has run with another number of slots."""
    if stored != projection.slots:
        rule = f"projection {projection.name!r} has run with {stored}; keep that, or rename it"
        raise BadArgument("slots", projection.slots, rule)


def check_not_ahead(projection: str, offsets: Offsets, now_ms: int) -> None:
    """Raise OffsetAhead if a slot is where no event can be yet: the projection would skip all events before it."""
    for place in offsets.values():
        if place is not None and place.log_time_ms > now_ms + _AHEAD_MS:
            raise OffsetAhead(projection, str(place), round((place.log_time_ms - now_ms) / 1000, 3))
