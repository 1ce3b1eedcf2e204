"""The coordinator in the log itself: a compacted topic that all nodes read, and a group that elects the leader.

A member sends a beat several times in a session; one that was silent for a session is missed. Whoever the group gives
the topic's only partition to leads. The group's sessions and this topic only propose: who owns a partition is decided
by that partition's own log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, NamedTuple, NoReturn

import msgspec

from headrace.cluster.coordinators.cluster_topic import Beat, ClusterTopic, MemberRecord
from headrace.cluster.planning import Shared, decode_facts, has_died
from headrace.errors import DuplicateNode, HeadraceError, Unavailable
from headrace.log import Log, Member
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = ["KafkaCoordinationStore"]

_log = get_logger(__name__)
_BEATS = 4  # in a session
_RETRY_S = 1.0
_SHORTEST_GROUP_SESSION_S = 6.0  # brokers refuse shorter ones


class _Session(NamedTuple):
    """This node's membership; `joined` is the offset of its first beat."""

    member: str
    incarnation: str
    joined: int
    address: str


class KafkaCoordinationStore:
    """A `CoordinationStore` in a topic of a log; it works on every log that has groups."""

    def __init__(self, log: Log, topic: str, *, session_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.session_s = session_s
        self._log = log
        self._clock = clock
        self._topic = ClusterTopic(log, topic, session_s=session_s, clock=clock)
        self._topic.on_beat = self._hear
        self._session: _Session | None = None
        self._facts = b""
        self._renewed_ms = 0
        self._intrusions = 0
        self._leads = False
        self._follower: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, log: Log, *, cluster: str, session_s: float) -> KafkaCoordinationStore:
        """Make the topic if need be, and read it. The log is closed with the store."""
        store = cls(log, f"{cluster}-cluster", session_s=session_s)
        try:
            await store._topic.make()
            store._follower = asyncio.create_task(store._topic.follow(), name="headrace-cluster-topic")
            await store._topic.read_to_the_end()
        except BaseException:
            await store.close()
            raise
        return store

    async def enter(self, member: str, incarnation: str, facts: bytes) -> None:
        """Begin a session; that of a process that died is waited for, unless it is known to have died."""
        await self._stop_session()
        await self._wait_for_predecessor(member, incarnation)
        await self._put_record(member, incarnation, facts)
        address = decode_facts(facts).address
        joined = await self._beat(_Session(member, incarnation, -1, address))
        await self._topic.read_to(joined + 1)
        # Of two that enter at once at most one stays: see _check_replaced.
        found = self._topic.beats.get(member)
        if found is not None and found.beat.incarnation != incarnation:
            _raise_duplicate(member, incarnation, found.beat)
        self._intrusions = 0
        self._session = _Session(member, incarnation, joined, address)
        self._start(self._beat_on(self._session))
        self._start(self._take_part())

    async def put_facts(self, facts: bytes) -> None:
        """Replace the facts of this session's member."""
        if self._session is not None and self._is_alive():
            offset = await self._put_record(self._session.member, self._session.incarnation, facts)
            await self._topic.read_to(offset + 1)

    async def leave(self) -> None:
        """End the session."""
        session = self._session
        await self._stop_session()
        found = self._topic.beats.get(session.member) if session is not None else None
        is_own = session is not None and found is not None and found.beat.incarnation == session.incarnation
        if session is not None and is_own and not self._intrusions:  # else the entry is that of another process
            await self._topic.put(f"beat/{session.member}", None)
            await self._topic.put(f"member/{session.member}", None)

    async def read(self) -> Shared:
        """Return what all nodes share. Raises Unavailable while the topic can't be read."""
        self._topic.changed.clear()
        await self._topic.look()
        session = self._session
        is_member = session is not None and self._is_alive()
        if session is not None and is_member:
            self._check_replaced(session)
        version, plan = self._topic.plan
        return Shared(
            members=self._topic.facts(),
            requests=dict(self._topic.requests),
            plan=plan,
            version=version,
            is_member=is_member,
            leads=is_member and self._leads,
        )

    async def refresh(self) -> None:
        """Read all that is there now."""
        await self._topic.read_to_the_end()

    async def put_plan(self, plan: bytes, *, expected: int) -> bool:
        """Replace the plan. Of two leaders the last one's counts, and the next plan follows from that."""
        if expected != self._topic.plan[0]:
            return False
        await self._topic.read_to(await self._topic.put("plan", plan) + 1)
        return True

    async def put_request(self, key: str, value: bytes | None) -> None:
        """Store a request, or remove it."""
        await self._topic.read_to(await self._topic.put(f"request/{key}", value) + 1)

    async def changed(self) -> None:
        """Return when something new was read, or the leader changed, since the last `read`."""
        await self._topic.changed.wait()

    async def close(self) -> None:
        """Let go of the log."""
        await self._stop_session()
        if self._follower is not None:
            await _stop([self._follower])
        await self._log.close()

    async def _wait_for_predecessor(self, member: str, incarnation: str) -> None:
        """Wait until an earlier process with this id is missed, or known to have died.

        Raises DuplicateNode when it shows that it lives.
        """
        await self._topic.read_to_the_end()
        first = self._topic.beats.get(member)
        while (found := self._topic.beats.get(member)) is not None and found.beat.incarnation != incarnation:
            if first is None or found.offset != first.offset:
                _raise_duplicate(member, incarnation, found.beat)
            await self._topic.look()
            if found.silent_s >= self.session_s or self._has_died(member, found.beat.incarnation):
                return
            await asyncio.sleep(self.session_s / 20)
            await self._topic.read_to_the_end()

    def _has_died(self, member: str, incarnation: str) -> bool:
        record = self._topic.records.get(member)
        return record is not None and record.incarnation == incarnation and has_died(record.facts)

    def _hear(self, member: str, beat: Beat) -> None:
        """Count the beats of a process that has this node's id and joined before it."""
        session = self._session
        if session is not None and member == session.member and beat.incarnation != session.incarnation:
            self._intrusions += 0 <= beat.joined < session.joined

    def _check_replaced(self, session: _Session) -> None:
        """Raise DuplicateNode if a process that joined before this one has its id.

        A single beat may be a late one, of a process that was frozen and has stopped since.
        """
        found = self._topic.beats.get(session.member)
        if self._intrusions > 1 and found is not None and found.beat.incarnation != session.incarnation:
            _raise_duplicate(session.member, session.incarnation, found.beat)

    async def _put_record(self, member: str, incarnation: str, facts: bytes) -> int:
        self._facts = facts
        return await self._topic.put(f"member/{member}", msgspec.msgpack.encode(MemberRecord(incarnation, facts)))

    async def _beat(self, session: _Session) -> int:
        began_ms = self._clock.boot_time().ms
        beat = msgspec.msgpack.encode(Beat(session.incarnation, session.joined, session.address))
        offset = await self._topic.put(f"beat/{session.member}", beat)
        self._renewed_ms = began_ms
        return offset

    async def _beat_on(self, session: _Session) -> None:
        while True:
            await asyncio.sleep(self.session_s / _BEATS)
            if not self._is_alive():
                self._topic.changed.set()
                return  # another process may have the id by now; who wants to be a member enters again
            try:
                await self._beat(session)
                await self._restore_record(session)
            except Unavailable as error:  # the session ends unless the next attempt comes in time
                _log.warning("the session could not be renewed", reason=str(error))

    async def _restore_record(self, session: _Session) -> None:
        """Write the facts again if another process with this id has overwritten them; that process stops."""
        found = self._topic.records.get(session.member)
        if found is None or found.incarnation != session.incarnation:
            await self._put_record(session.member, session.incarnation, self._facts)

    def _is_alive(self) -> bool:
        """Return True if the session was renewed in time; the clock runs on while the machine sleeps."""
        return self._clock.boot_time().ms - self._renewed_ms < self.session_s * 1000

    async def _take_part(self) -> None:
        """Be in the group that elects the leader; join it again when it was lost."""
        session_s = max(_SHORTEST_GROUP_SESSION_S, self.session_s)
        topic = self._topic.at.topic
        while True:
            member: Member | None = None
            try:
                member = await self._log.groups.join(topic, [topic], start_at="latest", session_timeout_s=session_s)
                await self._poll(member)
            except HeadraceError as error:
                _log.warning("the group that elects the leader can't be joined", reason=str(error))
                await asyncio.sleep(_RETRY_S)
            finally:
                self._leads = False
                if member is not None:
                    with contextlib.suppress(HeadraceError):  # the group misses it after its session
                        await member.leave()

    async def _poll(self, member: Member) -> None:
        while True:
            await member.poll(timeout_s=self.session_s / _BEATS)
            leads = self._topic.at in member.assignment
            if leads != self._leads:
                self._leads = leads
                self._topic.changed.set()

    async def _stop_session(self) -> None:
        self._session = None
        tasks, self._tasks = self._tasks, []
        await _stop(tasks)

    def _start(self, run: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(run, name="headrace-coordinator-kafka"))


def _raise_duplicate(member: str, incarnation: str, other: Beat) -> NoReturn:
    raise DuplicateNode(member, incarnation, f"{other.address} ({other.incarnation})")


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
