"""Group commit, leases and change watching on their own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import Closed, OperationFailed, TimedOut
from headrace.sqlite import ChangeWatch, GroupCommit, Lease, Leases, connect
from headrace.sqlite.changes import next_interval_s
from headrace.sqlite.leases import SCHEMA


def insert_all(db: sqlite3.Connection, works: Sequence[str]) -> Sequence[object]:
    db.executemany("INSERT INTO words VALUES (?)", [(word,) for word in works])
    return [word.upper() for word in works]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "words.db"
    db = connect(file)
    db.execute("CREATE TABLE words (word TEXT PRIMARY KEY)")
    db.close()
    return file


def words(path: Path) -> list[str]:
    db = connect(path)
    found = [word for (word,) in db.execute("SELECT word FROM words ORDER BY word")]
    db.close()
    return found


async def test_work_that_gathers_during_a_commit_shares_the_next_one(path: Path) -> None:
    """1000 pieces of work need far fewer commits, and each hears its own result."""
    groups: list[int] = []

    def apply(db: sqlite3.Connection, works: Sequence[str]) -> Sequence[object]:
        groups.append(len(works))
        return insert_all(db, works)

    commits = GroupCommit(path, apply, forget=lambda: None, committed=lambda _: None)
    results = await asyncio.gather(*(commits.submit(f"w{n:04}") for n in range(1000)))
    await commits.close()
    assert results == [f"W{n:04}" for n in range(1000)]
    assert sum(groups) == 1000
    assert len(groups) < 100
    assert len(words(path)) == 1000


async def test_work_that_changes_nothing_wakes_nobody(path: Path) -> None:
    """Checks go through the writer, too; whoever follows the file need not look at it after them."""
    changes: list[str] = []

    def apply(db: sqlite3.Connection, works: Sequence[str]) -> Sequence[object]:
        return insert_all(db, works) if works != ["look"] else db.execute("SELECT count(*) FROM words").fetchall()

    commits = GroupCommit(
        path, apply, forget=lambda: None, committed=lambda _: None, changed=lambda: changes.append("changed")
    )
    assert await commits.submit("look") == (0,)
    assert changes == []
    await commits.submit("a")
    assert await commits.submit("look") == (1,)
    await commits.close()
    assert changes == ["changed"]


async def test_a_failed_group_is_rolled_back_and_the_next_one_works(path: Path) -> None:
    """Nothing of it is in the file, everybody in it is told, what was remembered is forgotten."""
    forgotten = []
    commits = GroupCommit(path, insert_all, forget=lambda: forgotten.append(1), committed=lambda _: None)
    await commits.submit("a")
    outcomes = await asyncio.gather(commits.submit("b"), commits.submit("a"), return_exceptions=True)
    assert any(isinstance(outcome, OperationFailed) for outcome in outcomes)
    assert forgotten
    await commits.submit("c")
    await commits.close()
    assert "c" in words(path)


async def test_a_lock_that_is_not_given_back_is_a_time_out(path: Path) -> None:
    """Another process holds the write lock for too long: a typed error, nothing was done, later it works."""
    holder = connect(path)
    holder.execute("BEGIN IMMEDIATE")
    commits = GroupCommit(path, insert_all, forget=lambda: None, committed=lambda _: None, timeout_s=0.2)
    with pytest.raises(TimedOut, match="another process holds the write lock") as late:
        await commits.submit("a")
    assert late.value.outcome_known
    holder.execute("ROLLBACK")
    holder.close()
    assert await commits.submit("a") == "A"
    await commits.close()


async def test_a_cancelled_caller_harms_nobody(path: Path) -> None:
    """Its work is done all the same, and so is its neighbours'."""
    commits = GroupCommit(path, insert_all, forget=lambda: None, committed=lambda _: None)
    futures = [commits.submit(word) for word in ("a", "b", "c")]
    futures[1].cancel()
    assert await asyncio.gather(futures[0], futures[2]) == ["A", "C"]
    await commits.close()
    assert words(path) == ["a", "b", "c"]
    with pytest.raises(Closed):
        commits.submit("d")


async def test_a_change_made_before_the_wait_is_not_missed(path: Path) -> None:
    """Whoever looked at the file before the change is woken, however the two interleave."""
    watch, other = ChangeWatch(path), connect(path)
    for n in range(50):
        seen = watch.version
        other.execute("INSERT INTO words VALUES (?)", (str(n),))
        assert await watch.wait(since=seen, timeout_s=5)
    seen = watch.version
    await asyncio.sleep(0.01)
    assert not await watch.wait(since=watch.version, timeout_s=0.05)
    other.close()
    await watch.close()
    with pytest.raises(Closed):
        await watch.wait(since=seen)


