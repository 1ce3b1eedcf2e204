"""One partition of several states in one process: their copies, and the writer if this process owns the partition.

A read that is given a consistency token looks at the places in the changelog that it reads from, and at no others: what
was written elsewhere does not concern it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from headrace.errors import BadArgument, HeadraceError, StateStale, TimedOut
from headrace.log import Log, check_token
from headrace.model import ConsistencyToken, Record, TokenPlace, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Backoff, BootMoment, Clock
from headrace.serde import Registry
from headrace.state.changelog import ensure_changelog
from headrace.state.claims import KeyLocks
from headrace.state.commits import CommitQueue
from headrace.state.declaration import StateSpec
from headrace.state.ports import ChangelogWriter, KeyValueStore
from headrace.state.reader import ChangelogReader
from headrace.state.replica import StateReplica
from headrace.state.state import State
from headrace.state.unit_of_work import UnitOfWork
from headrace.state.values import ValueCodec, codec_of

__all__ = ["StatePartition", "place_of"]

K = TypeVar("K")
V = TypeVar("V")
OpenStore: TypeAlias = Callable[[StateSpec[Any, Any]], Awaitable[KeyValueStore]]

_EXPIRY_BATCH = 500
_LOOK_AGAIN_S = 0.002
_APPLY_TIMEOUT_S = 30.0
_BACKOFF = Backoff(limit_s=5.0)
_GENERATION = re.compile(r"\.\d+$")  # at the end of a topic's name

_logger = get_logger(__name__)


class StatePartition:
    """The states of one partition.

    As a standby it follows the changelogs (`follow`). To become the owner: `stop_following`, take the partition,
    `catch_up`, `own(writer)`. After a commit whose outcome is unknown: `catch_up`. To give it up: `disown`, `follow`.
    """

    def __init__(self, log: Log, partition: int, *, clock: Clock = SYSTEM_CLOCK, ask_every_s: float = 1.0) -> None:
        self.partition = partition
        self._log = log
        self._clock = clock
        self._ask_every_s = ask_every_s
        self._replicas: dict[str, StateReplica] = {}
        self._readers: dict[str, ChangelogReader] = {}
        self._stores: list[KeyValueStore] = []
        self._deltas: dict[str, ValueCodec[Any]] = {}
        self._queue = CommitQueue(clock)
        self._locks = KeyLocks()
        self._following: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def open(
        cls,
        log: Log,
        specs: Sequence[StateSpec[Any, Any]],
        partition: int,
        *,
        open_store: OpenStore,
        registry: Registry | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ask_every_s: float = 1.0,
        on_reserved: Callable[[Record], None] | None = None,
    ) -> StatePartition:
        """Make sure of the topics, open the stores, and find out from where to read on. Raises WrongStateTopic."""
        opened = cls(log, partition, clock=clock, ask_every_s=ask_every_s)
        try:
            for spec in specs:
                await opened._add(spec, open_store, registry, on_reserved)
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _add(
        self,
        spec: StateSpec[Any, Any],
        open_store: OpenStore,
        registry: Registry | None,
        on_reserved: Callable[[Record], None] | None,
    ) -> None:
        if spec.name in self._replicas:
            raise BadArgument("state", spec.name, "a partition has one state of a name")
        if not spec.is_external:
            admin = self._log.admin
            await ensure_changelog(admin, spec.topic, partitions=spec.partitions, config=spec.config)
        codec = await codec_of(spec.value, spec.topic, registry)
        if spec.delta is not None:
            self._deltas[spec.name] = await codec_of(spec.delta, spec.delta_topic, registry)
        store = await open_store(spec)
        self._stores.append(store)
        replica = StateReplica(
            spec,
            self.partition,
            log=self._log,
            store=store,
            codec=codec,
            clock=self._clock,
            on_reserved=on_reserved,
        )
        reader = ChangelogReader(self._log, replica, ask_every_s=self._ask_every_s)
        await reader.open()
        self._replicas[spec.name], self._readers[spec.name] = replica, reader

    @property
    def replicas(self) -> Mapping[str, StateReplica]:
        """The copies, by the name of their state."""
        return self._replicas

    @property
    def is_online(self) -> bool:
        """True if every state has read its changelog to the end that it found when it began."""
        return all(replica.is_online for replica in self._replicas.values())

    @property
    def ownership_read_from(self) -> dict[TopicPartition, int]:
        """From where on each changelog says who owns the partition, as far as the copies know."""
        found = ((replica.at, replica.owner_offset) for replica in self._replicas.values())
        return {at: offset for at, offset in found if offset is not None}

    @property
    def unsettled(self) -> HeadraceError | None:
        """The error after which `catch_up` must find out what was committed; None if all is known."""
        return self._queue.unsettled

    # Reading the changelogs.

    async def catch_up(self, *, timeout_s: float = 70.0) -> None:
        """Read every changelog to its end as it is now; settles a commit whose outcome was unknown."""
        await self.stop_following()
        for replica in self._replicas.values():
            self._queue.suspend(replica)
        await self._queue.finish()
        for reader in self._readers.values():
            await reader.catch_up(timeout_s=timeout_s)
        self._queue.settle()
        if any(replica.is_owned for replica in self._replicas.values()):
            self._follow(self._external)

    def follow(self) -> None:
        """Begin to follow the changelogs, until `stop_following`, `catch_up` or `close`."""
        self._follow(self._readers)

    def _follow(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._following:
                following = self._keep_following(name, self._readers[name])
                self._following[name] = asyncio.create_task(following, name=f"headrace-state-{name}-{self.partition}")

    async def stop_following(self) -> None:
        """Stop following; the copies stay as they are."""
        tasks = list(self._following.values())
        self._following.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _external(self) -> list[str]:
        return [name for name, replica in self._replicas.items() if replica.spec.is_external]

    async def _keep_following(self, name: str, reader: ChangelogReader) -> None:
        for attempt in itertools.count(1):
            try:
                await reader.follow()
            except HeadraceError as error:
                delay_s = _BACKOFF.delay_s(attempt)
                _logger.warning("following a changelog failed", state=name, error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    # Owning.

    def own(self, writer: ChangelogWriter, *, is_held: bool = False) -> None:
        """Begin to write. Everything was read before (`catch_up`). Raises BadArgument if it was not.

        States over topics of others are followed on. With `is_held` nothing is published before `release`: a
        new owner waits out the lease of the last one.
        """
        is_behind = not self.is_online or self.unsettled is not None
        if is_behind or self._following.keys() - set(self._external):
            raise BadArgument("writer", writer, "an owner has read everything and follows no more: call catch_up first")
        for replica in self._replicas.values():
            replica.is_owned = not replica.spec.is_external
            if is_held and replica.is_owned:
                replica.feed.hold()
        self._queue.own(writer)
        self._follow(self._external)

    def confirm(self, moment: BootMoment) -> None:
        """Take note that this process was the owner still at that moment: its copies are whole and as young."""
        for replica in self._replicas.values():
            if replica.is_owned:
                replica.confirm(moment)

    def release(self) -> None:
        """Publish what was kept back."""
        for replica in self._replicas.values():
            replica.feed.release()

    async def disown(self, why: str = "this process has given the partition up; send it to the owner") -> None:
        """Stop writing; a commit on its way is waited for."""
        await self._queue.disown(why)
        for replica in self._replicas.values():
            replica.is_owned = False

    async def expire_due(self, *, limit: int = _EXPIRY_BATCH) -> int:
        """Write tombstones for values that are due, up to `limit` of each state; returns how many."""
        unit = UnitOfWork(self._queue)
        for replica in self._replicas.values():
            if replica.is_owned:
                self._queue.check_readable(replica)
                for key in replica.due_keys(replica.now_ms, limit=limit):
                    unit.expire(replica, key)
        await unit.commit()
        return sum(map(len, unit.writes.values()))

    # Using the states.

    def begin(self) -> UnitOfWork:
        """Return a new unit of work, which whoever asked commits or forgets."""
        return UnitOfWork(self._queue)

    def state(self, spec: StateSpec[K, V], unit: UnitOfWork | None = None) -> State[K, V]:
        """Return a state: each call a transaction of its own, or all of them part of a unit of work."""
        return State(
            self.replica(spec.name),
            self._queue,
            self._locks,
            check_fresh=self.check_fresh,
            delta=self._deltas.get(spec.name),
            unit=unit,
        )

    def replica(self, name: str) -> StateReplica:
        """Return the copy of a state. Raises BadArgument."""
        found = self._replicas.get(name)
        if found is None:
            raise BadArgument("state", name, f"this partition has {sorted(self._replicas)}")
        return found

    async def check_fresh(self, name: str, *, max_staleness_s: float | None, at_least: int | None) -> None:
        """Refuse a read that wants more than the copy of a state has. Raises StateStale, StateOffline, TimedOut."""
        replica = self.replica(name)
        if at_least is not None and await self._is_behind_owner(replica, at_least):
            await self._applied(_APPLY_TIMEOUT_S)
            at_least = None
        await self._queue.check_fresh(replica, max_staleness_s=max_staleness_s, at_least=at_least)

    async def _is_behind_owner(self, replica: StateReplica, offset: int) -> bool:
        """Return True if this is the owner, and the log has an offset that its copy does not count.

        Standbys also pass the ends of transactions, and records that the owner writes for itself: what they have shown
        at such an offset is in the owner's copy, too.
        """
        if not replica.is_owned or offset < (replica.complete_offset or 0):
            return False
        return offset < (await self._log.bounds(replica.at)).high_watermark

    async def is_beyond_log(self, name: str, offset: int) -> bool:
        """Return True if the log of a state ends before an offset, so that it can't have been shown by this log."""
        replica = self.replica(name)
        last = replica.feed.last_offset
        if last is None or offset <= last:
            return False
        return offset >= (await self._log.bounds(replica.at)).high_watermark

    async def check_token(self, name: str, token: ConsistencyToken, *, timeout_s: float) -> None:
        """Refuse a read of a state if its copy lacks what the token names.

        The owner has all that was committed, apart from what it is applying, which is waited for. Raises StateStale at
        a standby, else TokenOfOtherTopic, BadToken, TokenAhead, TimedOut.
        """
        replica = self.replica(name)
        if not replica.is_owned:
            _check_standby_token(replica, token)
        elif not await _check_owner_token(self._log, replica, token):
            await self._applied(timeout_s)

    async def _applied(self, timeout_s: float) -> None:
        """Wait until what is being committed now is applied. Commits are applied one after another."""
        before = [replica.complete_offset for replica in self._replicas.values()]
        try:
            async with asyncio.timeout(timeout_s):
                while self._queue.is_committing:
                    if before != [replica.complete_offset for replica in self._replicas.values()]:
                        return
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError as error:
            raise TimedOut(f"waiting for a commit in partition {self.partition}", timeout_s) from error

    @contextlib.asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[UnitOfWork]:
        """Begin a unit of work; it is committed when the block ends, and forgotten when the block raises."""
        unit = self.begin()
        yield unit
        await unit.commit()

    async def close(self) -> None:
        """Stop everything and close the stores."""
        await self.stop_following()
        await self._queue.disown("the partition is closed")
        for replica in self._replicas.values():
            replica.feed.restart("the partition is closed")
        for store in self._stores:
            store.close()


