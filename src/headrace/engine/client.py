"""The engine as callers use it: an aggregate by its id, commands in order, results as values."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from headrace.engine import metrics
from headrace.engine.commands import (
    Answer,
    CommandRequest,
    ReadRequest,
    check_aggregate_id,
    check_request,
    decode_read,
    encode_request,
    result_of,
    since_of,
)
from headrace.engine.models import Engine
from headrace.engine.ports import EngineRouter
from headrace.engine.results import CommandResult, Failed, Rejected, Success
from headrace.errors import BadArgument, HeadraceError, ReplyNotReadable, UnknownCommand
from headrace.model import ConsistencyToken
from headrace.observe import inject, is_traced, span
from headrace.runtime import error_text
from headrace.serde import Registry
from headrace.state import BatchName, PlainValues, ValueCodec

__all__ = ["Aggregate", "AggregateState", "EngineClient"]

S = TypeVar("S")

# How many command ids of this process are remembered with what was known before their first attempts.
_FIRST_ATTEMPTS = 10_000


class AggregateState(NamedTuple, Generic[S]):
    """What is committed of an aggregate: its state, None if there is none, its version, the newest batch, the token."""

    state: S | None
    version: int
    since: str
    token: str = ""


class EngineClient(Generic[S]):
    """Sends commands to the aggregates of one engine, from any node."""

    def __init__(
        self, engine: Engine[S], router: Callable[[], EngineRouter], *, registry: Registry | None = None
    ) -> None:
        self.engine = engine
        self._router = router
        self._codec: ValueCodec[S] = engine.state_codec(registry)
        self._is_plain = isinstance(self._codec, PlainValues)
        self._route_times = metrics.STAGES.labels(engine.name, "route")
        self._is_open = False
        self._opening = asyncio.Lock()
        self._newest: dict[int, BatchName] = {}
        self._first_attempts = _FirstAttempts()

    def aggregate(self, aggregate_id: str) -> Aggregate[S]:
        """Return an aggregate, whether it exists or not. Raises BadArgument for an id that none can have."""
        return Aggregate(self, check_aggregate_id(aggregate_id))

    async def send(self, request: CommandRequest, timeout_s: float | None) -> CommandResult[S]:
        """Send a request. Raises what the engine or the way to it raises, and ReplyNotReadable."""
        check_request(request)
        if not self._is_open:
            await self._open()
        if request.command_id is not None and request.since is None:
            request = await self._with_since(request, timeout_s)
        partition = self._partition(request.aggregate)
        began_s = time.perf_counter()
        try:
            if is_traced():
                answer = await self._send_traced(partition, request, timeout_s)
            else:
                answer = await self._router().send(partition, _traced(request), timeout_s=timeout_s)
        except HeadraceError as error:
            if getattr(error, "outcome_known", True):
                self._first_attempts.end(request)
            raise
        finally:
            self._route_times.observe_soon(time.perf_counter() - began_s)
        self._first_attempts.end(request)
        self._learn(partition, answer.since)
        try:
            return await self._result(answer)
        except Exception as error:  # an old event that can't be upcast here, a state of another version
            what = f"a command for {request.aggregate!r} of engine {self.engine.name!r}"
            raise ReplyNotReadable(what, error_text(error)) from error

    async def _result(self, answer: Answer) -> CommandResult[S]:
        """Return the result in an answer."""
        if not self._is_plain and (state := getattr(answer.reply, "state", None)) is not None:
            await self._codec.prepare(state)
        return result_of(
            self.engine,
            self._codec,
            answer.reply,
            since=answer.since,
            is_repeated=answer.is_repeated,
            token=answer.token,
        )

    async def _send_traced(self, partition: int, request: CommandRequest, timeout_s: float | None) -> Answer:
        with span("engine.send", engine=self.engine.name, aggregate=request.aggregate, command=request.kind):
            return await self._router().send(partition, _traced(request), timeout_s=timeout_s)

    async def read(self, aggregate: str, timeout_s: float | None, *, at_least: str | None = None) -> AggregateState[S]:
        """Read what is committed of an aggregate; the engine must have committed what the token `at_least` names."""
        if at_least is not None:
            ConsistencyToken.parse(at_least)
        await self._open()
        payload, key = encode_request(ReadRequest(aggregate, at_least)), aggregate.encode()
        found = decode_read(await self._router().ask(self.engine.name, key, payload, is_read=True, timeout_s=timeout_s))
        self._learn(self._partition(aggregate), found.since)
        if found.state is None:
            return AggregateState(None, found.version, str(found.since), found.token)
        await self._codec.prepare(found.state)
        return AggregateState(self._codec.decode(found.state), found.version, str(found.since), found.token)

    async def _open(self) -> None:
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    await self._codec.open()
                    self._is_open = True

    async def _with_since(self, request: CommandRequest, timeout_s: float | None) -> CommandRequest:
        """Return the request with what was known before its first attempt from this process.

        Without it, a retry that comes after its id was forgotten would look like a new command.
        """
        known = self._newest.get(self._partition(request.aggregate))
        if known is None and request not in self._first_attempts:
            known = since_of((await self.read(request.aggregate, timeout_s)).since)
        since, is_first = self._first_attempts.begin(request, known)
        return msgspec.structs.replace(request, since=since, is_first=is_first)

    def _partition(self, aggregate: str) -> int:
        return self._router().partition(self.engine.name, aggregate.encode())

    def _learn(self, partition: int, since: BatchName) -> None:
        known = self._newest.get(partition)
        if known is None or since > known:
            self._newest[partition] = since


class _FirstAttempts:
    """What was known before the first attempts of commands with ids, by aggregate and id.

    Those that were answered are dropped first: callers repeat the others, and an id that is unknown here seems new.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str | None], BatchName | None] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str | None], BatchName | None] = OrderedDict()

    def __contains__(self, request: CommandRequest) -> bool:
        key = (request.aggregate, request.command_id)
        return key in self._open or key in self._ended

    def begin(self, request: CommandRequest, known: BatchName | None) -> tuple[BatchName | None, bool]:
        """Return what was known before the first attempt, and whether that is this one; `known` is known now.

        Another attempt may have begun since `known` was asked for.
        """
        key = (request.aggregate, request.command_id)
        for attempts in (self._open, self._ended):
            if key in attempts:
                return attempts[key], False
        _add(self._open, key, known)
        return known, True

    def end(self, request: CommandRequest) -> None:
        """Note that an attempt was answered, or that nothing was done."""
        key = (request.aggregate, request.command_id)
        if key in self._open:
            _add(self._ended, key, self._open.pop(key))


