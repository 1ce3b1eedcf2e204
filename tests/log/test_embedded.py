"""What only the embedded log promises: housekeeping, held-back retention, its file, its crash points."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config import EmbeddedLogSettings, LogSettings
from headrace.errors import (
    BadArgument,
    Closed,
    Fenced,
    FolderUnusable,
    IncompatibleData,
    NothingThere,
    RecordTooLarge,
    TimedOut,
    UnknownBackend,
    UnknownPartition,
    UnknownTopic,
    UnreadableRecord,
)
from headrace.log import Log, Member, open_log
from headrace.log import follower as following
from headrace.log.embedded import EmbeddedLog
from headrace.log.embedded import open_log as open_embedded
from headrace.log.embedded.append import LogCall
from headrace.log.embedded.groups import EmbeddedMember
from headrace.log.embedded.schema import MAX_OFFSET
from headrace.log.metrics import FETCHES
from headrace.model import Cleanup, NewRecord, SoundRecords, TopicConfig, TopicPartition
from headrace.sqlite import GroupCommit
from headrace.testing.clock import SettableClock
from headrace.testing.conformance.log_setting import eventually, new_topic, numbered, read_all, values
from headrace.testing.processes import running

DAY_S = 24 * 3600


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    opened = await open_log(f"embedded:{tmp_path}")
    yield opened
    await opened.close()


class Aged:
    """A log whose clock can be set."""

    def __init__(self, log: EmbeddedLog, clock: SettableClock) -> None:
        self.log = log
        self.clock = clock


@pytest.fixture
async def aged(tmp_path: Path) -> AsyncIterator[Aged]:
    clock = SettableClock(now_ms=1_800_000_000_000)
    opened = await open_embedded(f"embedded:{tmp_path / 'aged'}", LogSettings(), clock=clock)
    yield Aged(opened, clock)
    await opened.close()


async def test_retention_waits_until_the_records_are_safe_elsewhere(aged: Aged) -> None:
    """A topic that keeps until released loses nothing by age alone, and only what was released after that."""
    topic = await new_topic(aged.log, config=TopicConfig(retention_ms=1000, keep_until_released=True))
    at = TopicPartition(topic, 0)
    await aged.log.append(numbered(topic, 10))
    aged.clock.advance(DAY_S)
    await aged.log.retention.enforce()
    assert (await aged.log.bounds(at)).start == 0
    await aged.log.retention.release(at, below=4)
    await aged.log.retention.release(at, below=2)  # never goes back
    await aged.log.retention.enforce()
    assert (await aged.log.bounds(at)).start == 4
    await aged.log.retention.release(at, below=10)
    await aged.log.retention.enforce()
    assert tuple(await aged.log.bounds(at)) == (10, 10, 10)


async def test_retention_removes_only_what_is_old(aged: Aged) -> None:
    """The boundary is the retention time, to the millisecond."""
    topic = await new_topic(aged.log, config=TopicConfig(retention_ms=10_000))
    now_ms = aged.clock.now_ms()
    await aged.log.append([NewRecord(topic, b"k", timestamp_ms=now_ms - age) for age in (10_001, 10_000, 0)])
    await aged.log.retention.enforce()
    assert [record.offset for record in await read_all(aged.log, topic)] == [1, 2]


async def test_large_prefixes_and_many_victims_go_in_pieces(aged: Aged) -> None:
    """More records than one piece holds are removed all the same."""
    topic = await new_topic(aged.log, config=TopicConfig(retention_ms=1000))
    await aged.log.append([NewRecord(topic, b"k", b"v") for _ in range(5000)])
    aged.clock.advance(10)
    await aged.log.append(numbered(topic, 1))
    await aged.log.retention.enforce()
    assert tuple(await aged.log.bounds(TopicPartition(topic, 0))) == (5000, 5001, 5001)


async def test_a_tombstone_stays_for_its_retention_whatever_its_timestamp_says(aged: Aged) -> None:
    """S14: a tombstone stamped by a clock that is behind stays as long as any other, so that readers learn of it."""
    config = TopicConfig(cleanup=Cleanup.COMPACT, tombstone_retention_ms=60_000)
    topic = await new_topic(aged.log, config=config)
    old_ms = aged.clock.now_ms() - 3_600_000
    await aged.log.append([NewRecord(topic, b"k", b"1"), NewRecord(topic, b"k", None, timestamp_ms=old_ms)])
    for _ in range(2):
        await aged.log.retention.enforce()
        assert values(await read_all(aged.log, topic, start=0)) == [None]
        aged.clock.advance(59)
    aged.clock.advance(10)
    await aged.log.retention.enforce()
    assert await read_all(aged.log, topic, start=0) == []


async def test_a_record_is_compacted_when_the_log_had_it_for_the_lag(aged: Aged) -> None:
    """S14: the minimum lag counts from when the log had the record, also if its writer's clock is behind."""
    config = TopicConfig(cleanup=Cleanup.COMPACT, min_compaction_lag_ms=60_000)
    topic = await new_topic(aged.log, config=config)
    old_ms = aged.clock.now_ms() - 3_600_000
    for value in (b"1", b"2"):
        await aged.log.append([NewRecord(topic, b"k", value, timestamp_ms=old_ms)])
    await aged.log.retention.enforce()
    aged.clock.advance(59)
    await aged.log.append([NewRecord(topic, b"k", b"3", timestamp_ms=old_ms)])
    await aged.log.retention.enforce()
    assert values(await read_all(aged.log, topic, start=0)) == [b"1", b"2", b"3"]
    aged.clock.advance(2)
    await aged.log.retention.enforce()
    assert values(await read_all(aged.log, topic, start=0)) == [b"2", b"3"]
    aged.clock.reboot()
    aged.clock.advance(60)
    await aged.log.retention.enforce()
    assert values(await read_all(aged.log, topic, start=0)) == [b"3"]


