"""Groups: members share partitions, each partition read by one of them at a time."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import Closed, HeadraceError, Unavailable
from headrace.log import checks
from headrace.log.embedded import membership
from headrace.log.embedded.membership import load_offsets, store_offsets
from headrace.log.embedded.read import PartitionReader
from headrace.log.embedded.rebalances import EmbeddedAssignment, GroupTables
from headrace.log.embedded.schema import load_topic
from headrace.log.ports import Listener, Member, StartAt
from headrace.model import Record, TopicPartition
from headrace.observe import get_logger

__all__ = ["EmbeddedGroups", "GroupTables"]

_logger = get_logger(__name__)

_BEATS_PER_SESSION = 4
_MAX_POLL_INTERVAL_S = 300.0


class EmbeddedGroups:
    """The embedded log's Groups."""

    def __init__(self, shared: GroupTables) -> None:
        self._shared = shared
        self._members: set[EmbeddedMember] = set()

    async def join(
        self,
        group: str,
        topics: Sequence[str],
        *,
        listener: Listener | None = None,
        start_at: StartAt = "earliest",
        session_timeout_s: float = 45.0,
    ) -> Member:
        """Become a member."""
        wanted = checks.check_join(group, topics, listener, start_at, session_timeout_s)
        await self._shared.readers.run(lambda db: [load_topic(db, topic) for topic in wanted])
        member = EmbeddedMember(self._shared, group, frozenset(wanted), listener, start_at, session_timeout_s)
        await member.start()
        self._members.add(member)
        return member

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the committed offsets."""
        checks.check_name("group", group)
        wanted = checks.check_places(partitions)
        return await self._shared.readers.run(lambda db: load_offsets(db, group, wanted))

    async def close(self) -> None:
        """Stop the heartbeats of members that did not leave; their sessions expire."""
        for member in self._members:
            await member.stop()


class EmbeddedMember:
    """One member. Its session is renewed in the background; assignments change inside `poll`."""

    def __init__(
        self,
        shared: GroupTables,
        group: str,
        topics: frozenset[str],
        listener: Listener | None,
        start_at: StartAt,
        session_timeout_s: float,
    ) -> None:
        self.group = group
        self.member_id = f"member-{uuid.uuid4()}"
        self._shared = shared
        self._topics = topics
        self._session_timeout_s = session_timeout_s
        self._assignment = EmbeddedAssignment(shared, group, self.member_id, listener, start_at)
        self._seen_generation = -1
        self._turn = 0
        self._is_expired = False
        self._is_closed = False
        self._polled_at_s = asyncio.get_running_loop().time()
        self._heart: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns, as of the last poll."""
        return self._assignment.partitions

    @property
    def generation(self) -> int:
        """How often the assignment has changed."""
        return self._assignment.generation

    async def start(self) -> None:
        """Begin the session."""
        await self._beat()
        self._is_expired = False  # the first heartbeat finds no session: the member joins and has lost nothing
        self._heart = asyncio.create_task(self._send_heartbeats(), name=f"headrace-{self.member_id}")

    async def stop(self) -> None:
        """Stop the heartbeat without informing the group."""
        self._is_closed = True
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
        if self._changing is not None and self._changing is not asyncio.current_task():
            self._changing.cancel()
            await asyncio.wait([self._changing])

    async def poll(self, *, max_records: int = 1000, timeout_s: float = 1.0) -> Sequence[Record]:
        """Update the assignment and return the next records."""
        checks.check_poll(max_records, timeout_s)
        if self._is_closed:
            raise Closed(f"member {self.member_id} of group {self.group!r}")
        self._polled_at_s = asyncio.get_running_loop().time()
        deadline = self._polled_at_s + timeout_s
        while True:
            version = self._shared.changes.version
            await self._settle()
            records = await self._fetch(max_records)
            left_s = deadline - asyncio.get_running_loop().time()
            if records or left_s <= 0:
                return records
            await self._shared.changes.wait(since=version, timeout_s=min(left_s, self._beat_interval_s))

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the offsets to continue from."""
        wanted = checks.check_offsets(offsets)
        await self._shared.call(lambda db: store_offsets(db, self.group, self.member_id, wanted))
        readers = self._assignment.readers
        for at, offset in wanted.items():
            if at in readers:
                readers[at].leave_out_unreadable(below=offset)

    async def pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Stop fetching, or fetch again."""
        wanted = checks.check_places(partitions)
        now_paused = self._assignment.paused
        (now_paused.update if paused else now_paused.difference_update)(wanted)

    async def leave(self) -> None:
        """Give all partitions back and end the session."""
        if self._is_closed:
            return
        if self._changing is not None and self._changing is not asyncio.current_task():
            await asyncio.wait([self._changing])
        listener = self._assignment.listener
        if self.assignment and listener:
            await listener.revoked(self.assignment)
        await self.stop()
        self._assignment.readers.clear()
        await self._shared.call(lambda db: membership.forget_member(db, self.group, self.member_id))

    @property
    def _beat_interval_s(self) -> float:
        return self._session_timeout_s / _BEATS_PER_SESSION

    async def _send_heartbeats(self) -> None:
        """Keep the session alive while the member polls; a member that stopped polling must not block the group."""
        while True:
            await asyncio.sleep(self._beat_interval_s)
            if asyncio.get_running_loop().time() - self._polled_at_s > _MAX_POLL_INTERVAL_S:
                continue
            try:
                await self._beat()
            except Unavailable as error:
                _logger.warning("heartbeat missed", group=self.group, member=self.member_id, error=str(error))

    async def _beat(self) -> membership.Share:
        session_ms = int(self._session_timeout_s * 1000)
        share: membership.Share = await self._shared.call(
            lambda db: membership.beat(
                db,
                self.group,
                self.member_id,
                self._topics,
                now=self._shared.clock.boot_time(),
                session_ms=session_ms,
            )
        )
        self._is_expired = self._is_expired or not share.is_known
        return share

    async def _settle(self) -> None:
        """Apply the group's new assignment if there is one.

        A change that began is finished even if the caller is cancelled: a partition that is owned in the file but has
        no reader would not be read by any member.
        """
        if self._changing is None:
            generation = await self._shared.readers.run(lambda db: membership.generation_of(db, self.group))
            if generation == self._seen_generation and not self._is_expired:
                return
            self._changing = asyncio.create_task(self._change(), name=f"headrace-{self.member_id}-assignment")
        changing = self._changing
        try:
            await asyncio.shield(changing)
        finally:
            if changing.done():
                self._changing = None

    async def _change(self) -> None:
        share = await self._beat()
        if self._is_expired:
            self._is_expired = False
            await self._assignment.lose_all()
        # Any later change raises the generation again, so the next poll sees it.
        self._seen_generation = share.generation
        await self._assignment.revoke((self.assignment | share.owned) - share.wanted)
        await self._assignment.assign(share)

    async def _fetch(self, max_records: int) -> list[Record]:
        """Read the partitions one after the other, starting with a different one each time.

        Records of one partition are not lost if another one fails or the caller is cancelled meanwhile.
        """
        readers = self._assignment.readers
        active = sorted(at for at in readers if at not in self._assignment.paused)
        self._turn += 1
        records: list[Record] = []
        taken: list[tuple[PartitionReader, int]] = []
        try:
            for step in range(len(active)):
                if len(records) >= max_records:
                    break
                reader = readers[active[(self._turn + step) % len(active)]]
                taken.append((reader, reader.position))
                records.extend((await reader.next_batch(max_records=max_records - len(records))).records)
        except BaseException as error:
            if records and isinstance(error, HeadraceError):
                return records  # the failed partition raises again when it is read first
            for reader, position in taken:
                reader.position = position
            raise
        return records
