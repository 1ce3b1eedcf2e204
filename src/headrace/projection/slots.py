"""Slots: the shares that a projection's work is cut into, by journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import BadArgument
from headrace.model import murmur2
from headrace.projection.ports import Offsets
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["below", "earliest", "fresh", "moved", "owned", "slot_of"]


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


def below(offsets: Offsets, to: TagOffset) -> Offsets:
    """Return those slots that have not come as far as an offset: the ones that a batch up to there moves."""
    return {slot: place for slot, place in offsets.items() if place is None or place < to}


def moved(offsets: Offsets, to: TagOffset) -> Offsets:
    """Return where the slots are after a batch up to an offset. A slot that is further on stays where it is."""
    return {**offsets, **dict.fromkeys(below(offsets, to), to)}


def fresh(events: Iterable[TaggedEvent], offsets: Offsets, slots: int) -> list[TaggedEvent]:
    """Return the events of these slots that were not handled yet."""
    found = []
    for event in events:
        slot = slot_of(event.topic, event.id, slots)
        if slot in offsets:
            done = offsets[slot]
            if done is None or event.tag_offset > done:
                found.append(event)
    return found
