"""The coordinator of one machine: a SQLite file of its own, so that no session waits behind commits of the log.

Sessions are rows with the boot's id and a deadline on the clock that runs since the boot: the machine's processes share
it and nobody sets it. A row of another boot has ended, because its process has not survived.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from headrace.cluster.planning import Shared, decode_facts, has_died
from headrace.errors import Closed, DuplicateNode, Unavailable
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, BootTime, Clock
from headrace.sqlite import ChangeWatch, connect, explain, prepare_file

__all__ = ["EmbeddedCoordinationStore"]

T = TypeVar("T")

FILE_FORMAT = 1
TABLES = """
CREATE TABLE sessions (
    member TEXT PRIMARY KEY, incarnation TEXT NOT NULL, boot_id TEXT NOT NULL, deadline_ms INTEGER NOT NULL,
    facts BLOB NOT NULL
);
CREATE TABLE leader (
    only INTEGER PRIMARY KEY CHECK (only = 1), incarnation TEXT NOT NULL, boot_id TEXT NOT NULL,
    deadline_ms INTEGER NOT NULL
);
CREATE TABLE requests (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE plan (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL, value BLOB NOT NULL)
"""
_LOOK_S = 0.01

_log = get_logger(__name__)


class _Row(NamedTuple):
    """A session, as the file holds it."""

    incarnation: str
    boot_id: str
    deadline_ms: int
    facts: bytes

    def is_alive(self, now: BootTime) -> bool:
        """Return True if the session has not ended."""
        return self.boot_id == now.boot_id and self.deadline_ms > now.ms


class EmbeddedCoordinationStore:
    """A `CoordinationStore` in one file of this machine."""

    def __init__(self, path: Path, *, session_s: float = 3.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self.session_s = session_s
        self._path = path
        self._clock = clock
        # Nothing here takes long; who holds the lock for longer is stuck, and the view is old then.
        self._busy_s = session_s / 4
        prepare_file(path, TABLES, file_format=FILE_FORMAT, fsync=False)
        self._db = connect(path, fsync=False, busy_timeout_s=self._busy_s)
        self._changes = ChangeWatch(path, interval_s=_LOOK_S)
        self._seen = self._changes.version
        # One thread: a connection is used by one transaction at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-coordinator")
        self._session: tuple[str, str] | None = None
        self._heart: asyncio.Task[None] | None = None
        self._is_closed = False

    async def enter(self, member: str, incarnation: str, facts: bytes) -> None:
        """Begin a session; that of a process that died is replaced if it is known to have died, else waited for."""
        await self.stop_renewing()
        first: _Row | None = None
        while (found := await self._write(lambda db: self._enter(db, member, incarnation, facts))) is not None:
            if first is not None and (found.incarnation, found.deadline_ms) != (first.incarnation, first.deadline_ms):
                address = decode_facts(found.facts).address
                raise DuplicateNode(member, incarnation, f"{address} ({found.incarnation})")
            first = found
            await asyncio.sleep(min(0.1, self.session_s / 10))
        self._session = (member, incarnation)
        self._heart = asyncio.create_task(self._renew_on(), name="headrace-coordinator-session")

    async def put_facts(self, facts: bytes) -> None:
        """Replace the facts of this session's member."""
        session = self._session
        if session is not None:
            sql = "UPDATE sessions SET facts = ? WHERE member = ? AND incarnation = ?"
            await self._write(lambda db: db.execute(sql, (facts, *session)))

    async def leave(self) -> None:
        """End the session."""
        await self.stop_renewing()
        session, self._session = self._session, None
        if session is not None and not self._is_closed:
            await self._write(lambda db: _forget(db, session))

    async def read(self) -> Shared:
        """Return what all nodes share."""
        self._seen = self._changes.version
        return await self._run(self._read, "BEGIN")

    async def refresh(self) -> None:
        """Return at once: every read is of the file as it is."""

    async def put_plan(self, plan: bytes, *, expected: int) -> bool:
        """Replace the plan of version `expected`."""

        def put(db: sqlite3.Connection) -> bool:
            (version,) = db.execute("SELECT coalesce(max(version), 0) FROM plan").fetchone()
            if version == expected:
                db.execute("INSERT OR REPLACE INTO plan VALUES (1, ?, ?)", (version + 1, plan))
            return bool(version == expected)

        return await self._write(put)

    async def put_request(self, key: str, value: bytes | None) -> None:
        """Store a request, or remove it."""
        if value is None:
            await self._write(lambda db: db.execute("DELETE FROM requests WHERE key = ?", (key,)))
        else:
            await self._write(lambda db: db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?)", (key, value)))

    async def changed(self) -> None:
        """Return when the file has changed since the last read."""
        await self._changes.wait(since=self._seen)

    async def close(self) -> None:
        """Let go of the file."""
        self._is_closed = True
        await self.stop_renewing()
        await self._changes.close()
        await asyncio.to_thread(self._thread.shutdown)
        self._db.close()

    async def stop_renewing(self) -> None:
        """Stop the session's renewal without ending it: what a process that dies does."""
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heart

    async def _renew_on(self) -> None:
        while True:
            try:
                await self._write(self._renew)
            except Unavailable as error:  # the session ends unless the next attempt comes in time
                _log.warning("the session could not be renewed", reason=str(error))
            await asyncio.sleep(self.session_s / 3)

    def _enter(self, db: sqlite3.Connection, member: str, incarnation: str, facts: bytes) -> _Row | None:
        """Write the session, or return the one that is in the way."""
        now = self._clock.boot_time()
        found = _session(db, member)
        if found is not None and found.incarnation != incarnation and found.is_alive(now):
            if not has_died(found.facts):
                return found
            _forget(db, (member, found.incarnation))  # if it led, somebody else can do so at once
        row = _Row(incarnation, now.boot_id, self._deadline(now), facts)
        db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?)", (member, *row))
        return None

    def _renew(self, db: sqlite3.Connection) -> None:
        """Renew the session if it is still alive, and lead if nobody does."""
        now = self._clock.boot_time()
        assert self._session is not None  # noqa: S101 - it renews what was entered
        member, incarnation = self._session
        found = _session(db, member)
        if found is None or found.incarnation != incarnation or not found.is_alive(now):
            return
        db.execute("UPDATE sessions SET deadline_ms = ? WHERE member = ?", (self._deadline(now), member))
        if _leader(db, now) in (None, incarnation):
            leader = (incarnation, now.boot_id, self._deadline(now))
            db.execute("INSERT OR REPLACE INTO leader VALUES (1, ?, ?, ?)", leader)

    def _read(self, db: sqlite3.Connection) -> Shared:
        now = self._clock.boot_time()
        rows = db.execute("SELECT member, incarnation, boot_id, deadline_ms, facts FROM sessions").fetchall()
        sessions = {member: row for member, *rest in rows if (row := _Row(*rest)).is_alive(now)}
        plan = db.execute("SELECT version, value FROM plan").fetchone() or (0, None)
        member, incarnation = self._session or (None, None)
        is_member = member in sessions and sessions[member].incarnation == incarnation
        return Shared(
            members={name: row.facts for name, row in sessions.items()},
            requests=dict(db.execute("SELECT key, value FROM requests")),
            version=plan[0],
            plan=plan[1],
            is_member=is_member,
            leads=is_member and _leader(db, now) == incarnation,
        )

    def _deadline(self, now: BootTime) -> int:
        return now.ms + round(self.session_s * 1000)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        done = await self._run(work, "BEGIN IMMEDIATE")
        self._changes.announce()
        return done

    async def _run(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        if self._is_closed:
            raise Closed(str(self._path))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work, begin)

    def _transact(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        try:
            self._db.execute(begin)
            try:
                done = work(self._db)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise explain(error, self._path, "coordinating", timeout_s=self._busy_s) from error
        return done


def _session(db: sqlite3.Connection, member: str) -> _Row | None:
    sql = "SELECT incarnation, boot_id, deadline_ms, facts FROM sessions WHERE member = ?"
    found = db.execute(sql, (member,)).fetchone()
    return None if found is None else _Row(*found)


def _leader(db: sqlite3.Connection, now: BootTime) -> str | None:
    """Return the incarnation that leads, if its time is not over."""
    found = db.execute("SELECT incarnation, boot_id, deadline_ms FROM leader").fetchone()
    is_leading = found is not None and found[1] == now.boot_id and found[2] > now.ms
    return found[0] if is_leading else None


def _forget(db: sqlite3.Connection, session: tuple[str, str]) -> None:
    db.execute("DELETE FROM sessions WHERE member = ? AND incarnation = ?", session)
    db.execute("DELETE FROM leader WHERE incarnation = ?", (session[1],))
