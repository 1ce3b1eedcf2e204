"""Rules for the journal's state machine: append ids, unknown outcomes, concurrent creators, late deletes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.suites.journal_faults import UncertainLog
from tests.suites.journal_setting import read

from headrace.errors import AppendIdReused, OperationFailed, TimedOut, VoidAppend, WrongSeqNr
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event, NewRecord, Position
from headrace.store import Store
from headrace.testing.conformance.log_on_top import LogOnTop

__all__ = ["Model", "RaceRules"]

T = TypeVar("T")

LEASE_S = 0.01  # a growth waits for the longest lease

ids = st.sampled_from(["a", "b", "ключ"])


class Model:
    """A journal as a list: the events alive, the last number, and how many were deleted."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Any]] = []
        self.pointer = 0

    def add(self, event: Event) -> None:
        """Append an event."""
        self.events.append((event.seq_nr, event.payload))
        self.pointer = event.seq_nr


@dataclass(slots=True)
class Given:
    """The events that an append id stands for, and whether they are in the log."""

    event: Event
    is_in_log: bool


class LateDeletes(LogOnTop):
    """Lets something else happen before a delete gets into the log, once."""

    def __init__(self, log: Log, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(log)
        self._before: Callable[[], Awaitable[None]] | None = before

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        is_delete = any(value is not None and b'{"delete"' in value for r in records for _, value in r.headers)
        if is_delete and self._before is not None:
            before, self._before = self._before, None
            await before()
        return await self.log.append(records)


class RaceRules:
    """What a state machine of journals needs beside its own rules; it says what `journal`, `seen` and `store` are."""

    journal: Journal
    seen: Log
    store: Store
    topic: str
    model: dict[str, Model]
    _given: dict[tuple[str, str], Given]
    _once_beside: Journal | None = None
    _restarts: int = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        raise NotImplementedError("override run")

    @rule(id_=ids, append_id=st.sampled_from(["x", "y"]), made_it=st.sampled_from([None, True, False]))
    def append_once(self, id_: str, append_id: str, made_it: bool | None) -> None:
        """Append with an id that is new to the journal; with `made_it`, the answer is a time-out."""
        once, append_id = self._once(append_id)
        if (id_, append_id) in self._given:
            return
        event = Event(self._pointer(id_) + 1, f"{id_} {append_id}")
        self._uncertain.outcomes = [] if made_it is None else [made_it]
        if made_it is None:
            self.run(once.append(id_, [event], append_id=append_id))
        else:
            with pytest.raises(TimedOut):
                self.run(once.append(id_, [event], append_id=append_id))
        self._given[id_, append_id] = Given(event, made_it is not False)
        if made_it is not False:
            self.model.setdefault(id_, Model()).add(event)

    @rule(id_=ids, append_id=st.sampled_from(["x", "y"]))
    def append_once_more(self, id_: str, append_id: str) -> None:
        """The same again: it is there once, or, if the first try is not in the log, may be void by now."""
        once, append_id = self._once(append_id)
        given = self._given.get((id_, append_id))
        if given is None:
            return
        try:
            self.run(once.append(id_, [given.event], append_id=append_id))
        except VoidAppend:
            assert not given.is_in_log
            del self._given[id_, append_id]
        except OperationFailed as unknown:  # what was before the first try has left the log meanwhile
            if "have left the log" not in str(unknown):
                raise
            self._find_out(id_, given)
        else:
            self._is_in_log_now(id_, given)

    @rule(id_=ids, append_id=st.sampled_from(["x", "y"]))
    def append_others_with_an_id(self, id_: str, append_id: str) -> None:
        """Other events with an id that was given: refused."""
        once, append_id = self._once(append_id)
        if (id_, append_id) in self._given:
            with pytest.raises(AppendIdReused):
                self.run(once.append(id_, [Event(self._pointer(id_) + 1, "other")], append_id=append_id))

    @rule(id_=ids)
    def append_after_looking(self, id_: str) -> None:
        """Two instances look and expect what they saw, also that there is no journal: the first one wins."""
        other = self._instance(self.seen)
        pointers = [self.run(journal.pointer(id_)) for journal in (self.journal, other)]
        event = Event((pointers[0] or 0) + 1, "after looking")
        self.run(self.journal.append(id_, [event], expected=pointers[0]))
        with pytest.raises(WrongSeqNr):
            self.run(other.append(id_, [Event(event.seq_nr, "too late")], expected=pointers[1]))
        self.model.setdefault(id_, Model()).add(event)

    @rule(id_=ids, to=st.integers(1, 5), count=st.integers(0, 2))
    def delete_of_a_journal_that_is_begun_anew(self, id_: str, to: int, count: int) -> None:
        """A purge and new events come between a delete's look at the journal and its record."""
        if id_ not in self.model:
            return
        events = [Event(n, "anew") for n in range(1, count + 1)]

        async def begin_anew() -> None:
            await self.journal.purge(id_)
            if events:
                await self.journal.append(id_, events)

        self.run(self._instance(LateDeletes(self.seen, begin_anew)).delete(id_, to=to))
        del self.model[id_]
        for event in events:
            self.model.setdefault(id_, Model()).add(event)

    def _is_in_log_now(self, id_: str, given: Given) -> None:
        if not given.is_in_log:
            given.is_in_log = True
            self.model.setdefault(id_, Model()).add(given.event)

    def _find_out(self, id_: str, given: Given) -> None:
        """Look whether a try of unknown outcome is the journal's last event."""
        event = given.event
        found = [each for each in self.run(read(self.journal, id_, event.seq_nr)) if each.payload == event.payload]
        if self._pointer(id_) < event.seq_nr and found:
            self._is_in_log_now(id_, given)

    def _pointer(self, id_: str) -> int:
        return self.model[id_].pointer if id_ in self.model else 0

    def _once(self, append_id: str) -> tuple[Journal, str]:
        """Return a journal whose appends may time out, and the append id for it.

        A restart makes another one, which remembers nothing: it has ids of its own, for the log may still hold those of
        the one before.
        """
        if self._once_beside is not self.journal:
            self._once_beside = self.journal
            self._restarts += 1
            self._given = {}
            self._uncertain = UncertainLog(self.seen)
            self._once_journal = self._instance(self._uncertain)
        return self._once_journal, f"{append_id}{self._restarts}"

    def _instance(self, log: Log) -> Journal:
        return Journal(log, self.store, self.topic, cache=None, lease_s=LEASE_S)
