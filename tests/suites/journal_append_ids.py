"""Append ids: one id is one append, whatever is in flight, was cancelled, or has an unknown outcome."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from tests.suites.journal_faults import UncertainLog, WatchedLog
from tests.suites.journal_setting import JournalSetting, actions_of, numbers, read, replicate

from headrace.errors import (
    AppendIdReused,
    HeadraceError,
    OperationFailed,
    TimedOut,
    UnreadableRecord,
    VoidAppend,
    WrongSeqNr,
)
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Batch, Event, TopicPartition
from headrace.protocol.actions import Append
from headrace.store import Store
from headrace.testing.conformance.log_on_top import LogOnTop, ReadCall

__all__ = ["AppendIds"]


class AppendIds(JournalSetting):
    """The tests of `append(append_id=…)` beyond plain retries."""

    async def test_one_append_id_for_two_journals(self, log: Log, store: Store, topic: str) -> None:
        """FJ1: the same append id for two journals at once is two appends; each journal has its own events."""
        watched = WatchedLog(log)
        journal = Journal(watched, store, topic, cache=None)
        positions = []

        async def other_journal_first() -> None:
            watched.before_append = None
            positions.append(await journal.append("b", [Event(1, "of b")], append_id="x"))

        watched.before_append = other_journal_first
        positions.append(await journal.append("a", [Event(1, "of a")], append_id="x"))
        assert len(set(positions)) == 2
        for _ in range(2):
            assert [event.payload for event in await read(journal, "a")] == ["of a"]
            assert [event.payload for event in await read(journal, "b")] == ["of b"]
            await replicate(log, store, topic)

    @pytest.mark.parametrize("made_it", [True, False], ids=["it made it", "it did not"])
    async def test_an_id_with_an_unknown_outcome_is_kept_for_its_events(
        self, log: Log, store: Store, topic: str, made_it: bool
    ) -> None:
        """FJ1: after a time-out the id of another journal is another one; other events of this journal are refused."""
        uncertain = UncertainLog(log)
        journal = Journal(uncertain, store, topic, cache=None)
        uncertain.outcomes = [made_it]
        with pytest.raises(TimedOut):
            await journal.append("a", [Event(1, "of a")], append_id="x")
        await journal.append("b", [Event(1, "of b")], append_id="x")
        with pytest.raises(AppendIdReused):
            await journal.append("a", [Event(1, "other")], append_id="x")
        await journal.append("a", [Event(1, "of a")], append_id="x")
        assert [event.payload for event in await read(journal, "a")] == ["of a"]
        assert [event.payload for event in await read(journal, "b")] == ["of b"]

    async def test_an_id_whose_append_was_cancelled_is_kept_for_its_events(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """FJ1: the same after a cancellation, which can come when the record is on its way."""
        watched = WatchedLog(log)
        journal = Journal(watched, store, topic, cache=None)
        is_writing = asyncio.Event()

        async def wait_for_ever() -> None:
            is_writing.set()
            await asyncio.Event().wait()

        watched.before_append = wait_for_ever
        task = asyncio.create_task(journal.append("a", [Event(1, "of a")], append_id="x"))
        await asyncio.wait_for(is_writing.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        watched.before_append = None
        await journal.append("b", [Event(1, "of b")], append_id="x")
        with pytest.raises(AppendIdReused):
            await journal.append("a", [Event(1, "other")], append_id="x")
        await journal.append("a", [Event(1, "of a")], append_id="x")
        assert [event.payload for event in await read(journal, "a")] == ["of a"]
        assert [event.payload for event in await read(journal, "b")] == ["of b"]

    async def test_an_append_that_is_repeated_while_it_runs_is_one(self, log: Log, store: Store, topic: str) -> None:
        """FJ1: two calls at once with the same id and events write them once, and both get their place."""
        journal = Journal(log, store, topic, cache=None)
        calls = [journal.append("k", [Event(1, {"b": 1, "a": 2})], append_id="x") for _ in range(3)]
        calls.append(journal.append("k", [Event(1, {"a": 2, "b": 1})], append_id="x"))
        assert len(set(await asyncio.gather(*calls))) == 1
        assert await numbers(journal, "k") == [1]

    async def test_other_events_are_refused_while_the_first_are_on_their_way(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """FJ1: of two calls at once with one id and different events, the second is refused and writes nothing."""
        journal = Journal(log, store, topic, cache=None)
        outcomes = await asyncio.gather(
            journal.append("k", [Event(1, "first")], append_id="x"),
            journal.append("k", [Event(1, "second")], append_id="x"),
            return_exceptions=True,
        )
        assert [isinstance(outcome, AppendIdReused) for outcome in outcomes] == [False, True], outcomes
        assert [event.payload for event in await read(journal, "k")] == ["first"]
        assert len(await actions_of(log, topic, Append)) == 1

    async def test_an_id_is_remembered_after_success(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """FJ1: the same call again gives the same place and writes nothing, also after a purge; another is refused."""
        first = await journal.append("k", [Event(1, "x", ("t",))], append_id="x")
        assert await journal.append("k", [Event(1, "x", ("t",))], append_id="x") == first
        await journal.purge("k")
        assert await journal.append("k", [Event(1, "x", ("t",))], append_id="x") == first
        for events in ([Event(2, "x", ("t",))], [Event(1, "x")], [Event(1, b"x", ("t",))]):
            with pytest.raises(AppendIdReused) as refused:
                await journal.append("k", events, append_id="x")
            assert (refused.value.key, refused.value.append_id) == ("k", "x")
        for _ in range(2):
            assert await numbers(journal, "k") == []
            await replicate(log, store, topic)
        assert len(await actions_of(log, topic, Append)) == 1

    async def test_metadata_of_an_append_with_an_id_may_have_any_keys(
        self, log: Log, topic: str, journal: Journal
    ) -> None:
        """Keys that JSON writes as text are taken as without an id, and tell appends apart."""
        given = {2: {uuid.UUID(int=1): 1}, 1: None}
        for _ in range(2):
            await journal.append("k", [Event(1, {1: "x"})], append_id="x", metadata=given, payload_metadata=given)
        with pytest.raises(AppendIdReused):
            await journal.append("k", [Event(1, {1: "x"})], append_id="x", metadata=given, payload_metadata={2: 1})
        (event,) = await read(journal, "k")
        assert event.metadata == event.payload_metadata == {"2": {str(uuid.UUID(int=1)): 1}, "1": None}
        assert len(await actions_of(log, topic, Append)) == 1

    async def test_another_journal_does_not_know_an_append_id_and_doubles_nothing(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """J28: the same call elsewhere: success while the log tells, then the numbers are taken; a purge makes room."""
        first = await Journal(log, store, topic, cache=None).append("k", [Event(1, "x")], append_id="x")
        other = Journal(log, store, topic, cache=None)
        assert await other.append("k", [Event(1, "x")], append_id="x") == first
        await replicate(log, store, topic)
        other = Journal(log, store, topic, cache=None)
        with pytest.raises(VoidAppend, match="its first seq_nr 1 is not above"):
            await other.append("k", [Event(1, "x")], append_id="x")
        with pytest.raises(WrongSeqNr):
            await other.append("k", [Event(1, "x")], append_id="x", expected=0)
        assert await numbers(other, "k") == [1]
        prepared = await other.prepare("k")
        await other.purge("k")
        with pytest.raises(VoidAppend, match="purge"):
            await other.append("k", [Event(1, "x")], attempt=prepared)
        await other.append("k", [Event(1, "x")], append_id="x")
        assert await numbers(other, "k") == [1]

    async def test_an_attempt_that_has_landed_is_no_other_appends_success(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """FJ1: a prepared attempt used for other events answers for those events, from any process."""
        journal = Journal(log, store, topic, cache=None)
        attempt = await journal.prepare("k")
        await journal.append("k", [Event(1, "first")], attempt=attempt)
        other = Journal(log, store, topic, cache=None)
        with pytest.raises(AppendIdReused):
            await other.append("k", [Event(1, "second")], attempt=attempt)
        landed = await other.append("k", [Event(2, "third")], attempt=attempt)
        found = await read(journal, "k")
        assert [(event.seq_nr, event.payload) for event in found] == [(1, "first"), (2, "third")]
        assert landed.offset == found[1].offset

    @pytest.mark.parametrize("family", ["unavailable", "refused"])
    async def test_an_append_that_can_not_be_checked_has_an_unknown_outcome(
        self, log: Log, store: Store, topic: str, family: str
    ) -> None:
        """Whatever keeps the log from being read again: the record is in it, and a repetition finds that out."""
        reading = FailingReads(log)
        journal = Journal(reading, store, topic, cache=None)
        await journal.append("k", [Event(1)])
        unreadable = UnreadableRecord(topic, 0, 0, "headers")
        reading.error = unreadable if family == "refused" else TimedOut("reading", 1.0)
        with pytest.raises(OperationFailed) as unknown:
            await journal.append("k", [Event(2)], expected=1, append_id="x")
        assert not unknown.value.outcome_known
        reading.error = None
        landed = await journal.append("k", [Event(2)], expected=1, append_id="x")
        assert [event.offset for event in await read(journal, "k")][1:] == [landed.offset]

    async def test_a_retry_whose_past_has_left_the_log_says_that_nobody_knows(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """FJ1: what was before the first try is replicated and gone from the log: the outcome is said to be unknown."""
        uncertain = UncertainLog(log)
        journal = Journal(uncertain, store, topic, cache=None)
        uncertain.outcomes = [True]
        with pytest.raises(TimedOut):
            await journal.append("k", [Event(1, "x")], append_id="x")
        await replicate(log, store, topic)
        end = (await log.bounds(TopicPartition(topic, 0))).end
        await log.retention.truncate(TopicPartition(topic, 0), before=end)
        with pytest.raises(OperationFailed, match="have left the log") as unknown:
            await journal.append("k", [Event(1, "x")], append_id="x")
        assert not unknown.value.outcome_known
        for _ in range(2):
            assert await numbers(journal, "k") == [1]
            await replicate(log, store, topic)


class FailingReads(LogOnTop):
    """Its reads raise `error`, if there is one."""

    error: HeadraceError | None = None

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        if self.error is not None:
            raise self.error
        async for batch in super().batches(reading):
            yield batch
