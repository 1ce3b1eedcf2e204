"""Journals at work: accounts are opened and changed, read with nothing replicated, deleted, purged.

A tag is followed live over all journals, and a projection fills a SQL table from it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.app import Headrace
from headrace.cli.demo.voice import say, tell
from headrace.errors import WrongSeqNr
from headrace.journal import Journal
from headrace.model import Event

if TYPE_CHECKING:
    from headrace.projection import ProjectionRunner
    from headrace.tags import TaggedEvent

__all__ = ["show_journal", "show_tags"]


async def show_journal(hr: Headrace, suffix: str) -> None:
    """Append to, read, delete from and purge journals."""
    accounts = hr.journal(f"accounts{suffix}", partitions=4, origin="demo")
    say("Journals: three accounts are opened, and changed")
    await accounts.append("alice", [Event(1, {"opened": 100}, ("vip",)), Event(2, {"deposited": 20})])
    await accounts.append("bob", [Event(1, {"opened": 50})])
    await accounts.append("carol", [Event(1, {"opened": 70})], expire_after="1 day")
    for n in range(2, 6):
        await accounts.append("bob", [Event(n, {"deposited": n})])
    for name in ("alice", "bob", "carol"):
        tell(f"{name:6} is at {await accounts.pointer(name)}")
    await _read(accounts)
    await _check(accounts)
    await _delete(accounts)
    await _purge(accounts)
    await _history(accounts)


async def _read(accounts: Journal) -> None:
    say("Alice is read, while nothing is replicated")
    started = time.perf_counter()
    events = [event async for event in accounts.read("alice")]
    took_ms = (time.perf_counter() - started) * 1000
    for event in events:
        tell(f"{event.seq_nr}  {event.payload}  tags {list(event.tags)}")
    lag = sum(partition.lag for partition in await accounts.stats())
    tell(f"in {took_ms:.1f} ms, with the store {lag} records behind the log")


async def _check(accounts: Journal) -> None:
    say("Two writers expect the same seq_nr of Alice's account: one succeeds, the other is refused")
    await accounts.append("alice", [Event(3, {"withdrawn": 30})], expected=2)
    try:
        await accounts.append("alice", [Event(3, {"withdrawn": 100})], expected=2)
    except WrongSeqNr as refused:
        tell(str(refused))


async def _delete(accounts: Journal) -> None:
    say("Bob's events up to 3 are deleted: the journal goes on")
    await accounts.delete("bob", to=3)
    tell(f"events {[event.seq_nr async for event in accounts.read('bob')]}, pointer {await accounts.pointer('bob')}")


async def _purge(accounts: Journal) -> None:
    say("Carol's journal is purged, and starts again from 1")
    await accounts.purge("carol")
    tell(f"pointer {await accounts.pointer('carol')}")
    await accounts.append("carol", [Event(1, {"opened": 1})])
    tell(f"after a new append: {[event.payload async for event in accounts.read('carol')]}")


async def _history(accounts: Journal) -> None:
    say("What happened to Alice's account")
    async for moment in accounts.history("alice"):
        reason = f" ({moment.reason})" if moment.reason else ""
        tell(f"offset {moment.offset:<3} {moment.what:24} {moment.effect}{reason}")


async def show_tags(hr: Headrace, suffix: str) -> None:
    """Follow a tag, then feed a table from it."""
    members, tag = hr.journal(f"members{suffix}", partitions=4, origin="demo"), f"member{suffix}"
    await _follow(hr, members, tag)
    await _project(hr, members, tag)


async def _follow(hr: Headrace, members: Journal, tag: str) -> None:
    say("Events by tag, of all journals: what is there, then what comes")
    await members.append("erin", [Event(1, {"joined": 10}, (tag,))])
    async with aclosing(hr.events_by_tag(tag, live=True)) as events:
        _show(await anext(events), "was there")
        for name, paid in (("frank", 20), ("grace", 30)):
            waiting = asyncio.ensure_future(anext(events))
            started = time.perf_counter()
            await members.append(name, [Event(1, {"joined": paid}, (tag,))])
            event = await waiting
            _show(event, f"{(time.perf_counter() - started) * 1000:.1f} ms after the append began")


def _show(event: TaggedEvent, when: str) -> None:
    tell(f"{event.id:6} #{event.seq_nr}  {event.payload}  {when}")


async def _project(hr: Headrace, members: Journal, tag: str) -> None:
    from headrace.projection import Projection, ProjectionRunner, open_target

    say("A projection fills a SQL table; its place is stored in the same transaction")
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        projection = Projection(f"paid-by-{tag}", tag, _add, database=f"sqlite:///{Path(folder) / 'paid.db'}")
        target = open_target(projection, hr.store.settings)
        try:
            runner = ProjectionRunner(projection, hr.tags, target)
            await _catch_up(runner, projection.database)
            await members.append("erin", [Event(2, {"paid": 5}, (tag,))])
            await _catch_up(runner, projection.database)
        finally:
            await target.close()


def _add(connection: Any, event: Any) -> None:  # noqa: ANN401 - SQLAlchemy's connection, and the event
    from sqlalchemy import text

    connection.execute(text("CREATE TABLE IF NOT EXISTS paid (name TEXT PRIMARY KEY, total INTEGER)"))
    connection.execute(
        text("INSERT INTO paid VALUES (:name, :n) ON CONFLICT (name) DO UPDATE SET total = total + :n"),
        {"name": event.id, "n": sum(event.payload.values())},
    )


async def _catch_up(runner: ProjectionRunner, database: Any) -> None:  # noqa: ANN401 - a URL here
    from sqlalchemy import create_engine, text

    handled = await runner.catch_up()
    engine = create_engine(database)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, total FROM paid ORDER BY name")).all()
    engine.dispose()
    tell(
        f"{handled} event{'s' if handled != 1 else ''} handled: {', '.join(f'{name} {total}' for name, total in rows)}"
    )
