"""Commands on their way, the batch that gathers them, and the aggregates that uncommitted batches have changed.

Some work of a batch no caller has sent: records of topics, timers. It is handled in its place among the commands. What
it decides and writes is part of a batch like what commands do: it is handled again when its batch was not committed,
and it is there once when the batch was. Nobody has to remember an id for that: the same batch holds the proof that the
work is done, such as the place in a topic or a record without its timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.engine.commands import Answer, CommandReply, CommandRequest, SuccessReply
from headrace.engine.handling import HandledCommand
from headrace.engine.records import AggregateRecord
from headrace.errors import HeadraceError
from headrace.model import NewRecord, SoundRecords, TopicPartition
from headrace.state import BatchName

__all__ = [
    "NOTHING_DONE",
    "NOTHING_HANDLED",
    "BatchWork",
    "CommandBatch",
    "CommandDeadlines",
    "LiveAggregates",
    "PendingCommand",
    "Stage",
    "TaskSet",
    "WorkOutcome",
]

NOTHING_DONE = SuccessReply(0, None, b"[]")
"""The reply to work that had nothing to do, or that concerns no aggregate."""

NOTHING_HANDLED = HandledCommand(NOTHING_DONE)
"""Work that changes no aggregate and writes no records."""


class WorkOutcome(NamedTuple):
    """What work leads to, and the partition's own records that change with it."""

    handled: HandledCommand
    states: Mapping[bytes, bytes] = {}


class BatchWork(Protocol):
    """One piece of work. `decide` may wait and may run again; `finish` decides for the batch that is open."""

    @property
    def has_aggregate(self) -> bool:
        """True if it needs the record of the aggregate in whose lane it waits."""
        ...

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> Any:  # noqa: ANN401
        """Return what `finish` needs. Raises HeadraceError if the work can't be done now."""
        ...

    def finish(
        self,
        record: AggregateRecord | None,
        decided: Any,  # noqa: ANN401
        *,
        batch: BatchName,
        floor: BatchName,
        now_ms: int,
    ) -> WorkOutcome | None:
        """Return what goes into the batch; None if there is nothing to do."""
        ...


class Stage(Enum):
    """How far a command has come. What was SENT may have been done, whatever happens to its node."""

    WAITING = auto()
    HANDLED = auto()
    SENT = auto()


class PendingCommand(msgspec.Struct, eq=False):
    """A command that was not answered yet. `number` is the order of arrival in the partition.

    One that `is_alone` shares its batch with no other: it may be the one that the log refuses, or kills its process.
    `work` says how it is handled if no caller has sent it: a record of a topic, a timer.
    """

    number: int
    request: CommandRequest
    deadline_s: float
    timeout_s: float
    done: asyncio.Future[Answer]
    attempt: int = 1
    stage: Stage = Stage.WAITING
    is_alone: bool = False
    work: BatchWork | None = None

    def answer(self, answer: Answer) -> None:
        """Answer the caller, unless it has left."""
        if not self.done.done():
            self.done.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, unless it has left."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # looked at, so that asyncio does not report it when the caller is gone


