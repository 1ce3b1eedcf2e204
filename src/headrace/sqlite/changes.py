"""Notification of changes to a file, by this process or another one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from headrace.errors import Closed
from headrace.sqlite.connections import connect

__all__ = ["ChangeWatch", "next_interval_s"]


# A reader that waited for a second sees the next commit at most 20 ms later, one of a busy file after 2 ms.
_QUIET_FRACTION = 0.02
_LONGEST = 10


def next_interval_s(interval_s: float, *, quiet_s: float) -> float:
    """Return how long to wait before the file is looked at again, after nothing happened in it for `quiet_s`."""
    return min(interval_s * _LONGEST, max(interval_s, quiet_s * _QUIET_FRACTION))


class ChangeWatch:
    """Wakes tasks that wait for the next commit to a file.

    Commits of this process are announced by `announce`; those of other processes are found by
    `PRAGMA data_version`, only while a task waits: every `interval_s` while the file is in use, less often when nothing
    happened for a while (see `next_interval_s`), because each look wakes the process.
    """

    def __init__(self, path: Path, *, interval_s: float = 0.002) -> None:
        self._path = path
        self._db = connect(path)
        self._interval_s = interval_s
        self._waiters: set[asyncio.Future[None]] = set()
        self._poller: asyncio.Task[None] | None = None
        self._is_closed = False
        self._count = 0
        self._changed_at_s = time.monotonic()
        self.polls = 0  # how often the file was looked at
        self._seen = self._version()

    @property
    def version(self) -> int:
        """A number that changes with each commit that is noticed; take it before reading the file."""
        return self._count

    def announce(self) -> None:
        """Wake all waiting tasks: this process has committed."""
        if self._poller is not None and not self._poller.done() and not self._is_closed:
            # The poller would find this commit, too, and wake everybody once more for it. What others have committed
            # before this look is in the file for those who are woken now.
            self._seen = self._version()
        self._wake()

    def _wake(self) -> None:
        self._count += 1
        self._changed_at_s = time.monotonic()
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, *, since: int, timeout_s: float | None = None) -> bool:
        """Wait until the file has changed since the version `since`; False when the time is up."""
        if self._is_closed:
            raise Closed(str(self._path))
        if self._count != since:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._start_polling()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def close(self) -> None:
        """Stop; waiting tasks get Closed."""
        self._is_closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed(str(self._path)))
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._db.close()

    def _start_polling(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="headrace-sqlite-changes")

    async def _poll(self) -> None:
        while self._waiters:
            version = self._version()
            if version != self._seen:
                self._seen = version
                self._wake()
            await asyncio.sleep(next_interval_s(self._interval_s, quiet_s=time.monotonic() - self._changed_at_s))

    def _version(self) -> int:
        self.polls += 1
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])
