"""Slots: the shares that a projection's work is cut into, by journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import BadArgument, OffsetAhead
from headrace.model import murmur2
from headrace.projection.ports import Offsets
from headrace.projection.projection import DeadLetter
from headrace.tags import TaggedEvent, TagOffset

__all__ = [
    "below",
    "check_not_ahead",
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

# The log takes records that are stamped up to a minute ahead; an hour more is no skew of clocks.
_AHEAD_MS = 3_600_000


def slot_of(topic: str, id_: str, slots: int) -> int:
    """Return the slot of a journal: the same in every process, for ever."""
    return murmur2(f"{topic}\n{id_}".encode()) % slots


def owned(worker: int, workers: int, slots: int) -> list[int]:
    """Return the slots of one of several workers, counted from 0."""
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
    """Return the higher of two places; None lies before all."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def below(offsets: Offsets, to: TagOffset) -> Offsets:
    """Return those slots that have not come as far as an offset: the ones that a batch up to there moves."""
    return {slot: place for slot, place in offsets.items() if place is None or not place.covers(to)}


def moved(offsets: Offsets, to: TagOffset) -> Offsets:
    """Return where the slots are after a batch up to an offset. A slot that is further on stays where it is."""
    return {**offsets, **dict.fromkeys(below(offsets, to), to)}


def come_again(letters: Iterable[DeadLetter], places: Offsets, slots: int) -> list[DeadLetter]:
    """Return the dead letters whose events come again when slots are put to these places."""
    found = []
    for letter in letters:
        slot = slot_of(letter.topic, letter.id, slots)
        if slot in places and ((place := places[slot]) is None or not place.covers(letter.tag_offset)):
            found.append(letter)
    return found


def moves(offsets: Offsets, to: TagOffset, events: Iterable[TaggedEvent], slots: int) -> Offsets:
    """Return the slots that must be where their worker knows them: those that move, and those of the events."""
    needed = {slot_of(event.topic, event.id, slots) for event in events}
    return {slot: place for slot, place in offsets.items() if slot in needed or place is None or not place.covers(to)}


def is_replay(event: TaggedEvent, replay_to: Offsets, slots: int) -> bool:
    """Return True if the event's slot had been further on before it was put back."""
    place = replay_to.get(slot_of(event.topic, event.id, slots))
    return place is not None and place.covers(event.tag_offset)


def fresh(events: Iterable[TaggedEvent], offsets: Offsets, slots: int) -> list[TaggedEvent]:
    """Return the events of these slots that were not handled yet."""
    return [event for event in events if _is_after(event, offsets, slots)]


def late(events: Iterable[TaggedEvent], began: Offsets, read_up_to: TagOffset, slots: int) -> list[TaggedEvent]:
    """Return the events that a query gives behind its own back, and that these slots had not handled when it began.

    A query gives its events in order, but for those that were missing and were found later. By then the slots may
    have moved past them, with events of other journals.
    """
    return [event for event in events if event.tag_offset <= read_up_to and _is_after(event, began, slots)]


def _is_after(event: TaggedEvent, offsets: Offsets, slots: int) -> bool:
    slot = slot_of(event.topic, event.id, slots)
    if slot not in offsets:
        return False
    done = offsets[slot]
    return done is None or not done.covers(event.tag_offset)


def check_not_ahead(projection: str, offsets: Offsets, now_ms: int) -> None:
    """Raise OffsetAhead if a slot stands where no event can be yet: it would pass over all that come before."""
    for place in offsets.values():
        if place is not None and place.log_time_ms > now_ms + _AHEAD_MS:
            raise OffsetAhead(projection, str(place), round((place.log_time_ms - now_ms) / 1000, 3))
