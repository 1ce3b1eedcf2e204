"""Journals at work: accounts are opened and changed, read with nothing replicated, deleted, purged."""

from __future__ import annotations

import time

from headrace.app import Headrace
from headrace.cli.demo.voice import say, tell
from headrace.errors import WrongSeqNr
from headrace.journal import Journal
from headrace.model import Event

__all__ = ["show_journal"]


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
