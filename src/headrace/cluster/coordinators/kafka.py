"""The coordinator in the log itself: a compacted topic that all nodes read, and a group that elects the leader.

A member writes its facts again and again, as its heartbeat; one that was silent for a session is missed. Whoever the
group gives the topic's only partition to leads. Of several records of a key the last one counts. The group's sessions
and this topic only propose: who owns a partition is decided by that partition's own log.

    member/<id>      [incarnation, joined, facts]: `joined` is the offset of the incarnation's first record
    request/<key>    what operators asked for
    plan             what the leader proposed last; its version is its offset + 1
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

import msgspec

from headrace.cluster.planning import Shared, decode_facts
from headrace.errors import DuplicateNode, OffsetOutOfRange, Unavailable, Unreachable
from headrace.log import Log, Member, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = ["KafkaCoordinationStore"]

T = TypeVar("T")

_log = get_logger(__name__)
_BEATS = 4  # in a session
_RETRY_S = 0.2


class _Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    incarnation: str
    joined: int  # -1 in an incarnation's first record
    facts: bytes


class _Seen(msgspec.Struct):
    """The last record of a member, where it is, and for how long the member has been silent since."""

    beat: _Heartbeat
    offset: int
    silent_s: float = 0.0


_beats = msgspec.msgpack.Decoder(_Heartbeat)


class KafkaCoordinationStore:
    """A `CoordinationStore` in a topic of a log; it works on every log that has groups."""

    def __init__(self, log: Log, topic: str, *, session_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.session_s = session_s
        self._log = log
        self._at = TopicPartition(topic, 0)
        self._clock = clock
        self._members: dict[str, _Seen] = {}
        self._requests: dict[str, bytes] = {}
        self._plan: tuple[int, bytes] | None = None
        self._next_offset = 0
        self._looked_s = clock.monotonic_s()
        self._outage: Unavailable | None = None
        self._changed = asyncio.Event()
        self._advanced = asyncio.Condition()
        self._session: tuple[str, str, int] | None = None
        self._facts = b""
        self._renewed_ms = 0
        self._intrusions = 0
        self._heard_s = clock.monotonic_s()
        self._leads = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, log: Log, *, cluster: str, session_s: float) -> KafkaCoordinationStore:
        """Make the topic if need be, and read it. The log is closed with the store."""
        topic = f"{cluster}-cluster"
        await ensure_topic(log.admin, topic, partitions=1, config=TopicConfig(cleanup=Cleanup.COMPACT))
        store = cls(log, topic, session_s=session_s)
        store._start(store._follow())
        await store._read_to_the_end()
        return store

    async def enter(self, member: str, incarnation: str, facts: bytes) -> None:
        """Begin a session; one of a process that died is waited for."""
        await self._stop_session()
        await self._wait_for_predecessor(member, incarnation)
        self._facts = facts
        joined = await self._beat(member, incarnation, -1)
        await self._read_to(joined + 1)
        # Of two that enter at once at most one stays: see _check_replaced.
        found = self._members.get(member)
        if found is not None and found.beat.incarnation != incarnation:
            self._raise_duplicate(member, incarnation, found)
        self._intrusions = 0
        self._session = (member, incarnation, joined)
        self._start(self._beat_on(member, incarnation, joined))
        self._start(self._take_part())

    async def put_facts(self, facts: bytes) -> None:
        """Replace the facts of this session's member."""
        if self._session is not None and self._is_alive():
            self._facts = facts
            await self._beat(*self._session)

    async def leave(self) -> None:
        """End the session."""
        session = self._session
        await self._stop_session()
        if session is not None and self._is_own(session):
            await self._put(f"member/{session[0]}", None)

    async def read(self) -> Shared:
        """Return what all nodes share. Raises Unavailable while the topic can't be read."""
        self._changed.clear()
        if self._outage is not None:
            raise self._outage
        if self._clock.monotonic_s() - self._heard_s > self.session_s / 2:
            # Living members are never silent for so long. Is nobody there, or does the log not answer?
            await self._read_to_the_end()
            self._heard_s = self._clock.monotonic_s()
        self._age()
        session = self._session
        is_member = session is not None and session[0] in self._members and self._is_alive()
        if session is not None and is_member:
            self._check_replaced(session)
        version, plan = self._plan or (0, None)
        return Shared(
            members={name: seen.beat.facts for name, seen in self._members.items() if seen.silent_s < self.session_s},
            requests=dict(self._requests),
            plan=plan,
            version=version,
            is_member=is_member,
            leads=is_member and self._leads,
        )

    async def put_plan(self, plan: bytes, *, expected: int) -> bool:
        """Replace the plan. Of two leaders the last one's counts, and the next plan follows from that."""
        if expected != (self._plan or (0, b""))[0]:
            return False
        await self._read_to(await self._put("plan", plan) + 1)
        return True

    async def put_request(self, key: str, value: bytes | None) -> None:
        """Store a request, or remove it."""
        await self._read_to(await self._put(f"request/{key}", value) + 1)

    async def changed(self) -> None:
        """Return when something was read, or the leader changed, since the last `read`."""
        await self._changed.wait()

    async def close(self) -> None:
        """Let go of the log."""
        await self._stop_session()
        await self._stop(self._tasks)
        await self._log.close()

    # Entering

    async def _wait_for_predecessor(self, member: str, incarnation: str) -> None:
        """Wait until an earlier process with this id is missed. Raises DuplicateNode when it shows that it lives."""
        await self._read_to_the_end()
        first = self._members.get(member)
        while (found := self._members.get(member)) is not None and found.beat.incarnation != incarnation:
            if first is None or found.offset != first.offset:
                self._raise_duplicate(member, incarnation, found)
            self._age()
            if found.silent_s >= self.session_s:
                return
            await asyncio.sleep(self.session_s / 20)
            await self._read_to_the_end()

    def _raise_duplicate(self, member: str, incarnation: str, other: _Seen) -> NoReturn:
        address = decode_facts(other.beat.facts).address
        raise DuplicateNode(member, incarnation, f"{address} ({other.beat.incarnation})")

    def _check_replaced(self, session: tuple[str, str, int]) -> None:
        """Raise DuplicateNode if a process that joined before this one has its id.

        A single record may be a late one, of a process that was frozen and has stopped since.
        """
        found = self._members[session[0]]
        if self._intrusions > 1 and found.beat.incarnation != session[1]:
            self._raise_duplicate(session[0], session[1], found)

    # The session

    async def _beat(self, member: str, incarnation: str, joined: int) -> int:
        began_ms = self._clock.boot_time().ms
        beat = msgspec.msgpack.encode(_Heartbeat(incarnation, joined, self._facts))
        offset = await self._put(f"member/{member}", beat)
        self._renewed_ms = began_ms
        return offset

    async def _beat_on(self, member: str, incarnation: str, joined: int) -> None:
        while True:
            await asyncio.sleep(self.session_s / _BEATS)
            if not self._is_alive():
                return  # another process may have the id by now; who wants to be a member enters again
            try:
                await self._beat(member, incarnation, joined)
            except Unavailable as error:  # the session ends unless the next attempt comes in time
                _log.warning("the session could not be renewed", reason=str(error))

    def _is_alive(self) -> bool:
        """Return True if the session was renewed in time; the clock runs on while the machine sleeps."""
        return self._clock.boot_time().ms - self._renewed_ms < self.session_s * 1000

    def _is_own(self, session: tuple[str, str, int]) -> bool:
        found = self._members.get(session[0])
        return found is not None and found.beat.incarnation == session[1]

    async def _take_part(self) -> None:
        """Be in the group that elects the leader; join it again when it was lost."""
        while True:
            member: Member | None = None
            try:
                # Brokers refuse shorter sessions than six seconds.
                session_s = max(6.0, self.session_s)
                member = await self._log.groups.join(
                    self._at.topic, [self._at.topic], start_at="latest", session_timeout_s=session_s
                )
                await self._poll(member)
            except Unavailable as error:
                _log.warning("the group of the coordinator does not answer", reason=str(error))
                await asyncio.sleep(_RETRY_S)
            finally:
                self._leads = False
                if member is not None:
                    with contextlib.suppress(Unavailable):
                        await member.leave()

    async def _poll(self, member: Member) -> None:
        while True:
            await member.poll(timeout_s=self.session_s / _BEATS)
            leads = self._at in member.assignment
            if leads != self._leads:
                self._leads = leads
                self._changed.set()

    async def _stop_session(self) -> None:
        self._session = None
        own, self._tasks = self._tasks[1:], self._tasks[:1]
        await self._stop(own)

    # The topic

    async def _put(self, key: str, value: bytes | None) -> int:
        record = NewRecord(self._at.topic, key.encode(), value, partition=0)
        (position,) = await self._in_time(self._log.append([record]), f"appending {key!r}")
        return position.offset

    async def _follow(self) -> None:
        """Read the topic for as long as the store is open."""
        while True:
            try:
                async for batch in self._log.read(self._at, self._next_offset):
                    self._outage = None
                    await self._take(batch.records, batch.next_offset)
            except OffsetOutOfRange as error:  # the topic was made again
                self._members, self._requests, self._plan, self._next_offset = {}, {}, None, error.start
            except Unavailable as error:
                self._outage = error
                self._changed.set()
                await asyncio.sleep(_RETRY_S)

    async def _take(self, records: Iterable[Record], next_offset: int) -> None:
        for record in records:
            kind, _, name = (record.key or b"").decode().partition("/")
            if kind == "member":
                self._take_member(name, record)
            elif kind == "request" and record.value is not None:
                self._requests[name] = record.value
            elif kind == "request":
                self._requests.pop(name, None)
            elif kind == "plan" and record.value is not None:
                self._plan = (record.offset + 1, record.value)
        self._next_offset = next_offset
        self._heard_s = self._clock.monotonic_s()
        self._changed.set()
        async with self._advanced:
            self._advanced.notify_all()

    def _take_member(self, name: str, record: Record) -> None:
        if record.value is None:
            self._members.pop(name, None)
            return
        beat = _beats.decode(record.value)
        self._members[name] = _Seen(beat, record.offset)
        if self._session is not None and name == self._session[0] and beat.incarnation != self._session[1]:
            self._intrusions += 0 <= beat.joined < self._session[2]

    def _age(self) -> None:
        """Let the members' silence grow. A pause of this process, or of the log, counts as one short moment."""
        now_s = self._clock.monotonic_s()
        passed_s = min(now_s - self._looked_s, self.session_s / _BEATS)
        self._looked_s = now_s
        for seen in self._members.values():
            seen.silent_s += passed_s

    async def _read_to_the_end(self) -> None:
        bounds = await self._in_time(self._log.bounds(self._at), "asking for the end")
        await self._read_to(bounds.end)

    async def _read_to(self, offset: int) -> None:
        async def advance() -> None:
            async with self._advanced:
                await self._advanced.wait_for(lambda: self._next_offset >= offset)

        await self._in_time(advance(), f"reading up to offset {offset}")

    async def _in_time(self, work: Awaitable[T], operation: str) -> T:
        """Give the log no longer than a session; by then this node is missed anyway."""
        try:
            async with asyncio.timeout(self.session_s):
                return await work
        except TimeoutError as error:
            reason = f"{operation} took longer than {self.session_s:g} s"
            raise Unreachable(str(self._at), reason, outcome_known=False) from error

    def _start(self, run: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(run, name="headrace-coordinator-kafka"))

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
