"""Numbers that a query has seen, by pid: what comes next, and what is missing. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from headrace.tags.events import TaggedEvent

__all__ = ["Missing", "Pid", "Sequences"]

Pid: TypeAlias = tuple[str, str]

_REMEMBERED = 1_000_000


class _Seen(NamedTuple):
    number: int
    log_time_ms: int


class Missing(NamedTuple):
    """Numbers from `first` up to, not including, that of the event; they should lie after a log time."""

    first: int
    size: int
    since_ms: int


class Sequences:
    """What each pid's next number is.

    With `from_start` the first event of a pid must have number 1. Else it is taken for the first there is, unless a
    scan found a lower one.
    """

    def __init__(self, *, from_start: bool) -> None:
        self._from_start = from_start
        self._seen: OrderedDict[Pid, _Seen] = OrderedDict()

    def expect(self, lowest: Mapping[Pid, int]) -> None:
        """Expect these numbers first."""
        for pid, number in lowest.items():
            self._seen[pid] = _Seen(number - 1, 0)

    def follows(self, event: TaggedEvent) -> bool:
        """Take an event if it is the next of its pid; else change nothing: it is known, or some are missing."""
        pid = (event.topic, event.id)
        last = self._seen.get(pid)
        if last is None:
            if self._from_start and event.number != 1:
                return False
        elif event.number != last.number + 1:
            return False
        self.saw(event)
        return True

    def missing(self, event: TaggedEvent) -> Missing | None:
        """Say what is missing before an event."""
        last = self._last(event)
        if last is None or event.number <= last.number + 1:
            return None
        return Missing(last.number + 1, event.number - last.number - 1, last.log_time_ms)

    def is_known(self, event: TaggedEvent) -> bool:
        """Say whether the event was delivered before."""
        last = self._last(event)
        return last is not None and event.number <= last.number

    def saw(self, event: TaggedEvent) -> None:
        """Remember an event that was delivered."""
        pid = (event.topic, event.id)
        self._seen[pid] = _Seen(event.number, event.tag_offset.log_time_ms)
        self._seen.move_to_end(pid)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
            self._from_start = False  # who was forgotten may come again, with any number

    def _last(self, event: TaggedEvent) -> _Seen | None:
        return self._seen.get((event.topic, event.id), _Seen(0, 0) if self._from_start else None)