async def test_housekeeping_runs_by_itself(tmp_path: Path) -> None:
    """Old records go without anybody asking, also with two clients, one of which keeps house."""
    settings = LogSettings(embedded=EmbeddedLogSettings(housekeeping_interval_s=0.05))
    first = await open_log(f"embedded:{tmp_path}", settings=settings)
    second = await open_log(f"embedded:{tmp_path}", settings=settings)
    topic = await new_topic(first, config=TopicConfig(retention_ms=1000))
    await first.append([NewRecord(topic, b"k", timestamp_ms=1)])

    async def is_clean() -> bool:
        return (await second.bounds(TopicPartition(topic, 0))).start == 1

    await eventually(is_clean, within_s=10)
    await first.close()
    await second.close()


async def test_a_topic_deleted_under_a_reader_ends_the_read(log: Log) -> None:
    """A successor of the same name holds other records; the reader is not handed those."""
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    reader = log.read(TopicPartition(topic, 0), 0)
    await anext(reader)
    waiting = asyncio.ensure_future(anext(reader))
    await log.admin.delete(topic)
    await log.admin.create(topic, partitions=1, config=TopicConfig())
    await log.append(numbered(topic, 3))
    with pytest.raises(UnknownTopic):
        await asyncio.wait_for(waiting, 10)


