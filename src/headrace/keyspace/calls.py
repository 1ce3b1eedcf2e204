"""Running handlers: one at a time for a key, again from the start after a conflict, once for a message id."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headrace.cluster import PartitionRequest
from headrace.config import KeyspaceSettings
from headrace.errors import (
    BadArgument,
    HeadraceError,
    MessageIdReused,
    OperationFailed,
    ReplyNotKept,
    RequestFailed,
    StateConflict,
    StateReadOnly,
    TimedOut,
    UnknownMessage,
    WritesInRead,
)
from headrace.keyspace.context import Context
from headrace.keyspace.declaration import CURRENT_STATES, HandlerSpec, InputSpec, Keyspace, KeyspaceSpec
from headrace.keyspace.messages import Call, MessageCodecs, key_bytes, longer_chain
from headrace.observe import counter, histogram
from headrace.runtime import EXITS, OWNERS_TRIED, error_text, is_suspect, own_text
from headrace.state import BytesValues, KeyLocks, State, StatePartition, StateSpec, StateWrite, UnitOfWork

if TYPE_CHECKING:
    from headrace.keyspace.client import KeyspaceClient

__all__ = ["REPLIES", "CallRunner", "replies_spec"]

CALLS = counter("keyspace", "calls", "Calls of handlers, by how they ended.", ["keyspace", "message", "outcome"])
SECONDS = histogram("keyspace", "call", "Time from a call's arrival at the owner to its reply.", ["keyspace"])

REPLIES = "replies"
"""The state in which every keyspace keeps the replies to messages with ids."""

_ATTEMPTS = 100
# A handler ends a little before its caller gives up, so that the caller learns that nothing was done.
_MARGIN_S = 0.05
# What a record's handler may take, its asks included.
_INPUT_S = 60.0

Commit: TypeAlias = Callable[[UnitOfWork], Awaitable[None]]
Gate: TypeAlias = Callable[[], Awaitable[None]]
_ReplyPlace: TypeAlias = tuple[bytes, bytes, str]


class _KeptReply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a message with an id: None if it was too large. `digest` is that of the message."""

    digest: bytes
    reply: bytes | None


_kept = msgspec.msgpack.Decoder(_KeptReply)


def replies_spec(keyspace: str, *, partitions: int, kept_s: float) -> StateSpec[Any, Any]:
    """Return the state of kept replies: by what routes a message, its key and its id, each for some minutes.

    Each has its own time to live, and the topic none: it holds the records of the partition's owners, too, which a
    retention by age would delete.
    """
    return StateSpec(
        name=REPLIES,
        topic=f"{keyspace}-{REPLIES}",
        key=tuple[bytes, bytes, str],
        value=BytesValues(),
        partitions=partitions,
        ttl_of=lambda _key, _reply: kept_s,
    )


