"""What an application declares: an engine with its state, its commands and its events, as functions or as a class.

    bank = Engine("bank", state=Account)

    @bank.command
    def deposit(account: Account | None, command: Deposit) -> Deposited | Reject: ...

    @bank.event
    def deposited(account: Account | None, event: Deposited) -> Account: ...

A command handler gets the state (None if there is no aggregate yet) and the command. It returns one event, several in a
list, a Reject, or None if nothing is to happen; a list may also hold a `Schedule` or a `Cancel` of a timer. It may be a
coroutine, and it may take a `CommandContext` as well. An event handler is a plain function of state and event; it
returns the next state, or None if the aggregate is gone. Which commands and events a handler is for stands in the
annotation of its second parameter.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from headrace.engine.typed_json import TypedJson
from headrace.engine.upcasting import EventJson
from headrace.errors import BadArgument, UnknownCommand
from headrace.model import Record, check_topic_name
from headrace.serde import Registry
from headrace.state import AvroValues, JsonValues, ValueCodec

if TYPE_CHECKING:
    from headrace.engine.sagas import Saga

__all__ = [
    "CommandInput",
    "Engine",
    "EngineLimits",
    "EventHandler",
    "Handler",
    "NoneStates",
    "TagsOf",
    "kinds_of",
    "parameters_of",
]

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

NoneStates: TypeAlias = Literal["keep", "purge"]
EventHandler: TypeAlias = Callable[[Any, Any], Any]
TagsOf: TypeAlias = Callable[[Any], Sequence[str]]

DEFAULT_PARTITIONS = 16
# Without room for one command an engine would let all its callers wait.
_AT_LEAST_ONE = ("reply_bytes", "waiting", "batch_commands", "batch_bytes")


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an engine keeps and accepts.

    Of each aggregate the last `command_ids` ids are remembered, for `command_ids_s` and up to `command_ids_bytes`; a
    reply above `remembered_reply_bytes` is remembered as "done" only. `waiting` bounds the commands of a partition that
    are not committed yet. An aggregate that is idle for `idle_s` leaves the memory. `timers` bounds those of one
    aggregate that have not fired. A handler or a saga that has not returned after `handler_s` is ended, and has failed.
    """

    command_ids: int = 16
    command_ids_s: float = 24 * 3600.0
    command_ids_bytes: int = 16 * 1024
    remembered_reply_bytes: int = 4 * 1024
    reply_bytes: int = 1024 * 1024
    waiting: int = 10_000
    batch_commands: int = 1000
    batch_bytes: int = 4 * 1024 * 1024
    idle_s: float = 30.0
    timeout_s: float = 10.0
    handler_s: float = 60.0
    timers: int = 100

    def __post_init__(self) -> None:
        """Refuse limits under which no command could be handled. Raises BadArgument."""
        for name in self.__struct_fields__:
            value, is_time = getattr(self, name), name.endswith("_s")
            least = 1 if name in _AT_LEAST_ONE else 0
            if type(value) not in ((int, float) if is_time else (int,)) or not least <= value < math.inf:
                kind = "a number of seconds" if is_time else "a whole number"
                raise BadArgument(name, value, f"it must be {kind}, {least} or more")
        for name in ("timeout_s", "handler_s"):
            if not getattr(self, name):
                raise BadArgument(name, getattr(self, name), "commands need a time above 0")


class Handler(NamedTuple):
    """A command handler, and how it is called."""

    call: Callable[..., Any]
    takes_context: bool

    def __call__(self, state: Any, command: Any, context: Any) -> Any | Awaitable[Any]:  # noqa: ANN401
        """Call it with what it takes."""
        return self.call(state, command, context) if self.takes_context else self.call(state, command)


class CommandInput(NamedTuple):
    """A topic from which an engine takes commands.

    `decode` returns the aggregate and the command of a record, or None for a record that is none; without it records
    are as `docs/formats.md` says.
    """

    topic: str
    start: Literal["earliest", "latest"] = "earliest"
    decode: Callable[[Record], tuple[str, Any] | None] | None = None


