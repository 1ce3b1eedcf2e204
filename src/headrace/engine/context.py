"""The context of a command's handler, and what the handler decided.

Besides returning events a handler may persist step by step, write elsewhere, set timers, reply and reject. A decision
is made from what it returned and from what it did with its context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from headrace.engine.commands import CommandReply, check_aggregate_id
from headrace.engine.models import Engine
from headrace.engine.results import Reject
from headrace.engine.timers import Cancel, Schedule, Timer, Timers, check_timer_name, due_at_ms, replaced
from headrace.errors import BadArgument, ContextEnded, HeadraceError, NotStorable, UnknownCommand
from headrace.model import NewRecord
from headrace.state import Duration

__all__ = ["CommandContext", "CommandRejected", "Decision", "EventHandlerFailed", "Repeated", "decision_of"]

S = TypeVar("S")
_MANY = (list, tuple)


class CommandRejected(Exception):
    """Leaves a handler that calls `CommandContext.reject`. Never leaves the room."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.code)
        self.reject = reject


class EventHandlerFailed(Exception):
    """An event handler raised an error, which is its cause. Never leaves the room."""


class CommandContext(Generic[S]):
    """One run of a handler. Nothing of it takes effect before the commit, and it may run again if a commit fails.

    `state` is the aggregate's state, with the events that this handler has persisted so far; `timers` are its timers.
    A task that the handler has started and not awaited can't use it any more when the handler has returned: every call
    then raises ContextEnded.
    """

    __slots__ = (
        "_engine",
        "_had_state",
        "_has_ended",
        "_set_here",
        "_state",
        "_state_of",
        "aggregate",
        "command_id",
        "events",
        "now_ms",
        "outputs",
        "payloads",
        "timers",
        "value",
        "version",
    )

    def __init__(
        self,
        engine: Engine[S],
        aggregate: str,
        state_of: Callable[[], S | None],
        *,
        had_state: bool,
        version: int,
        command_id: str | None,
        now_ms: int,
        timers: Timers = (),
    ) -> None:
        self.aggregate = aggregate
        self.version = version
        self.command_id = command_id
        self.now_ms = now_ms
        self.events: list[Any] = []
        # What each event was when it was persisted: later changes of the object would not be in the state.
        self.payloads: list[bytes | NotStorable] = []
        self.outputs: list[NewRecord] = []
        self.value: Any = None
        self.timers = timers
        self._engine = engine
        self._had_state = had_state
        self._state_of: Callable[[], S | None] | None = state_of
        self._state: S | None = None
        self._set_here: tuple[str, ...] = ()
        self._has_ended = False

    @property
    def state(self) -> S | None:
        """The aggregate's state, with the events so far: an object of its own, not the one that the handler got."""
        if self._state_of is not None:
            self._state, self._state_of = self._state_of(), None
        return self._state

    @state.setter
    def state(self, state: S | None) -> None:
        self._state, self._state_of = state, None

    def persist(self, *events: Any) -> S | None:  # noqa: ANN401
        """Add events to the aggregate's journal; return the state after them."""
        self._check_running("persist")
        for event in events:
            payload = self._payload(event)
            self.state = self._applied(event)
            self.events.append(event)
            self.payloads.append(payload)
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
        self._check_running("persist_to")
        if topic not in self._engine.outputs:
            rule = f"engine {self._engine.name!r} may write to {list(self._engine.outputs)}; name it in outputs="
            raise BadArgument("topic", topic, rule)
        key_bytes = self.aggregate.encode() if key is None else key.encode() if isinstance(key, str) else key
        for name, data in (("key", key_bytes), ("value", value), *(headers or {}).items()):
            if data is not None and not isinstance(data, bytes):  # the log would refuse it, and the whole batch with it
                raise BadArgument(name, data, f"what is written to {topic!r} is bytes; encode it first")
        self.outputs.append(NewRecord(topic, key_bytes, value, tuple((headers or {}).items())))

    def update_state(self, state: S | None) -> None:
        """Set the state, in an engine without a journal; with one, the state is what the events make of it."""
        self._check_running("update_state")
        if self._engine.journal_topic is not None:
            rule = "the state of an engine with a journal comes from its events; persist one, or declare journal=None"
            raise BadArgument("state", type(state).__name__, rule)
        self.state = state

    def schedule(
        self,
        command: Any,  # noqa: ANN401
        *,
        at: datetime | None = None,
        after: Duration | None = None,
        name: str | None = None,
        aggregate: str | None = None,
    ) -> None:
        """Have a command handled at a time, or after a delay, by this aggregate or another one of the engine.

        It replaces the timer of the same name, which is the command's class if none is given. For another aggregate
        the engine needs a command topic. Raises BadArgument, UnknownCommand, NotStorable.
        """
        self._check_running("schedule")
        if type(command).__name__ not in self._engine.commands.names:
            raise UnknownCommand(self._engine.name, type(command).__name__, self._engine.commands.names)
        kind, data = self._engine.commands.encode(command)
        name = check_timer_name(kind if name is None else name)
        other = None if aggregate in (None, self.aggregate) else check_aggregate_id(aggregate)
        if other is not None and self._engine.command_topic is None:
            rule = f"timers for other aggregates need Engine({self._engine.name!r}, …, command_topic=…)"
            raise BadArgument("aggregate", aggregate, rule)
        timer = Timer(name, due_at_ms(at, after, now_ms=self.now_ms), kind, data, other)
        timers, limit = replaced(self.timers, name, timer), self._engine.limits.timers
        if len(timers) > limit:
            raise BadArgument("timers", len(timers), f"an aggregate has {limit} at most; raise EngineLimits.timers")
        self.timers = timers
        self._set_here += (name,)

    def cancel(self, name: str) -> bool:
        """Cancel the timer of a name; returns False if there is none, because it has fired or was never set."""
        self._check_running("cancel")
        left = replaced(self.timers, name)
        had, self.timers = len(left) < len(self.timers), left
        return had

    def state_left(self) -> S | None:
        """Return the state that this run has made; None also if it has made none, and the stored one stays."""
        return None if self._engine.journal_topic is not None and not self.events else self.state

    def timers_left(self) -> Timers:
        """Return the timers after this run. An aggregate that goes takes its earlier timers along."""
        if self._had_state and self._state_of is None and self._state is None:
            return tuple(each for each in self.timers if each.name in self._set_here)
        return self.timers

    def reply(self, value: Any) -> None:  # noqa: ANN401
        """Give the caller a value, which JSON can carry, with the result."""
        self._check_running("reply")
        self.value = value

    def reject(self, code: str, message: str = "", **details: Any) -> NoReturn:  # noqa: ANN401
        """Refuse the command: nothing of this run takes effect."""
        self._check_running("reject")
        raise CommandRejected(Reject(code, message, details))

    def end(self) -> None:
        """Take nothing more: the handler has returned, or failed."""
        self._has_ended = True

    def _check_running(self, call: str) -> None:
        if self._has_ended:
            what = f"the handler of a command for {self.aggregate!r} of engine {self._engine.name!r}"
            raise ContextEnded(what, f"context.{call}")

    def _payload(self, event: Any) -> bytes | NotStorable:  # noqa: ANN401
        try:
            return self._engine.events.payload_json(event)
        except NotStorable as error:
            return error  # the command fails when it is to be written

    def _applied(self, event: Any) -> S | None:  # noqa: ANN401
        try:
            return self._engine.apply(self.state, event)
        except Exception as error:
            raise EventHandlerFailed from error


