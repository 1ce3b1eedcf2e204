"""The blocking twins do what the asynchronous calls do."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest
from tests.engine.models import Deposit as BankDeposit
from tests.engine.models import bank_engine
from tests.keyspace.accounts import Accounts, Customer, Deposit

import headrace.sync
from headrace.engine import Failed
from headrace.errors import BadArgument, Closed, IncompatibleSchema, JournalPurged, WrongSeqNr
from headrace.journal import JOURNAL_TOPIC
from headrace.model import Event, NewRecord, TopicConfig, TopicPartition
from headrace.runtime import LoopThread
from headrace.serde import schema_of


def test_a_script_can_use_a_journal(tmp_path: Path) -> None:
    """Append, read, pointer, delete, purge, mark, snapshots, without a line of asyncio."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        hr.log.create("accounts", partitions=2, config=JOURNAL_TOPIC)
        accounts = hr.journal("accounts")
        accounts.append("a", [Event(1, {"opened": 100}), Event(2, "text")], headers={"h": "v"})
        assert [event.payload for event in accounts.read("a")] == [{"opened": 100}, "text"]
        with pytest.raises(WrongSeqNr):
            accounts.append("a", [Event(3)], expected=7)
        accounts.snapshots.save("a", 2, {"balance": 100}, timestamp_ms=1)
        snapshot = accounts.snapshots.load("a")
        assert snapshot is not None
        assert snapshot.payload == {"balance": 100}
        assert accounts.snapshots.delete("a") == 1
        accounts.mark("a", "m")
        accounts.delete("a", to=1)
        assert [event.seq_nr for event in accounts.read("a", 1)] == [2]
        assert accounts.pointer("a") == 2
        assert [event.seq_nr for event in accounts.read("a", to_seq_nr=1)] == []
        assert [moment.effect for moment in accounts.history("a")][-1] == "deleted"
        assert sum(partition.end for partition in accounts.stats()) > 0
        assert [event.seq_nr for event in accounts.append_next("a", ["x", "y"], tags=("t",))] == [3, 4]
        accounts.purge("a")
        assert accounts.pointer("a") is None
        assert list(accounts.ids()) == []


def test_the_log_can_be_used_from_threads(tmp_path: Path) -> None:
    """Several threads share one connection."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        hr.log.create("t", partitions=1, config=TopicConfig())
        threads = [
            threading.Thread(target=lambda n=n: hr.log.append([NewRecord("t", b"k", b"%d" % n)])) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        at = TopicPartition("t", 0)
        assert hr.log.bounds(at).end == 8
        found = [record.value for batch in hr.log.read(at, 0, 8) for record in batch.records]
        assert sorted(found) == [b"%d" % n for n in range(8)]


def test_a_read_that_is_not_finished_is_closed(tmp_path: Path) -> None:
    """Leaving a loop early lets go of the reader, and the connection can be closed."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        hr.log.create("t", partitions=1, config=TopicConfig())
        hr.log.append([NewRecord("t", b"k", b"v")])
        for batch in hr.log.read(TopicPartition("t", 0), 0):
            assert batch.records
            break
    with pytest.raises(Closed):
        hr.log.bounds(TopicPartition("t", 0))


def test_schemas_are_registered_and_found(tmp_path: Path) -> None:
    """V5: the registry is there for blocking code, too, and refuses what would break somebody."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        assert hr.registry.subjects() == []
        first = hr.registry.register("t-value", schema_of(int))
        assert hr.registry.subjects() == ["t-value"]
        assert hr.registry.schema(first.schema_id) == schema_of(int)
        assert [version.version for version in hr.registry.versions("t-value")] == [1]
        with pytest.raises(IncompatibleSchema):
            hr.registry.register("t-value", schema_of(str))


class Closing:
    """An asynchronous iterator that says when it was closed, and by which thread."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            self.closed.set()


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    opened = LoopThread()
    yield opened
    opened.close()


def test_a_half_read_iterator_found_in_the_loops_own_thread_does_not_stop_it(loop_thread: LoopThread) -> None:
    """FJ9: the collector runs in any thread, the loop's too; there nothing may wait for the loop."""
    closing = Closing()
    cycle: list[object] = [loop_thread.iterate(closing.numbers())]
    cycle.append(cycle)
    assert next(cast("Iterator[int]", cycle[0])) == 0
    gc.disable()
    try:
        del cycle

        async def collect() -> int:
            return gc.collect()

        collected = threading.Thread(target=loop_thread.run, args=(collect(),), daemon=True)
        collected.start()
        collected.join(10)
        assert not collected.is_alive(), "the loop waits for itself"
    finally:
        gc.enable()
    assert closing.closed.wait(10)


def test_an_iterator_that_is_dropped_or_closed_lets_go_of_what_it_reads(loop_thread: LoopThread) -> None:
    """Leaving the loop, closing it by hand, and both twice; a closed one is at its end."""
    for is_closed_by_hand in (False, True):
        closing = Closing()
        numbers = loop_thread.iterate(closing.numbers())
        for number in numbers:
            if number == 3:
                break
        if is_closed_by_hand:
            numbers.close()
            assert closing.closed.is_set()
            numbers.close()
            assert list(numbers) == []
        del numbers
        assert closing.closed.wait(10)


