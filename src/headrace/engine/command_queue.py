"""Commands in, batches out: the commands of one aggregate are handled one after the other, into the open batch.

A batch that was sealed is being committed while the next one is handled on top of it. When a batch turns out not to be
committed, it and everything that was handled on top of it goes back to its place and is handled again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.engine import metrics
from headrace.engine.batches import CommandBatch, CommandLane, LiveAggregates, PendingCommand, Stage
from headrace.engine.commands import CommandReply
from headrace.engine.handling import CommandHandling, Decision, Repeated
from headrace.engine.places import InputPlaces
from headrace.engine.records import FORGOTTEN_KEY, NOTHING_FORGOTTEN, AggregateRecord, encode_floor
from headrace.engine.work import NOTHING_DONE, BatchWork, WorkOutcome
from headrace.errors import CommandExpired, CommandFailed, HeadraceError
from headrace.observe import extract, span
from headrace.state import BatchName

__all__ = ["CommandQueue", "Outcome", "TaskSet"]

S = TypeVar("S")
Outcome: TypeAlias = CommandReply | HeadraceError

_ATTEMPTS = 3
_FOUND = (Decision, Repeated, HeadraceError)
# How many commands are handled before others on the event loop get their turn.
_AT_ONCE = 100


class TaskSet:
    """Tasks that run beside each other; whoever made the set ends them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Cancel what runs, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
        self._loop = asyncio.get_running_loop()
        self._is_begun = False
        self._lanes: dict[str, CommandLane] = {}
        self._ready: deque[tuple[str, CommandLane]] = deque()
        self._is_called = False
        self._alone: set[PendingCommand] = set()
        self._sealed: CommandBatch | None = None
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
        return any(lane.waiting for lane in self._lanes.values())

    # Beginning and ending.

    def begin(self, epoch: int, floor: BatchName) -> None:
        """Begin to handle, on top of what is committed. `floor` is what the partition has forgotten."""
        self._is_begun, self.floor = True, floor
        self.open = CommandBatch(BatchName(epoch, 1), self.generation)
        self._start_lanes()

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
        for lane in self._lanes.values():
            for command in lane.waiting:
                command.fail(error)
            lane.waiting.clear()
        self._alone.clear()
        self._lanes = {id_: lane for id_, lane in self._lanes.items() if lane.is_running}

    # Commands.

    def add(self, command: PendingCommand) -> None:
        """Add a command; one that is handled again comes before those that arrived after it."""
        aggregate = command.request.aggregate
        lane = self._lanes.setdefault(aggregate, CommandLane())
        command.stage = Stage.WAITING
        lane.add(command)
        if command.is_alone:
            self._alone.add(command)
        self._start_lane(aggregate, lane)

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
            if (lane := self._lanes.get(command.request.aggregate)) is not None:
                self._take(command, lane)
                if not lane.is_running:
                    self._leave_lane(command.request.aggregate, lane)

    # Batches.

    def seal(self) -> CommandBatch:
        """Return the open batch, to be committed, and open the next one."""
        batch = self._sealed = self.open
        self.open = CommandBatch(BatchName(batch.name.epoch, batch.name.number + 1), self.generation)
        for command in batch.commands:
            command.stage = Stage.SENT
        self._start_lanes()
        return batch

    def unseal(self) -> None:
        """Go on after the fate of the sealed batch is known, and it was applied or rewound."""
        self._sealed = None
        self._start_lanes()

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

    def _start_lanes(self) -> None:
        for aggregate, lane in list(self._lanes.items()):
            self._start_lane(aggregate, lane)

    def _start_lane(self, aggregate: str, lane: CommandLane) -> None:
        if not lane.is_running and self._may_handle(lane):
            lane.is_running = True
            self._make_ready(aggregate, lane)

    def _make_ready(self, aggregate: str, lane: CommandLane) -> None:
        """Handle the lane's next command soon. All lanes share one callback: a task for each command costs more."""
        lane.is_next = True
        self._ready.append((aggregate, lane))
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._run_ready)

    def _run_ready(self) -> None:
        """Handle one command of each lane that is ready, up to a number of them."""
        self._is_called = bool(self._ready)
        if self._is_called:
            self._loop.call_soon(self._run_ready)
        for _ in range(min(len(self._ready), _AT_ONCE)):
            self._step(*self._ready.popleft())

    def _step(self, aggregate: str, lane: CommandLane) -> None:
        """Handle the lane's next command here; if something has to be waited for, in a task."""
        if not self._may_handle(lane):
            self._leave_lane(aggregate, lane)
            return
        command = lane.waiting[0]
        is_waiting = command.work is not None or self._handling.is_async(command.request)
        if aggregate not in self.live or is_waiting:
            self._tasks.start(self._run_step(aggregate, lane))
            return
        lane.is_next = False
        try:
            rest = self._handle_now(aggregate, command, lane)
        except BaseException:
            self._leave_lane(aggregate, lane)
            raise
        if rest is not None:
            self._tasks.start(self._run_step(aggregate, lane, rest))
        else:
            self._go_on(aggregate, lane)

    async def _run_step(self, aggregate: str, lane: CommandLane, rest: Coroutine[Any, Any, None] | None = None) -> None:
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
            self._leave_lane(aggregate, lane)
            raise
        self._go_on(aggregate, lane)

    def _go_on(self, aggregate: str, lane: CommandLane) -> None:
        """Handle the lane's next command later, if there is one that may be handled."""
        if self._may_handle(lane):
            self._make_ready(aggregate, lane)
        else:
            self._leave_lane(aggregate, lane)

    def _leave_lane(self, aggregate: str, lane: CommandLane) -> None:
        lane.is_running = lane.is_next = False
        if not lane.waiting and self._lanes.get(aggregate) is lane:
            del self._lanes[aggregate]

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
        if self.open.is_alone or (head.is_alone and count) or (self._alone and self._is_overtaking(head)):
            return False
        limits = self._engine.limits
        return count < limits.batch_commands and self.open.size_bytes < limits.batch_bytes

    def _is_overtaking(self, head: PendingCommand) -> bool:
        """Return True if an earlier command waits for a batch of its own, and its aggregate is free."""
        for alone in self._alone:
            lane = self._lanes.get(alone.request.aggregate)
            is_free = lane is not None and (lane.is_next or not lane.is_running)
            is_next = lane is not None and is_free and lane.waiting and lane.waiting[0] is alone
            if is_next and alone.number < head.number:
                return True
        return False

    def _take(self, command: PendingCommand, lane: CommandLane) -> None:
        """Take a command out of its lane; those that waited for it to be alone need not any more."""
        lane.remove(command)
        if command in self._alone:
            self._alone.discard(command)
            self._start_lanes()

    def _is_expired(self, command: PendingCommand, lane: CommandLane) -> bool:
        """Return True, and take the command out of its lane, if its deadline has passed."""
        if self._loop.time() < command.deadline_s:
            return False
        self._take(command, lane)
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

    def _handle_now(
        self, aggregate: str, command: PendingCommand, lane: CommandLane
    ) -> Coroutine[Any, Any, None] | None:
        """Handle the lane's first command, whose aggregate is in memory; return what is left to await, if anything."""
        if self._is_expired(command, lane):
            return None
        command.stage = Stage.HANDLED
        record = self.live.get(aggregate, self._loop.time())
        with self._traced(command):
            with metrics.stage(self._engine.name, "handle"):
                found = self._admitted(command, record)
            if not isinstance(found, _FOUND):
                return self._handle_later(command, lane, record, found)
            self._settle(command, lane, record, found)
        return None

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
            self._settle(command, lane, record, found)

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
                found = self._admitted(command, record)
                if not isinstance(found, _FOUND):
                    found = await found
        except HeadraceError as error:
            found = error
        if generation != self.generation:
            command.stage = Stage.WAITING
        else:
            self._settle(command, lane, record, found)

    def _admitted(
        self, command: PendingCommand, record: AggregateRecord | None
    ) -> Decision | Repeated | HeadraceError | Awaitable[Decision]:
        """Return the handler's decision, or the reply or the error that a command gets without its handler."""
        try:
            repeated = self._handling.admit(record, command.request, self.floor)
            if repeated is not None:
                return repeated
            self._check_attempts(command)
        except HeadraceError as error:
            return error
        return self._handling.begin(record, command.request, now_ms=self._now_ms())

    def _settle(
        self,
        command: PendingCommand,
        lane: CommandLane,
        record: AggregateRecord | None,
        found: Decision | Repeated | HeadraceError,
    ) -> None:
        """Put what a command leads to into the open batch, or answer it, and take it out of its lane."""
        match found:
            case Decision():
                self._finish(command, record, found)
            case Repeated():
                self._answer(command, found.reply, True)
            case HeadraceError():
                self._answer(command, found, False)
        self._take(command, lane)

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
        self._take(command, lane)

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

    def _finish(self, command: PendingCommand, record: AggregateRecord | None, decision: Decision) -> None:
        """Put what a command leads to into the open batch."""
        request, batch = command.request, self.open
        try:
            with metrics.stage(self._engine.name, "serialize"):
                handled = self._handling.finish(
                    record, request, decision, batch=batch.name, floor=self.floor, now_ms=self._now_ms()
                )
        except HeadraceError as error:
            self._answer(command, error, False)
            return
        if not handled.writes:
            self._answer(command, handled.reply, False)
            return
        batch.add(command, handled)
        if handled.record is not None:
            self.live.change(request.aggregate, handled.record, batch.name, self._loop.time())
        self._on_work()

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
        if command.attempt > _ATTEMPTS:
            request, reason = command.request, f"it was tried {_ATTEMPTS} times, and no attempt was answered"
            raise CommandFailed(self._engine.name, request.aggregate, request.kind, "process", reason)