async def test_a_slow_reader_gets_nothing_of_a_topic_that_was_made_anew(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is far behind the others reads the old topic's records or an error, never those of the next one."""
    monkeypatch.setattr(following, "_MOST_RECORDS", 100)
    topic = await new_topic(log)
    at = TopicPartition(topic, 0)
    await log.append([NewRecord(topic, b"k", b"old", partition=0)] * 500)
    slow, fast = log.read(at, 0, max_records=10), log.read(at, 0, max_records=10)
    await anext(slow)
    while (await anext(fast)).next_offset < 500:
        pass
    await log.admin.delete(topic)
    await log.admin.create(topic, partitions=1, config=TopicConfig())
    await log.append([NewRecord(topic, b"k", b"new", partition=0)] * 500)
    seen: list[bytes | None] = []
    with contextlib.suppress(UnknownTopic):
        async for batch in slow:
            seen += values(batch.records)
    assert set(seen) <= {b"old"}


async def test_a_closed_log_says_so(tmp_path: Path) -> None:
    """Waiting readers and later calls get Closed, and closing twice is fine."""
    log = await open_log(f"embedded:{tmp_path}")
    topic = await new_topic(log)
    waiting = asyncio.ensure_future(anext(log.read(TopicPartition(topic, 0), 0)))
    await asyncio.sleep(0.05)
    await log.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await log.append(numbered(topic, 1))
    with pytest.raises(Closed):
        await anext(log.read(TopicPartition(topic, 0), 0))
    await log.close()


async def test_unreadable_folders_are_named(tmp_path: Path) -> None:
    """Garbage, another program's file, a newer format, a file in the way, no folder at all."""
    garbage, foreign, newer = tmp_path / "garbage", tmp_path / "foreign", tmp_path / "newer"
    for folder in (garbage, foreign, newer):
        folder.mkdir()
    (garbage / "log.db").write_bytes(b"not a database, surely" * 100)
    for folder, statement in ((foreign, "CREATE TABLE theirs (x)"), (newer, "PRAGMA user_version = 99")):
        db = sqlite3.connect(folder / "log.db")
        db.execute(statement)
        db.commit()
        db.close()
    for folder, found in ((garbage, "unreadable"), (foreign, "of another program"), (newer, "99")):
        with pytest.raises(IncompatibleData, match=found) as refused:
            await open_log(f"embedded:{folder}")
        assert str(folder) in str(refused.value)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderUnusable, match="file can't be created: File exists"):
        await open_log(f"embedded:{tmp_path / 'file'}")
    with pytest.raises(BadArgument, match="needs a folder"):
        await open_log("embedded:")
    with pytest.raises(UnknownBackend, match=r"'carrier-pigeon://x'.*embedded:"):
        await open_log("carrier-pigeon://x")


WRITER = """
import asyncio, sys
from headrace.log import open_log, transaction
from headrace.model import NewRecord

async def main():
    log = await open_log(sys.argv[1])
    producer = await log.transactional("id")
    n = 0
    while True:
        await log.append([NewRecord("plain", b"k", b"%d" % n)])
        print("plain", n, flush=True)
        async with transaction(producer) as opened:
            await opened.append(NewRecord("left", b"k", b"%d" % n), NewRecord("right", b"k", b"%d" % n))
        print("both", n, flush=True)
        n += 1

asyncio.run(main())
"""


@pytest.mark.parametrize("nth", [1, 2, 7])
@pytest.mark.parametrize(
    "point", ["sqlite.before-commit", "sqlite.after-commit", "log.embedded.before-tails", "log.embedded.in-transaction"]
)
async def test_dying_at_any_step_loses_nothing_that_was_acknowledged(
    log: Log, tmp_path: Path, point: str, nth: int
) -> None:
    """Killed at each step of a commit: what was acknowledged is there, transactions are whole, writing goes on."""
    for topic in ("plain", "left", "right"):
        await log.admin.create(topic, partitions=1, config=TopicConfig())
    with running("-c", WRITER, f"embedded:{tmp_path}", environ={"HEADRACE_CRASH_AT": f"{point}:{nth}"}) as child:
        assert await asyncio.to_thread(child.wait, 30) == -9
        told = [line.split() for line in child.stdout.splitlines()]
    plain, left, right = [values(await read_all(log, topic)) for topic in ("plain", "left", "right")]
    assert left == right
    for name, found in (("plain", plain), ("both", left)):
        acknowledged = [n.encode() for kind, n in told if kind == name]
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) - len(acknowledged) in (0, 1)
    assert (await log.append([NewRecord("plain", b"k", b"on")]))[0].offset == len(plain)


