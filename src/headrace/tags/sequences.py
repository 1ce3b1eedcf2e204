"""Numbers that a query has seen, by pid: what comes next, and what is missing. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from headrace.tags.events import TaggedEvent
from headrace.tags.offsets import TagOffset

__all__ = ["Missing", "Pid", "Sequences"]

Pid: TypeAlias = tuple[str, str]

_REMEMBERED = 1_000_000


# A number, and the log time of its event.
_Seen: TypeAlias = tuple[int, int]


class Missing(NamedTuple):
    """Numbers from `first` up to, not including, that of the event; they should lie after a log time."""

    first: int
    size: int
    since_ms: int


class Sequences:
    """What each pid's next number is.

    With `from_start` the first event of a pid must have number 1. Else it is taken for the first there is, unless a
    scan found a lower one. Events come in the order of their places, so one that was not given ahead of its turn was
    never given, whatever its number: a lower number than the last is of a row that came late, or of a numbering that
    began anew.
    """

    def __init__(self, *, from_start: bool) -> None:
        self._from_start = from_start
        self._seen: OrderedDict[Pid, _Seen] = OrderedDict()
        self._ahead: set[tuple[Pid, TagOffset]] = set()

    def expect(self, lowest: Mapping[Pid, int]) -> None:
        """Expect these numbers first."""
        for pid, number in lowest.items():
            self._seen[pid] = (number - 1, 0)

    def begin_anew(self) -> None:
        """Forget all numbers: those that come are of another numbering."""
        self._from_start = False
        self._seen.clear()
        self._ahead.clear()

    def follows(self, event: TaggedEvent) -> bool:
        """Take an event if it is the next of its pid; else change nothing: it is known, or some are missing."""
        pid, number = (event.topic, event.id), event.number
        last = self._seen.get(pid)
        if last is None:
            if self._from_start and number != 1:
                return False
            self.saw(event)
            return True
        if number != last[0] + 1:
            return False
        # A plain tuple is made in a third of the time, and this is done for every event.
        self._seen[pid] = (number, event.tag_offset[0])
        self._seen.move_to_end(pid)
        return True

    def missing(self, event: TaggedEvent) -> Missing | None:
        """Say what is missing before an event."""
        last = self._last(event)
        if last is None or event.number <= last[0] + 1:
            return None
        number, log_time_ms = last
        return Missing(number + 1, event.number - number - 1, log_time_ms)

    def was_given_ahead(self, event: TaggedEvent) -> bool:
        """Say whether a gap search has given the event before its turn, which is now."""
        name = (event.topic, event.id), event.tag_offset
        if name not in self._ahead:
            return False
        self._ahead.remove(name)
        return True

    def saw(self, event: TaggedEvent, *, before: TaggedEvent | None = None) -> None:
        """Remember an event that was delivered, in its turn or `before` one that stands there in its place."""
        pid = (event.topic, event.id)
        if before is not None and event.tag_offset > before.tag_offset:
            self._ahead.add((pid, event.tag_offset))
        self._seen[pid] = (event.number, event.tag_offset.log_time_ms)
        self._seen.move_to_end(pid)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
            self._from_start = False  # who was forgotten may come again, with any number

    def _last(self, event: TaggedEvent) -> _Seen | None:
        return self._seen.get((event.topic, event.id), (0, 0) if self._from_start else None)