class Engine(Generic[S]):
    """A kind of aggregates: their state, and the handlers of their commands and events.

    `state` is the class of the state, stored as JSON; a `ValueCodec` stores it in another way, and `encoding="avro"`
    with a schema in the registry. Events go to the journal topic `journal`, by default the engine's name; with
    `journal=None` there are no events, and handlers set the state themselves. `none_states` says what happens to an
    aggregate whose state becomes None: "keep" keeps its journal and its numbers, "purge" removes the journal, and the
    next event has number 1. `outputs` are other topics that handlers may write to in the same transaction.
    `command_topic` is the topic from which the engine takes commands, each exactly once; it is made if it is missing.
    With `keep_commands` the journal has each command beside the events that it led to, so that later code can be tried
    on it (`headrace engine replay`).
    """

    def __init__(
        self,
        name: str,
        *,
        state: type[S] | ValueCodec[S] | Any,  # noqa: ANN401
        journal: str | None = "",
        state_topic: str | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        encoding: Literal["json", "avro"] = "json",
        none_states: NoneStates = "keep",
        outputs: Sequence[str] = (),
        command_topic: str | None = None,
        limits: EngineLimits | None = None,
        keep_commands: bool = False,
    ) -> None:
        self.name = check_topic_name(name)
        self.journal_topic = None if journal is None else check_topic_name(journal or name)
        self.state_topic = check_topic_name(state_topic or f"{name}-state")
        if type(partitions) is not int or partitions < 1:
            raise BadArgument("partitions", partitions, "an engine has at least one partition")
        if none_states not in ("keep", "purge"):
            raise BadArgument("none_states", none_states, "it must be 'keep' or 'purge'")
        if encoding not in ("json", "avro"):
            raise BadArgument(
                "encoding", encoding, "it must be 'json' or 'avro'; for others give a ValueCodec as state"
            )
        self.partitions = partitions
        self.none_states = none_states
        self.outputs = tuple(check_topic_name(topic) for topic in outputs)
        self.command_topic = None if command_topic is None else check_topic_name(command_topic)
        self.inputs: dict[str, CommandInput] = {}
        self.sagas: dict[str, Saga] = {}
        self.limits = limits or EngineLimits()
        self.keep_commands = keep_commands
        self._check_topics()
        self.commands = TypedJson("command")
        self.events = EventJson(name)
        self._state = state
        self._encoding = encoding
        self._handlers: dict[type, Handler] = {}
        self._async_commands: set[str] = set()
        self._event_handlers: dict[type, EventHandler] = {}
        self._tags_of: TagsOf | None = None

    # Declaring.

    def command(self, handler: F) -> F:
        """Declare a command handler; a decorator."""
        parameters = parameters_of(handler)
        if len(parameters) not in (2, 3):
            rule = "it must take the state, the command, and perhaps a CommandContext"
            raise BadArgument("command handler", _named(handler), rule)
        for kind in kinds_of(handler, parameters[1]):
            self.commands.add(kind)
            if kind in self._handlers:
                raise BadArgument("command handler", _named(handler), f"{kind.__name__} has a handler already")
            self._handlers[kind] = Handler(handler, len(parameters) == 3)
            if inspect.iscoroutinefunction(handler):
                self._async_commands.add(kind.__name__)
        return handler

    def event(self, handler: F) -> F:
        """Declare an event handler; a decorator."""
        parameters = parameters_of(handler)
        if len(parameters) != 2 or inspect.iscoroutinefunction(handler):
            raise BadArgument("event handler", _named(handler), "it must be a plain function of state and event")
        for kind in kinds_of(handler, parameters[1]):
            self.events.add(kind)
            if kind in self._event_handlers:
                raise BadArgument("event handler", _named(handler), f"{kind.__name__} has a handler already")
            self._event_handlers[kind] = handler
        return handler

    def upcast(self, event: str, *, version: int = 1) -> Callable[[F], F]:
        """Declare how an old version of an event is read: a decorator of a function of its fields.

        It returns the fields of the next version, an `OldEvent` of another name, an event, several in a list, or None
        if nothing is left of it. Events are written in the version after the last one that has an upcaster.
        """

        def declared(upcaster: F) -> F:
            self.events.add_upcaster(event, version, upcaster)
            return upcaster

        return declared

    def tags(self, tags_of: F) -> F:
        """Declare the function that returns an event's tags; a decorator."""
        self._tags_of = tags_of
        return tags_of

    def model(self, kind: C) -> C:
        """Declare a class: its methods `handle…` are command handlers, `apply…` event handlers, `tags` names tags."""
        made = kind()
        for name, method in inspect.getmembers(made, callable):
            if name.startswith("handle"):
                self.command(method)
            elif name.startswith("apply"):
                self.event(method)
            elif name == "tags":
                self.tags(method)
        return kind

    def commands_from(
        self,
        topic: str,
        *,
        decode: Callable[[Record], tuple[str, Any] | None] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> None:
        """Take commands from a topic of others, each record exactly once; its keys and partitions may be any.

        `decode` returns the aggregate and the command of a record, None for one to pass over. A command for another
        partition goes there through the command topic, which is `<name>-commands` unless another one was declared.
        """
        if check_topic_name(topic) in self.inputs or topic == self.command_topic:
            raise BadArgument("topic", topic, f"engine {self.name!r} takes commands from it already")
        if start not in ("earliest", "latest"):
            raise BadArgument("start", start, "it must be 'earliest' or 'latest'")
        self.command_topic = self.command_topic or f"{self.name}-commands"
        self._check_topics()
        self.inputs[topic] = CommandInput(topic, start, decode)

    @property
    def own_topics(self) -> dict[str, str]:
        """The topics that belong to this engine alone, each with what it is used as. Raises BadArgument."""
        uses = ((self.state_topic, "its state topic"), (self.journal_topic, "its journal"))
        found: dict[str, str] = {}
        for topic, use in (*uses, (self.command_topic, "its command topic")):
            if topic is not None and found.setdefault(topic, use) is not use:
                raise BadArgument("topic", topic, f"engine {self.name!r} uses it as {found[topic]}; choose another")
        return found

    def _check_topics(self) -> None:
        """Refuse topics for two things: what is written as one of them would be read as the other."""
        written = self.own_topics
        for topic in self.outputs:
            if topic in written and topic != self.command_topic:
                raise BadArgument("topic", topic, f"engine {self.name!r} uses it as {written[topic]}; choose another")

    # Using the declaration.

    def handler_of(self, command: Any) -> Handler:  # noqa: ANN401
        """Return the handler of a command. Raises UnknownCommand."""
        found = self._handlers.get(type(command))
        if found is None:
            raise UnknownCommand(self.name, type(command).__name__, self.commands.names)
        return found

    def is_async(self, command: str) -> bool:
        """Return True if the handler of the command with this name is a coroutine."""
        return command in self._async_commands

    def apply(self, state: S | None, event: Any) -> S | None:  # noqa: ANN401
        """Return the state after an event. Raises UnknownCommand, and what the event's handler raises."""
        found = self._event_handlers.get(type(event))
        if found is None:
            raise UnknownCommand(self.name, type(event).__name__, self.events.names)
        result: S | None = found(state, event)
        return result

    def fold(self, events: Iterable[Any], state: S | None = None) -> S | None:
        """Return the state after events."""
        for event in events:
            state = self.apply(state, event)
        return state

    def tags_of(self, event: Any) -> tuple[str, ...]:  # noqa: ANN401
        """Return the tags of an event. Raises BadArgument if the application's function returns no list of them."""
        if self._tags_of is None:
            return ()
        found = self._tags_of(event)
        if isinstance(found, str | bytes) or not isinstance(found, Iterable):
            raise BadArgument("tags", found, "the function of an engine's tags returns a list of texts, as in ['vip']")
        return tuple(found)

    @property
    def uses_registry(self) -> bool:
        """True if states are Avro, whose schemas are in a registry."""
        return self._encoding == "avro"

    def state_codec(self, registry: Registry | None = None) -> ValueCodec[S]:
        """Return what turns states into bytes and back. Raises BadArgument for Avro without a registry."""
        if hasattr(self._state, "encode") and hasattr(self._state, "prepare") and not isinstance(self._state, type):
            codec: ValueCodec[S] = self._state
            return codec
        if self._encoding == "json":
            return JsonValues(self._state)
        if registry is None:
            raise BadArgument("encoding", "avro", "it needs a schema registry")
        return AvroValues(registry, self.state_topic, self._state)


def parameters_of(handler: Callable[..., Any]) -> list[str]:
    """Return the names of a function's positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in inspect.signature(handler).parameters.values() if each.kind in kinds]


def kinds_of(handler: Callable[..., Any], parameter: str) -> list[type]:
    """Return the classes in a parameter's annotation: one, or several joined by |."""
    try:
        hint = typing.get_type_hints(handler, localns=_enclosing_names(handler)).get(parameter)
    except NameError as error:
        rule = f"the annotation of {parameter!r} can't be resolved: {error}"
        raise BadArgument("handler", _named(handler), rule) from error
    if hint is None:
        rule = f"the annotation of {parameter!r} says which commands or events it is for"
        raise BadArgument("handler", _named(handler), rule)
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return list(typing.get_args(hint)) if is_union else [hint]


def _enclosing_names(handler: Callable[..., Any]) -> dict[str, Any]:
    """Return the names where the handler is being declared: classes inside a function are in no module."""
    own = {handler.__code__.co_filename} if hasattr(handler, "__code__") else set()
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename in own:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def _named(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", repr(handler))
