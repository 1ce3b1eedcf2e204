"""What the last records of the log mean: found out once, for all queries of a process that follow the same feed."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.journal.actions import Append, Poison
from headrace.journal.decoding import decode_append
from headrace.journal.folding import Entry
from headrace.journal.partition_batch import entry_of
from headrace.model import Record

__all__ = ["Decoded", "Meaning"]

_KEPT = 5000

_NO_TAGS: frozenset[str] = frozenset()
_Place: TypeAlias = tuple[str, int, int]


class Meaning(NamedTuple):
    """The action that a record stands for, and the tags of its events. What can't be decoded holds its key."""

    entry: Entry | None
    tags: frozenset[str] = _NO_TAGS
    is_append: bool = False


class _Known(NamedTuple):
    record: Record
    generation: int
    log_time_ms: int
    meaning: Meaning


class Decoded:
    """Remembers some records by their place. It is asked about the same record as often as there are queries."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Place, _Known] = OrderedDict()

    def find(self, record: Record, generation: int, log_time_ms: int) -> Meaning:
        """Return what a record means where a partition has that generation and log time."""
        place = (record.topic, record.partition, record.offset)
        known = self._known.get(place)
        if known is not None and known[:3] == (record, generation, log_time_ms):
            return known.meaning
        meaning = _meaning(record, generation, log_time_ms)
        self._known[place] = _Known(record, generation, log_time_ms, meaning)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return meaning


def _meaning(record: Record, generation: int, log_time_ms: int) -> Meaning:
    entry = entry_of(record, generation, log_time_ms=log_time_ms)
    if entry is None or not isinstance(entry.action, Append):
        return Meaning(entry)
    try:
        events = decode_append(entry.action, record.value).events
    except ValueError as error:
        return Meaning(msgspec.structs.replace(entry, action=Poison(f"value: {error}")), is_append=True)
    return Meaning(entry, frozenset(tag for event in events for tag in event.tags), is_append=True)