class Repeated(NamedTuple):
    """A command whose id is remembered: this was its reply."""

    reply: CommandReply


class Decision(msgspec.Struct, frozen=True, gc=False):
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
    payloads: tuple[bytes | NotStorable, ...] = ()


def _do(context: CommandContext[Any], returned: Any) -> None:  # noqa: ANN401
    """Do what one value of a handler's result stands for: an event, or a change of a timer."""
    if isinstance(returned, Schedule):
        command, at, after, name, aggregate = (
            returned.command,
            returned.at,
            returned.after,
            returned.name,
            returned.aggregate,
        )
        context.schedule(command, at=at, after=after, name=name, aggregate=aggregate)
    elif isinstance(returned, Cancel):
        context.cancel(returned.name)
    else:
        context.persist(returned)


def decision_of(context: CommandContext[Any], returned: Any) -> Decision:  # noqa: ANN401
    """Return what a handler decided, from what it returned and what it did with its context."""
    if isinstance(returned, Reject):
        context.end()
        return Decision(reject=returned)
    if returned is not None:
        if isinstance(returned, _MANY) and not _is_named(returned):
            for each in returned:
                _do(context, each)
        else:
            _do(context, returned)
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


def _is_named(value: object) -> bool:
    """Return True for a NamedTuple, which is one event and not several."""
    return hasattr(value, "_fields")
