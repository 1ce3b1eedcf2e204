"""Projections inside one's own process: run, wait for, paused, shared out, looked at."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import create_engine

import headrace
import headrace.sync
from headrace.app import Headrace
from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, HeadraceSettings, LogSettings, StoreSettings
from headrace.errors import BadArgument, BadToken, TimedOut
from headrace.model import Event, combine_tokens
from headrace.projection import Projection, open_target
from headrace.projection.operations import lag_of, next_event, skip_event
from headrace.projection.workers import BeatWatch, share_of
from headrace.tags import TaggedEvent, TagOffset

SETTINGS = HeadraceSettings(
    log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)),
    store=StoreSettings(embedded=EmbeddedStoreSettings(fsync=False)),
)


@pytest_asyncio.fixture
async def hr(tmp_path: Path) -> AsyncIterator[Headrace]:
    """Open a fresh folder."""
    async with headrace.connect(f"embedded:{tmp_path}", settings=SETTINGS) as hr:
        yield hr


async def _write(hr: Headrace, id_: str, *seq_nrs: int) -> None:
    await hr.journal("accounts", partitions=2).append(id_, [Event(n, {"n": n}, tags=("vip",)) for n in seq_nrs])


@pytest.mark.asyncio
class TestInProcess:
    """`async with hr.project(projection)`."""

    async def test_one_name_runs_a_projection(self, hr: Headrace) -> None:
        """FN6: the block runs a worker; what was written can be waited for; nothing runs behind the block."""
        seen: list[tuple[str, int]] = []
        projection = Projection("seen", "vip", lambda event: seen.append((event.id, event.seq_nr)))
        await _write(hr, "a", 1)
        async with hr.project(projection) as running:
            await running.caught_up()
            assert seen == [("a", 1)]
            await _write(hr, "b", 1, 2)
            await running.handled("accounts", "b", seq_nr=2)
            assert seen == [("a", 1), ("b", 1), ("b", 2)]
            assert running.health.is_up
        await _write(hr, "a", 2)
        async with hr.projection(projection) as looked_at:
            with pytest.raises(TimedOut, match="waiting for projection 'seen'"):
                await looked_at.caught_up(timeout_s=0.1)
            with pytest.raises(BadArgument, match="timeout_s is nan"):
                await looked_at.caught_up(timeout_s=float("nan"))
        assert len(seen) == 3

    async def test_a_token_is_waited_for(self, hr: Headrace) -> None:
        """What a token names is handled when `wait_for` returns, also if the projection runs elsewhere, or is late."""
        seen: list[str] = []
        projection = Projection("seen", "vip", lambda event: seen.append(event.id))
        journal = hr.journal("accounts", partitions=2)
        first = await journal.append("a", [Event(1, tags=("vip",))])
        untagged = await journal.append("c", [Event(1)])
        async with hr.project(projection) as running:
            await running.wait_for(combine_tokens(first.token, untagged.token))
            assert seen == ["a"]
        later = await journal.append("b", [Event(1, tags=("vip",))])
        async with hr.projection(projection) as looked_at:
            await looked_at.wait_for(first.token, timeout_s=10)
            with pytest.raises(TimedOut, match="waiting for projection 'seen'"):
                await looked_at.wait_for(later.token, timeout_s=0.1)
            with pytest.raises(BadToken):
                await looked_at.wait_for("garbage")
            async with hr.project(projection):
                await looked_at.wait_for(later.token)
            assert seen == ["a", "b"]

    async def test_a_pause_survives_restarts(self, hr: Headrace) -> None:
        """A pause stops the workers there are and those that start later, until it is ended."""
        seen: list[int] = []
        projection = Projection("seen", "vip", lambda event: seen.append(event.seq_nr), lease_s=0.2)
        await _write(hr, "a", 1)
        async with hr.project(projection) as running:
            await running.caught_up()
            assert await running.pause("a migration")
            assert not await running.pause()
            await _until(lambda: _states(running), ["paused"])
            await _write(hr, "a", 2)
        async with hr.project(projection) as running:
            await _until(lambda: _states(running), ["paused"])
            assert seen == [1]
            status = await running.status()
            assert status.pause is not None
            assert (status.pause.reason, status.lag.events, str(status.lag)) == ("a migration", 1, "1 events behind")
            assert await running.resume()
            await running.caught_up()
        assert seen == [1, 2]

    async def test_workers_share_themselves_out(self, hr: Headrace) -> None:
        """Two workers that know nothing of one another split the slots; when one leaves, the other has them all."""
        seen: Counter[tuple[str, int]] = Counter()
        projection = Projection("seen", "vip", lambda event: seen.update([(event.id, event.seq_nr)]), lease_s=0.2)
        async with hr.project(projection) as one:
            async with hr.project(projection):
                await _until(lambda: _shares(one), [16, 16])
                for n in range(10):
                    await _write(hr, f"p{n}", 1)
                await one.caught_up()
            await _until(lambda: _shares(one), [32])
            for n in range(10):
                await _write(hr, f"p{n}", 2)
            await one.caught_up()
        assert set(seen) == {(f"p{n}", seq_nr) for n in range(10) for seq_nr in (1, 2)}

    async def test_a_failing_worker_shows_its_error(self, hr: Headrace) -> None:
        """FN5: status and health name what fails; a block is not ended by it."""

        def fail(event: TaggedEvent) -> None:
            raise ValueError(f"no {event.id}")

        await _write(hr, "a", 1)
        async with hr.project(Projection("bad", "vip", fail, lease_s=0.2)) as running:
            await _until(lambda: _states(running), ["failing"])
            (report,) = (await running.status()).workers.values()
            assert report.error == "ValueError: no a"
            assert "no a" in running.health.reason

    async def test_what_no_retry_would_change_is_raised_at_once(self, hr: Headrace, tmp_path: Path) -> None:
        """FN6: other slots than before and an engine without transactions end the block before it begins."""
        projection = Projection("seen", "vip", print, slots=4)
        async with hr.project(projection):
            pass
        await open_target(projection, hr.store.settings).put({0: TagOffset.at(1)})
        with pytest.raises(BadArgument, match="has run with 4"):
            async with hr.project(Projection("seen", "vip", print, slots=8)):
                pass
        for engine in (
            create_engine("sqlite://", isolation_level="AUTOCOMMIT"),
            create_engine("sqlite://").execution_options(isolation_level="AUTOCOMMIT"),
        ):
            with pytest.raises(BadArgument, match="AUTOCOMMIT"):
                async with hr.project(Projection("other", "vip", print, database=engine)):
                    pass
            engine.dispose()

    async def test_a_database_that_is_away_is_waited_for(self, hr: Headrace, tmp_path: Path) -> None:
        """FN6: the block begins all the same, health says what is wrong, and the worker goes on when it is there."""
        seen: list[int] = []
        folder = tmp_path / "later"
        engine = create_engine(f"sqlite:///{folder / 'p.db'}")
        projection = Projection("late", "vip", lambda _, event: seen.append(event.seq_nr), database=engine)
        await _write(hr, "a", 1)
        async with hr.project(projection) as running:
            assert "unable to open" in running.health.reason
            folder.mkdir()
            await running.caught_up()
        engine.dispose()
        assert seen == [1]

    async def test_the_next_event_is_skipped(self, hr: Headrace) -> None:
        """An operator passes one event, and only the next one of its slot."""
        seen: list[int] = []
        projection = Projection("seen", "vip", lambda event: seen.append(event.seq_nr))
        await _write(hr, "a", 1, 2, 3)
        target = open_target(projection, hr.store.settings)
        offsets = await target.load()
        third = [event async for event in hr.events_by_tag("vip")][2]
        with pytest.raises(BadArgument, match="comes after event 1 of 'a'"):
            await skip_event(projection, hr.tags, target, third, offsets)
        first = await next_event(projection, hr.tags, offsets, id_="a")
        assert first is not None
        await skip_event(projection, hr.tags, target, first, offsets)
        assert (await lag_of(projection, hr.tags, await target.load())).events == 2
        assert not (await lag_of(projection, hr.tags, await target.load(), limit=1)).is_all
        async with hr.project(projection) as running:
            await running.caught_up()
        assert seen == [2, 3]
        assert await next_event(projection, hr.tags, await target.load()) is None


def test_blocking_code_runs_a_projection(tmp_path: Path) -> None:
    """FN6: the same name for blocking code."""
    seen: list[int] = []
    projection = Projection("seen", "vip", lambda event: seen.append(event.seq_nr))
    with headrace.sync.connect(f"embedded:{tmp_path}", settings=SETTINGS) as hr:
        hr.journal("accounts").append("a", [Event(1, {}, tags=("vip",)), Event(2, {}, tags=("vip",))])
        with hr.project(projection) as running:
            running.caught_up()
            hr.journal("accounts").append("a", [Event(3, {}, tags=("vip",))])
            running.handled("accounts", "a", seq_nr=3)
            assert running.pause()
            assert running.resume()
            assert running.health.is_up
        with hr.projection(projection) as looked_at:
            assert looked_at.status().lag.events == 0
    assert seen == [1, 2, 3]


def test_shares_cover_all_slots() -> None:
    """Whoever sees the same workers finds the same shares; workers without a slot wait."""
    names = ["c", "a", "b"]
    assert sorted(slot for name in names for slot in share_of(name, names, 32)) == list(range(32))
    assert share_of("c", names, 2) == ()
    assert share_of("a", [], 2) == (0, 1)


def test_who_stops_beating_is_dead_after_a_lease() -> None:
    """Only the own clock is looked at; a beat that changes starts the lease again."""
    now = [0.0]
    watch = BeatWatch(1.0, now_s=lambda: now[0])
    assert watch.living({"a": 1, "b": 1}) == {"a", "b"}
    for n in range(1, 5):
        now[0] = n / 4
        assert watch.living({"a": n, "b": 1}) == ({"a", "b"} if n < 4 else {"a"})


def test_who_stood_still_does_not_take_others_for_dead() -> None:
    """A process that was stopped for an hour has not seen an hour of silence."""
    now = [0.0]
    watch = BeatWatch(1.0, now_s=lambda: now[0])
    watch.living({"a": 1})
    now[0] = 3600.0
    assert watch.living({"a": 1}) == {"a"}


async def _states(running: headrace.app.ProjectionHandle) -> list[str]:
    return [report.state for report in (await running.control.workers()).values()]


async def _shares(running: headrace.app.ProjectionHandle) -> list[int]:
    return sorted(len(report.slots) for report in (await running.control.workers()).values())


async def _until(look: Callable[[], Any], wanted: object) -> None:
    async with asyncio.timeout(20):
        while await look() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