def test_importing_the_log_imports_no_driver() -> None:
    """Kafka's driver, SQLAlchemy, Spark and the like are loaded by their own backends only."""
    drivers = {"confluent_kafka", "psutil", "jgo", "pyspark", "cassandra"}
    code = f"import sys, headrace, headrace.log, headrace.model; print(sorted({drivers} & set(sys.modules)))"
    with running("-c", code) as child:
        assert child.wait(20) == 0
        assert child.stdout == "[]\n"
    assert sys.modules["headrace"]


def damage(folder: Path, offset: int, column: str, value: object) -> None:
    """Put something into a stored record that no append would have let in."""
    db = sqlite3.connect(folder / "log.db")
    db.execute(f"UPDATE records SET {column} = ? WHERE place & ? = ?", (value, MAX_OFFSET, offset))
    db.commit()
    db.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("headers", b"\x91\x92\xa1n\xa4text"),  # a header whose value is text
        ("headers", b"\xc1 no msgpack"),
        ("headers", "text"),
        ("key", "text"),
        ("value", 7),
        ("timestamp_ms", 1.5),
    ],
)
async def test_a_stored_record_that_can_not_be_read_is_named_and_can_be_passed(
    log: Log, tmp_path: Path, column: str, value: object
) -> None:
    """FL3: all before it is handed out, the error names its place, and a read behind it gives the rest."""
    topic = await new_topic(log)
    at = TopicPartition(topic, 0)
    await log.append(numbered(topic, 5))
    damage(tmp_path, 2, column, value)
    reader = log.read(at, 0, 5)
    assert values((await anext(reader)).records) == [b"0", b"1"]
    with pytest.raises(UnreadableRecord, match=r"offset 2 of .*\[0\]") as unreadable:
        await anext(reader)
    assert (unreadable.value.topic, unreadable.value.partition, unreadable.value.offset) == (topic, 0, 2)
    assert values(await read_all(log, topic, start=unreadable.value.offset + 1)) == [b"3", b"4"]


async def test_a_member_goes_past_what_it_can_not_read_by_a_commit(log: Log, tmp_path: Path) -> None:
    """FL3: each poll raises until the member commits the offset behind it; the others lose nothing meanwhile."""
    topic = await new_topic(log, partitions=2)
    await log.append(numbered(topic, 3, partition=0))
    damage(tmp_path, 1, "headers", b"\xc1")
    await log.append(numbered(topic, 30, partition=1, first=10))
    member = await log.groups.join("g", [topic])
    found: list[bytes | None] = []

    async def poll_until_unreadable() -> UnreadableRecord:
        while True:
            try:
                found.extend(values(await member.poll(max_records=4)))
            except UnreadableRecord as error:
                return error

    errors = [await poll_until_unreadable() for _ in range(20)]
    assert {(error.partition, error.offset) for error in errors} == {(0, 1)}
    assert sorted(found, key=str) == sorted([b"0", *(b"%d" % n for n in range(10, 40))], key=str)
    await member.commit({TopicPartition(topic, 0): 2})
    assert values(await member.poll()) == [b"2"]
    await member.leave()


async def test_a_cancelled_poll_loses_nothing(log: Log) -> None:
    """What a poll had taken from one partition when it was cancelled comes with the next one, once."""
    topic = await new_topic(log, partitions=3)
    for partition in range(3):
        await log.append(numbered(topic, 1, partition=partition, first=partition))
    for turns in range(1, 40):
        member = await log.groups.join(f"g{turns}", [topic])
        found: list[bytes | None] = []
        polling = asyncio.ensure_future(member.poll())
        for _ in range(turns):
            await asyncio.wait([polling], timeout=0.0005)
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            found += values(await polling)
        while len(found) < 3:
            more = await member.poll(timeout_s=5)
            assert more, f"cancelled after {turns} turns, only {found} came"
            found += values(more)
        assert sorted(found, key=str) == [b"0", b"1", b"2"]
        await member.leave()