class CommandDeadlines:
    """Calls `expire` with each command that is not answered at its deadline. One timer serves all commands."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[PendingCommand], None]) -> None:
        self._loop = loop
        self._expire = expire
        # Most commands have the same time to be answered, so that most deadlines come in the order of arrival.
        self._in_order: deque[PendingCommand] = deque()
        self._heap: list[tuple[float, int, PendingCommand]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, command: PendingCommand) -> None:
        """Watch a command."""
        in_order, deadline_s = self._in_order, command.deadline_s
        while in_order and in_order[0].done.done():  # most are answered long before their deadlines
            in_order.popleft()
        if not in_order or deadline_s >= in_order[-1].deadline_s:
            in_order.append(command)
        else:
            self._add_early(command)
        if self._timer is None or deadline_s < self._timer.when():
            self._set_timer()

    def _add_early(self, command: PendingCommand) -> None:
        """Watch a command whose deadline is before that of one which came earlier."""
        heap = self._heap
        while heap and heap[0][2].done.done():
            heappop(heap)
        heappush(heap, (command.deadline_s, command.number, command))

    def close(self) -> None:
        """Watch nothing any more."""
        self._in_order.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        firsts = [each.deadline_s for each in (*islice(self._in_order, 1), *(entry[2] for entry in self._heap[:1]))]
        self._timer = self._loop.call_at(min(firsts), self._run) if firsts else None

    def _run(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        due: list[PendingCommand] = []
        while self._heap and (self._heap[0][0] <= now_s or self._heap[0][2].done.done()):
            due.append(heappop(self._heap)[2])
        while self._in_order and (self._in_order[0].deadline_s <= now_s or self._in_order[0].done.done()):
            due.append(self._in_order.popleft())
        for command in due:
            if not command.done.done():
                self._expire(command)
        self._set_timer()


class CommandBatch:
    """What one transaction will hold: records in the order of handling, and the last record of each aggregate."""

    def __init__(self, name: BatchName, generation: int) -> None:
        self.name = name
        self.generation = generation
        self.outcomes: list[tuple[PendingCommand, CommandReply | HeadraceError, bool]] = []
        self.size_bytes = 0
        self.is_alone = False
        self.has_timers = False
        self._is_sound = True
        self._records: list[NewRecord] = []
        self._states: dict[bytes, bytes | None] = {}

    @property
    def commands(self) -> list[PendingCommand]:
        """All commands that are answered when the batch is committed."""
        return [command for command, _, _ in self.outcomes]

    @property
    def is_empty(self) -> bool:
        """True if nothing of it goes to the log."""
        return not self._records and not self._states

    def add(self, command: PendingCommand, handled: HandledCommand) -> None:
        """Add a command that was handled."""
        command.stage = Stage.HANDLED
        self.outcomes.append((command, handled.reply, False))
        self.is_alone |= command.is_alone
        if handled.records:
            self._records += handled.records
            self._is_sound &= handled.is_sound
        self.size_bytes += handled.size_bytes
        if handled.record is not None:
            self.has_timers |= bool(handled.record.timers)
            self.set_state(command.request.aggregate.encode(), handled.value)

    def attach(self, command: PendingCommand, outcome: CommandReply | HeadraceError, *, is_repeated: bool) -> None:
        """Add a command that writes nothing: its reply looked at what this batch, or one before it, commits."""
        command.stage = Stage.HANDLED
        self.outcomes.append((command, outcome, is_repeated))

    def set_state(self, key: bytes, value: bytes | None) -> None:
        """Set the record of a key in the state topic; None is a tombstone."""
        self.size_bytes += len(value or b"") - len(self._states.get(key) or b"")
        self._states[key] = value

    def records(self, at: TopicPartition, timestamp_ms: int) -> Sequence[NewRecord]:
        """Return all records, those of the state topic last."""
        topic, partition = at
        records = [*self._records]
        records += [NewRecord(topic, key, value, (), partition, timestamp_ms) for key, value in self._states.items()]
        return SoundRecords(records) if self._is_sound else records


class _LiveAggregate(msgspec.Struct, eq=False):
    """An aggregate in memory, the last batch that changed it unless that is committed, and when it was used."""

    record: AggregateRecord | None
    batch: BatchName | None
    used_s: float


class LiveAggregates:
    """The aggregates in memory: those in use, and those that uncommitted batches have changed.

    An aggregate that a batch has changed is current here, and nowhere else, until the last batch that changed it is
    committed and applied. Only then may it leave the memory.
    """

    def __init__(self) -> None:
        self._live: dict[str, _LiveAggregate] = {}
        self._changed: dict[BatchName, set[str]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, aggregate: object) -> bool:
        return aggregate in self._live

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def get(self, aggregate: str, now_s: float) -> AggregateRecord | None:
        """Return the newest record; None if there is none, also of an aggregate that is not in memory."""
        live = self._live.get(aggregate)
        if live is None:
            return None
        live.used_s = now_s
        return live.record

    def load(self, aggregate: str, record: AggregateRecord | None, now_s: float) -> None:
        """Take in a committed record."""
        self._live[aggregate] = _LiveAggregate(record, None, now_s)

    def change(self, aggregate: str, record: AggregateRecord | None, batch: BatchName, now_s: float) -> None:
        """Note that a batch, which is not committed yet, has changed the aggregate."""
        self._live[aggregate] = _LiveAggregate(record, batch, now_s)
        self._changed.setdefault(batch, set()).add(aggregate)

    def committed(self, batch: BatchName) -> None:
        """Note that a batch is committed and applied; batches are committed in order."""
        for aggregate in self._changed.pop(batch, ()):
            if self._live[aggregate].batch == batch:
                self._live[aggregate].batch = None

    def is_in_flight(self, aggregate: str) -> bool:
        """Return True if an uncommitted batch has changed the aggregate."""
        live = self._live.get(aggregate)
        return live is not None and live.batch is not None

    def passivate(self, *, before_s: float) -> int:
        """Drop what was not used since then and is not in flight; returns how many."""
        idle = [id_ for id_, live in self._live.items() if live.batch is None and live.used_s < before_s]
        for id_ in idle:
            del self._live[id_]
        return len(idle)

    def clear(self) -> None:
        """Drop all: what is committed is read again, what is not is handled again."""
        self._live.clear()
        self._changed.clear()


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
