"""Commands from topics: records become commands, exactly once each, with their place in the same transaction.

A command for an aggregate of the partition that reads it is handled there. Any other goes to the engine's command
topic, to the partition of its aggregate, in the transaction that moves the place; from there it is handled like the
rest. So topics with any number of partitions, and any keys, can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.engine.batches import WorkOutcome
from headrace.engine.command_records import (
    TopicCommandMessage,
    dead_letter,
    dead_letters_of,
    forwarded,
    parse_command,
    parse_headers,
    reply_record,
)
from headrace.engine.commands import (
    CommandReply,
    CommandRequest,
    FailedReply,
    check_aggregate_id,
    error_of,
    failed_reply,
)
from headrace.engine.context import Decision
from headrace.engine.handling import CommandHandling, HandledCommand
from headrace.engine.models import CommandInput, Engine
from headrace.engine.places import InputPlaces, InputSpan, input_key
from headrace.engine.pump import LaneWork, WrittenRecords
from headrace.engine.records import AggregateRecord
from headrace.errors import BadArgument, CommandIdReused, CommandTooLate, RecordsLost, UnknownCommand, UnknownTopic
from headrace.journal import RemovedRecords
from headrace.log import Log, ensure_topic
from headrace.model import NewRecord, Record, TopicConfig, TopicPartition, partition_of, size_of
from headrace.state import BatchName

__all__ = ["CommandSource", "command_inputs", "ensure_dead_letters"]

# A dead letter has the reason and the place in addition.
_DEAD_LETTER_BYTES = 8 * 1024

Outcome: TypeAlias = Decision | CommandReply


def command_inputs(engine: Engine[Any]) -> Mapping[str, CommandInput]:
    """Return all topics from which an engine takes commands, by name."""
    own = {} if engine.command_topic is None else {engine.command_topic: CommandInput(engine.command_topic)}
    return {**own, **engine.inputs}


async def ensure_dead_letters(log: Log, topic: str, *, name: str) -> None:
    """Make the topic for records of a topic that can't be handled, unless it is there."""
    source = await log.admin.describe(topic)
    try:
        await log.admin.describe(name)
    except UnknownTopic:
        config = TopicConfig(max_record_bytes=source.config.max_record_bytes + _DEAD_LETTER_BYTES)
        await ensure_topic(log.admin, name, partitions=source.partitions, config=config)


class CommandSource:
    """One partition of a topic with commands, as a partition of the engine reads it."""

    def __init__(
        self, spec: CommandInput, at: TopicPartition, handling: CommandHandling[Any], places: InputPlaces
    ) -> None:
        self._spec = spec
        self._at = at
        self._handling = handling
        self._engine = handling.engine
        self._places = places
        self._is_open = False

    @property
    def key(self) -> bytes:
        """The key of its place."""
        return input_key(*self._at)

    @property
    def start(self) -> Literal["earliest", "latest"]:
        """Where the first owner ever begins."""
        return self._spec.start

    @property
    def dead_letters(self) -> str | None:
        """The topic for records that are no command, or whose command fails."""
        return dead_letters_of(self._at.topic)

    @property
    def has_store(self) -> bool:
        """False: what leaves the topic is gone."""
        return False

    async def removed(self, first: int, end: int) -> RemovedRecords:
        """Raise RecordsLost: nobody has them."""
        raise RecordsLost(*self._at, first, end - 1)

    async def open(self, log: Log) -> None:
        """Make the topic for dead letters."""
        if not self._is_open:
            await ensure_dead_letters(log, self._at.topic, name=dead_letters_of(self._at.topic))
            self._is_open = True

    async def work_of(self, record: Record, span: InputSpan) -> LaneWork:
        """Return the command of a record, or what takes it to its partition. Raises what is wrong with it."""
        message = self._message(record)
        if message is None:
            return LaneWork(self.key.decode(), WrittenRecords(self._places, span))
        if message.reply_to is not None and message.reply_to not in self._engine.outputs:
            rule = f"engine {self._engine.name!r} may write to {list(self._engine.outputs)}; name it in outputs="
            raise BadArgument("reply topic", message.reply_to, rule)
        if partition_of(message.aggregate.encode(), self._engine.partitions) != self._handling.state_at.partition:
            moved = forwarded(self._engine, message)
            return LaneWork(self.key.decode(), WrittenRecords(self._places, span, [moved]))
        return LaneWork(message.aggregate, TopicCommand(self._handling, self._places, span, record, message))

    def _message(self, record: Record) -> TopicCommandMessage | None:
        if self._spec.decode is None:
            message = parse_command(record)
        else:
            decoded = self._spec.decode(record)
            if decoded is None:
                return None
            aggregate, command = decoded
            kind, data = self._engine.commands.encode(command)
            message = TopicCommandMessage(check_aggregate_id(aggregate), kind, data, *parse_headers(record))
        if message.kind not in self._engine.commands.names:
            raise UnknownCommand(self._engine.name, message.kind, self._engine.commands.names)
        return message


class TopicCommand:
    """A command that came out of a topic: its place moves on with its effects, whatever it leads to."""

    has_aggregate = True

    def __init__(
        self,
        handling: CommandHandling[Any],
        places: InputPlaces,
        span: InputSpan,
        record: Record,
        message: TopicCommandMessage,
    ) -> None:
        self._handling = handling
        self._places = places
        self._span = span
        self._record = record
        self._message = message
        self._request = CommandRequest(
            aggregate=message.aggregate,
            kind=message.kind,
            data=message.data,
            command_id=message.command_id,
            trace=message.trace,
        )

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> Outcome | None:
        """Run the handler, unless this command was done already, from this topic or by its id."""
        if self._places.is_done(self._span):
            return None
        try:
            repeated = self._handling.admit(record, self._request, floor)
        except (CommandIdReused, CommandTooLate) as error:
            return failed_reply(error)
        if repeated is not None:
            return repeated.reply
        return await self._handling.decide(record, self._request, now_ms=now_ms)

    def finish(
        self,
        record: AggregateRecord | None,
        decided: Outcome | None,
        *,
        batch: BatchName,
        floor: BatchName,
        now_ms: int,
    ) -> WorkOutcome | None:
        """Return what the command leads to, its reply, and its place; a command that failed is a dead letter, too."""
        if decided is None or self._places.is_done(self._span):
            return None
        if isinstance(decided, Decision):
            handled = self._handling.finish(record, self._request, decided, batch=batch, floor=floor, now_ms=now_ms)
        else:
            handled = HandledCommand(decided)
        told = self._told(handled.reply)
        size_bytes = handled.size_bytes + sum(map(size_of, told))
        if told:
            records = (*handled.records, *told)
            handled = msgspec.structs.replace(handled, records=records, size_bytes=size_bytes, is_sound=False)
        return WorkOutcome(handled, {self._span.key: self._places.finish(self._span)})

    def _told(self, reply: CommandReply) -> list[NewRecord]:
        """Return the records that tell others what became of the command."""
        told = []
        if isinstance(reply, FailedReply):
            reason = str(error_of(reply))
            told.append(dead_letter(self._record, reason, topic=dead_letters_of(self._record.topic)))
        if self._message.reply_to is not None:
            limit = self._handling.output_limit(self._message.reply_to)
            told.append(reply_record(self._message, self._record, reply, limit))
        return told
