"""Appending: plainly, trusting the caller to be the only writer of the key; or checked against what the journal is."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from headrace.errors import HeadraceError, OperationFailed, ReadAgain, Refused, Unavailable, VoidAppend, WrongSeqNr
from headrace.journal.actions import Append
from headrace.journal.appends import AppendOptions, record_of
from headrace.journal.folding import Effect, Entry, pointer_of, step
from headrace.journal.reading import JournalReader, Known
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import Event, Position
from headrace.store import Place

__all__ = ["JournalWriter"]

_REMEMBERED = 100_000


class _Attempt(msgspec.Struct, frozen=True):
    """What was known before an append was first tried."""

    since: Place
    known: Known


class JournalWriter:
    """Writes the journals of one topic."""

    def __init__(self, log: Log, topology: Topology, reader: JournalReader) -> None:
        self._log = log
        self._topology = topology
        self._reader = reader
        self._in_order = asyncio.Lock()
        self._written: OrderedDict[str, int] = OrderedDict()
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    async def append(self, id_: str, events: Sequence[Event], options: AppendOptions) -> Position:
        """Write events without looking; numbers that this instance knows to be taken are refused."""
        await self._refuse_known(id_, events)
        async with self._in_order:  # appends that were begun one after another reach the log so
            route = await self._topology.route(id_)
        (position,) = await self._log.append([record_of(route.at, id_, events, options)])
        self._remember(id_, events[-1].seq_nr)
        return position

    async def append_checked(
        self,
        id_: str,
        events: Sequence[Event],
        options: AppendOptions,
        *,
        expected: int | None,
        append_id: str | None,
    ) -> Position:
        """Write events and say what became of them. Raises WrongSeqNr, VoidAppend.

        With the append id of an earlier attempt whose outcome is unknown, the events are written once at most.
        """
        append_id = append_id or uuid.uuid4().hex
        route = await self._topology.route(id_)
        is_retry = append_id in self._attempts
        attempt = self._attempts.get(append_id) or await self._prepare(id_)
        record = record_of(route.at, id_, events, options, expected=expected, append_id=append_id, since=attempt.since)
        self._attempts[append_id] = attempt
        try:
            (position,) = await self._log.append([record])
        except HeadraceError as error:
            if not is_retry and not (isinstance(error, Unavailable) and not error.outcome_known):
                del self._attempts[append_id]
            raise
        try:
            landed = await self._outcome(id_, attempt, position, append_id, expected)
        except Unavailable as error:  # the record is in the log: nobody may take this for "nothing was done"
            raise OperationFailed(f"checking the append to {id_!r}", str(error), outcome_known=False) from error
        except Refused:
            del self._attempts[append_id]
            raise
        del self._attempts[append_id]
        self._remember(id_, events[-1].seq_nr)
        return landed

    def forget(self, id_: str) -> None:
        """Forget what was written to a journal: it was purged."""
        self._written.pop(id_, None)

    async def _refuse_known(self, id_: str, events: Sequence[Event]) -> None:
        """Refuse numbers that were written from here, unless somebody has purged the journal since."""
        first = events[0].seq_nr
        if first > self._written.get(id_, 0):
            return
        pointer = pointer_of((await self._reader.view(id_)).meta)
        if first <= pointer:
            raise WrongSeqNr(id_, first - 1, pointer)
        self.forget(id_)

    def _remember(self, id_: str, seq_nr: int) -> None:
        self._written[id_] = max(seq_nr, self._written.get(id_, 0))
        self._written.move_to_end(id_)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    async def _prepare(self, id_: str) -> _Attempt:
        layout = await self._topology.layout()
        known = await self._reader.known(id_, layout)
        bounds = await self._log.bounds(layout.route(id_))
        while len(self._attempts) > _REMEMBERED:
            self._attempts.popitem(last=False)
        return _Attempt(Place(layout.generation, bounds.high_watermark), known)

    async def _outcome(
        self, id_: str, attempt: _Attempt, position: Position, append_id: str, expected: int | None
    ) -> Position:
        """Fold the log from what was known before the first attempt up to the record just written."""
        meta = attempt.known.stored
        for entry in await self._entries(id_, attempt.known, position.offset):
            if meta is not None and entry.place <= meta.place:
                continue
            done = step(meta, entry)
            is_ours = isinstance(entry.action, Append) and entry.action.append_id == append_id
            if is_ours and done.effect is Effect.APPENDED:
                return Position(position.topic, entry.partition, entry.offset, entry.timestamp_ms)
            if entry.offset == position.offset and entry.partition == position.partition:
                raise _refusal(id_, pointer_of(meta), expected, done.reason)
            meta = done.meta
        raise VoidAppend(id_, "its record was not found in the log again")

    async def _entries(self, id_: str, known: Known, up_to: int) -> list[Entry]:
        layout = await self._topology.layout()
        windows = await self._reader.windows(id_, layout, known, up_to, scan=False)
        if windows is None:  # replication passed by: the log itself still has what the cache has dropped
            windows = await self._reader.windows(id_, await self._topology.refresh(), known, up_to, scan=True)
        if windows is None:
            raise ReadAgain(id_, "the topic grew while the append was checked")
        return [entry for window in windows for entry in window.entries]


def _refusal(id_: str, pointer: int, expected: int | None, reason: str) -> WrongSeqNr | VoidAppend:
    if expected is not None and expected != pointer:
        return WrongSeqNr(id_, expected, pointer)
    return VoidAppend(id_, reason)