async def test_a_commit_that_is_announced_wakes_those_who_wait_once(path: Path) -> None:
    """Nobody is woken again by the look at the file that finds the same commit; one of another process still counts."""
    watch, writer = ChangeWatch(path), connect(path)
    for n in range(20):
        waiting = asyncio.create_task(watch.wait(since=watch.version, timeout_s=10))
        await asyncio.sleep(0)  # it waits, and the file is looked at from now on
        writer.execute("INSERT INTO words VALUES (?)", (str(n),))
        watch.announce()
        assert await waiting
        seen, looks = watch.version, watch.polls
        waiting = asyncio.create_task(watch.wait(since=seen, timeout_s=10))
        while watch.polls < looks + 2:  # noqa: ASYNC110 - the file is only looked at
            await asyncio.sleep(0.001)
        assert watch.version == seen
        writer.execute("DELETE FROM words")  # not announced, as if another process had done it
        assert await waiting
    writer.close()
    await watch.close()


def acquire(db: sqlite3.Connection, owner: str, *, now_ms: int, boot_id: str = "b1") -> Lease:
    """Take the lease, which must be free."""
    lease = Leases.acquire(db, "house", owner, boot_id=boot_id, now_ms=now_ms, ttl_ms=100)
    assert lease is not None
    return lease


def test_a_lease_has_one_owner_and_a_rising_epoch(tmp_path: Path) -> None:
    """Held, renewed, run out, taken over, released: the epoch grows with each new owner and never goes back."""
    db = connect(tmp_path / "leases.db")
    db.execute(SCHEMA)
    assert acquire(db, "a", now_ms=0).epoch == 1
    assert Leases.acquire(db, "house", "b", boot_id="b1", now_ms=50, ttl_ms=100) is None
    renewed = acquire(db, "a", now_ms=60)
    assert renewed.epoch == 1
    taken = acquire(db, "b", now_ms=161)
    assert taken.epoch == 2
    assert not Leases.is_held(db, renewed, boot_id="b1", now_ms=161)
    assert not Leases.release(db, renewed)
    assert Leases.is_held(db, taken, boot_id="b1", now_ms=200)
    assert Leases.release(db, taken)
    assert acquire(db, "a", now_ms=201).epoch == 3
    db.close()


def test_a_lease_does_not_survive_its_machine(tmp_path: Path) -> None:
    """FJ10: after a restart the time begins again, below the old lease's end; it has run out all the same."""
    db = connect(tmp_path / "leases.db")
    db.execute(SCHEMA)
    before = acquire(db, "a", now_ms=1_000_000)
    assert not Leases.is_held(db, before, boot_id="b2", now_ms=5)
    assert acquire(db, "b", now_ms=5, boot_id="b2").epoch == 2
    assert acquire(db, "b", now_ms=6, boot_id="b2").epoch == 2
    db.close()


def test_leases_of_the_first_version_have_run_out(tmp_path: Path) -> None:
    """Their table gets what it lacks, and epochs go on rising."""
    db = connect(tmp_path / "leases.db")
    db.execute("CREATE TABLE leases (name TEXT PRIMARY KEY, owner TEXT, epoch INTEGER, expires_ms INTEGER)")
    db.execute("INSERT INTO leases VALUES ('house', 'a', 7, 1800000000000)")
    assert acquire(db, "b", now_ms=5).epoch == 8
    db.close()


def test_a_quiet_file_is_looked_at_less_often() -> None:
    """FJ10: every interval while it is in use, a tenth as often when nothing happened for a while."""
    assert next_interval_s(0.002, quiet_s=0.0) == 0.002
    assert next_interval_s(0.002, quiet_s=0.1) == 0.002
    assert next_interval_s(0.002, quiet_s=0.5) == pytest.approx(0.01)
    assert next_interval_s(0.002, quiet_s=3600) == pytest.approx(0.02)


async def test_waiting_for_long_costs_few_looks(tmp_path: Path) -> None:
    """FJ10: somebody who waits for a second does not wake the process a thousand times."""
    watch = ChangeWatch(tmp_path / "watched.db", interval_s=0.001)
    before = watch.polls
    assert not await watch.wait(since=watch.version, timeout_s=1.0)
    assert watch.polls - before < 400
    await watch.close()
