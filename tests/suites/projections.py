"""Projections: each event has its effect once, whatever crashes, restarts, rivals and rebuilds do."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Column, Connection, Engine, Integer, create_engine, text
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, registry
from tests.suites.tags_setting import Scene, TagSetting

from headrace.errors import (
    BadArgument,
    HandlerCommitted,
    HandlerFailed,
    OffsetAhead,
    OperationFailed,
    ProjectionChanged,
    ProjectionRebuilding,
    SlotsMoved,
    TransactionEnded,
    TransactionLost,
)
from headrace.model import Event
from headrace.observe import LineProgress
from headrace.projection import (
    Projection,
    ProjectionRunner,
    Recovery,
    catch_up_with_others,
    current_delivery,
    open_target,
    rebuild,
    replay_letters,
)
from headrace.projection.ports import Target
from headrace.projection.slots import slot_of
from headrace.projection.sql_tables import ProjectionTables
from headrace.runtime import Backoff
from headrace.tags import TaggedEvent, TagOffset
from headrace.testing.crashes import SimulatedCrash, crash_at

__all__ = ["ProjectionConformance"]

SOON = Backoff(first_s=0.01, limit_s=0.02)


class ProjectionConformance(TagSetting):
    """What a projection promises on one database; a tier gives `database`."""

    @pytest.fixture
    def database(self) -> str:
        """Return the URL of an empty database."""
        raise NotImplementedError("override the fixture `database`")

    @pytest_asyncio.fixture(loop_scope="module")
    async def table(self, database: str, scene: Scene) -> AsyncIterator[Table]:
        """Make a table that a handler fills."""
        table = Table(database, f"seen_{scene.tag.replace('-', '_')}")
        await asyncio.to_thread(table.make)
        yield table
        await asyncio.to_thread(table.engine.dispose)

    async def test_every_event_is_handled_once_in_order(self, scene: Scene, table: Table) -> None:
        """T34: what the handler wrote is what the journals hold; running again adds nothing."""
        for n in range(1, 21):
            await scene.append("a", n)
            await scene.append("b", n)
        await scene.replicate()
        projection = _projection(scene, table)
        assert await _catch_up(scene, projection) == 40
        assert await _catch_up(scene, projection) == 0
        await scene.append("a", 21)
        assert await _catch_up(scene, projection) == 1
        assert table.numbers("a") == list(range(1, 22))
        assert table.numbers("b") == list(range(1, 21))

    async def test_a_handler_that_fails_leaves_nothing_behind(self, scene: Scene, table: Table) -> None:
        """X4: the transaction of a batch that failed is gone, its offset with it; the restart handles it once."""
        for n in range(1, 8):
            await scene.append("a", n)
        failures = [3, 1]

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == 5 and failures:
                failures.pop()
                raise ConnectionError("somewhere else")

        projection = _projection(scene, table, handler=handle, batch_size=3)
        running = asyncio.ensure_future(_runner(scene, projection).run(backoff=SOON))
        await _until(lambda: table.numbers("a") == list(range(1, 8)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not failures
        assert table.numbers("a") == list(range(1, 8))

    async def test_a_crash_after_the_commit_repeats_nothing(self, scene: Scene, table: Table) -> None:
        """X4: killed right after a batch was committed: the next run goes on behind it."""
        for n in range(1, 8):
            await scene.append("a", n)
        projection = _projection(scene, table, batch_size=3)
        with pytest.raises(SimulatedCrash), crash_at("projection.handled", 2):
            await _catch_up(scene, projection)
        await _catch_up(scene, projection)
        assert table.numbers("a") == list(range(1, 8))

    async def test_workers_share_the_journals(self, scene: Scene, table: Table) -> None:
        """T34: three workers handle each event once, each journal by one; then two, then one go on with theirs."""
        pids = [f"pid{n}" for n in range(12)]
        projection = _projection(scene, table)
        for workers, seq_nr in ((3, 1), (2, 2), (1, 3)):
            for pid in pids:
                await scene.append(pid, seq_nr)
            counts = await asyncio.gather(*(_catch_up(scene, projection, n, workers) for n in range(workers)))
            assert sum(counts) == len(pids)
        assert all(table.numbers(pid) == [1, 2, 3] for pid in pids)

    async def test_a_rival_is_rolled_back(self, scene: Scene, table: Table) -> None:
        """X7: of two workers on the same slots one wins each batch; the other's work is gone."""
        for n in range(1, 31):
            await scene.append("a", n)
        projection = _projection(scene, table, batch_size=4)

        async def persist() -> None:
            while table.numbers("a") != list(range(1, 31)):
                try:
                    await _catch_up(scene, projection)
                except SlotsMoved:
                    continue

        async with asyncio.timeout(60):
            await asyncio.gather(persist(), persist())
        assert table.numbers("a") == list(range(1, 31))

    async def test_runs_to_the_end_share_the_work(self, scene: Scene, table: Table) -> None:
        """X7: two that run at once until all is handled, as from a schedule, both come to the end."""
        for n in range(1, 31):
            await scene.append("a", n)
        projection, counts = _projection(scene, table, batch_size=2), list[int]()
        runs = [
            ProjectionRunner(
                projection, scene.again().queries, open_target(projection, scene.store.settings), on_done=counts.append
            )
            for _ in range(2)
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*(catch_up_with_others(run) for run in runs))
        assert table.numbers("a") == list(range(1, 31))
        assert sum(counts) == 30

    async def test_a_rebuild_handles_everything_again(self, scene: Scene, table: Table, capsys: Any) -> None:
        """X6: the table is emptied and filled in one go, with progress; a dry run only counts; --from starts later."""
        import sys

        for n in range(1, 11):
            await scene.append("a", n)
        projection = _projection(scene, table)
        await _catch_up(scene, projection)
        target = open_target(projection, scene.store.settings)
        dry = await rebuild(projection, scene.queries, target, dry_run=True)
        assert dry.events == 10
        assert table.numbers("a") == list(range(1, 11))
        done = await rebuild(projection, scene.queries, target, progress=LineProgress(sys.stderr, every_s=0.0))
        assert done.events == 10
        assert done.events_per_s > 0
        assert table.numbers("a") == list(range(1, 11))
        assert "events" in capsys.readouterr().err
        fifth = (await scene.read())[4]
        assert (await rebuild(projection, scene.queries, target, start=fifth.tag_offset)).events == 5
        assert table.numbers("a") == [6, 7, 8, 9, 10]
        await target.close()

    async def test_slots_that_are_further_on_stay_there(self, scene: Scene, table: Table) -> None:
        """FT3: one of three workers was far ahead when the number of workers changed. A single worker takes over,
        from the slots that are furthest behind, and handles no event of the others again."""
        projection = _projection(scene, table, batch_size=5)
        pids = [id_in_slot(scene.topic, slot, slots=projection.slots) for slot in range(12)]
        for seq_nr in (1, 2, 3):
            for pid in pids:
                await scene.append(pid, seq_nr)
        assert await _catch_up(scene, projection, worker=0, workers=3) == 12
        before = await open_target(projection, scene.store.settings).load()
        with pytest.raises(SimulatedCrash), crash_at("projection.handled", 2):
            await _catch_up(scene, projection)
        between = await open_target(projection, scene.store.settings).load()
        assert all(_is_not_below(between[slot], before[slot]) for slot in before)
        await _catch_up(scene, projection)
        assert {pid: table.numbers(pid) for pid in pids} == {pid: [1, 2, 3] for pid in pids}

    async def test_a_rebuild_beside_a_worker_doubles_nothing(self, scene: Scene, table: Table) -> None:
        """FT4: a worker wants to commit a batch while a rebuild resets the table. It waits for the rebuild and is
        overtaken; the rebuild ends well, and every event has one effect."""
        for n in range(1, 13):
            await scene.append("a", n)
        loop, is_reset = asyncio.get_running_loop(), asyncio.Event()
        worked = threading.Event()

        def reset(connection: Connection) -> None:
            table.clear(connection)
            loop.call_soon_threadsafe(is_reset.set)
            worked.wait(0.5)  # as long as a worker needs to commit, unless it is kept from it

        projection = _projection(scene, table, reset=reset, batch_size=4)
        with pytest.raises(SimulatedCrash), crash_at("projection.handled"):
            await _catch_up(scene, projection)

        async def work() -> None:
            await is_reset.wait()
            try:
                await _persist(scene, projection)
            finally:
                worked.set()

        working = asyncio.ensure_future(work())
        target = open_target(projection, scene.store.settings)
        await rebuild(projection, scene.again().queries, target)
        await working
        assert table.numbers("a") == list(range(1, 13))

    async def test_an_event_that_fails_is_skipped_or_set_aside(self, scene: Scene, table: Table) -> None:
        """FT10: the events around it have one effect each, and it has none until its letter is replayed."""
        for n in range(1, 11):
            await scene.append("a", n)
        failing = {4, 5, 9}

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr in failing:
                connection.execute(text("INSERT INTO no_such_table VALUES (1)"))

        recovery = Recovery("dead-letter", retries=1, backoff=Backoff(first_s=0.0, limit_s=0.0))
        projection = _projection(scene, table, handler=handle, batch_size=6, recovery=recovery)
        await _catch_up(scene, projection)
        assert table.numbers("a") == [1, 2, 3, 6, 7, 8, 10]
        target = open_target(projection, scene.store.settings)
        letters = await target.letters.all()
        assert [(letter.id, letter.seq_nr, letter.attempts) for letter in letters] == [("a", n, 2) for n in (4, 5, 9)]
        assert all("no_such_table" in letter.error for letter in letters)
        failing.remove(5)
        done = await replay_letters(projection, scene.queries, target, letters)
        assert (done.handled, [failure.seq_nr for failure in done.failed]) == (1, [4, 9])
        assert table.numbers("a") == [1, 2, 3, 5, 6, 7, 8, 10]
        assert await target.letters.remove(letters[:1]) == 1
        assert [letter.seq_nr for letter in await target.letters.all()] == [9]
        skipping = dataclasses.replace(projection, name=f"{scene.tag}-skip", recovery=Recovery("skip"))
        await _catch_up(scene, skipping)
        assert table.numbers("a").count(4) == 0
        assert table.numbers("a").count(10) == 2
        fixed = dataclasses.replace(projection, handler=table.add)
        await rebuild(fixed, scene.queries, open_target(fixed, scene.store.settings))
        assert await target.letters.all() == []
        assert table.numbers("a") == list(range(1, 11))

    async def test_a_crash_while_an_event_is_set_aside_loses_nothing(self, scene: Scene, table: Table) -> None:
        """FT10: the letter and the offset are stored together: killed before, the event fails again; never twice."""
        for n in range(1, 4):
            await scene.append("a", n)

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == 2:
                raise ValueError("no")

        projection = _projection(scene, table, handler=handle, recovery=Recovery("dead-letter"))
        with pytest.raises(SimulatedCrash), crash_at("projection.sql.before-commit", 2):
            await _catch_up(scene, projection)  # 1 was the first commit, the letter is the second
        target = open_target(projection, scene.store.settings)
        assert await target.letters.all() == []
        await _catch_up(scene, projection)
        assert [letter.seq_nr for letter in await target.letters.all()] == [2]
        assert table.numbers("a") == [1, 3]

    async def test_a_group_is_handled_in_one_transaction(self, scene: Scene, table: Table) -> None:
        """FT10: a grouped handler gets lists; when one fails, its events are handled one by one around the bad one."""
        for n in range(1, 8):
            await scene.append("a", n)
        sizes: list[int] = []

        def handle(connection: Connection, events: list[TaggedEvent]) -> None:
            sizes.append(len(events))
            for event in events:
                table.add(connection, event)
                if event.seq_nr == 4:
                    raise ValueError("no")

        projection = _projection(scene, table, handler=handle, grouped=True, recovery=Recovery("skip"))
        await _catch_up(scene, projection)
        assert max(sizes) > 1
        assert table.numbers("a") == [1, 2, 3, 5, 6, 7]

    @pytest.mark.parametrize(
        ("ending", "then", "at"),
        [
            ("commit", "fail", 2),
            ("commit", "dead-letter", 4),
            ("rollback", "skip", 2),
            ("rollback", "fail", 4),
            ("close", "skip", 4),
            ("session", "dead-letter", 2),
            ("COMMIT", "fail", 2),
            ("COMMIT", "dead-letter", 4),
            (" -- all done\n commit work ; ", "skip", 2),
            ("/* no */ ROLLBACK", "fail", 4),
            ("Rollback", "dead-letter", 2),
        ],
    )
    async def test_a_handler_can_not_end_the_transaction(
        self, scene: Scene, table: Table, ending: str, then: Any, at: int
    ) -> None:
        """T34: the batch's offset is stored in it. A commit would pass the events that follow, and a rollback would
        lose the work before: the event whose handler tries is the one that fails, and no other."""
        for n in range(1, 5):
            await scene.append("a", n)
        ends = [True]

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == at and ends[0]:
                with suppress(TransactionEnded):  # what a handler catches is its failure all the same
                    _end(connection, ending)

        projection = _projection(scene, table, handler=handle, recovery=Recovery(then))
        if then == "fail":
            with pytest.raises(
                HandlerFailed, match=rf"event {at} .* the handler (committed|rolled back|ended by '.*') the transaction"
            ):
                await _catch_up(scene, projection)
            assert table.numbers("a") == list(range(1, at))
            ends[0] = False
        await _catch_up(scene, projection)
        passed = [] if then == "fail" else [at]
        assert table.numbers("a") == [n for n in range(1, 5) if n not in passed]
        if then == "dead-letter":
            target = open_target(projection, scene.store.settings)
            letters = await target.letters.all()
            assert [letter.seq_nr for letter in letters] == passed
            ends[0] = False
            assert (await replay_letters(projection, scene.queries, target, letters)).handled == 1
            assert table.numbers("a") == [1, 2, 3, 4]

    async def test_the_error_of_a_flush_is_the_failure(self, scene: Scene, table: Table) -> None:
        """T34: a session rolls back when its flush fails. What is told is the error, not the rollback: a deadlock there
        is a conflict, and no fault of the event."""
        await scene.append("a", 1)
        mapped = registry()

        @mapped.mapped
        class Row:
            __table__ = SqlTable("no_such_table", mapped.metadata, Column("n", Integer, primary_key=True))

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            with Session(connection) as session:
                session.add(Row(n=1))
                session.flush()

        with pytest.raises(HandlerFailed, match=r"event 1 .* no_such_table"):
            await _catch_up(scene, _projection(scene, table, handler=handle))
        assert table.numbers("a") == []

    async def test_a_handlers_savepoints_and_sessions_are_its_own(self, scene: Scene, table: Table) -> None:
        """T34: part of an event's work can be undone, and a session on the connection may commit its own part."""
        for n in range(1, 4):
            await scene.append("a", n)

        def handle(connection: Connection, event: TaggedEvent) -> None:
            with connection.begin_nested() as savepoint:
                table.add(connection, event)
                savepoint.rollback()
            with Session(connection) as session:
                table.add(session.connection(), event)
                session.commit()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                table.add(session.connection(), event)
                session.rollback()

        await _catch_up(scene, _projection(scene, table, handler=handle))
        assert table.numbers("a") == [1, 2, 3]

    @pytest.mark.parametrize("grouped", [False, True])
    async def test_a_table_that_a_handler_makes_never_ends_its_transaction(
        self, scene: Scene, table: Table, grouped: bool
    ) -> None:
        """T34: MariaDB commits at a CREATE, which is refused there: the event fails, and nothing was committed. The
        other databases create tables in transactions."""
        for n in range(1, 5):
            await scene.append("a", n)

        def handle(connection: Connection, given: Any) -> None:
            for event in given if grouped else [given]:
                table.add(connection, event)
                connection.execute(text("SELECT 1"))
                if event.seq_nr == 2:
                    connection.execute(text(f"CREATE TABLE {table.name}_extra (n INTEGER)"))

        projection = _projection(scene, table, handler=handle, grouped=grouped)
        if table.engine.dialect.name not in {"mysql", "mariadb"}:
            assert await _catch_up(scene, projection) == 4
            assert table.numbers("a") == [1, 2, 3, 4]
            return
        for _ in range(2):
            with pytest.raises(HandlerFailed, match=r"event 2 .* ended by 'CREATE TABLE .*' the transaction"):
                await _catch_up(scene, projection)
        assert table.numbers("a") == [1]

    @pytest.mark.parametrize("then", ["fail", "skip", "dead-letter"])
    @pytest.mark.parametrize("raises", [False, True])
    async def test_a_commit_past_sqlalchemy_stops_the_projection(
        self, scene: Scene, table: Table, then: Any, raises: bool
    ) -> None:
        """T34: a COMMIT through the driver's cursor stores the batch's offset without the rest of the batch. Nobody
        knows what is stored then: no worker goes on before an operator has decided."""
        for n in range(1, 5):
            await scene.append("a", n)

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == 2:
                connection.connection.cursor().execute("COMMIT")
                if raises:
                    raise ValueError("and something else")

        projection = _projection(scene, table, handler=handle, recovery=Recovery(then))
        for _ in range(2):
            with pytest.raises(HandlerCommitted, match=r"handle' of projection .* run: headrace projection rebuild"):
                await _catch_up(scene, projection)
        assert table.numbers("a") == [1, 2]
        target = open_target(projection, scene.store.settings)
        with pytest.raises(HandlerCommitted):
            await target.load()
        replays: list[bool] = []

        def fixed(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            replays.append(current_delivery().is_replay)

        mended = _projection(scene, table, handler=fixed)
        await rebuild(mended, scene.queries, open_target(mended, scene.store.settings))
        assert table.numbers("a") == [1, 2, 3, 4]
        assert replays == [True] * 4

    async def test_an_offset_command_ends_the_stop_after_a_commit(self, scene: Scene, table: Table) -> None:
        """T34: an operator who knows what is stored sets the offset, and the projection goes on from there."""
        for n in range(1, 5):
            await scene.append("a", n)
        events = await scene.read()

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == 2:
                connection.connection.cursor().execute("COMMIT")

        with pytest.raises(HandlerCommitted):
            await _catch_up(scene, _projection(scene, table, handler=handle))
        mended = _projection(scene, table)
        target = open_target(mended, scene.store.settings)
        await target.put(dict.fromkeys(range(mended.slots), events[1].tag_offset))
        assert await _catch_up(scene, mended) == 2
        assert table.numbers("a") == [1, 2, 3, 4]

    @pytest.mark.parametrize("then", ["fail", "skip"])
    async def test_a_rollback_past_sqlalchemy_is_the_failure_of_its_event(
        self, scene: Scene, table: Table, then: Any
    ) -> None:
        """T34: a ROLLBACK through the driver's cursor takes the offset and the earlier events along. They come again,
        and the event whose handler did it fails."""
        for n in range(1, 5):
            await scene.append("a", n)

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == 3:
                connection.connection.cursor().execute("ROLLBACK")
                table.add(connection, event)

        projection = _projection(scene, table, handler=handle, recovery=Recovery(then))
        if then == "skip":
            await _catch_up(scene, projection)
            assert table.numbers("a") == [1, 2, 4]
            return
        with pytest.raises(HandlerFailed, match=r"event 3 .* rolled back"):
            await _catch_up(scene, projection)
        assert table.numbers("a") == [1, 2]

    async def test_an_error_that_a_handler_catches_does_not_undo_the_batch(self, scene: Scene, table: Table) -> None:
        """T34: on PostgreSQL a failed statement spoils its transaction, and its COMMIT is a ROLLBACK without an error.
        The event whose handler caught the error fails; on the other databases nothing is wrong."""
        for n in range(1, 5):
            await scene.append("a", n)

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if event.seq_nr == 4:
                with suppress(DBAPIError):
                    connection.execute(text("SELECT n FROM no_such_table"))

        projection = _projection(scene, table, handler=handle)
        if table.engine.dialect.name == "postgresql":
            with pytest.raises(HandlerFailed, match=r"event 4 .*begin_nested"):
                await _catch_up(scene, projection)
            assert table.numbers("a") == [1, 2, 3]
            return
        assert await _catch_up(scene, projection) == 4
        assert table.numbers("a") == [1, 2, 3, 4]

    async def test_a_letter_whose_replay_is_committed_early_stays(self, scene: Scene, table: Table) -> None:
        """T34: a replay removes its letter in the handler's transaction; one that the handler ends leaves it there."""
        await scene.append("a", 1)
        how = ["raise"]

        def handle(connection: Connection, event: TaggedEvent) -> None:
            table.add(connection, event)
            if how[0] == "raise":
                raise ValueError("no")
            connection.connection.cursor().execute(how[0])

        projection = _projection(scene, table, handler=handle, recovery=Recovery("dead-letter"))
        await _catch_up(scene, projection)
        target = open_target(projection, scene.store.settings)
        for how[0], found in (("ROLLBACK", "rolled back"), ("COMMIT", "committed")):
            letters = await target.letters.all()
            assert [letter.seq_nr for letter in letters] == [1]
            replayed = await replay_letters(projection, scene.queries, target, letters)
            assert (replayed.handled, len(replayed.failed)) == (0, 1)
            assert found in str(replayed.failed[0])
            assert await target.letters.all() == letters
        assert table.numbers("a") == [1]

    async def test_a_reset_that_rolls_back_sets_nothing_back(self, scene: Scene, table: Table) -> None:
        """FT4: the offsets go back together with what the handler wrote, or not at all."""
        await scene.append("a", [1, 2])

        def reset(connection: Connection) -> None:
            table.clear(connection)
            connection.connection.cursor().execute("ROLLBACK")

        projection = _projection(scene, table, reset=reset)
        await _catch_up(scene, projection)
        with pytest.raises(TransactionLost, match=r"reset' .* rolled back"):
            await rebuild(projection, scene.queries, open_target(projection, scene.store.settings))
        assert await _catch_up(scene, projection) == 0
        assert table.numbers("a") == [1, 2]

    async def test_a_reset_may_end_its_transaction(self, scene: Scene, table: Table) -> None:
        """FT4: MariaDB commits at a CREATE or TRUNCATE. Until the rebuild has put the offsets, no worker can go on."""
        await scene.append("a", [1, 2])
        name = f"{table.name}_extra"

        def reset(connection: Connection) -> None:
            connection.execute(text(f"CREATE TABLE {name} (n INTEGER)"))
            table.clear(connection)

        projection = _projection(scene, table, reset=reset)
        await _catch_up(scene, projection)
        target = open_target(projection, scene.store.settings)
        with pytest.raises(SimulatedCrash), crash_at("projection.sql.before-commit"):
            await target.begin_again(None)
        try:
            await _catch_up(scene, projection)
        except ProjectionRebuilding as error:
            assert "run headrace projection rebuild again" in str(error)  # noqa: PT017
        assert table.numbers("a") in ([1, 2], [])
        fixed = dataclasses.replace(projection, reset=table.clear)
        await rebuild(fixed, scene.queries, open_target(fixed, scene.store.settings))
        assert table.numbers("a") == [1, 2]

    async def test_another_tag_is_refused(self, scene: Scene, table: Table) -> None:
        """An offset of one tag means nothing for another; a rebuild starts again under the new one."""
        await scene.append("a", 1)
        await scene.append("a", 2, ["other"])
        projection = _projection(scene, table)
        await _catch_up(scene, projection)
        changed = dataclasses.replace(projection, tag=f"{scene.tag}-other")
        with pytest.raises(ProjectionChanged, match="has run with tag"):
            await _catch_up(scene, changed)
        target = open_target(changed, scene.store.settings)
        assert (await rebuild(changed, scene.queries, target)).events == 1
        assert table.numbers("a") == [1]
        assert await _catch_up(scene, changed) == 0

    @pytest.mark.parametrize("has_database", [True, False])
    async def test_a_worker_of_another_tag_moves_nothing(self, scene: Scene, table: Table, has_database: bool) -> None:
        """A worker that began before a rebuild gave its projection another tag is fenced, though the offsets are as
        it knows them: it would move the new tag's offsets past events that were not handled."""
        await scene.append("a", 1)
        old = _projection(scene, table) if has_database else Projection(scene.tag, scene.tag, lambda _: None)
        worker = open_target(old, scene.store.settings)
        known = await worker.load()
        new = dataclasses.replace(old, tag="", tags=[f"{scene.tag}-x", f"{scene.tag}-y"])
        operator = open_target(new, scene.store.settings)
        await operator.begin_again(None)
        assert await operator.load() == known
        (event,) = await scene.read()
        with pytest.raises(SlotsMoved):
            await worker.handle([event], known, event.tag_offset)
        assert await operator.load() == known
        assert table.numbers("a") == []
        with pytest.raises(ProjectionChanged, match="has run with"):
            await worker.load()

    @pytest.mark.parametrize("has_database", [True, False])
    async def test_several_tags_feed_one_handler(self, scene: Scene, table: Table, has_database: bool) -> None:
        """T34: events of two tags are handled in their one order, one with both tags once, by however many workers;
        a rebuild, a dead letter and the offsets are as with one tag."""
        appended = await _append_under_two_tags(scene)
        seen: list[tuple[str, int]] = []
        failing = {("a", 2)}

        def handle(*arguments: Any) -> None:
            event = arguments[-1]
            if (event.id, event.seq_nr) in failing:
                raise ValueError
            if (
                event.id,
                event.seq_nr,
            ) not in seen or not has_database:  # a handler that is rolled back is called again
                seen.append((event.id, event.seq_nr))
            if has_database:
                table.add(*arguments)

        projection = Projection(
            scene.tag,
            tags=scene.tags(["x", "y"]),
            handler=handle,
            database=table.engine if has_database else None,
            batch_size=3,
            recovery=Recovery("dead-letter"),
            reset=(table.clear if has_database else lambda: None),
        )
        assert await _catch_up(scene, projection) == len(appended)
        assert seen == [each for each in appended if each not in failing]
        assert await _catch_up(scene, projection) == 0
        target = open_target(projection, scene.store.settings)
        failing.clear()
        letters = await target.letters.all()
        assert (await replay_letters(projection, scene.queries, target, letters)).handled == 1
        assert seen.pop() == ("a", 2)
        seen.clear()
        await scene.replicate()
        assert (await rebuild(projection, scene.queries, target)).events == len(appended)
        assert seen == appended
        await scene.append("a", 8, ["y", "x"])
        handled = await asyncio.gather(*(_catch_up(scene, projection, n, 3) for n in range(3)))
        assert sum(handled) == 1
        assert seen == [*appended, ("a", 8)]
        if has_database:
            assert table.seq_nrs("a") == [1, 2, 4, 5, 6, 7, 8]
            assert table.seq_nrs("b") == [1, 2, 4, 5, 6, 7]

    @pytest.mark.parametrize("has_database", [True, False])
    async def test_other_tags_are_refused(self, scene: Scene, table: Table, has_database: bool) -> None:
        """The offset of some tags means nothing for others: not for one more, nor for one less. Order means nothing."""
        await _append_under_two_tags(scene)
        handler = table.add if has_database else (lambda _: None)
        x, y = scene.tags(["x", "y"])
        projection = Projection(
            scene.tag, tags=(x, y), handler=handler, database=table.engine if has_database else None
        )
        await _catch_up(scene, projection)
        for changes in ({"tags": (x, y, "z")}, {"tags": (x,)}, {"tag": x, "tags": ()}):
            with pytest.raises(ProjectionChanged, match="has run with"):
                await _catch_up(scene, dataclasses.replace(projection, **changes))
        assert await _catch_up(scene, dataclasses.replace(projection, tags=[y, x, y])) == 0
        alone = Projection(f"{scene.tag}-1", x, handler, database=projection.database)
        await _catch_up(scene, alone)
        assert await _catch_up(scene, dataclasses.replace(alone, tag="", tags=(x,))) == 0  # the same

    async def test_offsets_can_be_put(self, scene: Scene, table: Table) -> None:
        """Slots are put back or forward without a reset; events that come again are replays; the future is refused."""
        for n in range(1, 5):
            await scene.append("a", n)
        replays: list[tuple[int, bool]] = []

        def handle(connection: Connection, event: TaggedEvent) -> None:
            replays.append((event.seq_nr, current_delivery().is_replay))

        projection = _projection(scene, table, handler=handle)
        await _catch_up(scene, projection)
        second = (await scene.read())[1].tag_offset
        target = open_target(projection, scene.store.settings)
        await target.put(dict.fromkeys(range(32), second))
        await scene.append("a", 5)
        await _catch_up(scene, projection)
        assert replays[4:] == [(3, True), (4, True), (5, False)]
        later = second._replace(log_time_ms=second.log_time_ms + 86_400_000)
        await target.put({3: later})
        with pytest.raises(OffsetAhead, match="offset set"):
            await _catch_up(scene, projection)

    @pytest.mark.parametrize("has_database", [True, False])
    async def test_letters_of_events_that_come_again_go(self, scene: Scene, table: Table, has_database: bool) -> None:
        """Slots that are put back get the event again: its letter would handle it once more. Letters before stay."""
        for n in range(1, 5):
            await scene.append("a", n)
        seen: list[int] = []
        failing = {1, 3}

        def handle(*arguments: Any) -> None:
            if arguments[-1].seq_nr in failing:
                raise ValueError
            seen.append(arguments[-1].seq_nr)

        recovery = Recovery("dead-letter")
        with_one = _projection(scene, table, handler=handle, recovery=recovery)
        projection = with_one if has_database else Projection(scene.tag, scene.tag, handle, recovery=recovery)
        await _catch_up(scene, projection)
        failing.clear()
        target = open_target(projection, scene.store.settings)
        second = (await scene.read())[1].tag_offset
        await target.put(dict.fromkeys(range(32), second))
        await _catch_up(scene, projection)
        letters = await target.letters.all()
        assert [letter.seq_nr for letter in letters] == [1]
        assert (await replay_letters(projection, scene.queries, target, letters)).handled == 1
        assert (seen[-1], seen.count(1), seen.count(3)) == (1, 1, 1)
        await target.close()

    async def test_names_that_differ_in_case_are_two(self, scene: Scene, table: Table) -> None:
        """MariaDB ignores case when it compares texts, by default: two projections would share offsets."""
        await scene.append("a", 1)
        for name in ("totals", "Totals"):
            projection = dataclasses.replace(_projection(scene, table), name=f"{name}-{scene.tag}")
            assert await _catch_up(scene, projection) == 1
        assert table.numbers("a") == [1, 1]

    async def test_tables_of_the_first_version_are_taken_over(self, scene: Scene, table: Table) -> None:
        """Offsets that version 0.1 stored hold on, in a table that lacks a column."""
        for n in range(1, 4):
            await scene.append("a", n)
        projection, second = _projection(scene, table), (await scene.read())[1].tag_offset
        await asyncio.to_thread(_make_old_table, table.engine, projection, str(second))
        assert await _catch_up(scene, projection) == 1
        assert table.numbers("a") == [3]

    async def test_other_slots_are_refused(self, scene: Scene, table: Table) -> None:
        """The error names how many there were."""
        await _catch_up(scene, _projection(scene, table))
        with pytest.raises(BadArgument, match="32"):
            await _catch_up(scene, _projection(scene, table, slots=8))

    @pytest.mark.parametrize("slots", [8, 64])
    @pytest.mark.parametrize("has_database", [True, False])
    async def test_commands_with_other_slots_change_nothing(
        self, scene: Scene, table: Table, slots: int, *, has_database: bool
    ) -> None:
        """An operator's definition has another number of slots: nothing is reset, and no offset is moved."""
        await scene.append("a", 1)
        resets: list[int] = []
        reset = lambda *_: resets.append(1)  # noqa: E731
        with_one = _projection(scene, table, reset=reset, recovery=Recovery("dead-letter"))
        projection = with_one if has_database else Projection(scene.tag, scene.tag, print, reset=reset)
        await _catch_up(scene, projection)
        target = open_target(dataclasses.replace(projection, slots=slots), scene.store.settings)
        with pytest.raises(BadArgument, match="has run with 32"):
            await rebuild(projection, scene.queries, target)
        with pytest.raises(BadArgument, match="has run with 32"):
            await target.put(dict.fromkeys(range(slots)))
        assert resets == []
        assert await _catch_up(scene, projection) == 0

    async def test_a_dead_letter_may_have_any_text(self, scene: Scene, table: Table) -> None:
        """Ids, tags and errors that a database can't hold as they are: the letter is stored and listed."""
        ids, long_tag = ("a\0b", "😀 タグ", 'json:"x"', "json:"), f"{scene.tag}-\0😀{'x' * 600}"
        await asyncio.gather(
            *(scene.append_events(id_, [Event(1, tags=(long_tag,)), Event(2, tags=(long_tag,))]) for id_ in ids)
        )

        def handle(_: Connection, event: TaggedEvent) -> None:
            if event.seq_nr == 1:
                raise ValueError(f"\0 😀 {event.id}")

        projection = dataclasses.replace(
            _projection(scene, table, handler=handle, recovery=Recovery("dead-letter")), tag=long_tag
        )
        assert await _catch_up(scene, projection) == 2 * len(ids)
        target = open_target(projection, scene.store.settings)
        letters = await target.letters.all()
        assert {(each.id, each.tag, each.topic) for each in letters} == {(id_, long_tag, scene.topic) for id_ in ids}
        assert {each.error for each in letters} == {f"ValueError: \\x00 😀 {id_}".replace("\0", "\\x00") for id_ in ids}
        assert await target.letters.remove(letters) == len(ids)
        await target.close()

    async def test_a_letter_is_not_replayed_while_a_rebuild_resets(self, scene: Scene, table: Table) -> None:
        """MariaDB commits at a TRUNCATE in a reset: a replay at that moment would be handled again by the rebuild."""
        await scene.append("a", 1)
        failing = [True]

        def handle(connection: Connection, event: TaggedEvent) -> None:
            if failing:
                raise ValueError
            table.add(connection, event)

        projection = _projection(scene, table, handler=handle, recovery=Recovery("dead-letter"))
        await _catch_up(scene, projection)
        failing.clear()
        with table.engine.begin() as connection:
            ProjectionTables(projection).take_all(connection)
        target = open_target(projection, scene.store.settings)
        letters = await target.letters.all()
        with pytest.raises(ProjectionRebuilding):
            await replay_letters(projection, scene.queries, target, letters)
        assert (await rebuild(projection, scene.queries, target)).events == 1
        assert table.numbers("a") == [1]
        await target.close()

    async def test_without_a_database_events_are_handled_at_least_once(self, scene: Scene) -> None:
        """X4: the offset is kept beside the handler; a crash in between repeats the batch, and no more."""
        seen: list[int] = []

        async def handle(event: TaggedEvent) -> None:
            seen.append(event.seq_nr)

        for n in range(1, 8):
            await scene.append("a", n)
        projection = Projection(scene.tag, scene.tag, handle, batch_size=3)
        with pytest.raises(SimulatedCrash), crash_at("projection.handled", 2):
            await _catch_up(scene, projection)
        await _catch_up(scene, projection)
        assert seen == list(range(1, 8))
        assert await _catch_up(scene, projection) == 0

    async def test_rivals_beside_are_noticed(self, scene: Scene) -> None:
        """X7: a worker that finds its slots at other offsets than it stored is fenced."""
        projection = Projection(scene.tag, scene.tag, lambda _: None, slots=4)
        targets = [open_target(projection, scene.store.settings) for _ in range(2)]
        known = await targets[0].load()
        await targets[0].handle([], known, TagOffset.at(5))
        with pytest.raises(SlotsMoved):
            await targets[1].handle([], known, TagOffset.at(6))
        assert set((await targets[1].load()).values()) == {TagOffset.at(5)}

    async def test_a_live_projection_follows(self, scene: Scene, table: Table) -> None:
        """T35: events reach the table while they are being written, before replication."""
        runner = _runner(scene, _projection(scene, table))
        running = asyncio.ensure_future(runner.run(backoff=SOON))
        for n in range(1, 11):
            await scene.append("a", n)
        await _until(lambda: table.numbers("a") == list(range(1, 11)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _end(connection: Connection, ending: str) -> None:
    match ending:
        case "commit":
            connection.commit()
        case "rollback":
            connection.rollback()
        case "close":
            connection.close()
        case "session":
            with Session(connection) as session:
                session.execute(text("SELECT 1"))
                session.rollback()
        case "COMMIT":
            connection.exec_driver_sql(ending)
        case _:
            connection.execute(text(ending))


class Table:
    """A table of events, filled by a handler: it refuses none twice."""

    def __init__(self, database: str, name: str) -> None:
        self.database = database
        self.engine: Engine = create_engine(database)
        self.name = name

    def make(self) -> None:
        """Create it."""
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.name} (pid VARCHAR(50), number INTEGER, seq_nr INTEGER)"))

    def add(self, connection: Connection, event: TaggedEvent) -> None:
        """Take an event: the handler."""
        values = {"pid": event.id, "number": event.number, "seq_nr": event.seq_nr}
        connection.execute(text(f"INSERT INTO {self.name} VALUES (:pid, :number, :seq_nr)"), values)

    def clear(self, connection: Connection) -> None:
        """Empty it: the handler's reset."""
        connection.execute(text(f"DELETE FROM {self.name}"))

    def numbers(self, pid: str) -> list[int]:
        """Return the numbers of a pid's events, repetitions included."""
        return self._column("number", pid)

    def seq_nrs(self, pid: str) -> list[int]:
        """Return the seq_nrs of a pid's events, repetitions included."""
        return self._column("seq_nr", pid)

    def _column(self, name: str, pid: str) -> list[int]:
        with self.engine.connect() as connection:
            query = text(f"SELECT {name} FROM {self.name} WHERE pid = :pid ORDER BY {name}")
            return [number for (number,) in connection.execute(query, {"pid": pid})]


def _projection(scene: Scene, table: Table, **options: Any) -> Projection:
    given = {"handler": table.add, "database": table.engine, "reset": table.clear, **options}
    return Projection(name=scene.tag, tag=scene.tag, **given)


def _runner(scene: Scene, projection: Projection, worker: int = 0, workers: int = 1) -> ProjectionRunner:
    target: Target = open_target(projection, scene.store.settings)
    return ProjectionRunner(projection, scene.again().queries, target, worker=worker, workers=workers)


async def _catch_up(scene: Scene, projection: Projection, worker: int = 0, workers: int = 1) -> int:
    return await _runner(scene, projection, worker, workers).catch_up()


def id_in_slot(topic: str, slot: int, *, slots: int) -> str:
    """Return a journal of this slot; where it lies depends on the topic's name, which is another one in each test."""
    return next(f"pid{n}" for n in itertools.count() if slot_of(topic, f"pid{n}", slots) == slot)


async def _append_under_two_tags(scene: Scene) -> list[tuple[str, int]]:
    """Append events of two journals under two tags, or both, or neither; returns those that have some, in order."""
    for n, tags in enumerate(("x", "xy", "", "y", "yx", "x", "y"), 1):
        await scene.append("a", n, list(tags))
        await scene.append("b", n, list(reversed(tags)))
    return [(id_, n) for n in (1, 2, 4, 5, 6, 7) for id_ in "ab"]


def _make_old_table(engine: Engine, projection: Projection, offset: str) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE headrace_projections (name VARCHAR(200), slot INTEGER, tag VARCHAR(500) NOT NULL, "
                "tag_offset VARCHAR(120), updated_ms BIGINT NOT NULL, PRIMARY KEY (name, slot))"
            )
        )
        rows = [{"name": projection.name, "slot": n, "tag": projection.tag, "at": offset} for n in range(32)]
        connection.execute(text("INSERT INTO headrace_projections VALUES (:name, :slot, :tag, :at, 1)"), rows)


async def _persist(scene: Scene, projection: Projection) -> None:
    """Catch up as a worker does: again whenever another one was quicker."""
    while True:
        try:
            await _catch_up(scene, projection)
            return
        except (SlotsMoved, OperationFailed):  # SQLite says "locked" after a while, which is no fault
            continue


def _is_not_below(now: TagOffset | None, before: TagOffset | None) -> bool:
    return before is None or (now is not None and now >= before)


async def _until(is_so: Any, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
