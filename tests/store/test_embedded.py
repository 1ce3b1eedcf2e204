"""What only the embedded store promises: its file, what it forgets in time, its crash points."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.config import EmbeddedStoreSettings, StoreSettings
from headrace.errors import BadArgument, FolderUnusable, IncompatibleData, NothingThere, UnknownBackend
from headrace.model import TopicPartition
from headrace.store import Place, RowDeletion, open_store
from headrace.store.embedded import EmbeddedStore
from headrace.store.embedded import open_store as open_embedded
from headrace.testing.clock import SettableClock
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.conformance.store_setting import event, head, read_rows, seq_nrs, snapshot
from headrace.testing.processes import running

DAY_S = 24 * 3600


class Aged:
    """A store whose clock can be set."""

    def __init__(self, store: EmbeddedStore, clock: SettableClock, path: Path) -> None:
        self.store = store
        self.clock = clock
        self.path = path

    def count(self, table: str) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest.fixture
async def aged(tmp_path: Path) -> AsyncIterator[Aged]:
    clock = SettableClock(now_ms=1_800_000_000_000)
    opened = await open_embedded(f"embedded:{tmp_path}", StoreSettings(), clock=clock)
    yield Aged(opened, clock, tmp_path / "store.db")
    await opened.close()


async def test_deletions_are_forgotten_after_the_time_of_grace_and_not_before(aged: Aged) -> None:
    """Until then a late writer loses; after it the file holds nothing of them."""
    writer = aged.store.writer
    await writer.delete_rows("t", "id", [RowDeletion(0, None)], at=Place(0, 5))
    await writer.delete_snapshots("t", "id", at=Place(0, 5))
    aged.clock.advance(9 * DAY_S)
    await aged.store.housekeeping.clean()
    await writer.write_rows("t", "id", [event(1)])
    await aged.store.snapshots.save("t", "id", snapshot(0, 3))
    assert await read_rows(aged.store, "t", "id") == []
    assert await aged.store.snapshots.load("t", "id") == []
    aged.clock.advance(2 * DAY_S)
    await aged.store.housekeeping.clean()
    assert [aged.count(table) for table in ("event_deletions", "snapshot_deletions", "journals")] == [0, 0, 0]
    await writer.write_rows("t", "id", [event(1)])
    assert seq_nrs(await read_rows(aged.store, "t", "id")) == [1]


async def test_a_purge_marker_is_kept_for_its_time_and_the_time_of_grace(aged: Aged) -> None:
    """Seen for 30 days, a guard for 10 more, then gone with its journal's number."""
    marker = head("t", "id", 5, is_purged=True)
    await aged.store.writer.write_meta(marker)
    aged.clock.advance(29 * DAY_S)
    assert await aged.store.reader.meta("t", "id") == marker
    aged.clock.advance(10 * DAY_S)
    await aged.store.housekeeping.clean()
    await aged.store.writer.write_meta(head("t", "id", 4))
    assert await aged.store.reader.meta("t", "id") is None
    aged.clock.advance(2 * DAY_S)
    await aged.store.housekeeping.clean()
    assert (aged.count("heads"), aged.count("journals")) == (0, 0)


async def test_housekeeping_leaves_journals_in_use(aged: Aged) -> None:
    """Whatever refers to a journal keeps its number."""
    await aged.store.writer.write_rows("t", "rows", [event(1)])
    await aged.store.writer.write_meta(head("t", "meta", 1))
    await aged.store.snapshots.save("t", "snapshot", snapshot(0, 1))
    aged.clock.advance(400 * DAY_S)
    await aged.store.housekeeping.clean()
    assert aged.count("journals") == 3
    assert seq_nrs(await read_rows(aged.store, "t", "rows")) == [1]
    assert await aged.store.reader.meta("t", "meta") is not None
    assert len(await aged.store.snapshots.load("t", "snapshot")) == 1


async def test_housekeeping_runs_by_itself_beside_a_writer(tmp_path: Path) -> None:
    """Two clients, one of which keeps house; a journal whose number goes meanwhile is written all the same."""
    settings = StoreSettings(gc_grace_s=0.1, embedded=EmbeddedStoreSettings(housekeeping_interval_s=0.05))
    first = await open_store(f"embedded:{tmp_path}", settings=settings)
    second = await open_store(f"embedded:{tmp_path}", settings=settings)
    await first.writer.delete_rows("t", "id", [RowDeletion(0, None)], at=Place(0, 5))

    async def is_clean() -> bool:
        with closing(sqlite3.connect(tmp_path / "store.db")) as db:
            return db.execute("SELECT count(*) FROM journals").fetchone() == (0,)

    await eventually(is_clean, within_s=10)
    for store in (first, second):
        await store.writer.write_rows("t", "id", [event(1)])
        assert seq_nrs(await read_rows(store, "t", "id")) == [1]
    await first.close()
    await second.close()


