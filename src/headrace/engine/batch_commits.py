"""Committing an engine's batches: one transaction each, and replies after their commit.

Commands that arrive while a batch commits form the next one. A reply leaves when everything that it looked at is
committed; one that needs no commit of its own leaves under the owner's lease. After a commit whose outcome is unknown
nothing is handled before the log was read to its end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.cluster import Committed
from headrace.engine import metrics
from headrace.engine.batches import CommandBatch, PendingCommand, TaskSet
from headrace.engine.command_queue import CommandQueue, Outcome
from headrace.engine.commands import Answer
from headrace.engine.handling import CommandHandling
from headrace.engine.ports import PartitionOwner
from headrace.engine.records import FORGOTTEN_KEY, NOTHING_FORGOTTEN, decode_floor
from headrace.engine.tokens import PartitionTokens
from headrace.errors import (
    BadArgument,
    Fenced,
    Forbidden,
    HeadraceError,
    NotPartitionOwner,
    OutcomeUnknown,
    RecordTooLarge,
    TimedOut,
    TimestampTooFarAhead,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from headrace.model import NewRecord, Position
from headrace.observe import Health, get_logger
from headrace.runtime import Backoff, BootMoment, Clock, crash_point, moment_of
from headrace.state import BatchName, StatePartition

__all__ = ["BatchCommits", "tell"]

S = TypeVar("S")

_logger = get_logger(__name__)

_BACKOFF = Backoff(first_s=0.05, limit_s=1.0)
# What a log refuses before it writes anything. After any other error a batch may have been committed.
_REFUSED_BY_THE_LOG = (BadArgument, Forbidden, RecordTooLarge, TimestampTooFarAhead, UnknownPartition, UnknownTopic)


class BatchCommits(Generic[S]):
    """Commits the batches of one partition's queue, one after the other, while this node owns the partition.

    `owner` returns what commits and gates go through. `not_owner` makes the error of a partition that is served
    elsewhere, `on_again` is called when a command waits again that was to be answered, `on_timers` when timers change.
    """

    def __init__(
        self,
        handling: CommandHandling[S],
        states: StatePartition,
        queue: CommandQueue[S],
        tasks: TaskSet,
        tokens: PartitionTokens,
        *,
        owner: Callable[[], PartitionOwner],
        not_owner: Callable[[], NotPartitionOwner],
        on_again: Callable[[], None],
        on_timers: Callable[[], None],
        now_ms: Callable[[], int],
        clock: Clock,
        health: Health,
    ) -> None:
        self._engine = handling.engine
        self._states = states
        self._replica = states.replicas[self._engine.name]
        self._queue = queue
        self._tasks = tasks
        self._tokens = tokens
        self._owned_by = owner
        self._not_owner = not_owner
        self._on_again = on_again
        self._on_timers = on_timers
        self._now_ms = now_ms
        self._clock = clock
        self._health = health
        self._loop = asyncio.get_running_loop()
        self._has_work = asyncio.Event()
        self._settled = asyncio.Event()
        self._committing: CommandBatch | None = None
        self._stamp_ms = 0
        self.last = NOTHING_FORGOTTEN
        self.is_behind = False

    @property
    def is_committing(self) -> bool:
        """True while a batch is on its way to the log, or committed and not applied yet."""
        return self._committing is not None

    def wake(self) -> None:
        """Note that the open batch has something to write."""
        self._has_work.set()

    def stored_floor(self) -> BatchName:
        """Return what the partition has forgotten, as its log says."""
        return decode_floor(self._replica.reserved(FORGOTTEN_KEY))

    async def run(self) -> None:
        """Commit batches until cancelled."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while not self._queue.open.is_empty and self._queue.is_begun:
                await self._commit_next()

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
        self._stamp_ms = max(self._stamp_ms, self._now_ms())
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
            self._health.up()
            metrics.COMMANDS.labels(self._engine.name, "committed").inc(len(batch.outcomes))
            self._tokens.committed({record.topic for record in records}, committed.positions)
            if self._owned_by().may_reply(committed) and (token := self._tokens.known()) is not None:
                self._tell_all(batch, token)
            else:
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
            await self.read_again()
        self._queue.live.committed(batch.name)
        self.last = batch.name
        if batch.has_timers:
            self._on_timers()

    async def _reply(self, batch: CommandBatch, committed: Committed) -> None:
        """Answer the callers of a batch as soon as that is allowed, and its token is known."""
        try:
            await self._owned_by().reply_gate(committed)
            token = await self._token()
        except asyncio.CancelledError:
            self._fail(batch, OutcomeUnknown(self._engine.name, "", "its node is stopping"))
            raise
        self._tell_all(batch, token)

    def _tell_all(self, batch: CommandBatch, token: str) -> None:
        """Answer the callers of a batch. They run on later turns of the event loop, after the batch was applied."""
        self._states.release()
        for command, outcome, is_repeated in batch.outcomes:
            tell(command, outcome, batch.name, is_repeated=is_repeated, token=token)

    async def _token(self) -> str:
        """Return the token of what is committed, for as long as it takes: a reply without it could not be relied on."""
        for failures in itertools.count(1):
            try:
                return await self._tokens.text()
            except HeadraceError as error:
                await self.pause(failures, error)
        raise AssertionError("it is asked for without an end")

    def _repeat(self, batch: CommandBatch) -> None:
        """Handle a batch again that is known not to be committed, and all that was handled on top of it."""
        self._queue.rewind(self.stored_floor())
        self._queue.again(batch.commands)

    def _refused(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Find the command that the log refuses: each one is tried alone."""
        if len(batch.outcomes) > 1:
            for command in batch.commands:
                command.is_alone = True
            self._repeat(batch)
            return
        _logger.warning("the log refused a batch", engine=self._engine.name, batch=str(batch.name), error=str(error))
        self._queue.rewind(self.stored_floor())
        for command in batch.commands:
            command.fail(error)

    async def _give_up_batch(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Tell the callers that nobody knows; if this is the owner still, read what became of it before going on."""
        _logger.error("a batch can't be settled", engine=self._engine.name, batch=str(batch.name), error=str(error))
        self._health.down(f"batch {batch.name} can't be settled: {error}")
        self._fail(batch, OutcomeUnknown(self._engine.name, "", str(error)))
        if self._queue.is_begun:
            await self.read_again()

    async def settle(self, timeout_s: float) -> None:
        """Wait until what is being committed now is committed and applied, or known not to be. Raises TimedOut."""
        batch = self._committing
        try:
            async with asyncio.timeout(timeout_s):
                while batch is not None and self._committing is batch:
                    await self._settled.wait()
        except TimeoutError as error:
            raise TimedOut(f"waiting for a commit of engine {self._engine.name!r}", timeout_s) from error

    async def read_again(self) -> None:
        """Read the log to its end, for as long as that takes, and handle again what is not committed.

        Reads wait for it: until then the copy may lack what was committed.
        """
        self.is_behind = True
        try:
            await self._read_to_end()
        finally:
            self.is_behind = False

    async def _read_to_end(self) -> None:
        self._queue.rewind(self._queue.floor)
        for failures in itertools.count(1):
            if not self._queue.is_begun:
                return
            try:
                await self._states.catch_up()
                break
            except HeadraceError as error:
                await self.pause(failures, error)
        self._health.up()
        self._queue.rewind(self.stored_floor())
        self._on_timers()  # what was read may have set some

    def _fail(self, batch: CommandBatch, error: HeadraceError) -> None:
        """Give the callers of a batch the error, each with the name of its aggregate."""
        for command in batch.commands:
            if isinstance(error, OutcomeUnknown):
                command.fail(OutcomeUnknown(error.engine, command.request.aggregate, error.reason))
            else:
                command.fail(error)

    # Replies that need no commit of their own.

    def answer_without_commit(self, command: PendingCommand, outcome: Outcome, is_repeated: bool) -> None:
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
            since, token = self.last, await self._tokens.text()
        except HeadraceError as error:
            command.fail(error)
            return
        except asyncio.CancelledError:
            command.fail(self._not_owner())
            raise
        if generation != self._queue.generation:
            self._queue.again([command])
            self._on_again()
        else:
            tell(command, outcome, since, is_repeated=is_repeated, token=token)

    async def pause(self, failures: int, error: HeadraceError) -> None:
        """Wait before a read of the log is tried again, and say why in the health."""
        delay_s = _BACKOFF.delay_s(failures)
        self._health.down(f"reading {self._replica.at} failed {failures} times: {error}")
        _logger.warning("reading failed", at=str(self._replica.at), error=str(error), retry_in_s=delay_s)
        await asyncio.sleep(delay_s)


def _landed(
    records: Sequence[NewRecord], positions: Sequence[Position], topic: str
) -> list[tuple[NewRecord, Position]]:
    """Return what went to the state topic. A commit that was settled by reading tells only where that lies."""
    states = [record for record in records if record.topic == topic]
    places = [position for position in positions if position.topic == topic][: len(states)]
    return list(zip(states, places, strict=True))


def tell(command: PendingCommand, outcome: Outcome, since: BatchName, *, is_repeated: bool, token: str = "") -> None:
    """Give the caller of a command its reply, or its error."""
    if isinstance(outcome, HeadraceError):
        command.fail(outcome)
    else:
        command.answer(Answer(outcome, since, is_repeated, token))
