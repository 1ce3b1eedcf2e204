"""Sagas: functions of an engine's events that send commands to engines, each event exactly once.

    @saga(of=bank)
    def transfers(event: TransferSent, context: SagaContext) -> None:
        context.send(bank, event.to, ReceiveTransfer(event.amount))

The owner of a partition reads the events of its own journal. The commands go to the command topics of their engines in
the transaction that moves the saga's place, so a function may run again, and what it sends is there once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from headrace.engine.command_records import command_record, dead_letters_of
from headrace.engine.commands import check_aggregate_id
from headrace.engine.inputs import ensure_dead_letters
from headrace.engine.models import Engine, kinds_of, parameters_of
from headrace.engine.places import InputPlaces, InputSpan, saga_key
from headrace.engine.pump import LaneWork, WrittenRecords
from headrace.engine.topics import ensure_command_topic
from headrace.errors import BadArgument, CommandTooLarge, ContextEnded, RecordsLost, TimedOut, UnknownCommand
from headrace.journal import RemovedRecords, removed_records
from headrace.log import Log
from headrace.model import NewRecord, Record, StoredEvent, TopicPartition, check_topic_name, size_of
from headrace.protocol import Append, decode_action, events_of_record
from headrace.store import StoreReader

__all__ = ["Saga", "SagaContext", "SagaSource", "saga"]

F = TypeVar("F", bound=Callable[..., Any])
OnError = Literal["retry", "dead-letter"]

# The owner adds the name of the batch to each record.
_BATCH_HEADER_BYTES = 64


class Saga(NamedTuple):
    """A function of events, the events that it is for, and what happens when it fails."""

    name: str
    function: Callable[..., Any]
    events: tuple[str, ...]
    start: Literal["earliest", "latest"]
    on_error: OnError


class _Send(NamedTuple):
    engine: Engine[Any]
    aggregate: str
    kind: str
    data: bytes


class SagaContext:
    """One event on its way through a saga. What is sent leaves with the saga's place, or not at all."""

    def __init__(self, saga_name: str, topic_id: str, aggregate: str, event: StoredEvent) -> None:
        self.aggregate = aggregate
        self.seq_nr = event.seq_nr
        self.timestamp_ms = event.timestamp_ms
        self.event_id = f"{saga_name}/{topic_id}/{event.partition}/{event.offset}/{event.seq_nr}"
        self.sends: list[_Send] = []
        self._has_ended = False

    def send(self, engine: Engine[Any], aggregate: str, command: Any) -> None:  # noqa: ANN401
        """Send a command to an aggregate of any engine that has a command topic.

        Raises BadArgument, UnknownCommand, and ContextEnded once the function has returned.
        """
        if self._has_ended:
            raise ContextEnded(f"the saga of {self.event_id!r}", "context.send")
        if type(command).__name__ not in engine.commands.names:
            raise UnknownCommand(engine.name, type(command).__name__, engine.commands.names)
        self.sends.append(_Send(engine, check_aggregate_id(aggregate), *engine.commands.encode(command)))

    def end(self) -> None:
        """Take nothing more: the function has returned, or failed."""
        self._has_ended = True

    def records(self) -> list[NewRecord]:
        """Return the commands as records. Their ids are made of the event's and of their number."""
        return [
            command_record(each.engine, each.aggregate, each.kind, each.data, command_id=f"{self.event_id}/{number}")
            for number, each in enumerate(self.sends, start=1)
        ]


def saga(
    *,
    of: Engine[Any],
    name: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    on_error: OnError = "retry",
) -> Callable[[F], F]:
    """Declare a function of an engine's events that sends commands; a decorator.

    The annotation of its first parameter says which events it is for; the second one is a `SagaContext`. It may be a
    coroutine. Nodes that serve the engine run it. `name` is that of its place, by default the function's; "earliest"
    begins with the oldest event, in the store or in the log. While it fails, its partition of the journal waits and it
    is tried again; with `on_error="dead-letter"` the event is set aside after three attempts, in
    `<journal>.<name>.dead-letters`.
    """

    def declare(function: F) -> F:
        parameters = parameters_of(function)
        if len(parameters) != 2:
            raise BadArgument("saga", function.__name__, "it must take an event and a SagaContext")
        if of.journal_topic is None:
            raise BadArgument("saga", function.__name__, f"engine {of.name!r} has no journal, and so no events")
        if start not in ("earliest", "latest") or on_error not in ("retry", "dead-letter"):
            raise BadArgument(
                "saga", (start, on_error), "start is 'earliest' or 'latest', on_error 'retry' or 'dead-letter'"
            )
        events = tuple(kind.__name__ for kind in kinds_of(function, parameters[0]))
        for kind in kinds_of(function, parameters[0]):
            of.events.add(kind)
        chosen = check_topic_name(name or function.__name__)
        if chosen in of.sagas:
            raise BadArgument("saga", chosen, f"engine {of.name!r} has a saga of this name")
        of.sagas[chosen] = Saga(chosen, function, events, start, on_error)
        return function

    return declare


