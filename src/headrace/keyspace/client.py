"""A keyspace as callers use it: each request goes to the owner of its key, wherever that is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from headrace.errors import (
    BadArgument,
    NotPartitionOwner,
    OperationFailed,
    StateConflict,
)
from headrace.keyspace.calls import REPLIES
from headrace.keyspace.collections import CollectionEvent, follow_collection
from headrace.keyspace.declaration import HandlerSpec, KeyspaceSpec, StateDeclaration
from headrace.keyspace.messages import (
    PUT_CONFLICT,
    Call,
    Entry,
    GetValue,
    MessageCalls,
    MessageCodecs,
    PlacedReply,
    PutValue,
    encode,
    traced,
)
from headrace.keyspace.reads import CommittedValue
from headrace.keyspace.results import NO_VALUE, KeyRead, KeyWritten, Scattered, TokenReply
from headrace.keyspace.routes import KeyspaceRoute
from headrace.keyspace.state_copies import LocalCopies, OpenState, StateCopies, decoded
from headrace.model import ConsistencyToken
from headrace.observe import span
from headrace.serde import Registry
from headrace.state import (
    Duration,
    OrderedKeys,
    StateChange,
    StatePage,
    check_limit,
    check_offset,
    check_staleness,
    codec_of,
    is_prepared,
    place_after,
)

__all__ = ["KeyspaceClient"]

_PAGE = 256


class KeyspaceClient:
    """Asks, tells and reads a keyspace.

    Promises: a request finds the owner of its key, and waits for one while there is none, until its deadline. A reply
    means that what the handler wrote is committed. An error says with `outcome_known` whether it may have been.
    """

    def __init__(
        self,
        spec: KeyspaceSpec,
        route: KeyspaceRoute,
        *,
        registry: Registry | None,
        local: LocalCopies | None = None,
    ) -> None:
        self.name = spec.name
        self._spec = spec
        self._route = route
        self._registry = registry
        self._copies = StateCopies(route, local)
        self._codecs = MessageCodecs(spec, registry)
        self._calls = MessageCalls(spec, self._codecs)
        self._states: dict[str, OpenState] = {}
        self._specs = spec.state_specs(partitions=1)
        self._opening = asyncio.Lock()
        self._is_open = False

    # Messages.

    async def ask(
        self,
        message: object,
        *,
        message_id: str | None = None,
        timeout_s: float | None = None,
        chain: tuple[Entry, ...] = (),
    ) -> Any:  # noqa: ANN401
        """Return the reply of the message's handler.

        With a `message_id` it is safe to repeat: it is handled once, and every repeat gets the first reply, for as long
        as `keyspace.replies_kept_s` says. Raises UnknownMessage, what the handler raises, and TimedOut.
        """
        await self.open()
        handler, routing, call = self._calls.asked(message, chain, message_id)
        reply = await self._asked(handler, routing, call, message_id, timeout_s)
        return await self._codecs.reply(handler, reply)

    async def ask_with_token(
        self, message: object, *, message_id: str | None = None, timeout_s: float | None = None
    ) -> TokenReply:
        """Return the reply as `ask` does, with the consistency token of what the handler wrote, or else read."""
        await self.open()
        handler, routing, call = self._calls.asked(message, (), message_id)
        call = msgspec.structs.replace(call, wants_places=True)
        placed = PlacedReply.decode(await self._asked(handler, routing, call, message_id, timeout_s))
        return TokenReply(await self._codecs.reply(handler, placed.reply), placed.token)

    async def ack(self, message: object, *, message_id: str | None = None) -> Any:  # noqa: ANN401
        """Return the reply, after three attempts at most; the owner does the work once. Never repeats a refusal."""
        message_id = uuid.uuid4().hex if message_id is None else message_id
        await self.open()
        handler, routing, call = self._calls.asked(message, (), message_id)
        with span("keyspace.ask", keyspace=self.name, message=call.message):
            reply = await self._route.ack(routing, encode(traced(call)), message_id=message_id)
        return await self._codecs.reply(handler, reply)

    def tell(self, message: object) -> None:
        """Send a message, at most once, and return at once; failures are counted and logged."""
        self.check(message)
        if not self._is_open:
            raise BadArgument("message", message, "the keyspace was not opened yet; await `open()` first")
        self._route.tell(*self._calls.told(message))

    async def prepare_tell(self, message: object) -> Callable[[], None]:
        """Return what sends a message as `tell` does. What is wrong with the message is raised here.

        Raises UnknownMessage, NotStorable, NotEncodable, and what registering its schema raises.
        """
        await self.open()
        routing, payload = self._calls.told(message)
        return lambda: self._route.tell(routing, payload)

    async def scatter(self, message: object, *, timeout_s: float | None = None) -> Scattered:
        """Ask every partition, and gather what they reply."""
        await self.open()
        handler, payload = self._calls.scattered(message)
        gathered = await self._route.scatter(payload, is_read=handler.is_read, timeout_s=timeout_s)
        replies = {n: await self._codecs.reply(handler, data) for n, data in sorted(gathered.replies.items())}
        return Scattered(replies, gathered.failures)

    def check(self, message: object) -> HandlerSpec:
        """Return the handler of a message. Raises UnknownMessage."""
        return self._calls.handler_of(message)

    def key_of(self, message: object) -> Any:  # noqa: ANN401
        """Return the key that a message is for; None if it is for all partitions.

        Raises UnknownMessage, BadArgument, and RequestFailed for what the application's function for keys raises.
        """
        return self._calls.key_of(message)

    # Reading states.

    async def get(
        self,
        state: str | StateDeclaration,
        key: Any,  # noqa: ANN401
        *,
        max_staleness_s: float | None = None,
        at_least: int | str | None = None,
        timeout_s: float | None = None,
    ) -> Any:  # noqa: ANN401
        """Return the value of a key; None if it has none. With `max_staleness_s` a standby may answer.

        `at_least` is an offset, or the consistency token of a write or read, that the copy must have reached. A standby
        that has not leaves the answer to the owner. Raises BadToken, TokenOfOtherTopic, TokenAhead.
        """
        if max_staleness_s is None and at_least is None and timeout_s is None:
            name = self._name_of(state)
            found = self.read_at_once(name, key)
            if found is not None:
                await asyncio.sleep(0)  # whoever asks its own node in a loop would let nobody else run
                return self.decode_at_once(name, found.data)
        read = await self.read(state, key, max_staleness_s=max_staleness_s, at_least=at_least, timeout_s=timeout_s)
        return read.value

    async def read(
        self,
        state: str | StateDeclaration,
        key: Any,  # noqa: ANN401
        *,
        max_staleness_s: float | None = None,
        at_least: int | str | None = None,
        timeout_s: float | None = None,
    ) -> KeyRead:
        """Return the value of a key with the offset that the copy has come to, its age and its token; see `get`."""
        check_staleness(max_staleness_s)
        opened = await self._state(state)
        offset, token = (None, at_least) if isinstance(at_least, str) else (at_least, None)
        if token is not None:
            ConsistencyToken.parse(token)
        if offset is not None:
            check_offset("at_least", offset)
        routing, data = opened.keys.encode_routed(key)
        asked = GetValue(opened.spec.name, data, max_staleness_s, offset, token)
        found = await self._copies.get(routing, asked, is_stale_fine=max_staleness_s is not None, timeout_s=timeout_s)
        value = await decoded(opened.values, found.value)
        version = NO_VALUE if found.written is None else found.written
        return KeyRead(value, version, found.offset, found.age_ms, found.place)

    def read_at_once(self, state: str, key: Any) -> CommittedValue | None:  # noqa: ANN401
        """Return the value that `read` would, in its bytes, if this process owns the key and need not wait; else None.

        `decode_at_once` has the value. Does not promise other tasks a turn: a loop over it lets nobody else run.
        """
        opened = self._states.get(state)
        if opened is None:
            return None
        routing, data = opened.keys.encode_routed(key)
        place = self._route.served(routing)
        found = None if place is None else self._copies.read_at_once(*place, state, data)
        return found if found is not None and is_prepared(opened.values, found.data) else None

    def decode_at_once(self, state: str, data: bytes) -> Any:  # noqa: ANN401
        """Return the value of bytes that `read_at_once` returned."""
        return self._states[state].values.decode(data)

    async def prefix(
        self,
        state: str | StateDeclaration,
        prefix: Any,  # noqa: ANN401
        *,
        after: Any = None,  # noqa: ANN401
        limit: int = _PAGE,
    ) -> StatePage[Any, Any]:
        """Return a page of the keys that begin with these parts; the first part decides the partition."""
        opened = await self._state(state)
        if not opened.keys.is_compound:
            raise BadArgument("prefix", prefix, "keys without parts lie in all partitions; use `items`")
        if prefix == ():
            raise BadArgument("prefix", prefix, "its first part decides the partition; for all keys use `items`")
        check_limit(limit)
        start, end = opened.keys.prefix_range(prefix)
        parts = prefix if isinstance(prefix, tuple) else (prefix,)
        routing = OrderedKeys(type(parts[0])).routing_bytes(parts[0])
        while True:
            group, partition = self._route.group, self._route.partition(routing)
            try:
                return await self._copies.page(opened, partition, start, end, after, limit, group=group)
            except NotPartitionOwner:  # its keys lie elsewhere since the keyspace was resized
                if group == self._route.group:
                    raise

    async def items(self, state: str | StateDeclaration) -> AsyncIterator[tuple[Any, Any]]:
        """Yield all pairs, partition by partition, each in the order of its keys.

        Raises OperationFailed if the keyspace is resized meanwhile: keys that are left may lie where it has been.
        """
        opened, group = await self._state(state), self._route.group
        for partition in range(self._route.partitions):
            after = None
            while True:
                try:
                    page = await self._copies.page(opened, partition, b"", None, after, _PAGE, group=group)
                except NotPartitionOwner:
                    what, reason = f"reading state {opened.spec.name!r}", "its keyspace was resized; begin again"
                    raise OperationFailed(what, reason) from None
                for item in page.items:
                    yield item
                if page.next_after is None:
                    break
                after = page.next_after

    async def find(self, state: str | StateDeclaration, index: str, value: Any, *, limit: int = _PAGE) -> list[Any]:  # noqa: ANN401
        """Return up to `limit` pairs that an index has under a value, of all partitions, in the order of their keys."""
        opened = await self._state(state)
        return await self._copies.find(opened, index, value, limit)

    async def count(self, state: str | StateDeclaration) -> int:
        """Return how many keys have a value, in all partitions."""
        opened = await self._state(state)
        return await self._copies.count(opened)

    # Writing single keys.

    async def put(
        self,
        state: str | StateDeclaration,
        key: Any,  # noqa: ANN401
        value: Any,  # noqa: ANN401
        *,
        ttl: Duration | None = None,
        expected: int | None = None,
        timeout_s: float | None = None,
    ) -> KeyWritten:
        """Set the value of a key; with `expected`, the version that a read came with, only if it still is.

        Raises StateConflict if it is not.
        """
        opened = await self._state(state)
        if value is None:
            raise BadArgument("value", None, "None is no value; delete the key instead")
        data, ttl_ms = opened.values.encode(value), opened.spec.ttl_ms_of(key, value, ttl)
        is_due = ttl_ms is not None and ttl_ms <= 0
        return await self._put(opened, key, None if is_due else data, None if is_due else ttl_ms, expected, timeout_s)

    async def delete(
        self,
        state: str | StateDeclaration,
        key: Any,  # noqa: ANN401
        *,
        expected: int | None = None,
        timeout_s: float | None = None,
    ) -> KeyWritten:
        """Delete a key; nothing happens if it has no value."""
        return await self._put(await self._state(state), key, None, None, expected, timeout_s)

    # Changes.

    async def changes(
        self,
        state: str | StateDeclaration,
        key: Any,  # noqa: ANN401
        *,
        after: int | str | None = None,
        heartbeat_s: float | None = None,
        at_least: str | None = None,
    ) -> AsyncIterator[StateChange[Any, Any]]:
        """Yield the changes of a key as they are committed, whichever node owns it at the time.

        Without `after` the present value comes first; with an offset or token every change after it, or, if some may be
        missing, the present value with `is_lagged`. With `heartbeat_s` silence is broken by a heartbeat. With the
        consistency token `at_least` the present value is no older than what the token names.
        """
        opened = await self._state(state)
        routing, data = opened.keys.encode_routed(key)
        if at_least is not None:
            ConsistencyToken.parse(at_least)
        async for change in self._copies.follow(
            opened, lambda: self._route.partition(routing), data, key, after, heartbeat_s, at_least
        ):
            yield change

    async def partition_changes(
        self,
        state: str | StateDeclaration,
        partition: int,
        *,
        after: int | str | None = None,
        heartbeat_s: float | None = None,
    ) -> AsyncIterator[StateChange[Any, Any]]:
        """Yield the changes of all keys of a partition; a lagged item says that the partition is to be read again."""
        opened = await self._state(state)
        if type(partition) is not int:
            raise BadArgument("partition", partition, "it must be the number of a partition, from 0 on")
        async for change in self._copies.follow(opened, lambda: partition, None, None, after, heartbeat_s):
            yield change

    async def collection(
        self,
        state: str | StateDeclaration,
        *,
        prefix: Any = None,  # noqa: ANN401
        start: Any = None,  # noqa: ANN401
        end: Any = None,  # noqa: ANN401
        after: Mapping[int, str] | None = None,
    ) -> AsyncIterator[CollectionEvent]:
        """Yield all keys of a state as they stand, in pages, and then their changes; see CollectionEvent.

        `prefix` are the first parts of compound keys, or the beginning of texts; `start` and `end` are keys, or first
        parts of them, from which on and before which. `after` are tokens by partition to resume after.
        """
        _check_places(after)
        source = self._copies.collection(await self._state(state), prefix, start, end)
        async for event in follow_collection(source, after or {}):
            yield event

    def key_from_json(self, state: str, text: bytes) -> Any:  # noqa: ANN401
        """Return the key of a state that JSON stands for. Raises BadArgument."""
        name = self._name_of(state)
        try:
            return msgspec.json.decode(text, type=self._specs[name].key)
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise BadArgument("key", _start_of(text), f"it is no key of state {state!r}: {error}") from error

    async def open(self) -> None:
        """Get ready, which every request does if necessary: fetch or register the schemas of messages and values."""
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                await self._codecs.open()
                self._is_open = True

    # How it is done.

    async def _asked(
        self, handler: HandlerSpec, routing: bytes, call: Call, message_id: str | None, timeout_s: float | None
    ) -> bytes:
        with span("keyspace.ask", keyspace=self.name, message=call.message):
            return await self._route.ask(
                routing,
                encode(traced(call)),
                command_id=message_id,
                is_read=handler.is_read,
                timeout_s=timeout_s,
            )

    async def _state(self, state: str | StateDeclaration) -> OpenState:
        name = self._name_of(state)
        found = self._states.get(name)
        if found is not None:
            return found
        spec = self._specs.get(name)
        if spec is None or name == REPLIES:
            raise BadArgument("state", name, f"keyspace {self.name!r} has {sorted(self._specs)}")
        await self.open()
        deltas = None if spec.delta is None else await codec_of(spec.delta, spec.delta_topic, self._registry)
        opened = OpenState(spec, OrderedKeys(spec.key), await codec_of(spec.value, spec.topic, self._registry), deltas)
        return self._states.setdefault(name, opened)

    def _name_of(self, state: object) -> str:
        """Return the name of a state. Raises BadArgument for what names none."""
        if isinstance(state, StateDeclaration):
            return state.name
        if not isinstance(state, str):
            raise BadArgument("state", state, f"it must be a name; keyspace {self.name!r} has {sorted(self._specs)}")
        return state

    async def _put(
        self,
        opened: OpenState,
        key: Any,  # noqa: ANN401
        value: bytes | None,
        ttl_ms: int | None,
        expected: int | None,
        timeout_s: float | None,
    ) -> KeyWritten:
        if expected is not None:
            check_offset("expected", expected)
        routing, data = opened.keys.encode_routed(key)
        asked = PutValue(opened.spec.name, data, value, ttl_ms, expected)
        answer = await self._route.ask(routing, encode(asked), timeout_s=timeout_s)
        if answer == PUT_CONFLICT:
            raise StateConflict(opened.spec.name, repr(key))
        return KeyWritten(PlacedReply.decode(answer).places)


def _check_places(after: object) -> None:
    """Refuse what are no tokens by partition. Raises BadArgument."""
    if after is None:
        return
    if not isinstance(after, Mapping) or not all(type(each) is int for each in after):
        raise BadArgument("after", after, "it must be a mapping of partitions to the tokens of changes")
    for place in after.values():
        place_after(place)


def _start_of(text: object) -> object:
    return text[:60] if isinstance(text, str | bytes) else text