def place_of(replica: StateReplica) -> TokenPlace | None:
    """Return the last place that the copy is whole at; None if there is none yet."""
    complete = replica.complete_offset
    if not complete:
        return None
    return TokenPlace(replica.topic.name, replica.topic.topic_id, replica.at.partition, complete - 1)


def _check_standby_token(replica: StateReplica, token: ConsistencyToken) -> None:
    """Refuse a read at a standby that does not surely have what the token names; the owner has it. Raises StateStale.

    Also if the topic is another one: the owner knows best which topic there is.
    """
    name, complete = replica.topic.name, replica.complete_offset or 0
    for place in token.places:
        if _GENERATION.sub("", place.topic) != _GENERATION.sub("", name):
            continue
        if (place.topic, place.topic_id) != (name, replica.topic.topic_id):
            raise StateStale(replica.spec.name, f"the token is of topic {place.topic!r} with the id {place.topic_id!r}")
        if place.partition >= replica.topic.partitions:
            raise StateStale(replica.spec.name, f"the token is of partition {place.partition}")
        if place.partition == replica.at.partition and place.offset >= complete:
            raise StateStale(replica.spec.name, f"the token names offset {place.offset}, it is whole below {complete}")


async def _check_owner_token(log: Log, replica: StateReplica, token: ConsistencyToken) -> bool:
    """Check what a token names against the owner's copy and its log.

    Returns False if the log has the record, and the copy does not name it: then it was written for the owner's own
    purposes, or is being applied at this moment. Raises TokenOfOtherTopic, BadToken, TokenAhead.
    """
    is_applied = True
    for place in token.of_topic(replica.topic.name):
        place.check(replica.topic)
        if place.partition == replica.at.partition and place.offset >= (replica.complete_offset or 0):
            await check_token(log, ConsistencyToken((place,)))
            is_applied = False
    return is_applied
