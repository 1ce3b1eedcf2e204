"""The records of an engine's journal: the Append of a command's events, and the Purge of an aggregate that is gone.

An engine with `keep_commands` writes the command beside the events that it led to, in the metadata of their Append:
{"command": {"type": …, "data": …}}, so that later code can be tried on what really happened. A command that led to no
event is in no journal, and is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.engine.commands import CommandRequest
from headrace.engine.context import Decision
from headrace.engine.models import Engine
from headrace.journal import AppendOptions, json_event_record, new_append
from headrace.model import MAX_SEQ_NR, Event, NewRecord, TopicPartition
from headrace.protocol import Purge, check_events, encode_action

__all__ = ["JournalRecords", "KeptCommand", "command_in"]


class JournalRecords:
    """Makes the records of one partition of an engine's journal."""

    def __init__(self, engine: Engine[Any], at: TopicPartition) -> None:
        self._engine = engine
        self._at = at
        self._keeps_commands = engine.keep_commands
        self._options = AppendOptions(origin=engine.name)

    def append(self, version: int, request: CommandRequest, decision: Decision, payloads: Sequence[bytes]) -> NewRecord:
        """Return the record of a decision's events, whose payloads are JSON, behind this version of the aggregate.

        Raises BadArgument for what no record can carry.
        """
        tags_of = self._engine.tags_of
        if len(payloads) == 1 and request.command_id is None and version < MAX_SEQ_NR and not self._keeps_commands:
            tagged = tags_of(decision.events[0])
            if not tagged:
                return json_event_record(
                    self._at, request.aggregate, version + 1, payloads[0], origin=self._engine.name, expected=version
                )
            tags = [tagged]
        else:
            tags = [tags_of(event) for event in decision.events]
        numbered = [
            Event(version + n, msgspec.Raw(payload), tags_of_event)
            for n, (payload, tags_of_event) in enumerate(zip(payloads, tags, strict=True), start=1)
        ]
        options = self._options
        if self._keeps_commands:
            options = msgspec.structs.replace(options, metadata=_metadata_of(request, decision.now_ms))
        with_digest = request.command_id is not None
        new = new_append(check_events(numbered), options, with_digest=with_digest).traced()
        return new.record(self._at, request.aggregate, expected=version, append_id=request.command_id)

    def purge(self, aggregate: str) -> NewRecord:
        """Return the record that removes the journal of an aggregate."""
        headers = encode_action(Purge(origin=self._engine.name))
        return NewRecord(self._at.topic, aggregate.encode(), None, headers, self._at.partition)


class KeptCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command as the journal has it: its class, its fields, its id if it had one, and the handler's time."""

    type: str
    data: Any
    now_ms: int
    id: str | None = None

    def request(self, aggregate: str) -> CommandRequest:
        """Return the command as it was sent to an aggregate."""
        data = msgspec.json.encode(self.data, order="sorted")
        return CommandRequest(aggregate=aggregate, kind=self.type, data=data, command_id=self.id)


def _metadata_of(request: CommandRequest, now_ms: int) -> Mapping[str, Any] | None:
    """Return the metadata that keeps a command; None for events that were decided on elsewhere."""
    if request.is_events:
        return None
    kept = KeptCommand(request.kind, msgspec.json.decode(request.data), now_ms, request.command_id)
    return {"command": msgspec.to_builtins(kept)}


def command_in(metadata: object) -> KeptCommand | None:
    """Return the command in the metadata of an event; None if there is none."""
    if not isinstance(metadata, Mapping) or "command" not in metadata:
        return None
    try:
        return msgspec.convert(metadata["command"], KeptCommand)
    except msgspec.ValidationError:
        return None  # metadata that an application's tool wrote; it is not ours
