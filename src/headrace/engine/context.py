"""What a handler may do besides returning events: persist step by step, write to other topics, reply, reject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

from headrace.engine.models import Engine
from headrace.engine.results import Reject
from headrace.errors import BadArgument
from headrace.model import NewRecord

__all__ = ["CommandContext", "CommandRejected", "EventHandlerFailed"]

S = TypeVar("S")


class CommandRejected(Exception):
    """Leaves a handler that calls `CommandContext.reject`. Never leaves the room."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.code)
        self.reject = reject


class EventHandlerFailed(Exception):
    """An event handler raised an error, which is its cause. Never leaves the room."""


class CommandContext(Generic[S]):
    """One run of a handler. Nothing of it takes effect before the commit, and it may run again if a commit fails.

    `state` is the aggregate's state, with the events that this handler has persisted so far.
    """

    def __init__(
        self, engine: Engine[S], aggregate: str, state: S | None, *, version: int, command_id: str | None, now_ms: int
    ) -> None:
        self.aggregate = aggregate
        self.version = version
        self.command_id = command_id
        self.now_ms = now_ms
        self.state = state
        self.events: list[Any] = []
        self.outputs: list[NewRecord] = []
        self.value: Any = None
        self._engine = engine

    def persist(self, *events: Any) -> S | None:  # noqa: ANN401
        """Add events to the aggregate's journal; return the state after them."""
        for event in events:
            self.state = self._applied(event)
            self.events.append(event)
        return self.state

    def persist_to(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write a record to another topic, one of the engine's `outputs`, in the same transaction."""
        if topic not in self._engine.outputs:
            rule = f"engine {self._engine.name!r} may write to {list(self._engine.outputs)}; name it in outputs="
            raise BadArgument("topic", topic, rule)
        key_bytes = self.aggregate.encode() if key is None else key.encode() if isinstance(key, str) else key
        self.outputs.append(NewRecord(topic, key_bytes, value, tuple((headers or {}).items())))

    def update_state(self, state: S | None) -> None:
        """Set the state, in an engine without a journal; with one, the state is what the events make of it."""
        if self._engine.journal_topic is not None:
            rule = "the state of an engine with a journal comes from its events; persist one, or declare journal=None"
            raise BadArgument("state", type(state).__name__, rule)
        self.state = state

    def reply(self, value: Any) -> None:  # noqa: ANN401
        """Give the caller a value, which JSON can carry, with the result."""
        self.value = value

    def reject(self, code: str, message: str = "", **details: Any) -> NoReturn:  # noqa: ANN401
        """Refuse the command: nothing of this run takes effect."""
        raise CommandRejected(Reject(code, message, details))

    def _applied(self, event: Any) -> S | None:  # noqa: ANN401
        try:
            return self._engine.apply(self.state, event)
        except Exception as error:
            raise EventHandlerFailed from error
