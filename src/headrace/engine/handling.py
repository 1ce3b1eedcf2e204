"""Handling one command: decisions only. What it looked at goes in, what it leads to comes out.

`admit` looks at the command's id and expected version. `decide` runs the application's handler. `finish` turns the
decision into the records of a batch, and checks their sizes, so that what is too large fails alone. Only the handler
itself may wait for something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from headrace.engine.command_records import command_record
from headrace.engine.commands import (
    CommandReply,
    CommandRequest,
    SuccessReply,
    check_request,
    decode_reply,
    encode_reply,
    failed_reply,
    rejected_reply,
    shortened_reply,
    value_json,
)
from headrace.engine.context import CommandContext, CommandRejected, Decision, EventHandlerFailed, Repeated, decision_of
from headrace.engine.journal_records import JournalRecords
from headrace.engine.models import Engine
from headrace.engine.records import (
    UNKNOWN_DIGEST,
    AggregateRecord,
    AggregateValues,
    RememberedCommand,
    remembering,
    without_oldest,
)
from headrace.engine.timers import Timer
from headrace.engine.topics import RecordLimits
from headrace.errors import (
    BadArgument,
    CommandFailed,
    CommandIdReused,
    CommandTooLarge,
    CommandTooLate,
    NotStorable,
    UnknownCommand,
    WrongVersion,
)
from headrace.model import NewRecord, TopicPartition, size_of
from headrace.runtime import EXITS, error_text
from headrace.state import BatchName

__all__ = ["CommandHandling", "HandledCommand"]

S = TypeVar("S")

# The owner adds the name of the batch to each record.
_BATCH_HEADER_BYTES = 64
_NO_EVENTS = b"[]"
# What a reply takes at most besides its state, its events and its value.
_REPLY_OVERHEAD_BYTES = 128
_REASON_AT_MOST = 500
# States that no handler can change in place.
_UNCHANGEABLE = (bool, bytes, float, int, str)


class HandledCommand(msgspec.Struct, frozen=True, gc=False):
    """What a command leads to. Without a `record` the aggregate stays as it is.

    `value` is the encoded record, `records` are those of the journal and of other topics, in order, and `size_bytes` is
    what these records take in the log. If it `is_sound`, the engine has made all of them, and every log can take them.
    """

    reply: CommandReply
    record: AggregateRecord | None = None
    value: bytes = b""
    records: tuple[NewRecord, ...] = ()
    size_bytes: int = 0
    is_sound: bool = False

    @property
    def writes(self) -> bool:
        """True if something of it goes to the log."""
        return self.record is not None or bool(self.records)


class _Change(msgspec.Struct, frozen=True, gc=False):
    """What a decision does to an aggregate, before its command id is remembered."""

    record: AggregateRecord
    reply: CommandReply
    records: tuple[NewRecord, ...] = ()
    size_bytes: int = 0
    is_sound: bool = False


class CommandHandling(Generic[S]):
    """Handles the commands of one partition of an engine."""

    def __init__(self, engine: Engine[S], values: AggregateValues, partition: int, limits: RecordLimits) -> None:
        self.engine = engine
        self.values = values
        self.state_at = TopicPartition(engine.state_topic, partition)
        topic = engine.journal_topic
        self._journal = None if topic is None else JournalRecords(engine, TopicPartition(topic, partition))
        self._limits = limits
        # What certainly fits into a record of the state topic, beside the aggregate's id.
        self._state_bytes = limits.state_bytes - size_of(NewRecord(engine.state_topic)) - _BATCH_HEADER_BYTES

    def admit(self, record: AggregateRecord | None, request: CommandRequest, floor: BatchName) -> Repeated | None:
        """Return the reply of a command that was seen before; None if it is to be handled.

        `floor` is what the partition has forgotten of aggregates without a record. Raises CommandIdReused and
        CommandTooLate, after which nothing was done and nothing is remembered, and BadArgument.
        """
        check_request(request)
        if request.command_id is None:
            return None
        known = record.find(request.command_id) if record is not None else None
        if known is not None:
            if known.digest not in (request.digest, UNKNOWN_DIGEST):
                raise CommandIdReused(request.aggregate, request.command_id)
            return Repeated(decode_reply(known.reply))
        forgotten = record.forgotten if record is not None else floor
        if request.since is not None and request.since < forgotten:
            since = str(BatchName(*request.since))
            raise CommandTooLate(request.aggregate, request.command_id, since, str(forgotten))
        return None

    async def decide(self, record: AggregateRecord | None, request: CommandRequest, *, now_ms: int) -> Decision:
        """Run the handler on the aggregate's state; its errors become part of the decision."""
        decision = self.begin(record, request, now_ms=now_ms)
        return decision if isinstance(decision, Decision) else await decision

    def is_async(self, request: CommandRequest) -> bool:
        """Return True if the command's handler is a coroutine."""
        return not request.is_events and self.engine.is_async(request.kind)

    def begin(
        self, record: AggregateRecord | None, request: CommandRequest, *, now_ms: int
    ) -> Decision | Awaitable[Decision]:
        """Call the handler; return the decision, or what to await for it if the handler waits for something."""
        version = record.version if record is not None else 0
        if request.expected_version is not None and request.expected_version != version:
            return Decision(error=WrongVersion(request.aggregate, request.expected_version, version))
        stage = "state"
        context: CommandContext[S] | None = None
        try:
            state = self._state_of(record)
            context = CommandContext(
                self.engine,
                request.aggregate,
                self._own_state(record, state),
                had_state=state is not None,
                version=version,
                command_id=request.command_id,
                now_ms=now_ms,
                timers=record.timers if record is not None else (),
            )
            stage = "handler"
            returned = self._call(request, state, context)
            if hasattr(returned, "__await__"):
                return self._awaited(request, context, returned)
            return decision_of(context, returned)
        except EXITS:
            raise
        except BaseException as error:  # the application's own, panics of extensions included; the next command works
            if context is not None:
                context.end()
            return self._undecided(request, stage, error)

    def finish(
        self,
        record: AggregateRecord | None,
        request: CommandRequest,
        decision: Decision,
        *,
        batch: BatchName,
        floor: BatchName,
        now_ms: int,
    ) -> HandledCommand:
        """Return what the command leads to in this batch. What can't be written fails the command, and it alone."""
        base = record if record is not None else AggregateRecord.new(floor)
        try:
            change = self._change(base, request, decision)
            return self._remembered(base, change, request, batch=batch, now_ms=now_ms)
        except (CommandTooLarge, CommandFailed, UnknownCommand, WrongVersion) as error:
            if isinstance(error, CommandFailed) and error.is_of_state:
                return HandledCommand(failed_reply(error))  # after a rebuild the command can be done, with its id
            change = _Change(base, failed_reply(error))
        except Exception as error:  # what the application gave can't be written
            change = _Change(base, failed_reply(self._failed(request, "serialization", error)))
        return self._remembered(base, change, request, batch=batch, now_ms=now_ms)

    def fired(
        self,
        record: AggregateRecord,
        timer: Timer,
        decision: Decision,
        *,
        aggregate: str,
        batch: BatchName,
        now_ms: int,
    ) -> HandledCommand:
        """Return what a timer leads to: the timer leaves the record with it, also if the command is rejected or fails.

        `record` is without the timer already.
        """
        request = CommandRequest(aggregate=aggregate, kind=timer.kind, data=timer.data)
        handled = self.finish(record, request, decision, batch=batch, floor=record.forgotten, now_ms=now_ms)
        if handled.record is not None:
            return handled
        kept, value = self._fitted(record, request)
        return msgspec.structs.replace(handled, record=kept, value=value)

    def sent_by_timer(self, record: AggregateRecord, timer: Timer, *, aggregate: str) -> HandledCommand:
        """Return what a timer for another aggregate leads to: its command goes to the engine's command topic."""
        to = timer.aggregate or aggregate
        request = CommandRequest(aggregate=aggregate, kind=timer.kind, data=timer.data)
        size_bytes = 0
        reply: CommandReply = SuccessReply(record.version, record.state, _NO_EVENTS)
        records: tuple[NewRecord, ...] = ()
        try:
            sent = command_record(self.engine, to, timer.kind, timer.data)
            size_bytes = self._check_size(request, "command", sent, self._limits.outputs_bytes[sent.topic])
            records = (sent,)
        except CommandTooLarge as error:
            reply = failed_reply(error)
        except BadArgument as error:  # the engine was declared with a command topic when the timer was set
            reply = failed_reply(self._failed(request, "timer", error))
        kept, value = self._fitted(record, request)
        return HandledCommand(reply, kept, value, records, size_bytes)

    def output_limit(self, topic: str) -> int:
        """Return how large a record of another topic may be."""
        return self._limits.outputs_bytes[topic]

    # How it is done.

    def _state_of(self, record: AggregateRecord | None) -> S | None:
        """Return the state, decoded again for each command: a handler may change the object that it gets."""
        if record is None or record.state is None:
            return None
        state: S = self.values.inner.decode(record.state)
        return state

    def _own_state(self, record: AggregateRecord | None, state: S | None) -> Callable[[], S | None]:
        """Return what gives the state that events are applied to: what the handler does to its own does not count.

        Without a journal the handler says what the state is, and may change the object that it got.
        """
        if self._journal is None or state is None or isinstance(state, _UNCHANGEABLE):
            return lambda: state
        return lambda: self._state_of(record)

    def _call(self, request: CommandRequest, state: S | None, context: CommandContext[S]) -> Any:  # noqa: ANN401
        """Call the handler, and return what it returns."""
        if request.is_events:
            place = f"an event to apply to {request.aggregate!r}"
            context.persist(*self.engine.events.events_in(request.data, place))
            return None
        if request.kind not in self.engine.commands:
            raise UnknownCommand(self.engine.name, request.kind, self.engine.commands.names)
        command = self.engine.commands.decode(request.kind, request.data)
        return self.engine.handler_of(command)(state, command, context)

    async def _awaited(self, request: CommandRequest, context: CommandContext[S], returned: Awaitable[Any]) -> Decision:
        limit = asyncio.timeout(self.engine.limits.handler_s)
        try:
            async with limit:
                result = await returned
            return decision_of(context, result)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return self._undecided(request, "handler", error)  # the handler's own: of something that it awaited
        except (*EXITS, GeneratorExit):
            raise
        except BaseException as error:
            if limit.expired() and isinstance(error, TimeoutError):
                error = TimeoutError(f"it did not return within {self.engine.limits.handler_s:g} s, its handler_s")
            return self._undecided(request, "handler", error)
        finally:
            context.end()

    def _undecided(self, request: CommandRequest, stage: str, error: BaseException) -> Decision:
        """Return the decision on a command whose handler raised something."""
        match error:
            case CommandRejected():
                return Decision(reject=error.reject)
            case UnknownCommand():
                return Decision(error=error)
            case EventHandlerFailed():
                return Decision(error=self._failed(request, "event handler", error.__cause__ or error))
        return Decision(error=self._failed(request, stage, error))

    def _failed(self, request: CommandRequest, stage: str, error: BaseException) -> CommandFailed:
        reason = error_text(error)[:_REASON_AT_MOST]
        return CommandFailed(self.engine.name, request.aggregate, request.kind, stage, reason)

    def _change(self, base: AggregateRecord, request: CommandRequest, decision: Decision) -> _Change:
        if decision.error is not None:
            raise decision.error
        if decision.reject is not None:
            return _Change(base, rejected_reply(base.version, decision.reject))
        payloads = _written(decision)
        state = base.state
        if payloads or self._journal is None:
            state = self.values.inner.encode(decision.state) if decision.state is not None else None
        record = self._next(base, state, len(payloads))
        if decision.timers is not None and decision.timers != base.timers:
            record = msgspec.structs.replace(record, timers=decision.timers)
        journal, size_bytes = self._journal_records(base, request, decision, payloads, record)
        for output in decision.outputs:
            limit = self._limits.outputs_bytes[output.topic]
            size_bytes += self._check_size(request, f"record for {output.topic!r}", output, limit)
        value = value_json(decision.value) if decision.value is not None else None
        # The caller gets the version that the command led to, also if the journal was purged with it.
        version = base.version + len(payloads) if self._journal is not None else record.version
        reply = SuccessReply(version, state, b"[%b]" % b",".join(payloads) if payloads else _NO_EVENTS, value)
        self._check_reply(request, reply)
        if decision.outputs:
            return _Change(record, reply, (*journal, *decision.outputs), size_bytes)
        return _Change(record, reply, journal, size_bytes, is_sound=True)

    def _check_reply(self, request: CommandRequest, reply: SuccessReply) -> None:
        """Raise CommandTooLarge for a reply that is too large; most are so small that they need not be encoded."""
        limit = self.engine.limits.reply_bytes
        if len(reply.state or b"") + len(reply.events) + len(reply.value or b"") + _REPLY_OVERHEAD_BYTES <= limit:
            return
        size = len(encode_reply(reply))
        if size > limit:
            raise CommandTooLarge(self.engine.name, request.aggregate, "reply", size, limit)

    def _next(self, base: AggregateRecord, state: bytes | None, events: int) -> AggregateRecord:
        """Return the aggregate's next record; the same one if nothing has changed."""
        if self._journal is None:
            if state == base.state:
                return base
            return msgspec.structs.replace(base, state=state, version=base.version + 1)
        if not events:
            return base
        version = 0 if state is None and self.engine.none_states == "purge" else base.version + events
        return AggregateRecord(base.format, version, state, base.ids, base.forgotten, base.timers)

    def _journal_records(
        self,
        base: AggregateRecord,
        request: CommandRequest,
        decision: Decision,
        payloads: Sequence[bytes],
        record: AggregateRecord,
    ) -> tuple[tuple[NewRecord, ...], int]:
        """Return the Append of the events, and a Purge if the aggregate's journal goes with it; and their size."""
        if self._journal is None or not payloads:
            return (), 0
        append = self._journal.append(base.version, request, decision, payloads)
        size_bytes = self._check_size(request, "events", append, self._limits.journal_bytes)
        if record.version != 0:
            return (append,), size_bytes
        purge = self._journal.purge(request.aggregate)
        return (append, purge), size_bytes + size_of(purge)

    def _remembered(
        self, base: AggregateRecord, change: _Change, request: CommandRequest, *, batch: BatchName, now_ms: int
    ) -> HandledCommand:
        """Return what is written: with a command id always a record, which remembers it."""
        record = change.record
        if request.command_id is not None:
            limits = self.engine.limits
            kept = encode_reply(shortened_reply(change.reply, limits.remembered_reply_bytes))
            command = RememberedCommand(request.command_id, request.digest, batch, now_ms, kept)
            record = remembering(record, command, limits, now_ms)
        elif record is base:
            return HandledCommand(change.reply, None, b"", change.records, change.size_bytes, change.is_sound)
        record, value = self._fitted(record, request)
        return HandledCommand(change.reply, record, value, change.records, change.size_bytes, change.is_sound)

    def _fitted(self, record: AggregateRecord, request: CommandRequest) -> tuple[AggregateRecord, bytes]:
        """Return the record and its bytes, without its oldest ids if it would be too large for its topic."""
        while True:
            value = self.values.encode(record)
            if len(value) + 4 * len(request.aggregate) <= self._state_bytes:  # four bytes hold any character
                return record, value
            written = NewRecord(self.state_at.topic, request.aggregate.encode(), value)
            if size_of(written) + _BATCH_HEADER_BYTES <= self._limits.state_bytes:
                return record, value
            if not record.ids:
                self._check_size(request, "state", written, self._limits.state_bytes)
            record = without_oldest(record, 1)

    def _check_size(self, request: CommandRequest, part: str, record: NewRecord, limit_bytes: int) -> int:
        """Return what a record takes in the log. Raises CommandTooLarge."""
        size = size_of(record) + _BATCH_HEADER_BYTES
        if size > limit_bytes:
            raise CommandTooLarge(self.engine.name, request.aggregate, part, size, limit_bytes)
        return size


def _written(decision: Decision) -> list[bytes]:
    """Return the events as the journal gets them. Raises NotStorable."""
    payloads = []
    for each in decision.payloads:
        if isinstance(each, NotStorable):
            raise each
        payloads.append(each)
    return payloads