def _add(
    attempts: OrderedDict[tuple[str, str | None], BatchName | None],
    key: tuple[str, str | None],
    known: BatchName | None,
) -> None:
    attempts[key] = known
    if len(attempts) > _FIRST_ATTEMPTS:
        attempts.popitem(last=False)


def _traced(request: CommandRequest) -> CommandRequest:
    trace = inject()
    return msgspec.structs.replace(request, trace=trace) if trace else request


class Aggregate(Generic[S]):
    """One aggregate, by its id."""

    def __init__(self, client: EngineClient[S], aggregate_id: str) -> None:
        self.id = aggregate_id
        self._client = client
        self._engine = client.engine

    async def send(
        self,
        command: Any,  # noqa: ANN401
        *,
        command_id: str | None = None,
        expected_version: int | None = None,
        since: str | None = None,
        timeout_s: float | None = None,
    ) -> Success[S] | Rejected:
        """Send a command; the result is in the log when this returns.

        A command with a `command_id` can be sent again, by this or another process: it is done once, and each attempt
        gets the same result, within the bounds of the engine's limits. A process that repeats a command of another
        one gives the `since` that was known before the first attempt, if it has it: then a command whose id was
        forgotten is refused, and never done twice. Raises CommandFailed, WrongVersion, CommandTooLate,
        OutcomeUnknown and other errors; those with `outcome_known` False may have been done.
        """
        request = self._request(command, command_id, expected_version, since)
        result = await self._client.send(request, timeout_s)
        if isinstance(result, Failed):
            raise result.error
        return result

    async def try_send(
        self,
        command: Any,  # noqa: ANN401
        *,
        command_id: str | None = None,
        expected_version: int | None = None,
        since: str | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult[S]:
        """Send a command as `send` does, and return errors as `Failed` instead of raising them."""
        return await self._result(self._request(command, command_id, expected_version, since), timeout_s)

    async def apply_events(
        self, events: Iterable[Any], *, command_id: str | None = None, timeout_s: float | None = None
    ) -> Success[S]:
        """Apply events that were decided on elsewhere, without a command handler. Raises BadArgument for a lone one."""
        is_text = isinstance(events, str | bytes | Mapping)
        if is_text or not isinstance(events, Iterable) or hasattr(events, "_fields"):  # an event may be a NamedTuple
            raise BadArgument("events", events, "they are given in a list")
        payloads = [self._engine.events.carried_payload(event) for event in events]
        request = CommandRequest(
            aggregate=self.id,
            kind="events",
            data=msgspec.json.encode(payloads, order="sorted"),
            is_events=True,
            command_id=command_id,
        )
        result = await self._result(request, timeout_s)
        if isinstance(result, Failed):
            raise result.error
        assert isinstance(result, Success), "events are not rejected"  # noqa: S101 - only handlers reject
        return result

    async def state(self, *, at_least: str | None = None, timeout_s: float | None = None) -> S | None:
        """Return the state as it is committed; None if there is none. `at_least` is a consistency token, see `read`."""
        return (await self.read(at_least=at_least, timeout_s=timeout_s)).state

    async def read(self, *, at_least: str | None = None, timeout_s: float | None = None) -> AggregateState[S]:
        """Return the committed state with its version, and a `since` for commands that another process may repeat.

        Every read shows what was committed before it. With `at_least`, a consistency token, it is also checked that
        the log has what the token names: raises BadToken, TokenOfOtherTopic, TokenAhead.
        """
        return await self._client.read(self.id, timeout_s, at_least=at_least)

    def _request(
        self,
        command: Any,  # noqa: ANN401
        command_id: str | None,
        expected_version: int | None,
        since: str | None,
    ) -> CommandRequest:
        if type(command).__name__ not in self._engine.commands:
            raise UnknownCommand(self._engine.name, type(command).__name__, self._engine.commands.names)
        kind, data = self._engine.commands.encode(command)
        return CommandRequest(
            aggregate=self.id,
            kind=kind,
            data=data,
            command_id=command_id,
            since=since_of(since),
            expected_version=expected_version,
        )

    async def _result(self, request: CommandRequest, timeout_s: float | None) -> CommandResult[S]:
        try:
            return await self._client.send(request, timeout_s)
        except HeadraceError as error:
            return Failed(error)