async def test_housekeeping_goes_on_though_the_wall_clock_was_put_back(tmp_path: Path) -> None:
    """FJ10: the lease of a client that is gone runs out by the time since boot, also in a file of version 0.1."""
    clock = SettableClock(now_ms=1_800_000_000_000)
    settings = StoreSettings(gc_grace_s=0.01, embedded=EmbeddedStoreSettings(housekeeping_interval_s=0.02))
    path = tmp_path / "store.db"

    async def is_clean() -> bool:
        with closing(sqlite3.connect(path)) as db:
            return db.execute("SELECT count(*) FROM journals").fetchone() == (0,)

    for put_back_ms, is_old_file in ((0, False), (3_600_000, False), (0, True)):
        clock.set(clock.now_ms() - put_back_ms)
        clock.advance(0.05)
        if is_old_file:
            with closing(sqlite3.connect(path)) as db:
                db.execute("ALTER TABLE leases DROP COLUMN boot_id")
        store = await open_embedded(f"embedded:{tmp_path}", settings, clock=clock)
        await store.writer.delete_rows("t", "id", [RowDeletion(0, None)], at=Place(0, 5))
        clock.set(clock.now_ms() + 1000)  # what was deleted is past its time of grace
        await eventually(is_clean, within_s=10)
        await store.close()


async def test_deletions_that_others_cover_are_not_kept(aged: Aged) -> None:
    """A journal that is deleted from every day has one deletion, not one a day."""
    for day in range(1, 50):
        await aged.store.writer.delete_rows("t", "id", [RowDeletion(0, day)], at=Place(0, day))
    await aged.store.writer.delete_rows("t", "id", [RowDeletion(0, 3)], at=Place(0, 4))
    assert aged.count("event_deletions") == 1


async def test_unreadable_folders_are_named(tmp_path: Path) -> None:
    """Garbage, another program's file, a newer format, a file in the way, no folder at all."""
    garbage, foreign, newer = tmp_path / "garbage", tmp_path / "foreign", tmp_path / "newer"
    for folder in (garbage, foreign, newer):
        folder.mkdir()
    (garbage / "store.db").write_bytes(b"not a database, surely" * 100)
    for folder, statement in ((foreign, "CREATE TABLE theirs (x)"), (newer, "PRAGMA user_version = 99")):
        with closing(sqlite3.connect(folder / "store.db")) as db:
            db.execute(statement)
            db.commit()
    for folder, found in ((garbage, "unreadable"), (foreign, "of another program"), (newer, "99")):
        with pytest.raises(IncompatibleData, match=found) as refused:
            await open_store(f"embedded:{folder}")
        assert str(folder) in str(refused.value)
    (tmp_path / "file").write_text("x")
    looking = StoreSettings.model_validate({"embedded": {"create_folder": False}})
    with pytest.raises(NothingThere, match=r"there is no store at embedded:.*store\.db does not exist"):
        await open_store(f"embedded:{tmp_path / 'none'}", settings=looking)
    assert not (tmp_path / "none").exists()
    with pytest.raises(FolderUnusable, match="file can't be created: File exists"):
        await open_store(f"embedded:{tmp_path / 'file'}")
    with pytest.raises(BadArgument, match="needs a folder"):
        await open_store("embedded:")
    with pytest.raises(UnknownBackend, match=r"'carrier-pigeon://x'.*cassandra:, embedded:"):
        await open_store("carrier-pigeon://x")


async def test_two_processes_may_open_a_new_folder_at_once(tmp_path: Path) -> None:
    """The tables are made once."""
    stores = await asyncio.gather(*(open_store(f"embedded:{tmp_path}") for _ in range(5)))
    await stores[0].writer.write_rows("t", "id", [event(1)])
    assert [seq_nrs(await read_rows(store, "t", "id")) for store in stores] == [[1]] * 5
    for store in stores:
        await store.close()


WRITER = """
import asyncio, sys
from headrace.store import open_store
from headrace.testing.conformance.store_setting import event, head, replicated

async def main():
    store = await open_store(sys.argv[1])
    n = 0
    while True:
        n += 1
        await store.writer.write_rows("t", "id", [event(n)])
        await store.writer.write_meta(head("t", "id", n, seq_nr=n))
        await store.writer.move_replicated(replicated("t", n))
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", ["sqlite.before-commit", "sqlite.after-commit", "store.embedded.before-replicated"])
async def test_dying_at_any_step_loses_nothing_that_was_acknowledged(tmp_path: Path, point: str, nth: int) -> None:
    """E5 at the port: rows are never behind the head, nor the head behind the replicated offset."""
    address = f"embedded:{tmp_path}"
    with running("-c", WRITER, address, environ={"HEADRACE_CRASH_AT": f"{point}:{nth}"}) as child:
        assert await asyncio.to_thread(child.wait, 30) == -9
        acknowledged = len(child.stdout.splitlines())
    store = await open_store(address)
    rows = await read_rows(store, "t", "id")
    meta = await store.reader.meta("t", "id")
    moved = await store.reader.replicated(TopicPartition("t", 0))
    reached = (len(rows), meta.seq_nr if meta else 0, moved.offset if moved else 0)
    assert reached[0] >= reached[1] >= reached[2] >= acknowledged >= reached[0] - 1
    await store.writer.write_rows("t", "id", [event(len(rows) + 1)])
    await store.close()