class CallRunner:
    """Runs the handlers of one partition, while this node owns it."""

    def __init__(
        self,
        spec: KeyspaceSpec,
        states: StatePartition,
        codecs: MessageCodecs,
        client_of: Callable[[type[Keyspace]], KeyspaceClient],
        *,
        settings: KeyspaceSettings,
    ) -> None:
        self._spec = spec
        self._states = states
        self._codecs = codecs
        self._client_of = client_of
        self._settings = settings
        self._changelogs = {each.spec.topic for each in states.replicas.values()}
        self._locks = KeyLocks()
        self._logic: Keyspace | None = None
        self._seconds = SECONDS.labels(spec.name)

    def start(self) -> None:
        """Begin a tenure: the application's object is a new one."""
        self._logic = self._spec.kind()

    async def run(self, request: PartitionRequest, call: Call, deadline_s: float, commit: Commit, gate: Gate) -> bytes:
        """Run the handler of a message until it is committed, and return its reply."""
        handler = self._spec.handlers.get(call.message)
        if handler is None:
            known = ", ".join(sorted(self._spec.handlers)) or "nothing"
            raise UnknownMessage(self._spec.name, call.message, known)
        if handler.key_of is not None and call.key is None:
            raise BadArgument("key", None, f"{call.message} goes to the partition of its key")
        chain = self._chain_of(call)
        began_s = asyncio.get_running_loop().time()
        outcome = "failed"
        try:
            reply = await self._in_turn(request, call, handler, chain, deadline_s, commit, gate)
            outcome = "done"
            return reply
        finally:
            CALLS.labels(self._spec.name, call.message, outcome).inc()
            self._seconds.observe(asyncio.get_running_loop().time() - began_s)

    def _chain_of(self, call: Call) -> tuple[tuple[str, bytes], ...]:
        """Return the keys that wait for one another, this one last. Raises AskCycle."""
        if call.key is None:
            return call.chain
        return longer_chain(call.chain, (self._spec.name, call.key))

    async def _in_turn(
        self,
        request: PartitionRequest,
        call: Call,
        handler: HandlerSpec,
        chain: tuple[tuple[str, bytes], ...],
        deadline_s: float,
        commit: Commit,
        gate: Gate,
    ) -> bytes:
        loop = asyncio.get_running_loop()
        given_s = deadline_s - loop.time()
        ends_s = deadline_s - min(_MARGIN_S, given_s / 4)
        limit = asyncio.timeout_at(ends_s)
        try:
            async with limit, self._turn(call.key):
                message = await self._codecs.message(handler, call.payload)

                commit_unit = partial(_commit_within, limit, ends_s, commit)
                return await self._until_committed(
                    request, call, handler, message, chain, deadline_s, commit_unit, gate
                )
        except (TimeoutError, asyncio.CancelledError):
            if not limit.expired():
                raise
            # On a node that is busy the caller may have given up in the same moment: nothing was sent to the log.
            what = f"{self._spec.name}.{handler.name} with key {_shown(call.key)}"
            raise TimedOut(what, round(given_s, 3)) from None

    def _turn(self, key: bytes | None) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext() if key is None else self._locks.hold(key)

    async def _until_committed(
        self,
        request: PartitionRequest,
        call: Call,
        handler: HandlerSpec,
        message: Any,  # noqa: ANN401
        chain: tuple[tuple[str, bytes], ...],
        deadline_s: float,
        commit: Commit,
        gate: Gate,
    ) -> bytes:
        key = None if handler.key_of is None else handler.key_of(message)
        place = None if request.command_id is None else (*_bytes_of(key), request.command_id)
        digest = b"" if place is None else _digest_of(call)
        for attempt in range(1, _ATTEMPTS + 1):
            unit = self._states.begin()
            kept = None if place is None else self._kept(unit, place, digest)
            if kept is not None:
                await commit(unit)
                return kept
            if is_suspect(request.attempt):  # as many owners have died, or fallen silent, while they handled it
                reason = f"it was tried {OWNERS_TRIED} times, and no attempt was answered: it may end its process"
                raise RequestFailed(self._spec.name, call.message, "NoAnswer", reason)
            context = Context(
                keyspace=self._spec.name,
                partition=self._states.partition,
                key=key,
                now_ms=self._now_ms(),
                deadline_s=deadline_s,
                request_id=request.command_id or call.request_id,
                chain=chain,
                unit=unit,
                client_of=self._client_of,
                gate=gate,
                changelogs=self._changelogs,
            )
            result = await self._handle(handler, message, context, unit)
            if handler.is_read and _has_written(unit):
                raise WritesInRead(self._spec.name, handler.name)
            await context.prepare_tells()
            reply = self._codecs.reply_bytes(handler, result)
            if place is not None and not handler.is_read:
                self._keep(unit, place, digest, reply)
            try:
                await commit(unit)
            except StateConflict:
                if attempt == _ATTEMPTS:
                    raise
                continue
            context.send_tells()
            return reply
        raise AssertionError(call)

    async def handle_input(
        self,
        handler: InputSpec,
        value: Any,  # noqa: ANN401
        key: bytes | None,
        at: str,
        unit: UnitOfWork,
    ) -> Context:
        """Run the handler of a record within a unit of work; `at` names the record.

        Raises what the handler raises, and TimedOut if it does not return in time.
        """
        context = Context(
            keyspace=self._spec.name,
            partition=self._states.partition,
            key=key,
            now_ms=self._now_ms(),
            deadline_s=asyncio.get_running_loop().time() + _INPUT_S,
            request_id=at,
            chain=() if key is None else ((self._spec.name, key),),
            unit=unit,
            client_of=self._client_of,
            changelogs=self._changelogs,
        )
        limit = asyncio.timeout(_INPUT_S)
        try:
            with self._within(unit) as logic:
                async with limit:
                    await handler.call(logic, value, context)
        except TimeoutError:
            if limit.expired():
                raise TimedOut(f"handling record {at}", _INPUT_S) from None
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # The handler's own: of something that it awaited. The input goes on.
            raise OperationFailed(f"handling record {at}", "what was awaited for it was cancelled") from error
        except (Exception, *EXITS, GeneratorExit):
            raise
        except BaseException as error:  # a panic of an extension is no exception, and fails this record alone, too
            raise OperationFailed(f"handling record {at}", error_text(error)) from error
        finally:
            context.end()
        await context.prepare_tells()
        return context

    def hold(self, key: bytes) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep other calls of a key waiting."""
        return self._locks.hold(key)

    def _now_ms(self) -> int:
        return max((each.now_ms for each in self._states.replicas.values()), default=0)

    @contextlib.contextmanager
    def _within(self, unit: UnitOfWork) -> Iterator[Keyspace]:
        """Let the application's object see the states through a unit of work."""

        is_over = False

        def state_of(name: str) -> State[Any, Any]:
            if is_over:  # a task that the handler has started, and has not awaited
                raise StateReadOnly(name, "the handler that used it has returned; await all that it starts")
            return self._states.state(self._states.replica(name).spec, unit)

        if self._logic is None:
            self.start()
        token = CURRENT_STATES.set(state_of)
        try:
            yield self._logic  # type: ignore[misc]
        finally:
            is_over = True
            CURRENT_STATES.reset(token)

    async def _handle(self, handler: HandlerSpec, message: Any, context: Context, unit: UnitOfWork) -> Any:  # noqa: ANN401
        try:
            with self._within(unit) as logic:
                return await handler.call(logic, message, context)
        except HeadraceError:
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise self._failed(message, error) from error  # the handler's own: of something that it awaited
        except (*EXITS, GeneratorExit):
            raise
        except BaseException as error:  # a time-out of its own, too; ours arrives here as a cancellation
            raise self._failed(message, error) from error
        finally:
            context.end()

    def _failed(self, message: object, error: BaseException) -> RequestFailed:
        return RequestFailed(self._spec.name, type(message).__name__, type(error).__name__, own_text(error))

    def _kept(self, unit: UnitOfWork, place: _ReplyPlace, digest: bytes) -> bytes | None:
        """Return the reply that a message with this id got before."""
        message_id = place[-1]
        replica = self._states.replica(REPLIES)
        data = unit.get(replica, replica.keys.encode(place))
        if data is None:
            return None
        found = _kept.decode(data)
        if found.digest != digest:
            raise MessageIdReused(self._spec.name, message_id)
        if found.reply is None:
            raise ReplyNotKept(self._spec.name, message_id)
        return found.reply

    def _keep(self, unit: UnitOfWork, place: _ReplyPlace, digest: bytes, reply: bytes) -> None:
        is_small = len(reply) <= self._settings.reply_bytes_kept
        kept = msgspec.msgpack.encode(_KeptReply(digest, reply if is_small else None))
        replica = self._states.replica(REPLIES)
        unit.write(replica, replica.keys.encode(place), StateWrite(kept, replica.spec.ttl_ms_of(place, kept)))


async def _commit_within(limit: asyncio.Timeout, ends_s: float, commit: Commit, unit: UnitOfWork) -> None:
    """Commit what a handler has written, unless its time is over: it may have gone on when it was ended."""
    if limit.expired():
        raise TimeoutError
    limit.reschedule(None)  # from here on the outcome may be that it was done
    try:
        await commit(unit)
    except StateConflict:
        limit.reschedule(ends_s)  # it was not, and the handler runs again
        raise


def _digest_of(call: Call) -> bytes:
    return hashlib.blake2b(call.message.encode() + b"\x00" + call.payload, digest_size=16).digest()


def _bytes_of(key: Any) -> tuple[bytes, bytes]:  # noqa: ANN401
    return (b"", b"") if key is None else key_bytes(key)


def _has_written(unit: UnitOfWork) -> bool:
    """Return True if a handler has written or emitted something; that due values go is not its doing."""
    return bool(unit.others) or any(not write.is_expiry for own in unit.writes.values() for write in own.values())


def _shown(key: bytes | None) -> str:
    return "none" if key is None else repr(key.decode(errors="replace"))
