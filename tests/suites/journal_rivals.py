"""Concurrent writers, unknown outcomes, readers without permission, and records that land in the middle of a read."""

from __future__ import annotations

import asyncio

import pytest
from tests.suites.journal_faults import StoreOnTop, UncertainLog, WatchedLog, WatchedReader
from tests.suites.journal_setting import (
    JournalSetting,
    actions_of,
    numbers,
    read,
    records_of,
    replicate,
)

from headrace.errors import (
    BadArgument,
    JournalHeld,
    ReadAgain,
    ReadOnlyHandle,
    RecordTooLarge,
    Refused,
    TimedOut,
    VoidAppend,
    WrongSeqNr,
)
from headrace.journal import UNCHECKED, HeadCache, Journal
from headrace.log import Log
from headrace.model import Event, NewRecord, TopicPartition
from headrace.protocol.actions import Append
from headrace.store import Store

__all__ = ["Rivals"]


class Rivals(JournalSetting):
    """The tests of what others do meanwhile."""

    async def test_a_wrong_expectation_is_refused_with_both_numbers(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """J26: and nothing of it is visible to anyone, ever."""
        await journal.append("k", [Event(1), Event(2)])
        for expected, first in ((0, 3), (1, 3), (5, 6)):
            with pytest.raises(WrongSeqNr) as refused:
                await journal.append("k", [Event(first, "never")], expected=expected)
            assert (refused.value.expected, refused.value.actual) == (expected, 2)
        with pytest.raises(WrongSeqNr):
            await journal.append("new", [Event(3)], expected=2)
        for _ in range(2):
            assert await numbers(journal, "k") == [1, 2]
            assert await journal.pointer("new") is None
            await replicate(log, store, topic)
        await journal.append("k", [Event(3)], expected=2)
        await journal.append("new", [Event(1)], expected=0)
        for _ in range(2):
            assert await numbers(journal, "k") == [1, 2, 3]
            assert await numbers(journal, "new") == [1]
            await replicate(log, store, topic)

    async def test_next_numbers_are_given_once(self, log: Log, store: Store, topic: str) -> None:
        """Writers at once that ask for the next number: every payload is there once, each writer's in its order."""
        journals = [Journal(log, store, topic, cache=None) for _ in range(3)]

        async def write(writer: int) -> list[int]:
            given = [await journals[writer].append_next("k", [(writer, n, "a"), (writer, n, "b")]) for n in range(4)]
            return [event.seq_nr for events in given for event in events]

        written = await asyncio.gather(*map(write, range(3)))
        found = await read(journals[0], "k")
        assert [event.seq_nr for event in found] == list(range(1, 25))
        for writer, given in enumerate(written):
            mine = [(event.seq_nr, event.payload) for event in found if event.payload[0] == writer]
            assert mine == [(seq_nr, [writer, n // 2, "ab"[n % 2]]) for n, seq_nr in enumerate(given)]

    @pytest.mark.parametrize("is_gone", [False, True], ids=["never there", "purged"])
    async def test_of_two_creators_that_expect_the_pointer_one_wins(
        self, log: Log, store: Store, topic: str, is_gone: bool
    ) -> None:
        """FJ2: pointer() of a missing journal is None, and expected=None means that there must be no journal."""
        journals = [Journal(log, store, topic, cache=None) for _ in range(2)]
        if is_gone:
            await journals[0].append("k", [Event(1, "old")])
            await journals[0].purge("k")
        pointers = [await journal.pointer("k") for journal in journals]
        assert pointers == [None, None]
        outcomes = await asyncio.gather(
            *(
                journal.append("k", [Event((pointer or 0) + 1, n)], expected=pointer)
                for n, (journal, pointer) in enumerate(zip(journals, pointers, strict=True))
            ),
            return_exceptions=True,
        )
        lost = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert [type(outcome) for outcome in lost] == [WrongSeqNr], outcomes
        assert (lost[0].expected, lost[0].actual) == (0, 1)  # type: ignore[attr-defined]
        attempt = await journals[0].prepare("k")
        for append_id, prepared in ((None, None), ("a", None), (None, attempt)):
            with pytest.raises(WrongSeqNr):
                await journals[0].append("k", [Event(2)], expected=None, append_id=append_id, attempt=prepared)
        for _ in range(2):
            assert len(await read(journals[1], "k")) == 1
            await replicate(log, store, topic)
        await journals[1].append("k", [Event(2)], expected=UNCHECKED)
        assert await journals[0].pointer("k") == 2

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    async def test_of_two_writers_with_one_expectation_one_wins(
        self, log: Log, store: Store, topic: str, is_cached: bool
    ) -> None:
        """J26: exactly one succeeds, and both get the true outcome, also while replication runs."""
        caches = [HeadCache(log, store.reader) if is_cached else None for _ in range(2)]
        journals = [Journal(log, store, topic, cache=cache) for cache in caches]
        winners = []
        for n in range(1, 21):
            outcomes = await asyncio.gather(
                *(journal.append("k", [Event(n, w)], expected=n - 1) for w, journal in enumerate(journals)),
                *([replicate(log, store, topic)] if n % 3 == 0 else []),
                return_exceptions=True,
            )
            won = [w for w, outcome in enumerate(outcomes[:2]) if not isinstance(outcome, BaseException)]
            lost = [outcome for outcome in outcomes[:2] if isinstance(outcome, WrongSeqNr)]
            assert (len(won), len(lost)) == (1, 1), outcomes
            winners += won
        for _ in range(2):
            assert [event.payload for event in await read(journals[0], "k")] == winners
            await replicate(log, store, topic)
        for cache in caches:
            if cache is not None:
                await cache.close()

    async def test_bad_input_is_refused_before_anything_is_written(
        self, log: Log, journal: Journal, topic: str
    ) -> None:
        """J27: with the limit and the offender in the message."""
        for events, offender in (
            ([], "at least one event"),
            ([Event(0)], "seq_nr is 0"),
            ([Event(-3)], "seq_nr is -3"),
            ([Event(2), Event(2)], "above 2"),
            ([Event(2), Event(1)], "seq_nr is 1"),
            ([Event(1, object())], "event 1"),
            ([Event(1, None, "vip")], "vip"),  # type: ignore[arg-type]
        ):
            with pytest.raises(BadArgument, match=offender):
                await journal.append("k", events)
        with pytest.raises(BadArgument, match="id"):
            await journal.append("", [Event(1)])
        with pytest.raises(BadArgument, match="id"):
            await read(journal, "")
        with pytest.raises(RecordTooLarge) as refused:
            await journal.append("k", [Event(1, bytes(2_000_000))])
        assert refused.value.size_bytes > refused.value.limit_bytes > 1_000_000
        assert str(refused.value.limit_bytes) in str(refused.value)
        assert await records_of(log, topic) == []
        assert await journal.pointer("k") is None
        await journal.append("k", [Event(1)])
        assert await numbers(journal, "k") == [1]

    @pytest.mark.parametrize("made_it", [True, False], ids=["it made it", "it did not"])
    @pytest.mark.parametrize("is_replicated", [True, False], ids=["replicated", "not replicated"])
    async def test_a_retry_writes_once(
        self, log: Log, store: Store, topic: str, made_it: bool, is_replicated: bool
    ) -> None:
        """J28: an unknown outcome says so; the retry makes no duplicate and answers success."""
        uncertain = UncertainLog(log)
        journal = Journal(uncertain, store, topic, cache=None)
        await journal.append("k", [Event(1)])
        uncertain.outcomes = [made_it]
        with pytest.raises(TimedOut) as unknown:
            await journal.append("k", [Event(2, "x")], append_id="a")
        assert not unknown.value.outcome_known
        if is_replicated:
            await replicate(log, store, topic)
        await journal.append("k", [Event(2, "x")], append_id="a")
        for _ in range(2):
            assert [(e.seq_nr, e.payload) for e in await read(journal, "k")] == [(1, None), (2, "x")]
            await replicate(log, store, topic)

    @pytest.mark.parametrize("made_it", [True, False], ids=["it made it", "it did not"])
    @pytest.mark.parametrize("is_replicated", [True, False], ids=["replicated", "not replicated"])
    @pytest.mark.parametrize("is_cached", [True, False], ids=["cache", "no cache"])
    async def test_a_retry_does_not_undo_a_purge(
        self, log: Log, store: Store, topic: str, made_it: bool, is_replicated: bool, is_cached: bool
    ) -> None:
        """J28: a purge in between stays; the answer says whether the first attempt had made it."""
        uncertain = UncertainLog(log)
        cache = HeadCache(log, store.reader) if is_cached else None
        journal = Journal(uncertain, store, topic, cache=cache)
        uncertain.outcomes = [made_it]
        with pytest.raises(TimedOut):
            await journal.append("k", [Event(1, "x")], append_id="a", expected=0)
        await journal.purge("k")
        if is_replicated:
            await replicate(log, store, topic)
        if made_it:
            await journal.append("k", [Event(1, "x")], append_id="a", expected=0)
        else:
            with pytest.raises(VoidAppend):
                await journal.append("k", [Event(1, "x")], append_id="a", expected=0)
        for _ in range(2):
            assert await journal.pointer("k") is None
            await replicate(log, store, topic)
        await journal.append("k", [Event(1, "y")])
        assert [event.payload for event in await read(journal, "k")] == ["y"]
        if cache is not None:
            await cache.close()

    @pytest.mark.parametrize("made_it", [True, False], ids=["it made it", "it did not"])
    @pytest.mark.parametrize("is_replicated", [True, False], ids=["replicated", "not replicated"])
    @pytest.mark.parametrize("is_purged", [True, False], ids=["purged", "not purged"])
    async def test_an_attempt_is_finished_by_another_process(
        self, log: Log, store: Store, topic: str, made_it: bool, is_replicated: bool, is_purged: bool
    ) -> None:
        """J28: a journal that has the attempt, but not seen the first try, makes no duplicate and undoes no purge."""
        uncertain = UncertainLog(log)
        journal = Journal(uncertain, store, topic, cache=None)
        await journal.append("k", [Event(1)])
        attempt = await journal.prepare("k")
        uncertain.outcomes = [made_it]
        with pytest.raises(TimedOut):
            await journal.append("k", [Event(2, "x")], attempt=attempt)
        if is_purged:
            await journal.purge("k")
        if is_replicated:
            await replicate(log, store, topic)
        cache = HeadCache(log, store.reader)
        other = Journal(log, store, topic, cache=cache)
        if is_purged and not made_it:
            with pytest.raises(VoidAppend):
                await other.append("k", [Event(2, "x")], attempt=attempt)
        else:
            tries = [await other.append("k", [Event(2, "x")], attempt=attempt) for _ in range(2)]
            assert tries[0] == tries[1]
        for _ in range(2):
            assert await numbers(other, "k") == ([] if is_purged else [1, 2])
            await replicate(log, store, topic)
        await cache.close()

    async def test_an_attempt_is_for_one_append_of_one_journal(self, journal: Journal) -> None:
        """J27: another journal's, a made-up one, and one beside an append id are refused with the reason."""
        attempt = await journal.prepare("k")
        for id_, given, append_id, rule in (
            ("other", attempt, None, "it was prepared for 'k'"),
            ("k", "made up", None, "what prepare"),
            ("k", attempt, "a", "one of the two"),
        ):
            with pytest.raises(BadArgument, match=rule):
                await journal.append(id_, [Event(1)], attempt=given, append_id=append_id)
        assert await journal.pointer("k") is None

    async def test_an_append_tried_again_and_again_is_one(self, log: Log, store: Store, topic: str) -> None:
        """J28: several unknown outcomes, some of which made it."""
        uncertain = UncertainLog(log)
        journal = Journal(uncertain, store, topic, cache=None)
        uncertain.outcomes = [False, True, True]
        for _ in range(3):
            with pytest.raises(TimedOut):
                await journal.append("k", [Event(1, "x")], append_id="a", expected=0)
        await journal.append("k", [Event(1, "x")], append_id="a", expected=0)
        assert await numbers(journal, "k") == [1]
        assert len(await actions_of(log, topic, Append)) == 3

    async def test_a_reader_needs_no_permission_to_write(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """J29: it writes no mark, sees everything, and refuses to write."""
        await journal.append("k", [Event(1), Event(2)])
        reader = Journal(log, store, topic, cache=None, read_only=True)
        written = len(await records_of(log, topic))
        for _ in range(2):
            assert await numbers(reader, "k") == [1, 2]
            assert await reader.pointer("none") is None
            await replicate(log, store, topic)
        assert len(await records_of(log, topic)) == written
        await journal.snapshots.save("k", 1, "kept")
        for writing in (
            reader.append("k", [Event(3)]),
            reader.delete("k", to=1),
            reader.purge("k"),
            reader.mark("k", "x"),
            reader.snapshots.save("k", 2, "state"),
            reader.snapshots.delete("k"),
        ):
            with pytest.raises(ReadOnlyHandle, match="open it without read_only"):
                await writing
        assert [saved.seq_nr if (saved := await reader.snapshots.load("k")) else None] == [1]

    @pytest.mark.parametrize("ends", ["commit", "abort"])
    @pytest.mark.parametrize("is_reader", [True, False], ids=["read-only", "with a mark"])
    async def test_reads_while_a_transaction_is_open(
        self, log: Log, store: Store, journal: Journal, topic: str, ends: str, is_reader: bool
    ) -> None:
        """J29: the read waits for its end, and sees what was committed, and nothing that was aborted."""
        await journal.append("k", [Event(1)])
        (record,) = await records_of(log, topic)
        producer = await log.transactional(f"tx-{topic}")
        await producer.begin()
        second = NewRecord(topic, b"k", b'{"events":[{"seqNr":2}]}', _renumbered(record.headers), partition=0)
        await producer.append([second])
        asked = Journal(log, store, topic, cache=None, read_only=is_reader)
        reading = asyncio.create_task(numbers(asked, "k"))
        await asyncio.sleep(0.2)
        await (producer.commit() if ends == "commit" else producer.abort())
        async with asyncio.timeout(30):
            found = await reading
        assert found in ([1], [1, 2]) if ends == "commit" else found == [1]
        assert await numbers(asked, "k") == ([1, 2] if ends == "commit" else [1])
        await producer.close()

    async def test_a_void_append_is_invisible_counted_and_shown(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """J31: the instance that wrote the higher number refuses it at once; that of another instance is void."""
        await journal.append("k", [Event(1), Event(2)])
        with pytest.raises(WrongSeqNr):
            await journal.append("k", [Event(2, "low")])
        other = Journal(log, store, topic, cache=None)
        await other.append("k", [Event(2, "void"), Event(3, "void")])
        for _ in range(2):
            assert [(e.seq_nr, e.payload) for e in await read(journal, "k")] == [(1, None), (2, None)]
            assert await journal.pointer("k") == 2
            await replicate(log, store, topic)
        moments = [moment async for moment in journal.history("k")]
        assert [moment.effect for moment in moments] == ["appended", "void"]
        assert "not above" in moments[1].reason

    async def test_a_journal_purged_by_another_can_be_written_again(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """J31: what an instance remembers is forgotten once it has seen that the journal is gone."""
        await journal.append("k", [Event(1), Event(2)])
        await Journal(log, store, topic, cache=None).purge("k")
        assert await journal.pointer("k") is None
        await journal.append("k", [Event(1, "new")])
        assert [event.payload for event in await read(journal, "k")] == ["new"]

    @pytest.mark.parametrize("is_begun_before", [True, False], ids=["begun before", "begun after"])
    @pytest.mark.parametrize("is_replicated", [True, False], ids=["replicated", "not replicated"])
    @pytest.mark.parametrize("is_cached", [True, False], ids=["cache", "no cache"])
    async def test_a_delete_leaves_a_journal_alone_that_it_has_not_seen(
        self, log: Log, store: Store, topic: str, is_begun_before: bool, is_replicated: bool, is_cached: bool
    ) -> None:
        """FJ8: a purge and a new beginning while a delete is on its way: the new events are there, all of them."""
        watched = WatchedLog(log)
        cache = HeadCache(watched, store.reader) if is_cached else None
        journal, rival = Journal(watched, store, topic, cache=cache), Journal(log, store, topic, cache=None)
        await rival.append("k", [Event(n, "old") for n in range(1, 6)])
        if is_replicated:
            await replicate(log, store, topic)

        async def before_the_delete() -> None:
            if len(watched.appended) == 1:  # the mark of its read
                await rival.purge("k")
                if is_begun_before:
                    await rival.append("k", [Event(1, "new"), Event(2, "new")])

        watched.before_append = before_the_delete
        assert await journal.delete("k", to=3) is not None
        if not is_begun_before:
            await rival.append("k", [Event(1, "new"), Event(2, "new")])
        for _ in range(2):
            assert [(event.seq_nr, event.payload) for event in await read(journal, "k")] == [(1, "new"), (2, "new")]
            assert await journal.pointer("k") == 2
            await replicate(log, store, topic)
        moments = [moment async for moment in journal.history("k")]
        (deleted,) = [moment for moment in moments if moment.what.startswith("delete")]
        assert (deleted.effect, "purged" in deleted.reason) == ("void", True)
        await journal.delete("k", to=1)
        for _ in range(2):
            assert await numbers(journal, "k") == [2]
            await replicate(log, store, topic)
        if cache is not None:
            await cache.close()

    async def test_a_delete_of_others_names_no_incarnation(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """FJ8: the deletes of JVM services, which have no such header, count as they did."""
        await journal.append("k", [Event(1, "old"), Event(2, "old")])
        await journal.purge("k")
        await journal.append("k", [Event(1), Event(2), Event(3)])
        await log.append([NewRecord(topic, b"k", None, (("journal.action", b'{"delete":{"to":2}}'),), partition=0)])
        await log.append([NewRecord(topic, b"new", None, (("journal.action", b'{"delete":{"to":2}}'),), partition=0)])
        for _ in range(2):
            assert await numbers(journal, "k") == [3]
            assert await journal.pointer("new") == 2
            await replicate(log, store, topic)

    @pytest.mark.parametrize("what", ["delete", "purge", "purge and append", "nothing"])
    @pytest.mark.parametrize("page", [1, 2, 4, 5])
    async def test_what_lands_in_a_long_read(self, log: Log, store: Store, topic: str, what: str, page: int) -> None:
        """J32: a delete or purge, replicated while pages are read: a typed error, or a state the log had."""
        reader = WatchedReader(store.reader, page_size=10)
        journal = Journal(log, StoreOnTop(store, reader), topic, cache=None)
        await journal.append("k", [Event(n) for n in range(1, 51)])
        await replicate(log, store, topic)

        async def meanwhile(pages: int) -> None:
            if pages != page:
                return
            if what == "delete":
                await journal.delete("k", to=35)
            elif what != "nothing":
                await journal.purge("k")
            if what == "purge and append":
                await journal.append("k", [Event(n, "new") for n in range(1, 51)])
            await replicate(log, store, topic)

        reader.between = meanwhile
        states = {
            "delete": [list(range(1, 51)), list(range(36, 51))],
            "purge": [list(range(1, 51)), []],
            "purge and append": [list(range(1, 51))],
            "nothing": [list(range(1, 51))],
        }
        found: list[tuple[int, object]] = []
        try:
            async for event in journal.read("k"):
                found += [(event.seq_nr, event.payload)]
        except ReadAgain:
            assert what != "nothing"
            assert found, "nothing was handed out: the read starts again automatically"
        else:
            assert len({payload for _, payload in found}) <= 1, "two incarnations were mixed"
            assert [number for number, _ in found] in states[what]
        reader.between = None
        after = {"delete": list(range(36, 51)), "purge": []}
        assert await numbers(journal, "k") == after.get(what, list(range(1, 51)))

    async def test_a_held_journal_says_where(self, log: Log, store: Store, journal: Journal, topic: str) -> None:
        """Reads of a key with an undecodable record name its offset, before and after replication; other keys go on."""
        await journal.append("k", [Event(1)])
        (position,) = await log.append([NewRecord(topic, b"k", None, (("journal.action", b"{"),), partition=0)])
        await journal.append("other", [Event(1)])
        await journal.purge("k")
        for _ in range(2):
            with pytest.raises(JournalHeld) as held:
                await read(journal, "k")
            assert held.value.offset == position.offset
            assert await numbers(journal, "other") == [1]
            await replicate(log, store, topic)

    async def test_foreign_records_disturb_nobody(self, log: Log, store: Store, journal: Journal, topic: str) -> None:
        """Records without key, header or a known action, and keys that are no text, are passed over."""
        await log.append(
            [
                NewRecord(topic, None, b"x", partition=0),
                NewRecord(topic, b"k", b"x", partition=0),
                NewRecord(topic, b"k", None, (("journal.action", b'{"later":{}}'),), partition=0),
                NewRecord(topic, b"\xff\xfe", None, (("journal.action", b'{"purge":{}}'),), partition=0),
            ]
        )
        await journal.append("k", [Event(1)])
        for _ in range(2):
            assert await numbers(journal, "k") == [1]
            await replicate(log, store, topic)
        assert (await store.reader.replicated(TopicPartition(topic, 0))) is not None

    async def test_refusals_leave_nothing_behind(self, journal: Journal) -> None:
        """J26: a refused append is forgotten: nothing is kept of it."""
        await journal.append("k", [Event(1)])
        for n in range(20):
            with pytest.raises(Refused):
                await journal.append("k", [Event(2)], expected=n + 5)
            with pytest.raises(Refused):
                await journal.append("k", [Event(2)], expected=n + 5, append_id=f"a{n}")
        assert len(journal._writer._appends) == 0


def _renumbered(headers: tuple[tuple[str, bytes | None], ...]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, (value or b"").replace(b'"from":1,"to":1', b'"from":2,"to":2')) for name, value in headers)