def test_closing_waits_for_iterators_that_were_dropped() -> None:
    """Nothing that was half read is left behind when the loop ends."""
    for _ in range(20):
        loop, closing = LoopThread(), Closing()
        next(loop.iterate(closing.numbers()))
        loop.close()
        assert closing.closed.is_set()


def test_closing_ends_the_background_tasks_that_are_left(capfd: pytest.CaptureFixture[str]) -> None:
    """A task that runs on in the loop is cancelled and awaited; asyncio reported it as destroyed before."""
    loop, ended = LoopThread(), []

    async def run_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def start() -> None:
        started.append(asyncio.create_task(run_on()))
        await asyncio.sleep(0)

    started: list[asyncio.Task[None]] = []
    loop.run(start())
    loop.close()
    assert ended == [True]
    assert started[0].cancelled()
    started.clear()
    gc.collect()
    assert capfd.readouterr().err == ""


def test_an_iterator_may_outlive_the_connection(loop_thread: LoopThread) -> None:
    """It says that the connection is closed, and nothing is said when it is dropped."""
    loop = LoopThread()
    numbers = loop.iterate(Closing().numbers())
    assert next(numbers) == 0
    loop.close()
    with pytest.raises(Closed):
        next(numbers)


def test_a_blocking_call_from_the_loops_own_thread_is_refused(loop_thread: LoopThread) -> None:
    """It would wait for itself for ever."""

    async def nothing() -> None:
        return None

    async def call() -> None:
        loop_thread.run(nothing())

    with pytest.raises(BadArgument, match="await the asynchronous call"):
        loop_thread.run(call())


def test_an_interrupt_while_waiting_ends_the_read(loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was interrupted is closed after its wait has ended, not in the middle of it."""
    waiting, closed = threading.Event(), threading.Event()

    async def never() -> AsyncIterator[int]:
        try:
            waiting.set()
            await asyncio.sleep(3600)
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.set()

    numbers = loop_thread.iterate(never())

    def interrupted(_: Future[int]) -> int:
        waiting.wait(10)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(numbers)
    numbers.close()
    assert closed.is_set()


def test_a_script_can_send_commands_and_use_a_keyspace(tmp_path: Path) -> None:
    """A node in the script's own process, an engine and a keyspace on it, without a line of asyncio."""
    bank = bank_engine("bank")
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        with pytest.raises(BadArgument, match="go through a node"):
            hr.engine(bank)
        with hr.node(bank, Accounts) as node:
            node.online()
            account = hr.engine(bank).aggregate("acc-1")
            assert account.send(BankDeposit(10), command_id="x").version == 1
            assert account.send(BankDeposit(10), command_id="x").version == 1
            state = account.state()
            assert state is not None
            assert (state.balance, account.read().version) == (10, 1)
            assert isinstance(account.try_send(BankDeposit(1), expected_version=7), Failed)
            accounts = hr.keyspace(Accounts)
            assert accounts.ask(Deposit("a", 5)) == 5
            assert accounts.ack(Deposit("a", 5), message_id="m") == 10
            assert accounts.ask_with_token(Deposit("a", 5), message_id="m").reply == 10
            accounts.tell(Deposit("a", 0))
            assert [key for key, _ in accounts.prefix("entries", ("a",)).items][:2] == [("a", 1), ("a", 2)]
            accounts.put("customers", "b", Customer("Riga", "b@b"))
            assert accounts.get("customers", "b") == Customer("Riga", "b@b")
            assert accounts.find("customers", "city", "Riga") == [("b", Customer("Riga", "b@b"))]
            assert (accounts.count("customers"), dict(accounts.items("balances"))) == (1, {"a": 10})
            changes = accounts.changes("customers", "b")
            assert next(changes).value == Customer("Riga", "b@b")
            accounts.delete("customers", "b", expected=accounts.read("customers", "b").version)
            assert next(changes).value is None


def test_a_journal_can_be_followed(tmp_path: Path) -> None:
    """A live read blocks until the next event; a half-used one is closed with the connection."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        accounts = hr.journal("accounts")
        accounts.append("a", [Event(1)])
        half, events = accounts.read("a", live=True), accounts.read("a", live=True, to_seq_nr=3)
        assert next(half).seq_nr == next(events).seq_nr == 1
        accounts.append("a", [Event(2), Event(3), Event(4)])
        assert [event.seq_nr for event in events] == [2, 3]
        assert next(half).seq_nr == 2
        accounts.purge("a")
        with pytest.raises(JournalPurged):
            list(half)
        waiting = accounts.read("b", live=True, to_seq_nr=1)
        writing = threading.Thread(target=accounts.append, args=("b", [Event(1)]))
        writing.start()
        assert [event.seq_nr for event in waiting] == [1]
        writing.join()
        assert list(accounts.ids(unreplicated=True)) == ["b"]
        live = accounts.ids(live=True)
        assert next(live) == "b"
        accounts.append("c", [Event(1)])
        assert next(live) == "c"
