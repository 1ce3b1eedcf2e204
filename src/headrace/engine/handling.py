"""Handling one command: decisions only. What it looked at goes in, what it leads to comes out.

`admit` looks at the command's id and expected version. `decide` runs the application's handler. `finish` turns the
decision into the records of a batch, and checks their sizes, so that what is too large fails alone. Only the handler
itself may wait for something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from headrace.engine.command_records import command_record
from headrace.engine.commands import (
    CommandReply,
    CommandRequest,
    FailedReply,
    RejectedReply,
    SuccessReply,
    check_request,
    decode_reply,
    encode_reply,
    failed_reply,
)
from headrace.engine.context import CommandContext, CommandRejected, EventHandlerFailed
from headrace.engine.kept_commands import metadata_of
from headrace.engine.models import Engine
from headrace.engine.records import (
    UNKNOWN_DIGEST,
    AggregateRecord,
    AggregateValues,
    RememberedCommand,
    remembering,
    without_oldest,
)
from headrace.engine.results import Reject
from headrace.engine.timers import Cancel, Schedule, Timer, Timers
from headrace.errors import (
    BadArgument,
    CommandFailed,
    CommandIdReused,
    CommandTooLarge,
    CommandTooLate,
    HeadraceError,
    NotReadable,
    NotStorable,
    UnknownCommand,
    WrongVersion,
)
from headrace.journal import AppendOptions, new_append
from headrace.model import Event, NewRecord, TopicPartition, size_of
from headrace.protocol import Purge, check_events, check_finite, check_text, encode_action
from headrace.runtime import error_text
from headrace.state import BatchName

__all__ = ["CommandHandling", "Decision", "HandledCommand", "RecordLimits", "Repeated"]

S = TypeVar("S")

# The owner adds the name of the batch to each record.
_BATCH_HEADER_BYTES = 64
_NO_EVENTS = b"[]"
_REASON_AT_MOST = 500
# States that no handler can change in place.
_UNCHANGEABLE = (bool, bytes, float, int, str)


class RecordLimits(NamedTuple):
    """How large a record may be, by topic."""

    state_bytes: int
    journal_bytes: int
    outputs_bytes: Mapping[str, int] = {}


class Repeated(NamedTuple):
    """A command whose id is remembered: this was its reply."""

    reply: CommandReply


class Decision(NamedTuple):
    """What a handler made of a command; with `reject` or `error` nothing else counts. Without `timers` they stay.

    `state` counts where there are events, or no journal. `payloads` are the events as they were persisted.
    """

    state: Any = None
    events: tuple[Any, ...] = ()
    outputs: tuple[NewRecord, ...] = ()
    value: Any = None
    reject: Reject | None = None
    error: HeadraceError | None = None
    now_ms: int = 0
    timers: Timers | None = None
    payloads: tuple[Mapping[str, Any] | NotStorable, ...] = ()


class HandledCommand(NamedTuple):
    """What a command leads to. Without a `record` the aggregate stays as it is.

    `value` is the encoded record, `records` are those of the journal and of other topics, in order.
    """

    reply: CommandReply
    record: AggregateRecord | None = None
    value: bytes = b""
    records: tuple[NewRecord, ...] = ()

    @property
    def writes(self) -> bool:
        """True if something of it goes to the log."""
        return self.record is not None or bool(self.records)


class _Change(NamedTuple):
    """What a decision does to an aggregate, before its command id is remembered."""

    record: AggregateRecord
    reply: CommandReply
    records: tuple[NewRecord, ...] = ()


class CommandHandling(Generic[S]):
    """Handles the commands of one partition of an engine."""

    def __init__(self, engine: Engine[S], values: AggregateValues, partition: int, limits: RecordLimits) -> None:
        self.engine = engine
        self.values = values
        self.state_at = TopicPartition(engine.state_topic, partition)
        self._journal_at = TopicPartition(engine.journal_topic, partition) if engine.journal_topic is not None else None
        self._limits = limits
        self._append_options = AppendOptions(origin=engine.name)

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
            return _decision(context, returned)
        except (Exception, asyncio.CancelledError) as error:  # the application's own; the next command works
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
        return handled._replace(record=kept, value=value)

    def sent_by_timer(self, record: AggregateRecord, timer: Timer, *, aggregate: str) -> HandledCommand:
        """Return what a timer for another aggregate leads to: its command goes to the engine's command topic."""
        to = timer.aggregate or aggregate
        request = CommandRequest(aggregate=aggregate, kind=timer.kind, data=timer.data)
        sent = command_record(self.engine, to, timer.kind, timer.data)
        reply: CommandReply = SuccessReply(record.version, record.state, _NO_EVENTS)
        records: tuple[NewRecord, ...] = (sent,)
        try:
            self._check_size(request, "command", sent, self._limits.outputs_bytes[sent.topic])
        except CommandTooLarge as error:
            reply, records = failed_reply(error), ()
        kept, value = self._fitted(record, request)
        return HandledCommand(reply, kept, value, records)

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
        if self._journal_at is None or state is None or isinstance(state, _UNCHANGEABLE):
            return lambda: state
        return lambda: self._state_of(record)

    def _call(self, request: CommandRequest, state: S | None, context: CommandContext[S]) -> Any:  # noqa: ANN401
        """Call the handler, and return what it returns."""
        if request.is_events:
            context.persist(*_events_in(self.engine, request))
            return None
        if request.kind not in self.engine.commands:
            raise UnknownCommand(self.engine.name, request.kind, self.engine.commands.names)
        command = self.engine.commands.decode(request.kind, request.data)
        return self.engine.handler_of(command)(state, command, context)

    async def _awaited(self, request: CommandRequest, context: CommandContext[S], returned: Awaitable[Any]) -> Decision:
        try:
            return _decision(context, await returned)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return self._undecided(request, "handler", error)  # the handler's own: of something that it awaited
        except Exception as error:
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
            return _Change(base, _rejected(base.version, decision.reject))
        payloads = _written(decision)
        state = base.state
        if payloads or self._journal_at is None:
            state = self.values.inner.encode(decision.state) if decision.state is not None else None
        record = self._next(base, state, len(payloads))
        if decision.timers is not None and decision.timers != base.timers:
            record = msgspec.structs.replace(record, timers=decision.timers)
        records = (*self._journal_records(base, request, decision, payloads, record), *decision.outputs)
        for output in decision.outputs:
            self._check_size(request, f"record for {output.topic!r}", output, self._limits.outputs_bytes[output.topic])
        value = _value_json(decision.value) if decision.value is not None else None
        # What the caller is told is the version that the command led to, also if the journal was purged with it.
        version = base.version + len(payloads) if self._journal_at is not None else record.version
        reply = SuccessReply(version, state, msgspec.json.encode(payloads) if payloads else _NO_EVENTS, value)
        size, limit = len(encode_reply(reply)), self.engine.limits.reply_bytes
        if size > limit:
            raise CommandTooLarge(self.engine.name, request.aggregate, "reply", size, limit)
        return _Change(record, reply, records)

    def _next(self, base: AggregateRecord, state: bytes | None, events: int) -> AggregateRecord:
        """Return the aggregate's next record; the same one if nothing has changed."""
        if self._journal_at is None:
            if state == base.state:
                return base
            return msgspec.structs.replace(base, state=state, version=base.version + 1)
        if not events:
            return base
        version = 0 if state is None and self.engine.none_states == "purge" else base.version + events
        return msgspec.structs.replace(base, state=state, version=version)

    def _journal_records(
        self,
        base: AggregateRecord,
        request: CommandRequest,
        decision: Decision,
        payloads: Sequence[Any],
        record: AggregateRecord,
    ) -> list[NewRecord]:
        """Return the Append of the events, and a Purge if the aggregate is gone and its journal goes with it."""
        if self._journal_at is None or not payloads:
            return []
        numbered = [
            Event(base.version + n, payload, self.engine.tags_of(event))
            for n, (event, payload) in enumerate(zip(decision.events, payloads, strict=True), start=1)
        ]
        options = self._append_options
        if self.engine.keep_commands:
            options = msgspec.structs.replace(options, metadata=metadata_of(request, decision.now_ms))
        with_digest = request.command_id is not None
        new = new_append(check_events(numbered), options, with_digest=with_digest).traced()
        append = new.record(self._journal_at, request.aggregate, expected=base.version, append_id=request.command_id)
        self._check_size(request, "events", append, self._limits.journal_bytes)
        if record.version != 0:
            return [append]
        purge = encode_action(Purge(origin=self.engine.name))
        at = self._journal_at
        return [append, NewRecord(at.topic, request.aggregate.encode(), None, purge, at.partition)]

    def _remembered(
        self, base: AggregateRecord, change: _Change, request: CommandRequest, *, batch: BatchName, now_ms: int
    ) -> HandledCommand:
        """Return what is written: with a command id always a record, which remembers it."""
        record = change.record
        if request.command_id is not None:
            limits = self.engine.limits
            kept = encode_reply(_shortened(change.reply, limits.remembered_reply_bytes))
            command = RememberedCommand(request.command_id, request.digest, batch, now_ms, kept)
            record = remembering(record, command, limits, now_ms)
        elif record is base:
            return HandledCommand(change.reply, records=change.records)
        record, value = self._fitted(record, request)
        return HandledCommand(change.reply, record, value, change.records)

    def _fitted(self, record: AggregateRecord, request: CommandRequest) -> tuple[AggregateRecord, bytes]:
        """Return the record and its bytes, without its oldest ids if it would be too large for its topic."""
        while True:
            value = self.values.encode(record)
            written = NewRecord(self.state_at.topic, request.aggregate.encode(), value)
            if size_of(written) + _BATCH_HEADER_BYTES <= self._limits.state_bytes:
                return record, value
            if not record.ids:
                self._check_size(request, "state", written, self._limits.state_bytes)
            record = without_oldest(record, 1)

    def _check_size(self, request: CommandRequest, part: str, record: NewRecord, limit_bytes: int) -> None:
        size = size_of(record) + _BATCH_HEADER_BYTES
        if size > limit_bytes:
            raise CommandTooLarge(self.engine.name, request.aggregate, part, size, limit_bytes)


