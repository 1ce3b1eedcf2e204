"""Commands in, batches out: the commands of one aggregate are handled one after the other, into the open batch.

A batch that was sealed is being committed while the next one is handled on top of it. When a batch turns out not to be
committed, it and everything that was handled on top of it goes back to its place and is handled again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.engine import metrics
from headrace.engine.batches import (
    NOTHING_DONE,
    BatchWork,
    CommandBatch,
    LiveAggregates,
    PendingCommand,
    Stage,
    TaskSet,
    WorkOutcome,
)
from headrace.engine.command_lanes import CommandLane, CommandLanes
from headrace.engine.commands import CommandReply
from headrace.engine.context import Decision, Repeated
from headrace.engine.handling import CommandHandling
from headrace.engine.places import InputPlaces
from headrace.engine.records import FORGOTTEN_KEY, NOTHING_FORGOTTEN, AggregateRecord, encode_floor
from headrace.errors import CommandExpired, CommandFailed, HeadraceError
from headrace.observe import extract, is_traced, span
from headrace.runtime import OWNERS_TRIED, is_suspect
from headrace.state import BatchName

__all__ = ["CommandQueue", "Outcome"]

S = TypeVar("S")
Outcome: TypeAlias = CommandReply | HeadraceError

_SAME_TIME_S = 0.001
_FOUND = (Decision, Repeated, HeadraceError)


class CommandQueue(Generic[S]):
    """The commands of a partition that are not in a commit.

    `load` returns what is committed of an aggregate, `now_ms` the partition's time. `answer` gets the commands that
    need no commit of their own, `on_work` is called when the open batch has something to write. `places` are those in
    input topics: what uncommitted batches have done to them is forgotten with these batches.
    """

    def __init__(
        self,
        handling: CommandHandling[S],
        tasks: TaskSet,
        *,
        load: Callable[[str], Awaitable[AggregateRecord | None]],
        now_ms: Callable[[], int],
        answer: Callable[[PendingCommand, Outcome, bool], None],
        on_work: Callable[[], None],
        places: InputPlaces,
    ) -> None:
        self._handling = handling
        self._engine = handling.engine
        self._tasks = tasks
        self._load = load
        self._now_ms = now_ms
        self._answer = answer
        self._on_work = on_work
        self._places = places
        self._times = metrics.StageTimes(handling.engine.name)
        self._loop = asyncio.get_running_loop()
        self._is_begun = False
        self._lanes = CommandLanes(self._may_handle, self._step)
        self._sealed: CommandBatch | None = None
        self._turn, self._turn_s, self._turn_ms = -1, 0.0, 0
        # Grows whenever what was handled and not committed must be handled again.
        self.generation = 0
        self.live = LiveAggregates()
        self.open = CommandBatch(NOTHING_FORGOTTEN, 0)
        self.floor = NOTHING_FORGOTTEN

    @property
    def is_begun(self) -> bool:
        """True while this node owns the partition and handles commands."""
        return self._is_begun

    @property
    def has_waiting(self) -> bool:
        """True if commands wait to be handled."""
        return self._lanes.has_waiting

    # Beginning and ending.

    def begin(self, epoch: int, floor: BatchName) -> None:
        """Begin to handle, on top of what is committed. `floor` is what the partition has forgotten."""
        self._is_begun, self.floor = True, floor
        self.open = CommandBatch(BatchName(epoch, 1), self.generation)
        self._lanes.start_all()

    def end(self) -> None:
        """Stop handling; what is not in a commit waits."""
        self._is_begun = False
        self.rewind(self.floor)

    def rewind(self, floor: BatchName) -> None:
        """Forget what was handled and not sealed: it is handled again on what is committed."""
        self.generation += 1
        self.live.clear()
        self._places.clear()
        self.floor = floor
        dropped, self.open = self.open, CommandBatch(self.open.name, self.generation)
        self.again(dropped.commands)

    def fail_waiting(self, error: HeadraceError) -> None:
        """Give all callers whose commands wait an error."""
        self._lanes.fail_waiting(error)

    # Commands.

    def add(self, command: PendingCommand) -> None:
        """Add a command; one that is handled again comes before those that arrived after it."""
        self._lanes.add(command)

    def again(self, commands: Sequence[PendingCommand]) -> None:
        """Add commands again that nobody has answered."""
        for command in commands:
            if not command.done.done():
                self.add(command)

    def remove(self, command: PendingCommand) -> None:
        """Remove a command that nobody waits for, unless it was handled: others may stand on it."""
        if command.stage is Stage.WAITING:
            if not command.done.done():
                command.done.cancel()
            self._lanes.remove(command)

    # Batches.

    def seal(self) -> CommandBatch:
        """Return the open batch, to be committed, and open the next one."""
        batch = self._sealed = self.open
        self.open = CommandBatch(BatchName(batch.name.epoch, batch.name.number + 1), self.generation)
        for command, _, _ in batch.outcomes:
            command.stage = Stage.SENT
        self._times.count()
        self._lanes.start_all()
        return batch

    def unseal(self) -> None:
        """Go on after the fate of the sealed batch is known, and it was applied or rewound."""
        self._sealed = None
        self._lanes.start_all()

    def forget(self, aggregate: str, forgotten: BatchName) -> None:
        """Write a tombstone for an aggregate of which nothing is left but what it has forgotten.

        The partition remembers that in its stead. Nothing happens if the aggregate is in use.
        """
        if aggregate in self._lanes or self.live.is_in_flight(aggregate):
            return
        self.floor = max(self.floor, forgotten)
        self.open.set_state(aggregate.encode(), None)
        self.open.set_state(FORGOTTEN_KEY, encode_floor(self.floor))
        self.live.change(aggregate, None, self.open.name, self._loop.time())
        self._on_work()

    # Handling.

    def _step(self, lane: CommandLane) -> None:
        """Handle the lane's next command here; if something has to be waited for, in a task."""
        command = lane.waiting[0]
        is_waiting = command.work is not None or self._handling.is_async(command.request)
        if lane.aggregate not in self.live or is_waiting:
            self._tasks.start(self._run_step(lane))
            return
        lane.is_next = False
        try:
            rest = self._handle_now(command, lane)
        except BaseException:
            self._lanes.leave(lane)
            raise
        if rest is not None:
            self._tasks.start(self._run_step(lane, rest))
        else:
            self._lanes.go_on(lane)

    async def _run_step(self, lane: CommandLane, rest: Coroutine[Any, Any, None] | None = None) -> None:
        """Handle the lane's next command, or the rest of one that was begun."""
        try:
            if rest is not None:
                await rest
            elif self._may_handle(lane):
                command, lane.is_next = lane.waiting[0], False
                if not self._is_expired(command, lane):
                    with self._traced(command):
                        await self._handle(command, lane)
        except BaseException:
            self._lanes.leave(lane)
            raise
        self._lanes.go_on(lane)

    def _may_handle(self, lane: CommandLane) -> bool:
        """Return True if the lane's next command may be handled now.

        Not while the outcome of an earlier batch is being settled: the next state depends on it. A batch that is full
        goes to the log first, and so does one before a command that must be alone in its batch; commands that arrived
        after such a one wait for it, or it would wait forever.
        """
        if not self._is_begun or not lane.waiting:
            return False
        if self._sealed is not None and self._sealed.generation != self.generation:
            return False
        count, head = len(self.open.outcomes), lane.waiting[0]
        if self.open.is_alone or (head.is_alone and count) or self._lanes.is_overtaking(head):
            return False
        limits = self._engine.limits
        return count < limits.batch_commands and self.open.size_bytes < limits.batch_bytes

    def _is_expired(self, command: PendingCommand, lane: CommandLane) -> bool:
        """Return True, and take the command out of its lane, if its deadline has passed."""
        if self._loop.time() < command.deadline_s:
            return False
        self._lanes.take(command, lane)
        command.fail(CommandExpired(self._engine.name, command.request.aggregate, command.timeout_s))
        return True

    def _traced(self, command: PendingCommand) -> AbstractContextManager[object]:
        request = command.request
        parent = extract(request.trace) if request.trace else None
        return span(
            "engine.handle",
            parent=parent,
            engine=self._engine.name,
            aggregate=request.aggregate,
            command=request.kind,
        )

    def _handle_now(self, command: PendingCommand, lane: CommandLane) -> Coroutine[Any, Any, None] | None:
        """Handle the lane's first command, whose aggregate is in memory; return what is left to await, if anything."""
        now_s = self._loop.time()
        if now_s >= command.deadline_s and self._is_expired(command, lane):
            return None
        if not command.request.trace and not is_traced():
            return self._decide_now(command, lane, now_s)
        with self._traced(command):
            return self._decide_now(command, lane, now_s)

    def _decide_now(self, command: PendingCommand, lane: CommandLane, now_s: float) -> Coroutine[Any, Any, None] | None:
        command.stage = Stage.HANDLED
        record = self.live.get(lane.aggregate, now_s)
        began_s, now_ms = time.perf_counter(), self._time_of_turn(now_s)
        found = self._admitted(command, record, now_ms)
        self._times.handle.append(time.perf_counter() - began_s)
        if not isinstance(found, _FOUND):
            return self._handle_later(command, lane, record, found)
        self._settle(command, lane, record, found, now_ms)
        return None

    def _time_of_turn(self, now_s: float) -> int:
        """Return the partition's time; commands that are handled within a millisecond of one turn share it."""
        if self._turn != self._lanes.turn or now_s - self._turn_s >= _SAME_TIME_S:
            self._turn, self._turn_s, self._turn_ms = self._lanes.turn, now_s, self._now_ms()
        return self._turn_ms

    async def _handle_later(
        self,
        command: PendingCommand,
        lane: CommandLane,
        record: AggregateRecord | None,
        decision: Awaitable[Decision],
    ) -> None:
        """Finish a command whose handler returned something to await."""
        generation = self.generation
        found = await decision
        if generation != self.generation:
            command.stage = Stage.WAITING
        else:
            self._settle(command, lane, record, found, self._now_ms())

    async def _handle(self, command: PendingCommand, lane: CommandLane) -> None:
        """Handle the lane's first command, unless what it looked at counts no more when it is through."""
        if command.work is not None:
            await self._do_work(command, command.work, lane)
            return
        generation = self.generation
        command.stage = Stage.HANDLED
        record: AggregateRecord | None = None
        try:
            record = await self._newest(command.request.aggregate)
            with metrics.stage(self._engine.name, "handle"):
                found = self._admitted(command, record, self._now_ms())
                if not isinstance(found, _FOUND):
                    found = await found
        except HeadraceError as error:
            found = error
        if generation != self.generation:
            command.stage = Stage.WAITING
        else:
            self._settle(command, lane, record, found, self._now_ms())

    def _admitted(
        self, command: PendingCommand, record: AggregateRecord | None, now_ms: int
    ) -> Decision | Repeated | HeadraceError | Awaitable[Decision]:
        """Return the handler's decision, or the reply or the error that a command gets without its handler."""
        try:
            repeated = self._handling.admit(record, command.request, self.floor)
            if repeated is not None:
                return repeated
            self._check_attempts(command)
        except HeadraceError as error:
            return error
        return self._handling.begin(record, command.request, now_ms=now_ms)

    def _settle(
        self,
        command: PendingCommand,
        lane: CommandLane,
        record: AggregateRecord | None,
        found: Decision | Repeated | HeadraceError,
        now_ms: int,
    ) -> None:
        """Put what a command leads to into the open batch, or answer it, and take it out of its lane."""
        if isinstance(found, Decision):
            self._finish(command, record, found, now_ms)
        elif isinstance(found, Repeated):
            self._answer_now(command, found.reply, True)
        else:
            self._answer_now(command, found, False)
        self._lanes.take(command, lane)

    async def _do_work(self, command: PendingCommand, work: BatchWork, lane: CommandLane) -> None:
        """Handle what no caller has sent. Unlike a command it may find that there is nothing to do any more."""
        generation, aggregate = self.generation, command.request.aggregate
        command.stage = Stage.HANDLED
        try:
            record = await self._newest(aggregate) if work.has_aggregate else None
            with metrics.stage(self._engine.name, "handle"):
                decided = await work.decide(record, floor=self.floor, now_ms=self._now_ms())
            if generation != self.generation:
                command.stage = Stage.WAITING
                return
            outcome = work.finish(record, decided, batch=self.open.name, floor=self.floor, now_ms=self._now_ms())
        except HeadraceError as error:
            command.fail(error)
        else:
            self._put(command, outcome)
        self._lanes.take(command, lane)

    def _put(self, command: PendingCommand, outcome: WorkOutcome | None) -> None:
        """Put what work leads to into the open batch; nothing if there was nothing to do.

        That is answered when it is sure: a batch that is not committed yet may have left nothing to do.
        """
        if outcome is None:
            self._answer(command, NOTHING_DONE, False)
            return
        self.open.add(command, outcome.handled)
        for key, value in outcome.states.items():
            self.open.set_state(key, value)
        if outcome.handled.record is not None:
            self.live.change(command.request.aggregate, outcome.handled.record, self.open.name, self._loop.time())
        self._on_work()

    def _finish(self, command: PendingCommand, record: AggregateRecord | None, decision: Decision, now_ms: int) -> None:
        """Put what a command leads to into the open batch."""
        request, batch, began_s = command.request, self.open, time.perf_counter()
        try:
            handled = self._handling.finish(
                record, request, decision, batch=batch.name, floor=self.floor, now_ms=now_ms
            )
        except HeadraceError as error:
            self._answer_now(command, error, False)
            return
        finally:
            self._times.serialize.append(time.perf_counter() - began_s)
        if not handled.writes:
            self._answer_now(command, handled.reply, False)
            return
        batch.add(command, handled)
        if handled.record is not None:
            self.live.change(request.aggregate, handled.record, batch.name, self._loop.time())
        self._on_work()

    def _answer_now(self, command: PendingCommand, outcome: Outcome, is_repeated: bool) -> None:
        """Answer a command that needs no commit of its own."""
        self._times.count()
        self._answer(command, outcome, is_repeated)

    async def _newest(self, aggregate: str) -> AggregateRecord | None:
        """Return the aggregate's record with all that was handled so far, committed or not."""
        if aggregate not in self.live:
            generation = self.generation
            with metrics.stage(self._engine.name, "load"):
                record = await self._load(aggregate)
            if generation != self.generation:
                return record
            self.live.load(aggregate, record, self._loop.time())
        return self.live.get(aggregate, self._loop.time())

    def _check_attempts(self, command: PendingCommand) -> None:
        """Refuse a command that was tried often and never answered: it may be what ends the process."""
        if is_suspect(command.attempt):
            request, reason = command.request, f"it was tried {OWNERS_TRIED} times, and no attempt was answered"
            raise CommandFailed(self._engine.name, request.aggregate, request.kind, "process", reason)
