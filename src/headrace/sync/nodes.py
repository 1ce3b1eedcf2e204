"""Blocking versions of a node, and of the clients of keyspaces and engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from headrace.app import RunningNode
from headrace.engine import Aggregate, AggregateState, CommandResult, EngineClient, Rejected, Success
from headrace.keyspace import (
    CollectionEvent,
    KeyRead,
    KeyspaceClient,
    KeyWritten,
    Scattered,
    StateDeclaration,
    TokenReply,
)
from headrace.runtime import LoopThread
from headrace.state import StateChange, StatePage

__all__ = ["SyncAggregate", "SyncEngine", "SyncKeyspace", "SyncNode"]

S = TypeVar("S")


class SyncNode:
    """A node of the cluster while it runs in this process, blocking."""

    def __init__(self, loop: LoopThread, node: RunningNode) -> None:
        self._loop = loop
        self._node = node
        self.id = node.id
        self.address = node.address

    @property
    def owned(self) -> list[tuple[str, int]]:
        """The partitions that this node owns: group and number."""
        return self._node.owned

    def online(self, *parts: str, timeout_s: float = 60.0) -> None:
        """Wait until every partition of these keyspaces and engines, or of all served here, has an owner."""
        self._loop.run(self._node.online(*parts, timeout_s=timeout_s))

    def drain(self, *, timeout_s: float = 60.0) -> None:
        """Hand over all that this node owns, before it is stopped. Raises TimedOut."""
        self._loop.run(self._node.drain(timeout_s=timeout_s))


class SyncAggregate(Generic[S]):
    """One aggregate of an engine, blocking."""

    def __init__(self, loop: LoopThread, aggregate: Aggregate[S]) -> None:
        self._loop = loop
        self._aggregate = aggregate
        self.id = aggregate.id

    def send(self, command: Any, **options: Any) -> Success[S] | Rejected:  # noqa: ANN401
        """Send a command; the result is in the log when this returns. Options as in Aggregate.send."""
        return self._loop.run(self._aggregate.send(command, **options))

    def try_send(self, command: Any, **options: Any) -> CommandResult[S]:  # noqa: ANN401
        """Send a command as `send` does, and return errors as `Failed` instead of raising them."""
        return self._loop.run(self._aggregate.try_send(command, **options))

    def apply_events(
        self, events: Iterable[Any], *, command_id: str | None = None, timeout_s: float | None = None
    ) -> Success[S]:
        """Apply events that were decided on elsewhere, without a command handler."""
        return self._loop.run(self._aggregate.apply_events(events, command_id=command_id, timeout_s=timeout_s))

    def state(self, *, at_least: str | None = None, timeout_s: float | None = None) -> S | None:
        """Return the state as it is committed; None if there is none."""
        return self._loop.run(self._aggregate.state(at_least=at_least, timeout_s=timeout_s))

    def read(self, *, at_least: str | None = None, timeout_s: float | None = None) -> AggregateState[S]:
        """Return the committed state with its version."""
        return self._loop.run(self._aggregate.read(at_least=at_least, timeout_s=timeout_s))


class SyncEngine(Generic[S]):
    """The client of an engine, blocking."""

    def __init__(self, loop: LoopThread, client: EngineClient[S]) -> None:
        self._loop = loop
        self._client = client

    def aggregate(self, aggregate_id: str) -> SyncAggregate[S]:
        """Return one aggregate, by its id."""
        return SyncAggregate(self._loop, self._client.aggregate(aggregate_id))


class SyncKeyspace:
    """The client of a keyspace, blocking."""

    def __init__(self, loop: LoopThread, client: KeyspaceClient) -> None:
        self._loop = loop
        self._client = client
        self.name = client.name

    def ask(self, message: object, *, message_id: str | None = None, timeout_s: float | None = None) -> Any:  # noqa: ANN401
        """Return the reply of the message's handler."""
        return self._loop.run(self._client.ask(message, message_id=message_id, timeout_s=timeout_s))

    def ask_with_token(
        self, message: object, *, message_id: str | None = None, timeout_s: float | None = None
    ) -> TokenReply:
        """Return the reply with the consistency token of what the handler wrote, or else read."""
        return self._loop.run(self._client.ask_with_token(message, message_id=message_id, timeout_s=timeout_s))

    def ack(self, message: object, *, message_id: str | None = None) -> Any:  # noqa: ANN401
        """Return the reply, after three attempts at most; the owner does the work once."""
        return self._loop.run(self._client.ack(message, message_id=message_id))

    def tell(self, message: object) -> None:
        """Send a message, at most once, and don't wait for what becomes of it; failures are counted and logged."""

        async def tell() -> None:
            (await self._client.prepare_tell(message))()

        self._loop.run(tell())

    def scatter(self, message: object, *, timeout_s: float | None = None) -> Scattered:
        """Ask every partition, and gather what they reply."""
        return self._loop.run(self._client.scatter(message, timeout_s=timeout_s))

    def get(self, state: str | StateDeclaration, key: Any, **options: Any) -> Any:  # noqa: ANN401
        """Return the value of a key; None if it has none. Options as in KeyspaceClient.get."""
        return self._loop.run(self._client.get(state, key, **options))

    def read(self, state: str | StateDeclaration, key: Any, **options: Any) -> KeyRead:  # noqa: ANN401
        """Return the value of a key with its version, its age and its token. Options as in KeyspaceClient.read."""
        return self._loop.run(self._client.read(state, key, **options))

    def put(self, state: str | StateDeclaration, key: Any, value: Any, **options: Any) -> KeyWritten:  # noqa: ANN401
        """Set the value of a key. Options as in KeyspaceClient.put."""
        return self._loop.run(self._client.put(state, key, value, **options))

    def delete(self, state: str | StateDeclaration, key: Any, **options: Any) -> KeyWritten:  # noqa: ANN401
        """Delete a key; nothing happens if it has no value. Options as in KeyspaceClient.delete."""
        return self._loop.run(self._client.delete(state, key, **options))

    def prefix(self, state: str | StateDeclaration, prefix: Any, **options: Any) -> StatePage[Any, Any]:  # noqa: ANN401
        """Return a page of the keys that begin with these parts. Options as in KeyspaceClient.prefix."""
        return self._loop.run(self._client.prefix(state, prefix, **options))

    def items(self, state: str | StateDeclaration) -> Iterator[tuple[Any, Any]]:
        """Yield all pairs, partition by partition, each in the order of its keys."""
        return self._loop.iterate(self._client.items(state))

    def find(self, state: str | StateDeclaration, index: str, value: Any, **options: Any) -> list[Any]:  # noqa: ANN401
        """Return pairs that an index has under a value. Options as in KeyspaceClient.find."""
        return self._loop.run(self._client.find(state, index, value, **options))

    def count(self, state: str | StateDeclaration) -> int:
        """Return how many keys have a value, in all partitions."""
        return self._loop.run(self._client.count(state))

    def changes(self, state: str | StateDeclaration, key: Any, **options: Any) -> Iterator[StateChange[Any, Any]]:  # noqa: ANN401
        """Yield the changes of a key as they are committed. Options as in KeyspaceClient.changes."""
        return self._loop.iterate(self._client.changes(state, key, **options))

    def collection(self, state: str | StateDeclaration, **options: Any) -> Iterator[CollectionEvent]:  # noqa: ANN401
        """Yield all keys of a state, and then their changes. Options as in KeyspaceClient.collection."""
        return self._loop.iterate(self._client.collection(state, **options))
