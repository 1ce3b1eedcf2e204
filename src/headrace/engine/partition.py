"""One partition of an engine on one node: what the node asks of it, and what callers want while it is owned here."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from headrace.cluster import PartitionRequest
from headrace.engine.background import EngineHousekeeping, OwnerWork
from headrace.engine.batch_commits import BatchCommits
from headrace.engine.batches import BatchWork, CommandDeadlines, LiveAggregates, PendingCommand, Stage, TaskSet
from headrace.engine.command_queue import CommandQueue, Outcome
from headrace.engine.commands import Answer, CommandRequest, decode_request, encode_answer, encode_read
from headrace.engine.handling import CommandHandling
from headrace.engine.places import InputPlaces
from headrace.engine.ports import PartitionOwner
from headrace.engine.records import AggregateRecord
from headrace.engine.timer_loop import PartitionTime, TimerLoop
from headrace.engine.tokens import PartitionTokens
from headrace.errors import (
    Busy,
    CommandExpired,
    NotPartitionOwner,
    OutcomeUnknown,
    StateReadOnly,
    Unavailable,
)
from headrace.log import Log
from headrace.model import ConsistencyToken, NewRecord, Position, TopicPartition
from headrace.observe import Health
from headrace.runtime import SYSTEM_CLOCK, Clock
from headrace.state import BatchName, StatePartition
from headrace.store import StoreReader

__all__ = ["CommittedAggregate", "EnginePartition"]

S = TypeVar("S")

_LOOK_FOR_OWNER_S = 0.02
# How long before a caller's deadline it gets what is known: a tenth of its time, and no more than this.
_ANSWER_BEFORE_S = 0.05
_ANSWER_BEFORE = 0.1


class CommittedAggregate(NamedTuple):
    """A committed record of an aggregate, None if it has none, the newest committed batch, and the token of both."""

    record: AggregateRecord | None
    since: BatchName
    token: str = ""


class EnginePartition(Generic[S]):
    """The commands of one partition, on one node: a `PartitionHost`.

    Promises: an answer means that the command is in the log. A command id is done once, within the bounds that the
    engine's limits name. An error without `outcome_known` False means that nothing was done. Topics with commands and
    sagas are read from `log`; without one there are none. `store` has the events that left the log, for sagas.
    """

    def __init__(
        self,
        handling: CommandHandling[S],
        states: StatePartition,
        *,
        node: str,
        log: Log | None = None,
        clock: Clock = SYSTEM_CLOCK,
        tokens: PartitionTokens | None = None,
        store: Callable[[], StoreReader] | None = None,
    ) -> None:
        self._handling = handling
        self._engine = handling.engine
        self._states = states
        self._replica = states.replicas[self._engine.name]
        self._node = node
        self._clock = clock
        self._tokens = tokens or PartitionTokens(self._replica)
        self.health = Health("commits")
        self._loop = asyncio.get_running_loop()
        self._owner: PartitionOwner | None = None
        self._running: asyncio.Task[None] | None = None
        self._deadlines = CommandDeadlines(self._loop, self._give_up)
        self._tasks = TaskSet(f"headrace-engine-{self._engine.name}")
        self._time = PartitionTime(self._replica, clock)
        places = InputPlaces(self._replica.reserved)
        self._queue = CommandQueue(
            handling,
            self._tasks,
            load=self._stored,
            now_ms=self._time.now_ms,
            answer=self._answer_without_commit,
            on_work=self._has_work,
            places=places,
        )
        timers = TimerLoop(handling, self._replica, self._submit_work, now_ms=self._time.now_ms)
        self._own_work = OwnerWork(handling, log, timers, places, self._submit_work, store)
        self._commits = BatchCommits(
            handling,
            states,
            self._queue,
            self._tasks,
            self._tokens,
            owner=self._owned_by,
            not_owner=self._not_owner,
            on_again=self._watch_for_owner,
            on_timers=timers.wake,
            now_ms=self._time.now_ms,
            clock=clock,
            health=self.health,
        )
        self._arrivals = 0
        self._pending = 0
        self._is_watching = False
        self.housekeeping = EngineHousekeeping(
            handling, states, self._queue, clock=clock, may_confirm=self._may_confirm
        )
        self.health.adopt(self.housekeeping.health)

    # What the node asks.

    @property
    def changelogs(self) -> tuple[TopicPartition, ...]:
        """The state topic's partition: it says who owns the engine's partition, journal included."""
        return (self._replica.at,)

    @property
    def ownership_read_from(self) -> Mapping[TopicPartition, int]:
        """From where on the state topic says who owns the partition."""
        return self._states.ownership_read_from

    @property
    def offset(self) -> int:
        """How far the copy has come."""
        return self._replica.progress.position if self._replica.is_online else 0

    @property
    def is_online(self) -> bool:
        """True if the copy has read all that was there when it began."""
        return self._states.is_online

    @property
    def live(self) -> LiveAggregates:
        """The aggregates in memory."""
        return self._queue.live

    def begin(self, owner: PartitionOwner) -> None:
        """Begin to follow, and to commit while this node owns the partition."""
        self._owner = owner
        self._states.follow()
        self._running = asyncio.create_task(self._run(), name=f"headrace-engine-{self._engine.name}-commits")

    async def owns(self, epoch: int) -> None:
        """Read all that was committed, and begin to handle.

        It is not called when this node takes the partition again, because its lease or the answer to a commit was
        lost: nobody else has written in between, and everything goes on.
        """
        for failures in itertools.count(1):
            try:
                await self._states.catch_up()
                break
            except Unavailable as error:
                await self._commits.pause(failures, error)
        self.health.up()
        self._states.own(_NoOtherWriter(self._engine.name), is_held=True)
        self._tokens.begin()
        # Below every batch of this epoch, and above every batch of those before.
        self._commits.last = BatchName(epoch, 0)
        self._queue.begin(epoch, self._commits.stored_floor())
        self._own_work.start()

    async def lost(self) -> None:
        """Stop: commands that were in no commit get NotPartitionOwner, and the copy follows the new owner."""
        self._own_work.stop()
        self._queue.end()
        self._queue.fail_waiting(self._not_owner())
        self.health.up()  # what failed here is the next owner's now
        await self._states.disown()
        self._states.follow()

    async def handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        """Answer a request of a caller at any node."""
        asked = decode_request(request.payload)
        if isinstance(asked, CommandRequest):
            return encode_answer(await self.submit_until(asked, deadline_s, attempt=request.attempt))
        left_s = max(0.0, deadline_s - self._loop.time())
        read = await self.read(asked.aggregate, timeout_s=left_s, at_least=asked.at_least)
        return encode_read(read.record, read.since, read.token)

    async def close(self) -> None:
        """Stop; callers of what was in no commit hear that nothing was done."""
        await self._own_work.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._queue.end()
        self._queue.fail_waiting(self._not_owner())
        await self._tasks.end()
        self._deadlines.close()
        await self._states.close()

    # What callers want.

    def submit_until(
        self, request: CommandRequest, deadline_s: float, *, attempt: int = 1
    ) -> Coroutine[Any, Any, Answer]:
        """Handle a command as `submit` does, and answer a little before the caller's deadline.

        At the deadline itself the caller gives up, and could not tell a command that waited from one in a commit.
        """
        left_s = max(0.0, deadline_s - self._loop.time())
        answer_by_s = deadline_s - min(_ANSWER_BEFORE_S, left_s * _ANSWER_BEFORE)
        return self.submit(request, deadline_s=answer_by_s, attempt=attempt)

    async def submit(self, request: CommandRequest, *, deadline_s: float, attempt: int = 1) -> Answer:
        """Handle a command and return its answer, until a deadline on the loop's clock.

        `attempt` is above 1 if earlier attempts with the same command id were not answered. Raises NotPartitionOwner,
        Busy, CommandExpired, CommandIdReused, CommandTooLate: nothing was done; and OutcomeUnknown.
        """
        limit = self._engine.limits.waiting
        if self._pending >= limit:
            raise Busy(f"engine {self._engine.name!r}, partition {self._replica.at.partition},", limit)
        if not self._queue.is_begun:
            self._check_not_elsewhere()
        if attempt == 1 and request.is_first:
            # No other attempt was made, so that its id can't have been forgotten, however old the caller's knowledge.
            request = msgspec.structs.replace(request, since=None)
        self._arrivals += 1
        timeout_s = max(0.0, deadline_s - self._loop.time())
        done: asyncio.Future[Answer] = self._loop.create_future()
        command = PendingCommand(self._arrivals, request, deadline_s, timeout_s, done, attempt, is_alone=attempt > 1)
        self._queue.add(command)
        if not self._queue.is_begun:
            self._watch_for_owner()
        self._pending += 1
        self._deadlines.add(command)
        try:
            return await done
        finally:
            self._pending -= 1
            if command.stage is Stage.WAITING:
                self._queue.remove(command)

    async def read(self, aggregate: str, *, timeout_s: float, at_least: str | None = None) -> CommittedAggregate:
        """Return what is committed of an aggregate, at a moment after this call began.

        Raises BadToken, TokenOfOtherTopic or TokenAhead if the state topic can't have what the token names, TimedOut.
        """
        await self._owned_by().serve_gate(timeout_s=timeout_s)
        token = ConsistencyToken.parse(at_least or "")
        await self._states.check_token(self._engine.name, token, timeout_s=timeout_s)
        if self._commits.is_behind or self._tokens.is_beyond(token):
            # Readers of the log can see a commit before its owner gets the answer.
            await self._commits.settle(timeout_s)
            await self._owned_by().serve_gate(timeout_s=timeout_s)
        record, since = await self._stored(aggregate), self._commits.last
        return CommittedAggregate(record, since, await self._tokens.text())

    def _submit_work(self, aggregate: str, work: BatchWork, is_alone: bool) -> PendingCommand:
        """Put work that no caller has sent into the lane of an aggregate, or into one of its own.

        It fails at once if this node is not the owner: when it is again, what the work was made of may be outdated.
        """
        self._arrivals += 1
        request = CommandRequest(aggregate=aggregate, kind=type(work).__name__, data=b"")
        done = self._loop.create_future()
        command = PendingCommand(self._arrivals, request, math.inf, math.inf, done, is_alone=is_alone, work=work)
        if self._queue.is_begun:
            self._queue.add(command)
        else:
            command.fail(self._not_owner())
        return command

    async def _run(self) -> None:
        """Commit batches until cancelled."""
        keeping = asyncio.create_task(self.housekeeping.run(), name=f"headrace-engine-{self._engine.name}-house")
        try:
            await self._commits.run()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    def _has_work(self) -> None:
        self._commits.wake()

    def _answer_without_commit(self, command: PendingCommand, outcome: Outcome, is_repeated: bool) -> None:
        self._commits.answer_without_commit(command, outcome, is_repeated)

    def _give_up(self, command: PendingCommand) -> None:
        """Tell the caller, whose time is up, what is known about the command."""
        name, aggregate = self._engine.name, command.request.aggregate
        if command.stage is Stage.WAITING:
            command.fail(CommandExpired(name, aggregate, command.timeout_s))
        else:
            reason = f"it was not committed within {command.timeout_s:g} s"
            command.fail(OutcomeUnknown(name, aggregate, reason))

    # Reading, ownership and housekeeping.

    async def _stored(self, aggregate: str) -> AggregateRecord | None:
        entry = self._replica.entry(aggregate.encode())
        if entry is None:
            return None
        record = self._handling.values.decode(entry.value)
        if record.state is not None:
            await self._handling.values.inner.prepare(record.state)
        return record

    def _owned_by(self) -> PartitionOwner:
        if self._owner is None:
            raise self._not_owner()
        return self._owner

    def _not_owner(self) -> NotPartitionOwner:
        owner = self._owner.owner if self._owner is not None else ""
        return NotPartitionOwner(*self._replica.at, self._node, "" if owner == self._node else owner)

    def _check_not_elsewhere(self) -> None:
        """Refuse a command at once if the log names another owner; if it names none, the command waits for one."""
        if not self._queue.is_begun and self._owner is not None and self._owner.owner not in ("", self._node):
            raise self._not_owner()

    def _watch_for_owner(self) -> None:
        if not self._queue.is_begun and not self._is_watching:
            self._is_watching = True
            self._tasks.start(self._wait_for_owner())

    async def _wait_for_owner(self) -> None:
        """Wait until this node owns the partition, or another one does; then nothing waits here any more."""
        try:
            while not self._queue.is_begun and self._queue.has_waiting:
                self._check_not_elsewhere()
                await asyncio.sleep(_LOOK_FOR_OWNER_S)
        except NotPartitionOwner as error:
            self._queue.fail_waiting(error)
        finally:
            self._is_watching = False

    def _may_confirm(self) -> bool:
        """Return True if the copy is whole at this moment: this is the owner, and nothing is being committed."""
        return self._queue.is_begun and not self._commits.is_committing and self._owned_by().may_serve()


class _NoOtherWriter:
    """The writer of an engine's state topic, as the state sees it: only batches of commands write there."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Refuse."""
        raise StateReadOnly(self._engine, "an engine's state is written by its commands")
