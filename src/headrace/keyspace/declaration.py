"""What an application declares: a class with states and handlers, read once when the class is defined.

class Accounts(Keyspace, partitions=8):
    balances: State[str, Account] = state(ttl="30d")

    @handles
    async def deposit(self, message: Deposit, context: Context) -> Account: ...
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, overload

from headrace.errors import BadArgument
from headrace.state import OrderedKeys, State, StateSpec

__all__ = [
    "CURRENT_STATES",
    "EVERY_NODE",
    "HandlerSpec",
    "InputSpec",
    "Keyspace",
    "KeyspaceSpec",
    "StateDeclaration",
    "consumes",
    "handles",
    "state",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Key: TypeAlias = str | Callable[[Any], Any] | None

EVERY_NODE: Literal["all"] = "all"
"""As `replicas`: every node has a copy of each partition."""

# A node is one of several processes; more than this nobody has.
_MOST_NODES = 1000
# States that every keyspace has beside the declared ones, and what the class itself needs.
_TAKEN = ("replies", "inputs", "spec")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

CURRENT_STATES: ContextVar[Callable[[str], State[Any, Any]]] = ContextVar("headrace_keyspace_states")
"""The states that the call under way sees, by name; `self.balances` in a handler is one of them."""


@dataclass(kw_only=True)
class StateDeclaration:
    """A state of a keyspace, as `state(…)` declares it; on an instance, within a handler, it is the state itself."""

    options: Mapping[str, Any]
    store: str | None = None
    codec: Any = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type) -> Any:  # noqa: ANN401 - a State[K, V] by its annotation
        if instance is None:
            return self
        try:
            return CURRENT_STATES.get()(self.name)
        except LookupError:
            rule = "states are read and written within a handler; from outside use hr.keyspace(…)"
            raise BadArgument("state", self.name, rule) from None


def state(
    *,
    store: str | None = None,
    codec: Any = None,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401 - the annotation of the attribute says what it is
    """Declare a state; its annotation, `State[K, V]`, has the types of keys and values.

    `store` is "rocksdb" (unless the class says otherwise), "memory", or another scheme. `codec` replaces the one that
    follows from V. The other options are those of `headrace.state.StateSpec`: `ttl`, `ttl_of`, `longest_ttl`, `index`,
    `unique`, `delta`, `topic`, `is_external`.
    """
    unknown = options.keys() - {"ttl", "ttl_of", "longest_ttl", "index", "unique", "delta", "topic", "is_external"}
    if unknown:
        raise BadArgument("state", sorted(unknown), "a state has no such options")
    return StateDeclaration(options=options, store=store, codec=codec)


class HandlerSpec(NamedTuple):
    """A handler: the type of its messages and of its replies, and how it is called."""

    name: str
    message: type[Any]
    reply: Any
    key_of: Callable[[Any], Any] | None
    takes_context: bool
    is_read: bool
    function: Callable[..., Any]

    async def call(self, logic: Keyspace, message: Any, context: Any) -> Any:  # noqa: ANN401
        """Run the handler, whether it is async or not."""
        arguments = (logic, message, context) if self.takes_context else (logic, message)
        result = self.function(*arguments)
        return await result if inspect.isawaitable(result) else result


class InputSpec(NamedTuple):
    """A handler of the records of a topic. `value` is the type of their values; Record for the record itself."""

    name: str
    topic: str
    value: Any
    start: Literal["earliest", "latest"]
    on_error: Literal["stop", "skip", "dead-letter"]
    takes_context: bool
    function: Callable[..., Any]

    async def call(self, logic: Keyspace, value: Any, context: Any) -> None:  # noqa: ANN401
        """Run the handler, whether it is async or not."""
        arguments = (logic, value, context) if self.takes_context else (logic, value)
        result = self.function(*arguments)
        if inspect.isawaitable(result):
            await result


class _Mark(NamedTuple):
    key: Key
    scatter: bool
    read: bool


class _InputMark(NamedTuple):
    topic: str
    start: Literal["earliest", "latest"]
    on_error: Literal["stop", "skip", "dead-letter"]


_MARK = "__headrace_handles__"
_INPUT = "__headrace_consumes__"


@overload
def handles(function: Function) -> Function: ...


@overload
def handles(*, key: Key = None, scatter: bool = False, read: bool = False) -> Callable[[Function], Function]: ...


def handles(
    function: Any = None,
    *,
    key: Key = None,
    scatter: bool = False,
    read: bool = False,
) -> Any:
    """Mark a method as the handler of a type of messages: that of its first argument's annotation.

    A message goes to the partition of its key: the field that `key` names or the value that `key(message)` returns;
    else its field `id`, else its first field. With `scatter` it has no key and goes to every partition. A handler with
    `read` writes nothing, so it can be asked again whenever its answer was lost.
    """

    def mark(marked: Any) -> Any:  # noqa: ANN401
        setattr(marked, _MARK, _Mark(key, scatter, read))
        return marked

    return mark if function is None else mark(function)


def consumes(
    topic: str,
    *,
    start: Literal["earliest", "latest"] = "earliest",
    on_error: Literal["stop", "skip", "dead-letter"] = "stop",
) -> Callable[[Function], Function]:
    """Mark a method as the handler of a topic's records, exactly once each: their place is part of its transaction.

    The topic has as many partitions as the keyspace, and is partitioned by the same keys. The first argument is the
    record (`Record`), or its value, of the class in the annotation. A record whose handler fails three times stops its
    partition's input until it succeeds, or is skipped, or goes to `<topic>.dead-letters`, as `on_error` says. So does
    one that ends its process at three owners; with "stop" later owners pause before they try it again.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, _INPUT, _InputMark(topic, start, on_error))
        return marked

    return mark