def _events_in(engine: Engine[Any], request: CommandRequest) -> list[Any]:
    try:
        payloads = msgspec.json.decode(request.data)
    except msgspec.DecodeError as error:
        raise NotReadable("the events", request.kind, str(error)) from error
    place = f"an event to apply to {request.aggregate!r}"
    return [event for each in payloads for event in engine.events.events_of(each, place)]


def _do(context: CommandContext[Any], returned: Any) -> None:  # noqa: ANN401
    """Do what one value of a handler's result stands for: an event, or a change of a timer."""
    match returned:
        case Schedule(command=command, at=at, after=after, name=name, aggregate=aggregate):
            context.schedule(command, at=at, after=after, name=name, aggregate=aggregate)
        case Cancel(name=name):
            context.cancel(name)
        case _:
            context.persist(returned)


def _decision(context: CommandContext[Any], returned: Any) -> Decision:  # noqa: ANN401
    """Return what a handler decided, from what it returned and what it did with its context."""
    if isinstance(returned, Reject):
        context.end()
        return Decision(reject=returned)
    if returned is not None:
        for each in returned if isinstance(returned, list | tuple) and not _is_named(returned) else [returned]:
            _do(context, each)
    context.end()
    return Decision(
        context.state_left(),
        tuple(context.events),
        tuple(context.outputs),
        context.value,
        now_ms=context.now_ms,
        timers=context.timers_left(),
        payloads=tuple(context.payloads),
    )