async def test_what_was_never_a_refusal_stays_with_its_caller(log: Log) -> None:
    """FJ10: a mistake inside one piece of work is raised to its caller; those who share its commit don't see it."""
    assert isinstance(log, EmbeddedLog)
    topic = await new_topic(log)

    def fail(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM topics")
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        log.append(numbered(topic, 1)),
        log._commits.submit(LogCall(fail)),
        log.append(numbered(topic, 1, first=1)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], ZeroDivisionError)
    assert values(await read_all(log, topic)) == [b"0", b"1"]


HOUR_MS = 3_600_000


async def joined(log: Log, topic: str) -> Member:
    """Join the group and poll once, as a member with a session of ten seconds."""
    member = await log.groups.join("g", [topic], session_timeout_s=10)
    await member.poll(timeout_s=0)
    return member


async def test_a_dead_member_is_replaced_though_the_wall_clock_was_put_back(aged: Aged) -> None:
    """FJ10: sessions run by the time since boot, which nobody sets."""
    topic = await new_topic(aged.log)
    dead = await joined(aged.log, topic)
    assert isinstance(dead, EmbeddedMember)
    await dead.stop()
    aged.clock.set(aged.clock.now_ms() - HOUR_MS)
    aged.clock.advance(10.1)
    heir = await joined(aged.log, topic)
    assert heir.assignment == {TopicPartition(topic, 0)}
    await heir.leave()


async def test_a_living_member_stays_though_the_wall_clock_was_put_forward(aged: Aged) -> None:
    """FJ10: an hour that did not pass ends no session."""
    topic = await new_topic(aged.log)
    living = await joined(aged.log, topic)
    aged.clock.set(aged.clock.now_ms() + HOUR_MS)
    other = await joined(aged.log, topic)
    assert (len(living.assignment), len(other.assignment)) == (1, 0)
    await living.commit({TopicPartition(topic, 0): 0})
    await other.leave()
    await living.leave()


async def test_members_from_before_a_restart_of_the_machine_are_dead(aged: Aged) -> None:
    """FJ10: the time since boot begins again, so the old session's end lies far ahead; it counts for nothing."""
    topic = await new_topic(aged.log)
    aged.clock.advance(DAY_S)
    dead = await joined(aged.log, topic)
    assert isinstance(dead, EmbeddedMember)
    await dead.stop()
    aged.clock.reboot()
    heir = await joined(aged.log, topic)
    assert heir.assignment == {TopicPartition(topic, 0)}
    await heir.leave()


async def test_housekeeping_goes_on_though_the_wall_clock_was_put_back(tmp_path: Path) -> None:
    """FJ10: the lease of a housekeeper that is gone runs out by the time since boot."""
    clock = SettableClock(now_ms=1_800_000_000_000)
    settings = LogSettings(embedded=EmbeddedLogSettings(housekeeping_interval_s=0.02))
    first = await open_embedded(f"embedded:{tmp_path}", settings, clock=clock)
    topic = await new_topic(first, config=TopicConfig(retention_ms=1000))
    await first.append([NewRecord(topic, b"k", timestamp_ms=1)])

    async def starts_at(log: Log, offset: int) -> bool:
        return (await log.bounds(TopicPartition(topic, 0))).start == offset

    await eventually(lambda: starts_at(first, 1), within_s=10)
    await first.close()
    clock.set(clock.now_ms() - HOUR_MS)
    clock.advance(0.05)
    second = await open_embedded(f"embedded:{tmp_path}", settings, clock=clock)
    await second.append([NewRecord(topic, b"k", timestamp_ms=1)])
    await eventually(lambda: starts_at(second, 2), within_s=10)
    await second.close()


