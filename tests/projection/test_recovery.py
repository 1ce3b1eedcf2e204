"""Handlers that fail: what is done before them stays done, and the event fails, is passed over, or is set aside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pymysql
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from tests.projection.test_projections import Embedded
from tests.suites.projections import id_in_slot
from tests.suites.tags_following import make_again
from tests.suites.tags_setting import Scene, TagSetting
from tests.suites.tags_views import TABLES

from headrace.errors import BadArgument, DeadLettersFull, HandlerFailed, ProjectionRebuilding, SlotsMoved
from headrace.model import NewRecord
from headrace.projection import Projection, ProjectionRunner, Recovery, claims, current_delivery, open_target, rebuild
from headrace.projection import store_target as beside
from headrace.projection.operations import replay_letters, wait_until_handled
from headrace.projection.store_target import StoreTarget
from headrace.projection.workers import Attendance, Control
from headrace.protocol.actions import Delete
from headrace.protocol.headers import encode_action
from headrace.runtime import SYSTEM_CLOCK, Backoff
from headrace.store import SharedSettings
from headrace.tags import TaggedEvent, TagRepair
from headrace.testing.crashes import SimulatedCrash, crash_at

AT_ONCE = Backoff(first_s=0.0, limit_s=0.0)


class _HeldUp:
    """Settings whose nth change is held up until it may go on."""

    def __init__(self, settings: SharedSettings, nth: int) -> None:
        self._settings = settings
        self._left = nth
        self.get = settings.get
        self.all = settings.all
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        """Set a value, later."""
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            await self.goes_on.wait()
        return await self._settings.put(key, value, expected=expected)


class Handled:
    """A handler without a database, that fails at the seq_nrs it is told."""

    def __init__(self, *failing: int) -> None:
        self.failing = set(failing)
        self.seen: list[int] = []
        self.tried: list[int] = []
        self.deliveries: list[tuple[int, bool, int]] = []

    async def __call__(self, event: TaggedEvent) -> None:
        """Take an event."""
        self.tried.append(event.seq_nr)
        if event.seq_nr in self.failing:
            raise ValueError(f"no {event.seq_nr}")
        self.deliveries.append((event.seq_nr, *current_delivery()))
        self.seen.append(event.seq_nr)


@pytest.mark.asyncio(loop_scope="module")
class TestWithoutADatabase(Embedded, TagSetting):
    """Offsets in the store's settings."""

    async def test_a_failing_handler_does_not_repeat_the_events_before_it(self, scene: Scene) -> None:
        """FT10: the offset is stored before the event that fails, whatever the batch; each try begins with it."""
        await scene.append("a", range(1, 8))
        handled = Handled(5)
        projection = _projection(scene, handled)
        for _ in range(3):
            with pytest.raises(HandlerFailed, match="event 5 of 'a'") as failed:
                await _catch_up(scene, projection)
            assert (failed.value.tag, failed.value.topic, failed.value.seq_nr) == (scene.tag, scene.topic, 5)
        assert handled.tried == [1, 2, 3, 4, 5, 5, 5]
        handled.failing.clear()
        await _catch_up(scene, projection)
        assert handled.seen == [1, 2, 3, 4, 5, 6, 7]

    @pytest.mark.parametrize(("save_every", "again"), [(1, [4]), (2, [3, 4]), (None, [1, 2, 3, 4])])
    async def test_a_crash_repeats_at_most_what_was_not_stored(
        self, scene: Scene, save_every: int | None, again: list[int]
    ) -> None:
        """FT10: killed after the fourth handler call, a worker that stores every n events handles n again at most."""
        await scene.append("a", range(1, 8))
        handled = Handled()
        projection = _projection(scene, handled, save_every=save_every, lease_s=0.05)
        with pytest.raises(SimulatedCrash), crash_at("projection.beside.called", 4):
            await _catch_up(scene, projection)
        await _catch_up(scene, projection)
        assert handled.seen == [1, 2, 3, 4, *again, 5, 6, 7]

    async def test_a_worker_that_is_stopped_stores_what_it_did(self, scene: Scene) -> None:
        """FT10: stopped in the middle of a batch, it repeats only the event that was in hand."""
        await scene.append("a", range(1, 6))
        seen: list[int] = []
        reached = asyncio.Event()

        async def handle(event: TaggedEvent) -> None:
            if event.seq_nr == 3 and not reached.is_set():
                reached.set()
                await asyncio.Event().wait()
            seen.append(event.seq_nr)

        projection = _projection(scene, handle)
        working = asyncio.ensure_future(_catch_up(scene, projection))
        await reached.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await _catch_up(scene, projection)
        assert seen == [1, 2, 3, 4, 5]

    async def test_a_handler_can_not_swallow_that_its_worker_is_stopped(self, scene: Scene) -> None:
        """A handler that catches every exception goes on to its end, and its worker handles nothing after it."""
        await scene.append("a", range(1, 6))
        seen: list[int] = []
        reached = asyncio.Event()

        async def handle(event: TaggedEvent) -> None:
            if event.seq_nr == 3 and not reached.is_set():
                reached.set()
                with contextlib.suppress(BaseException):
                    await asyncio.Event().wait()
            seen.append(event.seq_nr)

        projection = _projection(scene, handle)
        working = asyncio.ensure_future(_catch_up(scene, projection))
        await reached.wait()
        working.cancel()
        await asyncio.wait([working])
        assert (working.cancelled(), seen) == (True, [1, 2, 3])
        await _catch_up(scene, projection)
        assert seen == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("then", ["skip", "dead-letter"])
    async def test_a_rebuild_counts_what_it_gave_up_as_its_own(self, scene: Scene, then: str) -> None:
        """No worker runs, so the result names none: not for the events that fail, nor for those before them."""
        await scene.append("a", range(1, 8))
        projection = _projection(scene, Handled(3, 6), recovery=Recovery(then))
        done = await rebuild(projection, scene.queries, StoreTarget(scene.store.settings, projection))
        assert (done.events, done.by_workers) == (7, 0)

    async def test_a_worker_that_is_stopped_counts_the_event_that_it_finishes(self, scene: Scene) -> None:
        """A plain function can't be interrupted: it comes to its end while the worker stops, and is not repeated."""
        await scene.append("a", range(1, 6))
        seen: list[int] = []
        reached, goes_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def handle(event: TaggedEvent) -> None:
            if event.seq_nr == 3:
                loop.call_soon_threadsafe(reached.set)
                goes_on.wait(20)
            seen.append(event.seq_nr)

        projection = _projection(scene, handle)
        working = asyncio.ensure_future(_catch_up(scene, projection))
        await reached.wait()
        working.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(working, return_exceptions=True)
        assert working.cancelled()
        await _catch_up(scene, projection)
        assert seen == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("grouped", [False, True])
    async def test_a_time_limit_around_a_plain_function_is_a_time_out(self, scene: Scene, *, grouped: bool) -> None:
        """A limit that ends while the handler's thread runs raises TimeoutError, and what was handled is not
        repeated."""
        await scene.append("a", range(1, 6))
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)

        def handle(argument: Any) -> None:
            events = argument if grouped else [argument]
            if not limit.expired():
                loop.call_soon_threadsafe(limit.reschedule, loop.time())
                _wait_in_thread(limit.expired)
            seen.extend(event.seq_nr for event in events)

        projection = _projection(scene, handle, grouped=grouped, batch_size=2)
        with pytest.raises(TimeoutError):
            async with limit:
                await _catch_up(scene, projection)
        assert seen == ([1, 2] if grouped else [1])
        await _catch_up(scene, projection)
        assert seen == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("kind", ["function", "coroutine", "object", "group"])
    async def test_a_time_limit_at_any_moment_is_a_time_out_and_repeats_nothing(self, scene: Scene, kind: str) -> None:
        """Whatever a worker is doing when its time is up, the caller gets TimeoutError and nothing else, and the next
        worker goes on without waiting for a lease."""
        for n in range(1, 31):
            await scene.append(f"k{n % 3}", (n + 2) // 3)
        dice, seen = random.Random(kind), list[tuple[str, int]]()

        def note(argument: Any) -> None:
            seen.extend((event.id, event.seq_nr) for event in (argument if kind == "group" else [argument]))

        async def note_later(event: TaggedEvent) -> None:
            note(event)

        handler = {"coroutine": note_later, "object": lambda event: note_later(event)}.get(kind, note)
        options = {"batch_size": 3, "save_every": 2, "lease_s": 1000.0, "grouped": kind == "group"}
        projection = _projection(scene, handler, **options)
        async with asyncio.timeout(60):
            for _ in range(25):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(dice.uniform(0.0, 0.04)):
                        await _catch_up(scene, projection)
            await _catch_up(scene, projection)
        assert sorted(seen) == sorted((f"k{n % 3}", (n + 2) // 3) for n in range(1, 31))

    async def test_work_that_a_plain_function_left_to_be_awaited_is_not_counted_as_done(self, scene: Scene) -> None:
        """A handler that is an object with an asynchronous call returns its work from the thread: a worker that is
        stopped at that moment has not done it, and the event comes again."""
        await scene.append("a", range(1, 4))
        seen: list[int] = []
        loop, is_first, reached, goes_on = asyncio.get_running_loop(), True, asyncio.Event(), threading.Event()

        async def work(event: TaggedEvent) -> None:
            seen.append(event.seq_nr)

        def handle(event: TaggedEvent) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                loop.call_soon_threadsafe(reached.set)
                goes_on.wait(20)
            return work(event)

        projection = _projection(scene, handle)
        working = asyncio.ensure_future(_catch_up(scene, projection))
        await reached.wait()
        working.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(working, return_exceptions=True)
        assert working.cancelled()
        await _catch_up(scene, projection)
        assert seen == [1, 2, 3]

    @pytest.mark.parametrize("nth", [1, 2, 3, 4])
    async def test_a_worker_can_be_stopped_while_it_stores(self, scene: Scene, nth: int) -> None:
        """Stopped while it claims its slots, stores an offset or lets go of the slots: the worker ends, what it did is
        stored, and nobody has to wait for its lease."""
        await scene.append("a", range(1, 6))
        seen: list[int] = []
        projection = _projection(scene, lambda event: seen.append(event.seq_nr), save_every=2, lease_s=1000.0)
        settings = _HeldUp(scene.store.settings, nth)
        runner = ProjectionRunner(projection, scene.again().queries, StoreTarget(settings, projection))
        working = asyncio.ensure_future(runner.run_once())
        async with asyncio.timeout(20):
            await settings.reached.wait()
            working.cancel()
            await asyncio.sleep(0)
            settings.goes_on.set()
            await asyncio.wait([working])
            assert working.cancelled()
            await _catch_up(scene, projection)
        assert seen == [1, 2, 3, 4, 5]

    async def test_a_worker_that_is_stopped_at_the_end_of_a_batch_lets_go_of_its_slots(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stopped when all events of the batch are handled: they are stored, and nobody has to wait for its lease."""
        await scene.append("a", range(1, 4))
        seen: list[int] = []
        projection = _projection(scene, lambda event: seen.append(event.seq_nr), lease_s=1000.0)
        stop = claims._stop

        async def stop_both(beating: asyncio.Task[None]) -> None:
            working.cancel()
            await stop(beating)

        with monkeypatch.context() as patched:
            patched.setattr(claims, "_stop", stop_both)
            working = asyncio.ensure_future(_catch_up(scene, projection))
            await asyncio.wait([working])
        assert working.cancelled()
        async with asyncio.timeout(5):
            await _catch_up(scene, projection)
        assert seen == [1, 2, 3]

    @pytest.mark.parametrize("when", ["reported", "leaving"])
    async def test_a_worker_that_is_stopped_at_any_moment_is_not_reported_any_more(
        self, scene: Scene, when: str
    ) -> None:
        """Stopped right after its first report, or stopped twice: no slots are left to it until its lease ends."""
        projection = _projection(scene, print, lease_s=1000.0)
        settings = scene.store.settings

        class Cancelling:
            """Settings that cancel the worker when its report is stored."""

            get, all = settings.get, settings.all

            async def put(self, key: str, value: str, *, expected: str | None) -> bool:
                is_stored = await settings.put(key, value, expected=expected)
                if when == "reported" and not is_reported.is_set():
                    working.cancel()
                is_reported.set()
                await asyncio.sleep(0)
                return is_stored

        is_reported = asyncio.Event()
        attendance = Attendance(Control(Cancelling(), projection.name), projection, None, SYSTEM_CLOCK)

        async def work() -> None:
            async with attendance.open(lambda: None):
                await asyncio.Event().wait()

        working = asyncio.ensure_future(work())
        await is_reported.wait()
        if when == "leaving":
            await _until(lambda: attendance.plan.slots != (), True)
            working.cancel()
            await asyncio.sleep(0)
            working.cancel()
        await asyncio.wait([working])
        assert working.cancelled()
        async with asyncio.timeout(20):
            while await Control(settings, projection.name).workers():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def test_a_second_worker_waits_for_the_first(self, scene: Scene) -> None:
        """FT3: two workers with the same slots don't handle an event at the same time, nor twice."""
        await scene.append("a", range(1, 6))
        running, seen = 0, []

        async def handle(event: TaggedEvent) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            seen.append(event.seq_nr)
            running -= 1

        projection = _projection(scene, handle, batch_size=2)
        await asyncio.gather(*(_persist(scene, projection) for _ in range(2)))
        assert seen == [1, 2, 3, 4, 5]

    async def test_a_worker_that_stood_still_for_a_lease_handles_nothing_more(self, scene: Scene) -> None:
        """A process that was stopped in the middle of a batch may have lost its slots: it stops after the event in
        hand, before its next beat could tell; what it did is stored if nobody has taken over."""
        for n in range(1, 5):
            await scene.append("a", n)
        seen: list[int] = []
        clock = [100.0]

        async def handle(event: TaggedEvent) -> None:
            seen.append(event.seq_nr)
            if event.seq_nr == 2:
                clock[0] += 10.0

        projection = Projection(scene.tag, scene.tag, handle, lease_s=10.0)
        target = StoreTarget(scene.store.settings, projection, now_s=lambda: clock[0])
        with pytest.raises(SlotsMoved):
            await ProjectionRunner(projection, scene.queries, target).catch_up()
        assert seen == [1, 2]
        await ProjectionRunner(projection, scene.queries, target).catch_up()
        assert seen == [1, 2, 3, 4]

    async def test_a_rebuild_waits_for_the_event_in_hand(self, scene: Scene) -> None:
        """FT4: a worker in the middle of a batch stops behind the event in hand before the work is reset."""
        await scene.append("a", range(1, 6))
        seen: list[int | str] = []
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def handle(event: TaggedEvent) -> None:
            if event.seq_nr == 3 and not reached.is_set():
                reached.set()
                await go_on.wait()
            seen.append(event.seq_nr)

        projection = _projection(scene, handle, reset=lambda: seen.append("reset"))
        working = asyncio.ensure_future(_persist(scene, projection))
        await reached.wait()
        target = open_target(projection, scene.store.settings)
        rebuilding = asyncio.ensure_future(rebuild(projection, scene.again().queries, target))
        await _until(lambda: scene.store.settings.get(beside.setting_of(projection.name)), "rebuilding")
        go_on.set()
        await asyncio.gather(rebuilding, working)
        at = seen.index("reset")
        assert seen[:at] in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5])
        assert seen[at + 1 :] == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("at", ["projection.beside.taken", "projection.beside.reset"])
    async def test_an_interrupted_rebuild_is_done_again(self, scene: Scene, at: str) -> None:
        """FT4: killed before the offsets are given back, a rebuild leaves the workers waiting, and is run again."""
        await scene.append("a", range(1, 4))
        handled = Handled()
        projection = _projection(scene, handled, reset=handled.seen.clear)
        await _catch_up(scene, projection)
        target = open_target(projection, scene.store.settings)
        with pytest.raises(SimulatedCrash), crash_at(at):
            await rebuild(projection, scene.queries, target)
        with pytest.raises(ProjectionRebuilding, match="run headrace projection rebuild again"):
            await _catch_up(scene, projection)
        assert (await rebuild(projection, scene.queries, target)).events == 3
        assert handled.seen == [1, 2, 3]
        assert [is_replay for _, is_replay, _ in handled.deliveries[-3:]] == [True, True, True]

    async def test_of_two_rebuilds_the_later_one_holds_the_offsets(self, scene: Scene) -> None:
        """A rebuild that is still resetting must not find workers at work, because another one was quicker: what they
        did would be wiped away, and if it died then, nobody would do it again."""
        await scene.append("a", 1)
        turns = [asyncio.Event(), asyncio.Event()]
        reached = [asyncio.Event(), asyncio.Event()]
        resets = iter(range(2))

        async def reset() -> None:
            number = next(resets)
            reached[number].set()
            await turns[number].wait()

        handled = Handled()
        projection = _projection(scene, handled, reset=reset)
        targets = [open_target(projection, scene.store.settings) for _ in range(2)]
        rebuilds = []
        for target, is_there in zip(targets, reached, strict=True):
            rebuilds.append(asyncio.ensure_future(target.begin_again(None)))
            await is_there.wait()
        turns[0].set()
        with pytest.raises(ProjectionRebuilding):
            await rebuilds[0]
        with pytest.raises(ProjectionRebuilding):
            await _catch_up(scene, projection)
        with pytest.raises(ProjectionRebuilding):
            await targets[0].put(dict.fromkeys(range(32)))
        assert handled.seen == []
        turns[1].set()
        await rebuilds[1]
        await _catch_up(scene, projection)
        assert handled.seen == [1]

    @pytest.mark.parametrize("is_replicated", [True, False])
    async def test_a_topic_that_is_made_again_goes_on(self, scene: Scene, is_replicated: bool) -> None:
        """FT6: a topic is deleted and made again beneath a worker that follows two tags: each event of the old one that
        was handled stays so, and those of the new one are handled once, also after a restart."""
        other = await scene.new_topic(partitions=2)
        seen: list[str] = []
        tags = scene.tags(["x", "y"])
        projection = Projection(scene.tag, tags=tags, handler=lambda event: seen.append(f"{event.id}{event.seq_nr}"))
        working = asyncio.ensure_future(_runner(scene, projection).run_once())
        await scene.append("old", 1, ["x"], topic=other)
        await scene.append("a", 1, ["y"])
        await _until(lambda: len(seen), 2)
        if is_replicated:
            await scene.replicate()
        await scene.log.admin.delete(other)
        await scene.append("a", 2, ["x", "y"])
        await _until(lambda: len(seen), 3)
        await make_again(scene.log, other)
        assert (await scene.layout(other)).generation == 1
        await scene.append("new", 1, ["y"], topic=other, at_ms=scene.now_ms - 50_000)
        await _until(lambda: len(seen), 4)
        await scene.append("a", 3, ["x"])
        await _until(lambda: len(seen), 5)
        # Without a database an event whose place is not stored yet when its worker is cancelled would come again.
        target = open_target(projection, scene.store.settings)
        await wait_until_handled(projection, scene.again().queries, target, timeout_s=10)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await scene.append("new", 2, ["x"], topic=other)
        assert await _catch_up(scene, projection) == 1
        assert sorted(seen[:2]) == ["a1", "old1"]
        assert seen[2:] == ["a2", "new1", "a3", "new2"]

    async def test_handlers_know_a_replay(self, scene: Scene) -> None:
        """FN5: what was handled before a rebuild comes as a replay, what is new does not."""
        await scene.append("a", range(1, 4))
        handled = Handled()
        projection = _projection(scene, handled, reset=lambda: None)
        await _catch_up(scene, projection)
        await scene.append("a", 4)
        target = open_target(projection, scene.store.settings)
        await rebuild(projection, scene.queries, target)
        first = [(n, False, 1) for n in (1, 2, 3)]
        assert handled.deliveries == [*first, (1, True, 1), (2, True, 1), (3, True, 1), (4, False, 1)]

    async def test_a_failing_handler_is_logged_once_with_its_event(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FN5: twenty tries give one line, which names tag, topic, id and seq_nr; another event gives another one."""
        await scene.append("a", range(1, 4))
        handled = Handled(2)
        projection = _projection(scene, handled)
        runner = _runner(scene, projection)
        with caplog.at_level(logging.INFO):
            running = asyncio.ensure_future(runner.run(backoff=AT_ONCE))
            await _until(lambda: handled.tried.count(2), 20)
            assert not runner.health.is_up
            handled.failing = {3}
            await _until(lambda: handled.tried.count(3), 5)
            handled.failing = set()
            await _until(lambda: handled.seen, [1, 2, 3])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        lines = [record.getMessage() for record in caplog.records if "handler failed" in record.getMessage()]
        assert len(lines) == 2
        for part in (f"tag='{scene.tag}'", f"topic='{scene.topic}'", "id='a'", "seq_nr=2", "next_step='fail'"):
            assert part in lines[0]
        assert sum("works again" in record.getMessage() for record in caplog.records) == 2
        assert runner.health.is_up

    async def test_an_event_that_was_missing_for_a_while_is_handled(self, scene: Scene) -> None:
        """A row that a query finds later than its successors of other journals is not taken for handled."""
        await _write_with_a_gap(scene)
        seen: list[tuple[str, int]] = []
        handler = lambda event: seen.append((event.id, event.number))  # noqa: E731
        projection = _projection(scene, handler, batch_size=1)
        target = open_target(projection, scene.store.settings)
        runner = ProjectionRunner(projection, scene.again(gap_timeout_s=30.0).queries, target)
        running = asyncio.ensure_future(runner.run(backoff=AT_ONCE))
        await _until(lambda: len(seen), 3)
        await scene.put_row("p1", 3, scene.now_ms + 3, offset=3)
        await _until(lambda: len(seen), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert seen == [("p1", 1), ("p1", 2), ("p2", 1), ("p1", 3), ("p1", 4)]

    async def test_an_event_that_stays_missing_pauses_the_projection(self, scene: Scene) -> None:
        """A worker that began again after a gap would pass over the missing event, so all stand still and say why."""
        await _write_with_a_gap(scene)
        seen: list[tuple[str, int]] = []
        projection = _projection(scene, lambda event: seen.append((event.id, event.number)), lease_s=0.2)
        control = Control(scene.store.settings, projection.name)
        attendance = Attendance(control, projection, None, SYSTEM_CLOCK)
        queries, target = scene.again(gap_timeout_s=0.2).queries, open_target(projection, scene.store.settings)
        runner = ProjectionRunner(projection, queries, target, attendance=attendance)
        running = asyncio.ensure_future(runner.run(backoff=AT_ONCE))
        await _until(lambda: len(seen), 3)
        async with asyncio.timeout(20):
            while (pause := await control.paused()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "headrace tags rebuild" in pause.reason
        assert "headrace projection rebuild" in pause.reason
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert seen == [("p1", 1), ("p1", 2), ("p2", 1)]

    async def test_letters_have_a_limit(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """FT10: the store's settings are no place for thousands: the projection stops and says what to run."""
        monkeypatch.setattr(beside, "_LETTERS_AT_MOST", 2)
        await scene.append("a", range(1, 5))
        projection = _projection(scene, Handled(1, 2, 3), recovery=Recovery("dead-letter"))
        with pytest.raises(DeadLettersFull, match="dead-letters replay, or purge"):
            await _catch_up(scene, projection)
        assert len(await open_target(projection, scene.store.settings).letters.all()) == 2

    @pytest.mark.parametrize("is_grouped", [False, True])
    async def test_a_dead_letter_is_kept_and_replayed(self, scene: Scene, is_grouped: bool) -> None:
        """FT10: after its retries an event is set aside with its place, error and attempts, also out of a group; it
        stays as long as it fails, and goes when it is handled."""
        await scene.append("a", range(1, 6))
        handled = Handled(3)

        async def handle_group(events: list[TaggedEvent]) -> None:
            for event in events:
                await handled(event)

        recovery = Recovery("dead-letter", retries=2, backoff=AT_ONCE)
        handler: Any = handle_group if is_grouped else handled
        projection = _projection(scene, handler, recovery=recovery, grouped=is_grouped)
        await _catch_up(scene, projection)
        assert list(dict.fromkeys(handled.seen)) == [1, 2, 4, 5]
        target = open_target(projection, scene.store.settings)
        (letter,) = await target.letters.all()
        assert (letter.topic, letter.id, letter.seq_nr, letter.attempts) == (scene.topic, "a", 3, 3)
        assert letter.error == "ValueError: no 3"
        again = await replay_letters(projection, scene.queries, target, [letter])
        assert (again.handled, [failure.attempts for failure in again.failed]) == (0, [4])
        handled.failing.clear()
        assert (await replay_letters(projection, scene.queries, target, [letter])).handled == 1
        assert (await replay_letters(projection, scene.queries, target, [letter])).handled == 0
        assert handled.deliveries[-1] == (3, False, 4)
        assert await target.letters.all() == []
        assert await _catch_up(scene, projection) == 0

    @pytest.mark.parametrize("records", [[[1, 2, 3, 4, 5]], [[1], [2], [3], [4], [5]]])
    async def test_a_dead_letter_is_replayed_after_replication(self, scene: Scene, records: list[list[int]]) -> None:
        """An event that the views give by now is found again, alone in its record or among others."""
        for seq_nrs in records:
            await scene.append("a", seq_nrs)
        handled = Handled(3)
        projection = _projection(scene, handled, recovery=Recovery("dead-letter"))
        await _catch_up(scene, projection)
        await scene.replicate()
        handled.failing.clear()
        target = open_target(projection, scene.store.settings)
        assert (await replay_letters(projection, scene.queries, target, await target.letters.all())).handled == 1
        assert handled.seen == [1, 2, 4, 5, 3]

    async def test_a_letter_without_its_event_does_not_hold_up_others(self, scene: Scene) -> None:
        """The rows of a journal were removed from under the tag: its letter stays and says so; others are replayed."""
        await scene.append("a", 1)
        await scene.append("b", 1)
        handled = Handled(1)
        projection = _projection(scene, handled, recovery=Recovery("dead-letter"))
        await _catch_up(scene, projection)
        await scene.replicate()
        await TagRepair(scene.log, scene.store, scene.settings).delete(scene.topic, "a", scene.tag)
        handled.failing.clear()
        target = open_target(projection, scene.store.settings)
        done = await replay_letters(projection, scene.again().queries, target, await target.letters.all())
        assert (done.handled, [failure.id for failure in done.failed]) == (1, ["a"])
        assert "purge the letter" in str(done.failed[0])
        assert [letter.id for letter in await target.letters.all()] == ["a"]

    @pytest.mark.parametrize("is_wrapped", [False, True])
    @pytest.mark.parametrize(
        "reason",
        [DeadlockDetected(), SerializationFailure(), LockNotAvailable(), pymysql.OperationalError(1213, ""),
         pymysql.OperationalError(1205, ""), pymysql.OperationalError(1020, "")],
    )  # fmt: skip
    async def test_a_deadlock_is_no_fault_of_the_event(
        self, scene: Scene, tmp_path: Path, reason: Exception, *, is_wrapped: bool
    ) -> None:
        """What the database gave up because of another transaction is done again, and never set aside; also if the
        handler raises an error of its own from it."""
        await scene.append("a", range(1, 5))
        victims = [OperationalError("UPDATE", {}, reason)] * 3
        seen: list[int] = []

        def handle(connection: Connection, event: TaggedEvent) -> None:
            if event.seq_nr == 3 and victims:
                victim = victims.pop()
                if is_wrapped:
                    raise ValueError("it did not work") from victim
                raise victim
            seen.append(event.seq_nr)

        database = f"sqlite:///{tmp_path / 'projection.db'}"
        projection = _projection(scene, handle, database=database, recovery=Recovery("dead-letter"))
        target = open_target(projection, scene.store.settings)
        await ProjectionRunner(projection, scene.again().queries, target).catch_up()
        assert (seen[-4:], victims) == ([1, 2, 3, 4], [])
        assert await target.letters.all() == []
        await target.close()

    async def test_a_dead_letter_of_an_older_version_is_replayed(self, scene: Scene) -> None:
        """A letter whose offset has five parts names its event too."""
        await scene.append("a", range(1, 6))
        handled = Handled(3)
        projection = _projection(scene, handled, recovery=Recovery("dead-letter"))
        await _catch_up(scene, projection)
        await scene.replicate()
        handled.failing.clear()
        key = f"projection-dead-letters/{projection.name}"
        stored = await scene.store.settings.get(key) or ""
        (letter,) = await open_target(projection, scene.store.settings).letters.all()
        older = stored.replace(letter.offset, letter.offset.rpartition(":")[0])
        assert await scene.store.settings.put(key, older, expected=stored)
        target = open_target(projection, scene.store.settings)
        assert (await replay_letters(projection, scene.queries, target, await target.letters.all())).handled == 1
        assert handled.seen == [1, 2, 4, 5, 3]

    @pytest.mark.parametrize("is_same_process", [True, False])
    async def test_a_letter_is_replayed_between_two_batches_of_a_worker(
        self, scene: Scene, is_same_process: bool
    ) -> None:
        """A replay waits for the batch in hand, wherever the slot is then; both never run at once, nor does it fail."""
        await scene.append("a", range(1, 6))
        running, seen, failing, reached = 0, [], {1}, asyncio.Event()

        async def handle(event: TaggedEvent) -> None:
            nonlocal running
            if event.seq_nr in failing:
                raise ValueError
            running += 1
            assert running == 1
            reached.set()
            await asyncio.sleep(0.1)
            seen.append(event.seq_nr)
            running -= 1

        projection = _projection(scene, handle, recovery=Recovery("dead-letter"), batch_size=1)
        target = open_target(projection, scene.store.settings)
        working = asyncio.ensure_future(ProjectionRunner(projection, scene.again().queries, target).catch_up())
        operating = target if is_same_process else open_target(projection, scene.store.settings)
        await reached.wait()
        failing.clear()
        again = await replay_letters(projection, scene.queries, operating, await operating.letters.all())
        assert (again.handled, again.failed) == (1, ())
        await working
        assert sorted(seen) == [1, 2, 3, 4, 5]

    async def test_a_rebuild_waits_for_an_event_that_takes_longer_than_a_lease(self, scene: Scene) -> None:
        """A worker whose slots were taken shows that it lives until its handler is through; then the work is reset."""
        await scene.append("a", range(1, 4))
        seen: list[int | str] = []
        reached = asyncio.Event()

        async def handle(event: TaggedEvent) -> None:
            if event.seq_nr == 2 and not reached.is_set():
                reached.set()
                await asyncio.sleep(1)
            seen.append(event.seq_nr)

        projection = _projection(scene, handle, lease_s=0.2, reset=lambda: seen.append("reset"))
        working = asyncio.ensure_future(_catch_up(scene, projection))
        await reached.wait()
        await rebuild(projection, scene.again().queries, open_target(projection, scene.store.settings))
        with pytest.raises(SlotsMoved):
            await working
        assert seen == [1, 2, "reset", 1, 2, 3]

    @pytest.mark.parametrize("is_cut", [True, False])
    async def test_views_with_other_numbers_repeat_nothing(self, scene: Scene, tmp_path: Path, is_cut: bool) -> None:
        """Where the views were lost and rebuilt with higher numbers, a slot that is further on than others stays there,
        also in the middle of a record."""
        near, far = (id_in_slot(scene.topic, n, slots=2) for n in (0, 1))
        seen: list[tuple[str, int]] = []
        failing = {6} if is_cut else set()

        async def handle(event: TaggedEvent) -> None:
            if event.seq_nr in failing:
                raise ValueError
            seen.append((event.id, event.seq_nr))

        projection = _projection(scene, handle, slots=2, batch_size=1)
        await scene.append(near, 1)
        await scene.append(far, [1, 2, 3], [])
        await scene.append(far, [4, 5, 6, 7, 8])
        target = open_target(projection, scene.store.settings)
        with contextlib.suppress(HandlerFailed):
            await ProjectionRunner(projection, scene.again().queries, target, worker=1, workers=2).catch_up()
        at = (await scene.layout()).route(far)
        record = NewRecord(at.topic, far.encode(), None, encode_action(Delete(to=3)), partition=at.partition)
        await scene.put(msgspec.structs.replace(record, timestamp_ms=scene.now_ms + 1))
        await scene.replicate()
        with closing(sqlite3.connect(tmp_path / "store.db")) as db:
            for table in TABLES:
                db.execute(f"DELETE FROM {table}")
            db.commit()
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        assert [event.number for event in await scene.again().read() if event.id == far] == [4, 5, 6, 7, 8]
        failing.clear()
        await _catch_up(scene, projection)
        assert sorted(seen) == sorted([(near, 1), *((far, n) for n in range(4, 9))])
        handle_all = open_target(projection, scene.store.settings)
        await wait_until_handled(projection, scene.again().queries, handle_all, timeout_s=5)

    async def test_whatever_a_handler_raises_is_its_failure(self, scene: Scene) -> None:
        """A StopIteration out of a plain function, and errors that are no Exception, neither hang nor end a worker."""
        await scene.append("a", range(1, 5))
        seen: list[int] = []

        def handle(event: TaggedEvent) -> None:
            if event.seq_nr == 2:
                raise StopIteration
            if event.seq_nr == 3:
                raise BaseException("some libraries have such time-outs")  # noqa: TRY002
            seen.append(event.seq_nr)

        projection = _projection(scene, handle, recovery=Recovery("dead-letter"))
        async with asyncio.timeout(10):
            await _catch_up(scene, projection)
        assert seen == [1, 4]
        letters = await open_target(projection, scene.store.settings).letters.all()
        assert [(letter.seq_nr, letter.error.partition(":")[0]) for letter in letters] == [
            (2, "RuntimeError"),
            (3, "BaseException"),
        ]


@pytest.mark.parametrize("wrong", [{"then": "explode"}, {"retries": -1}, {"retries": True}, {"then": "retry"}])
def test_impossible_recoveries_are_refused(wrong: dict[str, Any]) -> None:
    """FT10: the error names the argument."""
    with pytest.raises(BadArgument, match="|".join(wrong)):
        Recovery(**wrong)


async def _write_with_a_gap(scene: Scene) -> None:
    """Write rows of views, one of which, p1's third, is missing before an event of another journal."""
    rows = [("p1", 1), ("p1", 2), (None, 0), ("p2", 1), ("p1", 4)]
    for offset, (pid, number) in enumerate(rows, start=1):
        if pid is not None:
            await scene.put_row(pid, number, scene.now_ms + offset, offset=offset)
    await scene.say_replicated(len(rows) + 1, scene.now_ms + len(rows) + 1)


def _projection(scene: Scene, handler: Callable[..., Any], **options: Any) -> Projection:
    return Projection(scene.tag, scene.tag, handler, **options)


def _wait_in_thread(is_so: Callable[[], bool]) -> None:
    """Wait in a thread until a condition holds, 20 s at most."""
    ends_s = time.monotonic() + 20
    while not is_so() and time.monotonic() < ends_s:
        time.sleep(0.001)


def _runner(scene: Scene, projection: Projection) -> ProjectionRunner:
    return ProjectionRunner(projection, scene.again().queries, open_target(projection, scene.store.settings))


async def _catch_up(scene: Scene, projection: Projection) -> int:
    return await _runner(scene, projection).catch_up()


async def _persist(scene: Scene, projection: Projection) -> None:
    while True:
        try:
            await _catch_up(scene, projection)
            return
        except (SlotsMoved, ProjectionRebuilding):
            await asyncio.sleep(0.01)


async def _until(look: Callable[[], Any], wanted: Any) -> None:
    """Wait until what is looked at reaches a number, holds a text, or equals a value."""
    async with asyncio.timeout(20):
        while True:
            found = look()
            if asyncio.iscoroutine(found):
                found = await found
            if (found >= wanted) if isinstance(wanted, int) else (wanted in found or wanted == found):
                return
            await asyncio.sleep(0.01)