class SagaSource:
    """The journal of an engine as a saga reads it."""

    def __init__(
        self,
        declared: Saga,
        engine: Engine[Any],
        places: InputPlaces,
        at: TopicPartition,
        store: Callable[[], StoreReader] | None,
    ) -> None:
        self._at = at
        self._store = store
        self._saga = declared
        self._engine = engine
        self._places = places
        self._log: Log | None = None
        self._limits: dict[str, int] = {}

    @property
    def key(self) -> bytes:
        """The key of its place."""
        return saga_key(self._saga.name)

    @property
    def start(self) -> Literal["earliest", "latest"]:
        """Where the first owner ever begins."""
        return self._saga.start

    @property
    def dead_letters(self) -> str | None:
        """The topic for events that the saga failed at, if it is not to wait for them."""
        if self._saga.on_error == "retry":
            return None
        return dead_letters_of(f"{self._engine.journal_topic}.{self._saga.name}")

    @property
    def has_store(self) -> bool:
        """True: the store has the events that have left the log."""
        return True

    async def removed(self, first: int, end: int) -> RemovedRecords:
        """Return the records of events that have left the log, from the store. Raises RecordsLost."""
        if self._store is None:
            raise RecordsLost(*self._at, first, end - 1)
        return await removed_records(self._store(), self._at, first=first, end=end)

    async def open(self, log: Log) -> None:
        """Make the topic for dead letters, if one is wanted."""
        if self._log is None and self.dead_letters is not None and self._engine.journal_topic is not None:
            await ensure_dead_letters(log, self._engine.journal_topic, name=self.dead_letters)
        self._log = log

    async def work_of(self, record: Record, span: InputSpan) -> LaneWork:
        """Run the function for the events of a record, and return the commands that it sends."""
        aggregate, sent = (record.key or b"").decode(), list[NewRecord]()
        for event in _events_in(record, aggregate):
            wanted = self._wanted(event, aggregate)
            if wanted:
                sent += await self._run(wanted, SagaContext(self._saga.name, span.topic_id, aggregate, event))
        return LaneWork(self.key.decode(), WrittenRecords(self._places, span, sent))

    def _wanted(self, event: StoredEvent, aggregate: str) -> list[Any]:
        """Return the events of a stored one that the saga is for; of an old one, those that upcasters make of it."""
        kind = event.payload.get("type") if isinstance(event.payload, Mapping) else None
        if kind not in self._saga.events and not self._engine.events.has_upcaster(kind):
            return []
        events = self._engine.events.events_of(event.payload, f"event {event.seq_nr} of {aggregate!r}")
        return [each for each in events if type(each).__name__ in self._saga.events]

    async def _run(self, events: Sequence[Any], context: SagaContext) -> list[NewRecord]:
        time_s = self._engine.limits.handler_s
        time = asyncio.timeout(time_s)
        try:
            async with time:
                for event in events:
                    returned = self._saga.function(event, context)
                    if inspect.isawaitable(returned):
                        await returned
        except TimeoutError:
            if time.expired():
                raise TimedOut(f"saga {self._saga.name!r} at event {context.event_id!r}", time_s) from None
            raise
        finally:
            context.end()
        for each in context.sends:
            await self._find(each.engine)
        records = context.records()
        for record, each in zip(records, context.sends, strict=True):
            size, limit = size_of(record) + _BATCH_HEADER_BYTES, self._limits[record.topic]
            if size > limit:
                raise CommandTooLarge(each.engine.name, each.aggregate, "command", size, limit)
        return records

    async def _find(self, engine: Engine[Any]) -> None:
        """Make sure of the command topic of an engine: it may never have run."""
        if engine.command_topic is not None and engine.command_topic not in self._limits and self._log is not None:
            topic = await ensure_command_topic(self._log.admin, engine, engine.command_topic)
            self._limits[topic.name] = topic.config.max_record_bytes


def _events_in(record: Record, aggregate: str) -> list[StoredEvent]:
    action = decode_action(record)
    return events_of_record(aggregate, record, action) if isinstance(action, Append) else []