async def test_a_bounded_read_ends_in_time_though_others_write(log: Log) -> None:
    """FJ10: commits to other partitions wake the reader; its deadline does not begin again with them."""
    topic, busy = await new_topic(log), await new_topic(log)
    reading = asyncio.ensure_future(anext(log.read(TopicPartition(topic, 0), 0, 1, timeout_s=0.2)))
    deadline = asyncio.get_running_loop().time() + 10
    while not reading.done():
        assert asyncio.get_running_loop().time() < deadline, "the read waits for ever"
        await log.append(numbered(busy, 1))
    with pytest.raises(TimedOut, match="from 0 to 1"):
        await reading


async def test_a_file_of_the_first_version_is_upgraded(tmp_path: Path) -> None:
    """Records and offsets stay; members whose sessions ran by the wall clock are gone."""
    log = await open_log(f"embedded:{tmp_path}")
    topic = await new_topic(log)
    await log.append(numbered(topic, 3))
    await log.close()
    db = sqlite3.connect(tmp_path / "log.db")
    db.execute("DROP TABLE cleanings")
    db.execute("DROP TABLE group_members")
    db.execute(
        "CREATE TABLE group_members (group_name TEXT NOT NULL, member_id TEXT NOT NULL, topics TEXT NOT NULL,"
        " expires_ms INTEGER NOT NULL, PRIMARY KEY (group_name, member_id)) WITHOUT ROWID"
    )
    db.execute("INSERT INTO group_members VALUES ('g', 'old', ?, 9999999999999)", (f'["{topic}"]',))
    db.execute("INSERT INTO group_partitions VALUES ('g', ?, 0, 'old', 'old')", (topic,))
    db.execute("INSERT INTO group_offsets VALUES ('g', ?, 0, 1)", (topic,))
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    log = await open_log(f"embedded:{tmp_path}")
    member = await log.groups.join("g", [topic])
    assert values(await member.poll()) == [b"1", b"2"]
    await member.leave()
    await log.close()


async def test_a_closed_log_refuses_every_call(tmp_path: Path) -> None:
    """Looking at it is refused like writing to it."""
    log = await open_log(f"embedded:{tmp_path}")
    await log.close()
    for call in (log.bounds(TopicPartition("t", 0)), log.admin.topics(), log.groups.committed("g", [])):
        with pytest.raises(Closed):
            await call


async def test_a_folder_is_not_made_where_that_is_switched_off(tmp_path: Path) -> None:
    """With create_folder off an empty place is an error that names it, and stays empty."""
    settings = LogSettings.model_validate({"embedded": {"create_folder": False}})
    with pytest.raises(NothingThere, match=r"there is no log at embedded:.*log\.db does not exist"):
        await open_log(f"embedded:{tmp_path / 'data'}", settings=settings)
    assert not await asyncio.to_thread((tmp_path / "data").exists)


async def test_a_commit_wakes_only_those_who_follow_its_partition(log: Log) -> None:
    """Reading costs a thread: whoever waits at the end of another partition of the file reads nothing."""
    quiet, busy = await new_topic(log), await new_topic(log)
    seen: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def follow() -> None:
        async for batch in log.read(TopicPartition(quiet, 0), 0):
            for record in batch.records:
                seen.put_nowait(record.value)

    following_it = asyncio.create_task(follow())
    try:
        await log.append([NewRecord(quiet, None, b"first", partition=0)])
        assert await asyncio.wait_for(seen.get(), 10) == b"first"
        before = FETCHES.labels("embedded", quiet)._value.get()
        for _ in range(20):
            await log.append([NewRecord(busy, None, b"other", partition=0)])
        await log.append([NewRecord(quiet, None, b"last", partition=0)])
        assert await asyncio.wait_for(seen.get(), 10) == b"last"
        assert FETCHES.labels("embedded", quiet)._value.get() - before < 10
    finally:
        following_it.cancel()
        await asyncio.gather(following_it, return_exceptions=True)