class KeyspaceSpec(NamedTuple):
    """All that a keyspace's class declares."""

    name: str
    kind: type[Keyspace]
    partitions: int | None
    replicas: int | None
    store: str
    states: Mapping[str, tuple[StateDeclaration, Any, Any]]
    handlers: Mapping[str, HandlerSpec]
    inputs: Mapping[str, InputSpec]

    def handler_of(self, message: object) -> HandlerSpec | None:
        """Return the handler of a message."""
        found = self.handlers.get(type(message).__name__)
        return found if found is not None and isinstance(message, found.message) else None

    def state_specs(self, *, partitions: int) -> dict[str, StateSpec[Any, Any]]:
        """Return the states with their topics, `<keyspace>-<state>` unless said otherwise."""
        return {name: self._spec_of(name, partitions) for name in self.states}

    def _spec_of(self, name: str, partitions: int) -> StateSpec[Any, Any]:
        declared, key, value = self.states[name]
        options = {**declared.options}
        topic = options.pop("topic", None) or f"{self.name}-{name}"
        kind = value if declared.codec is None else declared.codec
        return StateSpec(name=name, topic=topic, key=key, value=kind, partitions=partitions, **options)


class Keyspace:
    """State by key, with the code that changes it. Derive from it; see the head of this file.

    Promises to its handlers: one at a time for a key; what one writes, in all states, is committed together or not at
    all, before anyone can see it. A handler may be run again from its start if another one changed what it had read.
    """

    spec: ClassVar[KeyspaceSpec]

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        partitions: int | None = None,
        replicas: int | Literal["all"] | None = None,
        store: str = "rocksdb",
        **more: Any,  # noqa: ANN401
    ) -> None:
        """Read the declarations. Raises BadArgument, naming what can't be understood."""
        super().__init_subclass__(**more)
        frame = sys._getframe(1)  # noqa: SLF001 - types may be local to where the class is defined
        names = {**frame.f_globals, **frame.f_locals}
        chosen = name or _kebab(cls.__name__)
        if not _NAME.fullmatch(chosen):
            raise BadArgument("name", chosen, "a keyspace's name is 1 to 100 letters, digits, '.', '_' and '-'")
        for what, number in (("partitions", partitions), ("replicas", None if replicas == EVERY_NODE else replicas)):
            if number is not None and (type(number) is not int or number < 1):
                raise BadArgument(what, number, f"{cls.__name__} needs a whole number, 1 at least")
        cls.spec = KeyspaceSpec(
            chosen,
            cls,
            partitions,
            _MOST_NODES if replicas == EVERY_NODE else replicas,
            store,
            _states_of(cls, names),
            _handlers_of(cls, names),
            _inputs_of(cls, names),
        )
        cls.spec.state_specs(partitions=1)  # what a state's options don't allow is refused here


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _members_of(cls: type) -> dict[str, Any]:
    """Return the attributes of a class and of those it derives from."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update(vars(base))
    return found


def _states_of(cls: type, names: Mapping[str, Any]) -> dict[str, tuple[StateDeclaration, Any, Any]]:
    hints = _hints_of(cls, names, f"class {cls.__name__}")
    found = {}
    for name, member in _members_of(cls).items():
        if isinstance(member, StateDeclaration):
            hint = hints.get(name)
            if typing.get_origin(hint) is not State:
                rule = (
                    f"{cls.__name__}.{name} needs an annotation with the types of keys and values: State[str, Account]"
                )
                raise BadArgument("state", name, rule)
            if name in _TAKEN:
                raise BadArgument("state", name, f"every keyspace has its own {name!r}; choose another name")
            key, value = typing.get_args(hint)
            OrderedKeys(key)  # a type that is no key is refused here, where its name is seen
            found[name] = (member, key, value)
    return found


def _handlers_of(cls: type, names: Mapping[str, Any]) -> dict[str, HandlerSpec]:
    handlers: dict[str, HandlerSpec] = {}
    for name, member in _members_of(cls).items():
        mark = getattr(member, _MARK, None)
        if mark is None:
            continue
        handler = _handler_of(f"{cls.__name__}.{name}", member, mark, names)
        message = handler.message.__name__
        if message in handlers:
            raise BadArgument("handles", message, f"{handlers[message].name} and {name} both handle it")
        handlers[message] = handler
    return handlers


def _inputs_of(cls: type, names: Mapping[str, Any]) -> dict[str, InputSpec]:
    inputs: dict[str, InputSpec] = {}
    for name, member in _members_of(cls).items():
        mark = getattr(member, _INPUT, None)
        if mark is None:
            continue
        shown = f"{cls.__name__}.{name}"
        parameters = list(inspect.signature(member).parameters.values())[1:]
        hints = _hints_of(member, names, shown)
        if not 1 <= len(parameters) <= 2 or parameters[0].name not in hints:
            rule = "it must take a record, or a value of an annotated class, and a Context if it wants one"
            raise BadArgument("consumes", shown, rule)
        if mark.topic in inputs:
            raise BadArgument("consumes", mark.topic, f"{inputs[mark.topic].name} and {name} both handle it")
        value = hints[parameters[0].name]
        inputs[mark.topic] = InputSpec(
            name, mark.topic, value, mark.start, mark.on_error, takes_context=len(parameters) == 2, function=member
        )
    return inputs


def _handler_of(shown: str, function: Callable[..., Any], mark: _Mark, names: Mapping[str, Any]) -> HandlerSpec:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = _hints_of(function, names, shown)
    if not 1 <= len(parameters) <= 2:
        raise BadArgument("handles", shown, "a handler takes a message, and a Context if it wants one")
    message, reply = hints.get(parameters[0].name), hints.get("return")
    if not isinstance(message, type) or message in (Any, object) or "return" not in hints:
        raise BadArgument("handles", shown, "annotate the message with its class, and what is returned")
    return HandlerSpec(
        function.__name__,
        message,
        types.NoneType if reply is None else reply,
        None if mark.scatter else _key_of(shown, message, mark.key),
        takes_context=len(parameters) == 2,
        is_read=mark.read,
        function=function,
    )


def _key_of(shown: str, message: type[Any], key: Key) -> Callable[[Any], Any]:
    if callable(key):
        return key
    fields = _fields_of(message)
    name = key or ("id" if "id" in fields else next(iter(fields), None))
    if name is None or (name not in fields and not hasattr(message, name)):
        rule = f"{message.__name__} has no field {name!r} to be its key; {shown} can say @handles(key=…)"
        raise BadArgument("key", name, rule)
    return lambda sent: getattr(sent, name)


def _fields_of(message: type[Any]) -> list[str]:
    """Return the fields of a dataclass, a msgspec Struct or a pydantic model, in order."""
    for names in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        found = getattr(message, names, None)
        if found:
            return list(found)
    return []


def _hints_of(what: Any, names: Mapping[str, Any], shown: str) -> dict[str, Any]:  # noqa: ANN401
    try:
        return typing.get_type_hints(what, localns=dict(names))
    except NameError as error:
        raise BadArgument(
            "annotation", error.name, f"{shown} names a type that is not defined where it stands"
        ) from None
