"""One partition of an engine: commands in, one transaction a batch, replies after their commit.

Commands that arrive while a batch commits are handled on top of it and form the next one. If a batch turns out not to
be committed, it and everything handled on top of it are handled again. A reply leaves when everything that it looked at
is committed; one that needs no commit of its own leaves under the owner's lease.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.cluster import Committed, PartitionRequest
from headrace.engine import metrics
from headrace.engine.batches import CommandBatch, CommandLane, LiveAggregates, PendingCommand, Stage
from headrace.engine.commands import (
    Answer,
    CommandReply,
    CommandRequest,
    decode_request,
    encode_answer,
    encode_read,
)
from headrace.engine.handling import CommandHandling, Decision
from headrace.engine.records import FORGOTTEN_KEY, NOTHING_FORGOTTEN, AggregateRecord, decode_floor, encode_floor, pruned
from headrace.errors import (
    BadArgument,
    Busy,
    CommandExpired,
    CommandFailed,
    Fenced,
    Forbidden,
    HeadraceError,
    NotPartitionOwner,
    OutcomeUnknown,
    RecordTooLarge,
    StateReadOnly,
    TimestampTooFarAhead,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from headrace.model import NewRecord, Position, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Backoff, BootMoment, Clock, crash_point, moment_of
from headrace.state import BatchName, StatePartition

__all__ = ["CommittedAggregate", "EnginePartition", "PartitionOwner"]

S = TypeVar("S")

_logger = get_logger(__name__)

_LOOK_FOR_OWNER_S = 0.02
_HOUSEKEEPING_S = 1.0
_SWEPT_AT_ONCE = 500
_ATTEMPTS = 3
_BACKOFF = Backoff(first_s=0.05, limit_s=1.0)
# What a log refuses before it writes anything. After any other error a batch may have been committed.
_REFUSED_BY_THE_LOG = (BadArgument, Forbidden, RecordTooLarge, TimestampTooFarAhead, UnknownPartition, UnknownTopic)


class PartitionOwner(Protocol):
    """What a partition needs of its `headrace.cluster.Owner`."""

    @property
    def owner(self) -> str:
        """The node that the log names as the owner."""
        ...

    async def commit(self, records: Sequence[NewRecord]) -> Committed:
        """Write a batch in one transaction."""
        ...

    def may_serve(self) -> bool:
        """Return True if a read may be answered now."""
        ...

    async def serve_gate(self, *, timeout_s: float) -> None:
        """Wait until a read may be answered."""
        ...

    async def reply_gate(self, committed: Committed) -> None:
        """Wait until the answers to a batch may leave."""
        ...


class CommittedAggregate(NamedTuple):
    """A committed record of an aggregate, None if it has none, and the newest committed batch."""

    record: AggregateRecord | None
    since: BatchName


class EnginePartition(Generic[S]):
    """The commands of one partition, on one node: a `PartitionHost`.

    Promises: an answer means that the command is in the log. A command id is done once, within the bounds that the
    engine's limits name. An error without `outcome_known` False means that nothing was done.
    """

    def __init__(
        self, handling: CommandHandling[S], states: StatePartition, *, node: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._handling = handling
        self._engine = handling.engine
        self._states = states
        self._replica = states.replicas[self._engine.name]
        self._node = node
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._owner: PartitionOwner | None = None
        self._running: asyncio.Task[None] | None = None
        self._epoch: int | None = None
        # Grows whenever what was handled and not committed must be handled again.
        self._generation = 0
        self._lanes: dict[str, CommandLane] = {}
        self._live = LiveAggregates()
        self._open = CommandBatch(NOTHING_FORGOTTEN, 0)
        self._committing: CommandBatch | None = None
        self._settled = asyncio.Event()
        self._last = NOTHING_FORGOTTEN
        self._floor = NOTHING_FORGOTTEN
        self._stamp_ms = 0
        self._arrivals = 0
        self._pending = 0
        self._sweep_after = b""
        self._is_watching = False
        self._has_work = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # What the node asks; this is its `PartitionHost`.

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

    def begin(self, owner: PartitionOwner) -> None:
        """Begin to follow, and to commit while this node owns the partition."""
        self._owner = owner
        self._states.follow()
        self._running = asyncio.create_task(self._run(), name=f"headrace-engine-{self._engine.name}-commits")

    async def handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        """Answer a request of a caller at any node."""
        asked = decode_request(request.payload)
        if isinstance(asked, CommandRequest):
            return encode_answer(await self.submit(asked, deadline_s=deadline_s, attempt=request.attempt))
        read = await self.read(asked.aggregate, timeout_s=max(0.0, deadline_s - self._loop.time()))
        return encode_read(read.record, read.since)

    async def close(self) -> None:
        """Stop; callers of what was in no commit hear that nothing was done."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._states.close()

    @property
    def pending(self) -> int:
        """How many commands are not answered yet."""
        return self._pending

    @property
    def live(self) -> LiveAggregates:
        """The aggregates in memory."""
        return self._live

    # What callers want.

    async def submit(self, request: CommandRequest, *, deadline_s: float, attempt: int = 1) -> Answer:
        """Handle a command and return its answer, until a deadline on the loop's clock.

        `attempt` is above 1 if earlier attempts with the same command id were not answered.
        Raises NotPartitionOwner, Busy, CommandExpired, CommandIdReused, CommandTooLate: nothing was done; and
        OutcomeUnknown.
        """
        limit = self._engine.limits.waiting
        if self._pending >= limit:
            raise Busy(f"engine {self._engine.name!r}, partition {self._replica.at.partition},", limit)
        self._check_not_elsewhere()
        self._arrivals += 1
        timeout_s = max(0.0, deadline_s - self._loop.time())
        command = PendingCommand(self._arrivals, request, deadline_s, timeout_s, attempt, is_alone=attempt > 1)
        self._queue(command)
        self._pending += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                return await asyncio.shield(command.done)
        except TimeoutError:
            return self._give_up(command)
        finally:
            self._pending -= 1
            self._abandon(command)

    async def read(self, aggregate: str, *, timeout_s: float) -> CommittedAggregate:
        """Return what is committed of an aggregate, at a moment after this call began."""
        await self._owned_by().serve_gate(timeout_s=timeout_s)
        return CommittedAggregate(await self._stored(aggregate), self._last)

    # What the owner of the partition says.

    async def owns(self, epoch: int) -> None:
        """Read all that was committed, and begin to handle.

        If the partition is taken again, because the lease or the answer to a commit was lost, nobody else has written
        in between: then everything goes on.
        """
        self._epoch = None
        self._rewind()
        await self._catch_up()
        self._states.own(_NoOtherWriter(self._engine.name), is_held=True)
        self._floor = decode_floor(self._replica.reserved(FORGOTTEN_KEY))
        self._epoch = epoch
        # Below every batch of this epoch, and above every batch of those before.
        self._last = BatchName(epoch, 0)
        self._open = CommandBatch(BatchName(epoch, 1), self._generation)
        self._start_lanes()

    async def lost(self) -> None:
        """Stop: commands that were in no commit get NotPartitionOwner, and the copy follows the new owner."""
        self._epoch = None
        self._rewind()
        self._fail_waiting(self._not_owner())
        await self._states.disown()
        self._states.follow()

    async def _run(self) -> None:
        """Commit batches until cancelled."""
        keeping = asyncio.create_task(self._keep_house(), name=f"headrace-engine-{self._engine.name}")
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while not self._open.is_empty and self._epoch is not None:
                    await self._commit_next()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _catch_up(self) -> None:
        """Read all that was committed; while the log is away, ask again and again."""
        for failures in itertools.count(1):
            try:
                await self._states.catch_up()
                break
            except Unavailable as error:
                delay_s = _BACKOFF.delay_s(failures)
                _logger.warning("reading failed", at=str(self._replica.at), error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    # Handling.

    def _queue(self, command: PendingCommand) -> None:
        lane = self._lanes.setdefault(command.request.aggregate, CommandLane())
        command.stage = Stage.WAITING
        lane.add(command)
        self._start_lane(command.request.aggregate, lane)

    def _start_lanes(self) -> None:
        for aggregate, lane in list(self._lanes.items()):
            self._start_lane(aggregate, lane)

    def _start_lane(self, aggregate: str, lane: CommandLane) -> None:
        if self._epoch is None:
            self._watch_for_owner()
        elif not lane.is_running and self._may_handle(lane):
            lane.is_running = True
            self._start(self._run_lane(aggregate, lane))

    def _may_handle(self, lane: CommandLane) -> bool:
        """Return True if the lane's next command may be handled now.

        Not while the outcome of an earlier batch is being settled: the next state depends on it. A batch that is full
        goes to the log first, and so does one before a command that must be alone in its batch.
        """
        if self._epoch is None or not lane.waiting:
            return False
        if self._committing is not None and self._committing.generation != self._generation:
            return False
        if self._open.is_alone or (lane.waiting[0].is_alone and self._open.commands):
            return False
        limits = self._engine.limits
        return len(self._open.commands) < limits.batch_commands and self._open.size_bytes < limits.batch_bytes

    async def _run_lane(self, aggregate: str, lane: CommandLane) -> None:
        """Handle the commands of one aggregate, one after the other, for as long as there are any."""
        try:
            while self._may_handle(lane):
                command = lane.waiting[0]
                if self._loop.time() >= command.deadline_s:
                    lane.remove(command)
                    command.fail(CommandExpired(self._engine.name, aggregate, command.timeout_s))
                else:
                    await self._handle(command, lane)
        finally:
            lane.is_running = False
            if not lane.waiting and self._lanes.get(aggregate) is lane:
                del self._lanes[aggregate]

    async def _handle(self, command: PendingCommand, lane: CommandLane) -> None:
        """Handle one command, and put what it leads to into the open batch."""
        generation, request = self._generation, command.request
        command.stage = Stage.HANDLED
        try:
            record = await self._newest(request.aggregate)
            repeated = self._handling.admit(record, request, self._floor)
            if repeated is None:
                self._check_attempts(command)
                with metrics.stage(self._engine.name, "handle"):
                    decision = await self._handling.decide(record, request, now_ms=self._replica.now_ms)
        except HeadraceError as error:
            if generation == self._generation:
                lane.remove(command)
                self._answer_without_commit(command, error)
            else:
                command.stage = Stage.WAITING
            return
        if generation != self._generation:
            command.stage = Stage.WAITING
            return  # the state that it looked at counts no more; it is still the lane's first
        lane.remove(command)
        if repeated is not None:
            self._answer_without_commit(command, repeated.reply, is_repeated=True)
        else:
            self._finish(command, record, decision)

    def _finish(self, command: PendingCommand, record: AggregateRecord | None, decision: Decision) -> None:
        request, batch = command.request, self._open
        try:
            handled = self._handling.finish(
                record, request, decision, batch=batch.name, floor=self._floor, now_ms=self._replica.now_ms
            )
        except HeadraceError as error:
            self._answer_without_commit(command, error)
            return
        if not handled.writes:
            self._answer_without_commit(command, handled.reply)
            return
        batch.add(command, handled)
        if handled.record is not None:
            self._live.change(request.aggregate, handled.record, batch.name, self._loop.time())
        self._has_work.set()

    async def _newest(self, aggregate: str) -> AggregateRecord | None:
        """Return the aggregate's record with all that was handled so far, committed or not."""
        now_s = self._loop.time()
        if aggregate not in self._live:
            generation = self._generation
            with metrics.stage(self._engine.name, "load"):
                record = await self._stored(aggregate)
            if generation != self._generation:
                return record
            self._live.load(aggregate, record, now_s)
        return self._live.get(aggregate, now_s)

    async def _stored(self, aggregate: str) -> AggregateRecord | None:
        entry = self._replica.entry(aggregate.encode())
        if entry is None:
            return None
        record = self._handling.values.decode(entry.value)
        if record.state is not None:
            await self._handling.values.inner.prepare(record.state)
        return record

    # Replies that need no commit of their own.

    def _answer_without_commit(
        self, command: PendingCommand, outcome: CommandReply | HeadraceError, *, is_repeated: bool = False
    ) -> None:
        """Answer when all that the reply looked at is committed; a commit that is sent from now on proves it."""
        if self._open.is_empty:
            self._start(self._leave_under_lease(command, outcome, self._generation, is_repeated=is_repeated))
        else:
            self._open.attach(command, outcome, is_repeated=is_repeated)

    async def _leave_under_lease(
        self, command: PendingCommand, outcome: CommandReply | HeadraceError, generation: int, *, is_repeated: bool
    ) -> None:
        """Answer when the batch that is being committed is, and the lease shows that nobody else commits."""
        batch = self._committing
        while batch is not None and self._committing is batch:
            await self._settled.wait()
        try:
            if generation == self._generation and not self._owned_by().may_serve():
                await self._owned_by().serve_gate(timeout_s=max(0.0, command.deadline_s - self._loop.time()))
        except HeadraceError as error:
            command.fail(error)
            return
        except asyncio.CancelledError:
            command.fail(self._not_owner())
            raise
        if generation != self._generation:
            self._again([command])
        else:
            _tell(command, outcome, self._last, is_repeated=is_repeated)

    def _check_attempts(self, command: PendingCommand) -> None:
        """Refuse a command that was tried often and never answered: it may be what ends the process."""
        if command.attempt > _ATTEMPTS:
            request, reason = command.request, f"it was tried {_ATTEMPTS} times, and no attempt was answered"
            raise CommandFailed(self._engine.name, request.aggregate, request.kind, "process", reason)

    # Committing.

    async def _commit_next(self) -> None:
        """Commit the open batch; commands that are handled meanwhile form the next one."""
        batch, self._open = self._open, self._next_batch()
        self._committing = batch
        self._settled.clear()
        for command in batch.commands:
            command.stage = Stage.SENT
        self._start_lanes()
        try:
            with metrics.stage(self._engine.name, "publish"):
                await self._commit(batch)
        finally:
            self._committing = None
            self._settled.set()
        self._start_lanes()

    def _next_batch(self) -> CommandBatch:
        name = self._open.name
        return CommandBatch(BatchName(name.epoch, name.number + 1), self._generation)

    async def _commit(self, batch: CommandBatch) -> None:
        self._stamp_ms = max(self._stamp_ms, self._replica.now_ms)
        records = batch.records(self._replica.at, self._stamp_ms)
        began = moment_of(self._clock)
        crash_point("engine.before-commit")
        try:
            committed = await self._owned_by().commit(records)
        except NotPartitionOwner as error:
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
            self._committed(batch, records, committed, began)

    def _committed(
        self, batch: CommandBatch, records: Sequence[NewRecord], committed: Committed, began: BootMoment
    ) -> None:
        if batch.generation == self._generation:
            self._apply(records, committed.positions, began)
            self._live.committed(batch.name)
            self._last = batch.name
        # Else another node owns the partition by now, and the copy follows that one.
        metrics.COMMANDS.labels(self._engine.name, "committed").inc(len(batch.commands))
        self._start(self._reply(batch, committed))

    def _apply(self, records: Sequence[NewRecord], positions: Sequence[Position], began: BootMoment) -> None:
        """Apply what went to the state topic. A commit that was settled by reading tells only where that lies."""
        topic = self._replica.at.topic
        states = [record for record in records if record.topic == topic]
        places = [position for position in positions if position.topic == topic][: len(states)]
        with metrics.stage(self._engine.name, "apply"):
            self._replica.apply_committed(list(zip(states, places, strict=True)), began=began)

    async def _reply(self, batch: CommandBatch, committed: Committed) -> None:
        try:
            await self._owned_by().reply_gate(committed)
        except asyncio.CancelledError:
            self._fail(batch, OutcomeUnknown(self._engine.name, "", "its node is stopping"))
            raise
        self._states.release()
        for command, outcome, is_repeated in batch.outcomes:
            _tell(command, outcome, batch.name, is_repeated=is_repeated)

    def _repeat(self, batch: CommandBatch) -> None:
        """Handle a batch again that is known not to be committed, and all that was handled on top of it."""
        self._rewind()
        self._again(batch.commands)

    def _refused(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Find the command that the log refuses: each one is tried alone."""
        if len(batch.commands) > 1:
            for command in batch.commands:
                command.is_alone = True
            self._repeat(batch)
            return
        _logger.warning("the log refused a batch", engine=self._engine.name, batch=str(batch.name), error=str(error))
        self._rewind()
        for command in batch.commands:
            command.fail(error)

    def _fail(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Give the callers of a batch the error; nobody can tell whether it was done if its outcome is unknown."""
        is_known = bool(getattr(error, "outcome_known", True))
        for command in batch.commands:
            aggregate = command.request.aggregate
            unknown = OutcomeUnknown(self._engine.name, aggregate, str(error))
            command.fail(error if is_known else unknown)

    async def _give_up_batch(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Tell the callers that nobody knows; if this is the owner still, read what became of it before going on."""
        _logger.error("a batch can't be settled", engine=self._engine.name, batch=str(batch.name), error=str(error))
        self._fail(batch, OutcomeUnknown(self._engine.name, "", str(error)))
        self._rewind()
        if self._epoch is not None:
            await self._catch_up()

    def _rewind(self) -> None:
        """Forget what was handled and not sent, and handle it again on what is committed."""
        self._generation += 1
        self._live.clear()
        if self._epoch is not None:
            self._floor = decode_floor(self._replica.reserved(FORGOTTEN_KEY))
        dropped, self._open = self._open, CommandBatch(self._open.name, self._generation)
        self._again(dropped.commands)

    def _again(self, commands: Sequence[PendingCommand]) -> None:
        for command in commands:
            if not command.done.done():
                self._queue(command)

    # Giving up.

    def _give_up(self, command: PendingCommand) -> Answer:
        """Return the answer if it came in the last moment; else raise what is known about the command."""
        if command.done.done():
            return command.done.result()
        name, aggregate = self._engine.name, command.request.aggregate
        if command.stage is Stage.WAITING:
            raise CommandExpired(name, aggregate, command.timeout_s)
        raise OutcomeUnknown(name, aggregate, f"it was not committed within {command.timeout_s:g} s")

    def _abandon(self, command: PendingCommand) -> None:
        """Drop a command that nobody waits for, unless it was handled: others may stand on it."""
        if not command.done.done() and command.stage is Stage.WAITING:
            command.done.cancel()
            if (lane := self._lanes.get(command.request.aggregate)) is not None:
                lane.remove(command)

    def _fail_waiting(self, error: HeadraceError) -> None:
        for lane in list(self._lanes.values()):
            for command in list(lane.waiting):
                lane.remove(command)
                command.fail(error)
        self._lanes = {id_: lane for id_, lane in self._lanes.items() if lane.is_running}

    def _end(self) -> None:
        """Leave: callers of what was in no commit hear that nothing was done."""
        self._epoch = None
        self._rewind()
        self._fail_waiting(self._not_owner())
        for task in self._tasks:
            task.cancel()

    # Ownership and housekeeping.

    def _owned_by(self) -> PartitionOwner:
        if self._owner is None:
            raise self._not_owner()
        return self._owner

    def _not_owner(self) -> NotPartitionOwner:
        owner = self._owner.owner if self._owner is not None else ""
        return NotPartitionOwner(*self._replica.at, self._node, "" if owner == self._node else owner)

    def _check_not_elsewhere(self) -> None:
        """Refuse a command at once if the log names another owner; if it names none, the command waits for one."""
        if self._epoch is None and self._owner is not None and self._owner.owner not in ("", self._node):
            raise self._not_owner()

    def _watch_for_owner(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._start(self._wait_for_owner())

    async def _wait_for_owner(self) -> None:
        """Wait until this node owns the partition, or another one does; then nothing waits here any more."""
        try:
            while self._epoch is None and any(lane.waiting for lane in self._lanes.values()):
                self._check_not_elsewhere()
                await asyncio.sleep(_LOOK_FOR_OWNER_S)
        except NotPartitionOwner as error:
            self._fail_waiting(error)
        finally:
            self._is_watching = False

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            self._live.passivate(before_s=self._loop.time() - self._engine.limits.idle_s)
            try:
                self.sweep()
            except HeadraceError as error:
                _logger.warning("sweeping failed", engine=self._engine.name, at=str(self._replica.at), error=str(error))

    def sweep(self, *, limit: int = _SWEPT_AT_ONCE) -> int:
        """Turn records that say nothing any more into tombstones: no state, no ids, no numbers to go on from.

        What they had forgotten, the partition remembers in their stead. Returns how many records were looked at.
        """
        if self._epoch is None or self._committing is not None:
            return 0
        moment, is_owner = moment_of(self._clock), self._owned_by().may_serve()
        if is_owner:
            self._states.confirm(moment)
        entries = self._replica.entries(self._sweep_after, None, limit=limit)
        for key, entry in entries:
            self._sweep_one(key.decode(), self._handling.values.decode(entry.value))
        self._sweep_after = entries[-1][0] + b"\x00" if len(entries) == limit else b""
        return len(entries)

    def _sweep_one(self, aggregate: str, record: AggregateRecord) -> None:
        is_in_use = self._live.is_in_flight(aggregate) or aggregate in self._lanes
        if record.state is not None or record.version > 0 or is_in_use:
            return
        bare = pruned(record, self._engine.limits, self._replica.now_ms)
        if bare.ids:
            return
        self._floor = max(self._floor, bare.forgotten)
        self._open.set_state(aggregate.encode(), None)
        self._open.set_state(FORGOTTEN_KEY, encode_floor(self._floor))
        self._live.change(aggregate, None, self._open.name, self._loop.time())
        self._has_work.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=f"headrace-engine-{self._engine.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tell(
    command: PendingCommand, outcome: CommandReply | HeadraceError, since: BatchName, *, is_repeated: bool
) -> None:
    if isinstance(outcome, HeadraceError):
        command.fail(outcome)
    else:
        command.answer(Answer(outcome, since, is_repeated))


class _NoOtherWriter:
    """The writer of an engine's state topic, as the state sees it: only batches of commands write there."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Refuse."""
        raise StateReadOnly(self._engine, "an engine's state is written by its commands")