async def test_a_follower_reads_once_for_each_commit(log: Log) -> None:
    """Reading costs a thread: whoever has read all that there is waits for the next commit, and does not look again."""
    topic = await new_topic(log)
    seen: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def follow() -> None:
        async for batch in log.read(TopicPartition(topic, 0), 0):
            for record in batch.records:
                seen.put_nowait(record.value)

    following_it = asyncio.create_task(follow())
    try:
        await log.append([NewRecord(topic, None, b"first", partition=0)])
        assert await asyncio.wait_for(seen.get(), 10) == b"first"
        before = FETCHES.labels("embedded", topic)._value.get()
        for n in range(20):
            await log.append([NewRecord(topic, None, b"%d" % n, partition=0)])
            assert await asyncio.wait_for(seen.get(), 10) == b"%d" % n
        assert FETCHES.labels("embedded", topic)._value.get() - before < 30
    finally:
        following_it.cancel()
        await asyncio.gather(following_it, return_exceptions=True)


async def test_sound_records_go_to_the_writer_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of them changes threads for its commit alone; other records are looked at when they are added."""
    topic = await new_topic(log)
    submitted: list[object] = []
    submit = GroupCommit.submit

    def spy(commits: GroupCommit[Any], work: object) -> asyncio.Future[Any]:
        if "transactions" in type(work).__module__:
            submitted.append(work)
        return submit(commits, work)

    monkeypatch.setattr(GroupCommit, "submit", spy)
    producer = await log.transactional("once")
    for records, times in (([NewRecord(topic, b"k", b"v")], 2), (SoundRecords([NewRecord(topic, b"k", b"v")]), 1)):
        submitted.clear()
        await producer.begin()
        await producer.append(records)
        await producer.commit()
        assert len(submitted) == times
    assert len(await read_all(log, topic)) == 2
    await producer.close()


async def test_sound_records_that_are_refused_at_the_commit_leave_nothing(log: Log) -> None:
    """Whoever vouched for them was wrong: nothing of the transaction is written, and the next one works."""
    topic = await new_topic(log)
    producer = await log.transactional("refused")
    for wrong, error in (
        (NewRecord("not-there", b"k", b"v"), UnknownTopic),
        (NewRecord(topic, b"k", b"v", partition=99), UnknownPartition),
        (NewRecord(topic, b"k", b"v" * 20_000_000), RecordTooLarge),
    ):
        await producer.begin()
        await producer.append(SoundRecords([NewRecord(topic, b"k", b"lost"), wrong]))
        with pytest.raises(error):
            await producer.commit()
    await producer.begin()
    await producer.append(SoundRecords([NewRecord(topic, b"k", b"kept")]))
    await producer.commit()
    assert values(await read_all(log, topic)) == [b"kept"]
    later = await log.transactional("refused")
    await producer.begin()
    await producer.append(SoundRecords([NewRecord(topic, b"k", b"fenced")]))
    with pytest.raises(Fenced):
        await producer.commit()
    assert values(await read_all(log, topic)) == [b"kept"]
    await producer.close()
    await later.close()


async def test_one_who_waits_at_the_end_of_a_partition_learns_that_its_topic_is_gone(log: Log) -> None:
    """Also if the topic is made again at once: its records are others."""
    topic = await new_topic(log)
    await log.append([NewRecord(topic, None, b"first", partition=0)])
    is_there = asyncio.Event()

    async def follow() -> None:
        async for _ in log.read(TopicPartition(topic, 0), 0):
            is_there.set()

    following_it = asyncio.create_task(follow())
    await asyncio.wait_for(is_there.wait(), 10)
    await log.admin.delete(topic)
    with pytest.raises(UnknownTopic):
        await asyncio.wait_for(following_it, 10)
