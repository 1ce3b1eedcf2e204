"""Group commit, leases and change watching on their own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import Closed, TimedOut, Unreachable
from headrace.sqlite import ChangeWatch, GroupCommit, Leases, connect
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


async def test_a_failed_group_is_rolled_back_and_the_next_one_works(path: Path) -> None:
    """Nothing of it is in the file, everybody in it is told, what was remembered is forgotten."""
    forgotten = []
    commits = GroupCommit(path, insert_all, forget=lambda: forgotten.append(1), committed=lambda _: None)
    await commits.submit("a")
    outcomes = await asyncio.gather(commits.submit("b"), commits.submit("a"), return_exceptions=True)
    assert any(isinstance(outcome, Unreachable) for outcome in outcomes)
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


def test_a_lease_has_one_owner_and_a_rising_epoch(tmp_path: Path) -> None:
    """Held, renewed, run out, taken over, released: the epoch grows with each new owner and never goes back."""
    db = connect(tmp_path / "leases.db")
    db.execute(SCHEMA)
    first = Leases.acquire(db, "house", "a", now_ms=0, ttl_ms=100)
    assert first is not None
    assert first.epoch == 1
    assert Leases.acquire(db, "house", "b", now_ms=50, ttl_ms=100) is None
    renewed = Leases.acquire(db, "house", "a", now_ms=60, ttl_ms=100)
    assert renewed is not None
    assert renewed.epoch == 1
    taken = Leases.acquire(db, "house", "b", now_ms=161, ttl_ms=100)
    assert taken is not None
    assert taken.epoch == 2
    assert not Leases.is_held(db, renewed, now_ms=161)
    assert not Leases.release(db, renewed)
    assert Leases.is_held(db, taken, now_ms=200)
    assert Leases.release(db, taken)
    again = Leases.acquire(db, "house", "a", now_ms=201, ttl_ms=100)
    assert again is not None
    assert again.epoch == 3
    db.close()
