"""The command beside the events that it led to, in the metadata of their Append: {"command": {"type": …, "data": …}}.

An engine with `keep_commands` writes it, so that later code can be tried on what really happened. A command that led to
no event is in no journal, and is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.engine.commands import CommandRequest

__all__ = ["KeptCommand", "command_in", "metadata_of"]


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


def metadata_of(request: CommandRequest, now_ms: int) -> Mapping[str, Any] | None:
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
