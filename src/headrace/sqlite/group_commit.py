"""Group commit: a thread that writes all work submitted meanwhile in one transaction."""

from __future__ import annotations

import asyncio
import copy
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from prometheus_client import Histogram

from headrace.errors import Closed
from headrace.sqlite.connections import begin_immediate, connect, explain

__all__ = ["GroupCommit"]

W = TypeVar("W")

GROUP_SIZE = Histogram(
    "headrace_sqlite_group_size",
    "Pieces of work that shared one commit.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
)


_Ticket = tuple[W, asyncio.Future[Any]]  # a piece of work and the future of its caller


class GroupCommit(Generic[W]):
    """The only writer of a file in this process.

    `apply(db, works)` runs inside one transaction and returns, for each piece of work, its result or the exception to
    raise. If it raises itself, the whole group fails, and `forget` is called, because what is cached of the file may be
    wrong. `committed` is called in the loop after each group, with the seconds since its first piece of work was
    submitted, and `changed` after each group that may have changed the file. `passing` is called in the writer's thread
    with the name of each step, so that tests can kill the process there.
    """

    def __init__(
        self,
        path: Path,
        apply: Callable[[sqlite3.Connection, Sequence[W]], Sequence[object]],
        *,
        forget: Callable[[], None],
        committed: Callable[[float], None],
        changed: Callable[[], None] = lambda: None,
        passing: Callable[[str], None] = lambda _step: None,
        fsync: bool = True,
        max_group: int = 1000,
        timeout_s: float = 30.0,
    ) -> None:
        self._path = path
        self._apply = apply
        self._forget = forget
        self._committed = committed
        self._changed = changed
        self._passing = passing
        self._max_group = max_group
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[_Ticket[W] | None] = SimpleQueue()  # None: no more will come
        self._is_closed = False
        self._db = connect(path, fsync=fsync)
        self._thread = threading.Thread(target=self._run, name="headrace-sqlite-write", daemon=True)
        self._thread.start()

    def submit(self, work: W) -> asyncio.Future[Any]:
        """Submit work from the loop's thread; the future is done once the work is on disk, or refused."""
        if self._is_closed:
            raise Closed(str(self._path))
        future = self._loop.create_future()
        self._waiting.put((work, future))
        return future

    async def close(self) -> None:
        """Write what was submitted, then stop."""
        self._is_closed = True
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)
        self._db.close()

    def _run(self) -> None:
        gathered_s = time.perf_counter()
        while True:
            first_waited = not self._waiting.empty()
            group, is_last = self._gather()
            since_s, gathered_s = gathered_s if first_waited else time.perf_counter(), time.perf_counter()
            if group:
                changes = self._db.total_changes
                outcomes = self._commit(group)
                has_changed = self._db.total_changes != changes
                try:
                    self._loop.call_soon_threadsafe(self._finish, group, outcomes, since_s, has_changed)
                except RuntimeError:
                    return  # the loop was closed before the group commit: no caller waits any more
            if is_last:
                return

    def _gather(self) -> tuple[list[_Ticket[W]], bool]:
        """Wait for a piece of work, then take all others that are there."""
        group: list[_Ticket[W]] = []
        ticket = self._waiting.get()
        while ticket is not None:
            group.append(ticket)
            if len(group) >= self._max_group or self._waiting.empty():
                return group, False
            ticket = self._waiting.get()
        return group, True

    def _commit(self, group: Sequence[_Ticket[W]]) -> Sequence[object]:
        GROUP_SIZE.observe(len(group))
        is_committing = False
        try:
            begin_immediate(self._db, timeout_s=self._timeout_s)
            outcomes = self._apply(self._db, [work for work, _ in group])
            self._passing("sqlite.before-commit")
            is_committing = True
            self._db.execute("COMMIT")
            self._passing("sqlite.after-commit")
            return outcomes
        except BaseException as error:  # whatever it is, the callers must get it
            failure = self._rolled_back(error, is_committing)
            return [copy.copy(failure) for _ in group]  # each caller's traceback is its own

    def _rolled_back(self, error: BaseException, is_committing: bool) -> BaseException:
        self._forget()
        outcome_known = not is_committing
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
            outcome_known = True
        if not isinstance(error, sqlite3.Error):
            return error
        return explain(error, self._path, "writing", timeout_s=self._timeout_s, outcome_known=outcome_known)

    def _finish(
        self, group: Sequence[_Ticket[W]], outcomes: Sequence[object], since_s: float, has_changed: bool
    ) -> None:
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue  # the caller was cancelled; the work was done all the same
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._committed(time.perf_counter() - since_s)
        if has_changed:
            self._changed()
