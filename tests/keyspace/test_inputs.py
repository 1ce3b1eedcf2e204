"""Records of topics as input, and what handlers send to other keys: each counts once, and none is lost."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio
from tests.keyspace.setting import Place, Served, serving

import headrace
from headrace.errors import NotEncodable, StateConflict, TransactionFailed
from headrace.keyspace import App, Context, InputStream, Keyspace, State, StreamContext, consumes, handles, state
from headrace.keyspace.partition import KeyspacePartition
from headrace.log import Log
from headrace.model import NewRecord, Record, TopicConfig, TopicPartition
from headrace.runtime import Backoff
from headrace.testing.conformance.log_setting import eventually, read_all

RUNS: collections.Counter[str] = collections.Counter()


@dataclass
class Count:
    id: str
    more: int = 1


@dataclass
class Forward:
    id: str


@dataclass
class ForwardAll:
    to: str


@dataclass
class Kick:
    id: str
    is_wrong: bool = False


class Totals(Keyspace, partitions=2, store="memory"):
    sums: State[str, int] = state()

    @handles
    async def count(self, message: Count) -> int:
        total = (await self.sums.get(message.id) or 0) + message.more
        await self.sums.put(message.id, total)
        return total


class Senders(Keyspace, partitions=2, store="memory"):
    done: State[str, int] = state()

    @handles
    async def forward(self, message: Forward, context: Context) -> int:
        return int(await context.ask(Totals, Count("asked")))

    @handles(scatter=True)
    async def forward_all(self, message: ForwardAll, context: Context) -> int:
        return int(await context.ask(Totals, Count(message.to)))

    @handles
    async def kick(self, message: Kick, context: Context) -> int:
        times = (await self.done.get(message.id) or 0) + 1
        await self.done.put(message.id, times)
        context.tell(Totals, Count("told", cast("int", "one") if message.is_wrong else 1))
        return times


class Readers(Keyspace, partitions=1, store="memory"):
    sums: State[str, int] = state()

    @consumes("amounts")
    async def amount(self, record: Record, context: Context) -> None:
        await context.ask(Totals, Count("read"))
        context.tell(Totals, Count("told"))
        await self.sums.update("all", lambda before: (before or 0) + int(record.value or b"0"))


class OtherReaders(Keyspace, partitions=1, store="memory"):
    seen: State[str, int] = state()

    @consumes("amounts")
    async def amount(self, record: Record, context: Context) -> None:
        await context.ask(Totals, Count("read"))


class LateReaders(Keyspace, partitions=1, store="memory"):
    sums: State[str, int] = state()

    @consumes("amounts", start="latest")
    async def amount(self, record: Record) -> None:
        await self.sums.update("all", lambda before: (before or 0) + int(record.value or b"0"))


class SkippingReaders(Keyspace, partitions=1, store="memory"):
    sums: State[str, int] = state()

    @consumes("amounts", on_error="skip")
    async def amount(self, record: Record) -> None:
        RUNS[(record.key or b"").decode()] += 1
        if record.value == b"conflict":
            raise StateConflict("elsewhere", "a key")
        await self.sums.update("all", lambda before: (before or 0) + int(record.value or b"0"))


DYING: set[str] = set()
CURES: set[str] = set()


async def _die(record: Record) -> None:
    """Do what ends the owner: nothing comes back from here until the test has stopped the node."""
    RUNS[(record.key or b"").decode()] += 1
    if record.value == b"fatal" and "fatal" not in CURES:
        DYING.add("fatal")
        await asyncio.Event().wait()
    if record.value == b"panic" and "panic" not in CURES:
        raise PanicError


class PanicError(BaseException):
    """What extensions in Rust raise when they panic is no Exception."""


class FatalReaders(Keyspace, partitions=1, store="memory"):
    sums: State[str, int] = state()

    @consumes("amounts", on_error="dead-letter")
    async def amount(self, record: Record) -> None:
        await _die(record)
        await self.sums.update("all", lambda before: (before or 0) + int(record.value or b"0"))


class PatientReaders(Keyspace, partitions=1, store="memory"):
    sums: State[str, int] = state()

    @consumes("amounts")
    async def amount(self, record: Record) -> None:
        await _die(record)
        await self.sums.update("all", lambda before: (before or 0) + 1)


async def first_stream(record: Record, context: StreamContext) -> None:
    await context.ask(Totals, Count("streamed"))


async def second_stream(record: Record, context: StreamContext) -> None:
    await context.ask(Totals, Count("streamed"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))


@pytest_asyncio.fixture
async def log(place: Place) -> AsyncIterator[Log]:
    async with headrace.connect(settings=place.settings("writer")) as hr:
        await hr.log.admin.create("amounts", partitions=1, config=TopicConfig())
        yield hr.log


async def write(log: Log, *values: bytes, key: bytes = b"k", topic: str = "amounts", partition: int = 0) -> None:
    await log.append([NewRecord(topic, key, value, partition=partition) for value in values])


async def reaches(served: Served, key: str, wanted: int, kind: type[Keyspace], name: str = "sums") -> None:
    client = served.headrace.keyspace(kind)

    async def has() -> bool:
        return bool(await client.get(name, key) == wanted)

    await eventually(has)


def owned_partition(served: Served) -> KeyspacePartition:
    host = served.node._hosting.host(*served.node._hosting.owned()[0])
    assert isinstance(host, KeyspacePartition)
    return host


async def test_asks_of_requests_with_one_id_are_told_apart(place: Place, log: Log) -> None:
    """A message's id is that of its key: handlers of other keys, keyspaces, partitions and streams ask on their own."""
    parts = App(Senders, Readers, OtherReaders, Totals, streams=[_stream(first_stream), _stream(second_stream)])
    async with headrace.connect(settings=place.settings("a")) as hr, hr.node(parts) as node:
        served = Served(hr, node, hr.keyspace(Senders))
        for key in ("x", "y", "x"):
            await served.client.ask(Forward(key), message_id="1")
        await served.client.scatter(ForwardAll("scattered"))
        await write(log, b"1")
        for key, wanted in (("asked", 2), ("scattered", 2), ("read", 2), ("streamed", 2)):
            await reaches(served, key, wanted, Totals)