def _written(decision: Decision) -> list[Mapping[str, Any]]:
    """Return the events as the journal gets them. Raises NotStorable."""
    payloads = []
    for each in decision.payloads:
        if isinstance(each, NotStorable):
            raise each
        payloads.append(each)
    return payloads


def _is_named(value: object) -> bool:
    """Return True for a NamedTuple, which is one event and not several."""
    return hasattr(value, "_fields")


def _value_json(value: Any) -> bytes:  # noqa: ANN401
    data = msgspec.json.encode(value)
    if b"null" in data:
        check_finite(value)
    return data


def _rejected(version: int, reject: Reject) -> RejectedReply:
    code, message = check_text("code", reject.code), check_text("message", reject.message)
    try:
        details = _value_json(dict(reject.details))
    except (TypeError, ValueError) as error:
        raise BadArgument("details", repr(reject.details), f"JSON must be able to carry them: {error}") from error
    return RejectedReply(version, code, message, details)


def _shortened(reply: CommandReply, limit_bytes: int) -> CommandReply:
    """Return what is remembered of a reply: all of it, or what happened and no more."""
    if len(encode_reply(reply)) <= limit_bytes:
        return reply
    match reply:
        case SuccessReply():
            return SuccessReply(reply.version, None, _NO_EVENTS, is_kept=False)
        case RejectedReply():
            return RejectedReply(reply.version, reply.code, reply.message[:_REASON_AT_MOST], b"{}")
        case FailedReply():
            return reply
