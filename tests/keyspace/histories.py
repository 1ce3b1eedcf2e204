"""Counters under load, and whether what callers saw of each key is one line of events.

Every ask adds one and returns the new total, so the calls of a key have one order if: no two asks return the same
total; a call that began after another one had ended returns no less than that one, and more if it is an ask; and
nothing returns more than was begun. A read with the consistency token of an ask may be stale, and returns no less than
that ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.keyspace.keyspace_process import Add, now_ms

from headrace.errors import HeadraceError
from headrace.keyspace import KeyspaceClient

__all__ = ["KeyHistory", "Load", "under_load"]


@dataclass
class KeyHistory:
    """What callers saw of one key so far. `faults` says what contradicts one order of all calls."""

    key: str
    begun: int = 0
    seen: int = 0
    replies: set[int] = field(default_factory=set)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    newest: tuple[int, str] = (0, "")
    faults: list[str] = field(default_factory=list)

    def begin_ask(self) -> int:
        """Note that an ask goes out; returns what its reply must be above."""
        self.begun += 1
        return self.seen

    def end_ask(self, floor: int, reply: int, token: str) -> None:
        """Note a reply, and its token."""
        if reply in self.replies or not floor < reply <= self.begun:
            self.faults.append(f"{self.key}: an ask after {floor} and among {self.begun} returned {reply}")
        self.replies.add(reply)
        self.seen = max(self.seen, reply)
        self.acknowledged.append((now_ms(), self.seen))
        self.newest = max(self.newest, (reply, token))

    def end_read(self, floor: int, value: int) -> None:
        """Note what a read that began at `floor` has returned."""
        if not floor <= value <= self.begun:
            self.faults.append(f"{self.key}: a read after {floor} and among {self.begun} returned {value}")
        self.seen = max(self.seen, value)

    def acknowledged_before(self, moment_ms: int) -> int:
        """Return the total that somebody knew at a moment."""
        return max((total for at_ms, total in self.acknowledged if at_ms < moment_ms), default=0)


class Load:
    """Callers that ask and read without a pause."""

    def __init__(self, client: KeyspaceClient, keys: list[str]) -> None:
        self._client = client
        self.histories = {key: KeyHistory(key) for key in keys}
        self.failures: list[str] = []
        self.done = 0
        self._progress = asyncio.Event()

    async def go_on(self, calls: int = 40) -> None:
        """Return when so many more calls have succeeded, of asks and reads of every key."""
        wanted = {key: len(each.replies) + 3 for key, each in self.histories.items()}
        target = self.done + calls
        async with asyncio.timeout(60):
            while self.done < target or any(len(self.histories[key].replies) < n for key, n in wanted.items()):
                self._progress.clear()
                await self._progress.wait()

    def check(self) -> None:
        """Fail if a call failed, or if calls contradict one another."""
        assert not self.failures, self.failures[:5]
        faults = [fault for each in self.histories.values() for fault in each.faults]
        assert not faults, faults[:5]

    async def ask_on(self, history: KeyHistory) -> None:
        """Ask again and again."""
        while True:
            floor = history.begin_ask()
            with self._counting("ask"):
                reply, token = await self._client.ask_with_token(Add(history.key), message_id=uuid.uuid4().hex)
                history.end_ask(floor, reply, token)
            await asyncio.sleep(0.005)

    async def read_on(self, history: KeyHistory) -> None:
        """Read again and again."""
        while True:
            own = self._client.read_at_once("totals", history.key)  # where this process is the owner
            if own is not None:
                history.end_read(history.seen, self._client.decode_at_once("totals", own.data))
            floor = history.seen
            with self._counting("get"):
                history.end_read(floor, await self._client.get("totals", history.key) or 0)
            total, token = history.newest
            with self._counting("get with a token"):
                found = await self._client.get("totals", history.key, max_staleness_s=60.0, at_least=token)
                history.end_read(total, found or 0)
            await asyncio.sleep(0.005)

    @contextlib.contextmanager
    def _counting(self, what: str) -> AsyncIterator[None]:  # type: ignore[misc]
        try:
            yield
            self.done += 1
            self._progress.set()
        except HeadraceError as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")


@contextlib.asynccontextmanager
async def under_load(client: KeyspaceClient, keys: list[str]) -> AsyncIterator[Load]:
    """Run two callers that ask and one that reads for each key while the block runs; then check what they saw."""
    load = Load(client, keys)
    works = [work(each) for each in load.histories.values() for work in (load.ask_on, load.ask_on, load.read_on)]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await load.go_on()
        yield load
        await load.go_on()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    load.check()
