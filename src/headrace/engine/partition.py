"""One partition of an engine on one node: one transaction a batch, and replies after their commit.

Commands that arrive while a batch commits form the next one. A reply leaves when everything that it looked at is
committed; one that needs no commit of its own leaves under the owner's lease.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from headrace.cluster import Committed, PartitionRequest
from headrace.engine import metrics
from headrace.engine.background import OwnerWork
from headrace.engine.batches import CommandBatch, CommandDeadlines, LiveAggregates, PendingCommand, Stage
from headrace.engine.command_queue import CommandQueue, Outcome, TaskSet
from headrace.engine.commands import Answer, CommandRequest, decode_request, encode_answer, encode_read
from headrace.engine.handling import CommandHandling
from headrace.engine.housekeeping import EngineHousekeeping
from headrace.engine.places import InputPlaces
from headrace.engine.ports import PartitionOwner
from headrace.engine.records import FORGOTTEN_KEY, NOTHING_FORGOTTEN, AggregateRecord, decode_floor
from headrace.engine.timer_loop import PartitionTime, TimerLoop
from headrace.engine.tokens import PartitionTokens
from headrace.engine.work import BatchWork
from headrace.errors import (
    BadArgument,
    Busy,
    CommandExpired,
    Fenced,
    Forbidden,
    HeadraceError,
    NotPartitionOwner,
    OutcomeUnknown,
    RecordTooLarge,
    StateReadOnly,
    TimedOut,
    TimestampTooFarAhead,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from headrace.log import Log
from headrace.model import ConsistencyToken, NewRecord, Position, TopicPartition
from headrace.observe import Health, get_logger
from headrace.runtime import SYSTEM_CLOCK, Backoff, BootMoment, Clock, crash_point, moment_of
from headrace.state import BatchName, StatePartition

__all__ = ["CommittedAggregate", "EnginePartition"]

S = TypeVar("S")

_logger = get_logger(__name__)

_LOOK_FOR_OWNER_S = 0.02
# How long before a caller's deadline it is told what is known: a tenth of its time, and no more than this.
_ANSWER_BEFORE_S = 0.05
_ANSWER_BEFORE = 0.1
_BACKOFF = Backoff(first_s=0.05, limit_s=1.0)
# What a log refuses before it writes anything. After any other error a batch may have been committed.
_REFUSED_BY_THE_LOG = (BadArgument, Forbidden, RecordTooLarge, TimestampTooFarAhead, UnknownPartition, UnknownTopic)


class CommittedAggregate(NamedTuple):
    """A committed record of an aggregate, None if it has none, the newest committed batch, and the token of both."""

    record: AggregateRecord | None
    since: BatchName
    token: str = ""


class EnginePartition(Generic[S]):
    """The commands of one partition, on one node: a `PartitionHost`.

    Promises: an answer means that the command is in the log. A command id is done once, within the bounds that the
    engine's limits name. An error without `outcome_known` False means that nothing was done. Topics with commands and
    sagas are read from `log`; without one there are none.
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
        self._has_work = asyncio.Event()
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
            on_work=self._has_work.set,
            places=places,
        )
        timers = TimerLoop(handling, self._replica, self._submit_work, now_ms=self._time.now_ms)
        self._own_work = OwnerWork(handling, log, timers, places, self._submit_work)
        self._committing: CommandBatch | None = None
        self._settled = asyncio.Event()
        self._last = NOTHING_FORGOTTEN
        self._stamp_ms = 0
        self._arrivals = 0
        self._pending = 0
        self._is_watching = False
        self._is_behind = False
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
                await self._pause(failures, error)
        self.health.up()
        self._states.own(_NoOtherWriter(self._engine.name), is_held=True)
        self._tokens.begin()
        # Below every batch of this epoch, and above every batch of those before.
        self._last = BatchName(epoch, 0)
        self._queue.begin(epoch, self._stored_floor())
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
        left_s = max(0.0, deadline_s - self._loop.time())
        if isinstance(asked, CommandRequest):
            # At the deadline itself the caller gives up, and could not tell a command that waited from one in a commit.
            answer_by_s = deadline_s - min(_ANSWER_BEFORE_S, left_s * _ANSWER_BEFORE)
            return encode_answer(await self.submit(asked, deadline_s=answer_by_s, attempt=request.attempt))
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

    async def submit(self, request: CommandRequest, *, deadline_s: float, attempt: int = 1) -> Answer:
        """Handle a command and return its answer, until a deadline on the loop's clock.

        `attempt` is above 1 if earlier attempts with the same command id were not answered. Raises NotPartitionOwner,
        Busy, CommandExpired, CommandIdReused, CommandTooLate: nothing was done; and OutcomeUnknown.
        """
        limit = self._engine.limits.waiting
        if self._pending >= limit:
            raise Busy(f"engine {self._engine.name!r}, partition {self._replica.at.partition},", limit)
        self._check_not_elsewhere()
        if attempt == 1 and request.is_first:
            # No other attempt was made, so that its id can't have been forgotten, however old the caller's knowledge.
            request = msgspec.structs.replace(request, since=None)
        self._arrivals += 1
        timeout_s = max(0.0, deadline_s - self._loop.time())
        done = self._loop.create_future()
        command = PendingCommand(self._arrivals, request, deadline_s, timeout_s, done, attempt, is_alone=attempt > 1)
        self._queue.add(command)
        self._watch_for_owner()
        self._pending += 1
        self._deadlines.add(command)
        try:
            return await command.done
        finally:
            self._pending -= 1
            self._queue.remove(command)

    async def read(self, aggregate: str, *, timeout_s: float, at_least: str | None = None) -> CommittedAggregate:
        """Return what is committed of an aggregate, at a moment after this call began.

        Raises BadToken, TokenOfOtherTopic or TokenAhead if the state topic can't have what the token names, TimedOut.
        """
        await self._owned_by().serve_gate(timeout_s=timeout_s)
        token = ConsistencyToken.parse(at_least or "")
        await self._states.check_token(self._engine.name, token, timeout_s=timeout_s)
        if self._is_behind or self._tokens.is_beyond(token):
            # Readers of the log can see a commit before its owner hears of it.
            await self._settle(timeout_s)
            await self._owned_by().serve_gate(timeout_s=timeout_s)
        record, since = await self._stored(aggregate), self._last
        return CommittedAggregate(record, since, await self._tokens.text())

    async def _settle(self, timeout_s: float) -> None:
        """Wait until what is being committed now is committed and applied, or known not to be. Raises TimedOut."""
        batch = self._committing
        try:
            async with asyncio.timeout(timeout_s):
                while batch is not None and self._committing is batch:
                    await self._settled.wait()
        except TimeoutError as error:
            raise TimedOut(f"waiting for a commit of engine {self._engine.name!r}", timeout_s) from error

    def _submit_work(self, aggregate: str, work: BatchWork, is_alone: bool) -> PendingCommand:
        """Put work that no caller has sent into the lane of an aggregate, or into one of its own."""
        self._arrivals += 1
        request = CommandRequest(aggregate=aggregate, kind=type(work).__name__, data=b"")
        done = self._loop.create_future()
        command = PendingCommand(self._arrivals, request, math.inf, math.inf, done, is_alone=is_alone, work=work)
        self._queue.add(command)
        return command

    # Committing.

    async def _run(self) -> None:
        """Commit batches until cancelled."""
        keeping = asyncio.create_task(self.housekeeping.run(), name=f"headrace-engine-{self._engine.name}-house")
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while not self._queue.open.is_empty and self._queue.is_begun:
                    await self._commit_next()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _commit_next(self) -> None:
        """Commit the open batch; commands that are handled meanwhile form the next one."""
        batch = self._committing = self._queue.seal()
        self._settled.clear()
        try:
            with metrics.stage(self._engine.name, "publish"):
                await self._commit(batch)
        finally:
            self._committing = None
            self._settled.set()
        self._queue.unseal()

    async def _commit(self, batch: CommandBatch) -> None:
        self._stamp_ms = max(self._stamp_ms, self._time.now_ms())
        records = batch.records(self._replica.at, self._stamp_ms)
        began = moment_of(self._clock)
        crash_point("engine.before-commit")
        try:
            committed = await self._owned_by().commit(records)
        except NotPartitionOwner as error:
            self._queue.rewind(self._queue.floor)  # what was handled on top of it stands on nothing
            self._fail(batch, error)
        except _REFUSED_BY_THE_LOG as error:
            self._refused(batch, error)
        except HeadraceError as error:
            if isinstance(error, Unavailable | Fenced) and error.outcome_known:
                self._repeat(batch)
            else:
                await self._give_up_batch(batch, error)
        except BaseException:
            self._fail(batch, OutcomeUnknown(self._engine.name, "", "its node is stopping"))
            raise
        else:
            crash_point("engine.after-commit")
            self.health.up()
            metrics.COMMANDS.labels(self._engine.name, "committed").inc(len(batch.outcomes))
            self._tokens.committed({record.topic for record in records}, committed.positions)
            self._tasks.start(self._reply(batch, committed))
            if batch.generation == self._queue.generation:
                await self._apply(batch, _landed(records, committed.positions, self._replica.at.topic), began)

    async def _apply(self, batch: CommandBatch, landed: list[tuple[NewRecord, Position]], began: BootMoment) -> None:
        """Apply what is committed. If the store can't, nothing is handled before the log was read again."""
        try:
            with metrics.stage(self._engine.name, "apply"):
                self._replica.apply_committed(landed, began=began)
        except HeadraceError as error:
            _logger.exception("a batch is committed and not applied", engine=self._engine.name, error=str(error))
            await self._read_again()
        self._queue.live.committed(batch.name)
        self._last = batch.name
        if batch.has_timers:
            self._own_work.timers.wake()

    async def _reply(self, batch: CommandBatch, committed: Committed) -> None:
        try:
            await self._owned_by().reply_gate(committed)
            token = await self._token()
        except asyncio.CancelledError:
            self._fail(batch, OutcomeUnknown(self._engine.name, "", "its node is stopping"))
            raise
        self._states.release()
        for command, outcome, is_repeated in batch.outcomes:
            _tell(command, outcome, batch.name, is_repeated=is_repeated, token=token)

    async def _token(self) -> str:
        """Return the token of what is committed, for as long as it takes: a reply without it could not be relied on."""
        for failures in itertools.count(1):
            try:
                return await self._tokens.text()
            except HeadraceError as error:
                await self._pause(failures, error)
        raise AssertionError("it is asked for without an end")

    def _repeat(self, batch: CommandBatch) -> None:
        """Handle a batch again that is known not to be committed, and all that was handled on top of it."""
        self._queue.rewind(self._stored_floor())
        self._queue.again(batch.commands)

    def _refused(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Find the command that the log refuses: each one is tried alone."""
        if len(batch.outcomes) > 1:
            for command in batch.commands:
                command.is_alone = True
            self._repeat(batch)
            return
        _logger.warning("the log refused a batch", engine=self._engine.name, batch=str(batch.name), error=str(error))
        self._queue.rewind(self._stored_floor())
        for command in batch.commands:
            command.fail(error)

    async def _give_up_batch(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Tell the callers that nobody knows; if this is the owner still, read what became of it before going on."""
        _logger.error("a batch can't be settled", engine=self._engine.name, batch=str(batch.name), error=str(error))
        self.health.down(f"batch {batch.name} can't be settled: {error}")
        self._fail(batch, OutcomeUnknown(self._engine.name, "", str(error)))
        if self._queue.is_begun:
            await self._read_again()

    async def _read_again(self) -> None:
        """Read the log to its end, for as long as that takes, and handle again what is not committed.

        Reads wait for it: until then the copy may lack what was committed.
        """
        self._is_behind = True
        try:
            await self._read_to_end()
        finally:
            self._is_behind = False

    async def _read_to_end(self) -> None:
        self._queue.rewind(self._queue.floor)
        for failures in itertools.count(1):
            if not self._queue.is_begun:
                return
            try:
                await self._states.catch_up()
                break
            except HeadraceError as error:
                await self._pause(failures, error)
        self.health.up()
        self._queue.rewind(self._stored_floor())

    def _fail(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Give the callers of a batch the error, each with the name of its aggregate."""
        for command in batch.commands:
            if isinstance(error, OutcomeUnknown):
                command.fail(OutcomeUnknown(error.engine, command.request.aggregate, error.reason))
            else:
                command.fail(error)

    # Replies that need no commit of their own.

    def _answer_without_commit(self, command: PendingCommand, outcome: Outcome, is_repeated: bool) -> None:
        """Answer when all that the reply looked at is committed; a commit that is sent from now on proves it."""
        if self._queue.open.is_empty:
            self._tasks.start(self._leave_under_lease(command, outcome, is_repeated=is_repeated))
        else:
            self._queue.open.attach(command, outcome, is_repeated=is_repeated)

    async def _leave_under_lease(self, command: PendingCommand, outcome: Outcome, *, is_repeated: bool) -> None:
        """Answer when the batch that is being committed is, and the lease shows that nobody else commits."""
        generation, batch = self._queue.generation, self._committing
        while batch is not None and self._committing is batch:
            await self._settled.wait()
        try:
            if generation == self._queue.generation and not self._owned_by().may_serve():
                await self._owned_by().serve_gate(timeout_s=max(0.0, command.deadline_s - self._loop.time()))
            since, token = self._last, await self._tokens.text()
        except HeadraceError as error:
            command.fail(error)
            return
        except asyncio.CancelledError:
            command.fail(self._not_owner())
            raise
        if generation != self._queue.generation:
            self._queue.again([command])
            self._watch_for_owner()
        else:
            _tell(command, outcome, since, is_repeated=is_repeated, token=token)

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

    def _stored_floor(self) -> BatchName:
        return decode_floor(self._replica.reserved(FORGOTTEN_KEY))

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
        return self._queue.is_begun and self._committing is None and self._owned_by().may_serve()

    async def _pause(self, failures: int, error: HeadraceError) -> None:
        delay_s = _BACKOFF.delay_s(failures)
        self.health.down(f"reading {self._replica.at} failed {failures} times: {error}")
        _logger.warning("reading failed", at=str(self._replica.at), error=str(error), retry_in_s=delay_s)
        await asyncio.sleep(delay_s)


def _landed(
    records: Sequence[NewRecord], positions: Sequence[Position], topic: str
) -> list[tuple[NewRecord, Position]]:
    """Return what went to the state topic. A commit that was settled by reading tells only where that lies."""
    states = [record for record in records if record.topic == topic]
    places = [position for position in positions if position.topic == topic][: len(states)]
    return list(zip(states, places, strict=True))


def _tell(command: PendingCommand, outcome: Outcome, since: BatchName, *, is_repeated: bool, token: str = "") -> None:
    if isinstance(outcome, HeadraceError):
        command.fail(outcome)
    else:
        command.answer(Answer(outcome, since, is_repeated, token))


class _NoOtherWriter:
    """The writer of an engine's state topic, as the state sees it: only batches of commands write there."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Refuse."""
        raise StateReadOnly(self._engine, "an engine's state is written by its commands")