def _stream(function: Any) -> InputStream:
    return InputStream("amounts", function)


async def test_what_is_told_elsewhere_leaves_once(place: Place, log: Log) -> None:
    """Handlers tell keyspaces that this process has never asked; their callers and records are answered once."""
    async with serving(place, "b", Totals) as others, serving(place, "a", Senders, Readers) as served:
        assert await served.client.ask(Kick("x")) == 1
        await write(log, b"1", b"1", b"1")
        await reaches(served, "all", 3, Readers)
        await reaches(others, "told", 4, Totals)


async def test_a_tell_that_can_not_be_sent_fails_nothing_that_is_committed(
    place: Place, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost, as a tell may be; what its handler did is done, once, and the caller hears so."""
    async with serving(place, "a", Senders, Readers, Totals) as served:
        monkeypatch.setattr(served.node._hosting.router, "_max_tells", 0)
        assert await served.client.ask(Kick("x")) == 1
        await write(log, b"1", b"1", b"1")
        await reaches(served, "all", 3, Readers)
        await write(log, b"1")
        await reaches(served, "all", 4, Readers)


async def test_a_message_that_can_not_be_told_fails_its_handler(place: Place) -> None:
    """What is wrong with it is known before the commit: nothing is written."""
    async with serving(place, "a", Senders, Totals) as served:
        with pytest.raises(NotEncodable):
            await served.client.ask(Kick("x", is_wrong=True))
        assert await served.client.get("done", "x") is None


async def test_an_input_that_begins_at_the_end_goes_on_from_there(place: Place, log: Log) -> None:
    """Records that come while nobody owns the partition are handled by the next owner."""
    await write(log, b"1000")
    async with serving(place, "a", LateReaders) as served:

        async def has_begun() -> bool:
            return owned_partition(served).states.replica("inputs").key_count == 1

        await eventually(has_begun)
    await write(log, b"1")
    async with serving(place, "a", LateReaders) as served:
        await reaches(served, "all", 1, LateReaders)


async def test_records_that_were_removed_before_they_were_read_do_not_stop_an_input(
    place: Place, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody owned the partition for longer than the topic keeps records: it is told once, and the rest is handled."""
    await write(log, b"1")
    async with serving(place, "a", Readers, Totals) as served:
        await reaches(served, "all", 1, Readers)
    await write(log, b"10", b"20")
    await log.retention.truncate(TopicPartition("amounts", 0), before=3)
    async with serving(place, "a", Readers, Totals) as served:

        async def is_told() -> bool:
            return "records were removed before they were read" in caplog.text

        await eventually(is_told)
        await write(log, b"100")
        await reaches(served, "all", 101, Readers)
    caplog.clear()
    async with serving(place, "a", Readers, Totals) as served:
        await write(log, b"1000")
        await reaches(served, "all", 1101, Readers)
    assert "were removed" not in caplog.text


async def test_an_input_that_ends_before_its_place_is_not_read_until_it_is_made_again(
    place: Place, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic was restored from an old copy: what is written at offsets that were read must not be skipped."""
    await write(log, b"1", b"1")
    async with serving(place, "a", Readers, Totals) as served:
        await reaches(served, "all", 2, Readers)
        replica = owned_partition(served).states.replica("inputs")
        entry = replica.entry(replica.keys.encode("amounts"))
    assert entry is not None
    topic_id, _, owners = msgspec.msgpack.decode(entry.value)
    ahead = msgspec.msgpack.encode((topic_id, 7, owners))
    await log.append([NewRecord(replica.spec.topic, b"amounts", ahead, partition=0)])
    await write(log, b"10")
    async with serving(place, "a", Readers, Totals) as served:

        async def is_told() -> bool:
            return "offsets 3 to 6 of amounts[0] were read and are gone from the log" in caplog.text

        await eventually(is_told)
        await log.admin.delete("amounts")
        await log.admin.create("amounts", partitions=1, config=TopicConfig())
        await write(log, b"100")
        await reaches(served, "all", 102, Readers)


async def test_a_record_whose_handler_never_returns_fails(
    place: Place, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: its handler is ended, and the record tried again or passed; those behind it, and calls of its key, go on."""
    monkeypatch.setattr("headrace.keyspace.calls._INPUT_S", 0.05)
    CURES.clear()
    await write(log, b"fatal", b"7", key=b"k")
    async with serving(place, "a", FatalReaders) as served:
        await reaches(served, "all", 7, FatalReaders)
    (letter,) = await read_all(log, "amounts.dead-letters")
    assert letter.value == b"fatal"
    assert b"handling record" in (dict(letter.headers)["headrace.error"] or b"")


async def test_a_record_is_not_skipped_because_its_commit_failed(place: Place, log: Log) -> None:
    """Only what its handler raises counts as an attempt."""
    async with serving(place, "a", SkippingReaders) as served:
        host = owned_partition(served)
        commit, failures = host._commit, 0

        async def failing(*arguments: Any) -> None:
            nonlocal failures
            failures += 1
            if failures <= 3:
                raise TransactionFailed("id", "the log is away")
            await commit(*arguments)

        host._commit = failing  # type: ignore[method-assign]
        await write(log, b"5")
        await reaches(served, "all", 5, SkippingReaders)


async def test_a_conflict_that_a_handler_raises_is_an_error_like_any_other(place: Place, log: Log) -> None:
    """The record is tried three times and passed, and the next one is handled."""
    async with serving(place, "a", SkippingReaders) as served:
        await write(log, b"conflict", key=b"poison")
        await write(log, b"7")
        await reaches(served, "all", 7, SkippingReaders)
        assert RUNS["poison"] <= 6  # with those behind it, and alone


async def _is_dying() -> bool:
    return bool(DYING)


async def _owners_that_die(host: KeyspacePartition, count: int) -> None:
    """Let so many owners come to the record that ends them, each followed by another one."""
    for _ in range(count):
        await eventually(_is_dying, every_s=0.005)
        await host.lost()
        DYING.clear()
        await host.owns(1)


async def test_a_record_that_ends_its_process_is_a_dead_letter_after_three_owners(place: Place, log: Log) -> None:
    """N37: owners that get no further are counted in the log; records are tried alone, and the one at fault is passed.

    The first two owners find out which one it is: what came before it is committed by the second.
    """
    CURES.clear()
    DYING.clear()
    await write(log, b"1", b"fatal", b"2")
    async with serving(place, "a", FatalReaders) as served:
        await _owners_that_die(owned_partition(served), 2 + 3)
        await reaches(served, "all", 3, FatalReaders)
    (letter,) = await read_all(log, "amounts.dead-letters")
    assert letter.value == b"fatal"
    assert b"ended 3 times" in (dict(letter.headers)["headrace.error"] or b"")


async def test_a_record_that_must_not_be_passed_waits_before_it_ends_another_process(
    place: Place, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """N37: it is tried by three owners, then with long pauses; new code that can handle it goes on."""
    CURES.clear()
    DYING.clear()
    RUNS.clear()
    await write(log, b"fatal", key=b"fatal")
    async with serving(place, "a", PatientReaders) as served:
        host = owned_partition(served)
        await _owners_that_die(host, 3)
        await eventually(lambda: _is_logged(caplog, "waits before a record that ends its process"))
        assert RUNS["fatal"] == 3
        CURES.add("fatal")
        monkeypatch.setattr("headrace.keyspace.inputs._SUSPECT_PAUSE", Backoff(first_s=0.01))
        await host.lost()
        await host.owns(1)
        await reaches(served, "all", 1, PatientReaders)


async def _is_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_a_record_that_fails_at_many_owners_ends_no_process(
    place: Place, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """A panic in an extension fails its record like any error, and every owner tries it again at once."""
    CURES.clear()
    RUNS.clear()
    await write(log, b"panic", key=b"panic")
    async with serving(place, "a", PatientReaders) as served:
        host = owned_partition(served)
        for owner in range(1, 6):
            await eventually(lambda owner=owner: _has_run("panic", 2 * owner), every_s=0.01)  # type: ignore[misc]
            await host.lost()
            RUNS["panic"] = 2 * owner
            await host.owns(1)
        CURES.add("panic")
        await reaches(served, "all", 1, PatientReaders)
    assert "ends its process" not in caplog.text


async def _has_run(key: str, times: int) -> bool:
    return RUNS[key] >= times


async def test_a_slow_record_of_one_partition_loses_none_of_another(place: Place, log: Log) -> None:
    """What comes for other partitions while a stream is at work is handled afterwards."""
    handled, gate = list[bytes | None](), asyncio.Event()

    async def slow(record: Record, context: StreamContext) -> None:
        if record.value == b"slow":
            await gate.wait()
        handled.append(record.value)

    await log.admin.create("wide", partitions=2, config=TopicConfig())
    app = App(Totals, streams=[InputStream("wide", slow)])
    async with headrace.connect(settings=place.settings("a")) as hr, hr.node(app):
        await write(log, b"slow", topic="wide")
        for number in range(3):
            await asyncio.sleep(0.1)
            await write(log, b"%d" % number, topic="wide", partition=1)
        await asyncio.sleep(0.2)
        gate.set()
        await write(log, b"last", topic="wide", partition=1)

        async def has_all() -> bool:
            return len(handled) == 5

        await eventually(has_all)
        assert sorted(filter(None, handled)) == [b"0", b"1", b"2", b"last", b"slow"]
