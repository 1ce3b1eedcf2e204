"""What a keyspace's class declares, and what is refused when it is defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.errors import BadArgument
from headrace.keyspace import EVERY_NODE, App, Context, Keyspace, State, handles, state


@dataclass
class Message:
    """Something to handle."""

    account: str
    amount: int = 0


@dataclass
class Empty:
    """A message without fields."""


def test_a_declaration_is_read_when_the_class_is_defined() -> None:
    """Names follow from the class, topics from keyspace and state, keys from a message's id or first field."""

    class BigAccounts(Keyspace, partitions=3, replicas=EVERY_NODE):
        balances: State[str, int] = state(ttl="30d")
        notes: State[tuple[str, int], str] = state(topic="elsewhere")

        @handles
        async def take(self, message: Message, context: Context) -> None: ...

    spec = BigAccounts.spec
    assert (spec.name, spec.partitions, sorted(spec.states)) == ("big-accounts", 3, ["balances", "notes"])
    topics = {name: (each.topic, each.partitions) for name, each in spec.state_specs(partitions=3).items()}
    assert topics == {"balances": ("big-accounts-balances", 3), "notes": ("elsewhere", 3)}
    handler = spec.handlers["Message"]
    assert handler.key_of is not None
    assert (handler.key_of(Message("a")), handler.takes_context, handler.is_read) == ("a", True, False)


def _no_annotation() -> None:
    class Wrong(Keyspace):
        balances = state()


def _no_key() -> None:
    class Wrong(Keyspace):
        balances: State[float, int] = state()


def _unknown_option() -> None:
    class Wrong(Keyspace):
        balances: State[str, int] = state(tll="30d")


def _negative_ttl() -> None:
    class Wrong(Keyspace):
        balances: State[str, int] = state(ttl=-1)


def _topic_name() -> None:
    class Wrong(Keyspace):
        balances: State[str, int] = state(topic="a b")


def _two_states_of_a_topic() -> None:
    class Wrong(Keyspace):
        balances: State[str, int] = state()
        amounts: State[str, int] = state(topic="wrong-balances")


def _topic_of_replies() -> None:
    class Wrong(Keyspace):
        balances: State[str, int] = state(topic="wrong-replies")


def _taken_name() -> None:
    class Wrong(Keyspace):
        replies: State[str, int] = state()


def _no_partitions() -> None:
    class Wrong(Keyspace, partitions=0):
        pass


def _partitions_as_text() -> None:
    class Wrong(Keyspace, partitions="8"):  # type: ignore[arg-type]
        pass


def _no_replicas() -> None:
    class Wrong(Keyspace, replicas=0):
        pass


def _keyspace_name() -> None:
    class Wrong(Keyspace, name="a/b"):
        pass


def _two_handlers() -> None:
    class Wrong(Keyspace):
        @handles
        async def first(self, message: Message) -> None: ...

        @handles
        async def second(self, message: Message) -> None: ...


def _no_reply_type() -> None:
    class Wrong(Keyspace):
        @handles
        async def take(self, message: Message): ...  # type: ignore[no-untyped-def]  # noqa: ANN202


def _no_message_type() -> None:
    class Wrong(Keyspace):
        @handles
        async def take(self, message: Any) -> None: ...


def _too_many_arguments() -> None:
    class Wrong(Keyspace):
        @handles
        async def take(self, message: Message, context: Context, more: int) -> None: ...


def _no_such_key() -> None:
    class Wrong(Keyspace):
        @handles(key="owner")
        async def take(self, message: Message) -> None: ...


def _no_fields() -> None:
    class Wrong(Keyspace):
        @handles
        async def take(self, message: Empty) -> None: ...


@pytest.mark.parametrize(
    ("define", "says"),
    [
        (_no_annotation, r"Wrong\.balances needs an annotation"),
        (_no_key, r"keys are of type"),
        (_unknown_option, r"\['tll'\]"),
        (_negative_ttl, r"ttl is -1"),
        (_topic_name, r"a b"),
        (_two_states_of_a_topic, r"'wrong-balances', but state 'balances' of keyspace 'wrong' has it"),
        (_topic_of_replies, r"'wrong-replies', but state 'replies' of keyspace 'wrong' has it"),
        (_taken_name, r"every keyspace has its own 'replies'"),
        (_no_partitions, r"partitions is 0, but Wrong needs"),
        (_partitions_as_text, r"partitions is '8', but Wrong needs"),
        (_no_replicas, r"replicas is 0, but Wrong needs"),
        (_keyspace_name, r"name is 'a/b'"),
        (_two_handlers, r"Message.*first and second both handle it"),
        (_no_reply_type, r"Wrong\.take.*what is returned"),
        (_no_message_type, r"Wrong\.take.*annotate the message"),
        (_too_many_arguments, r"Wrong\.take.*a message, and a Context"),
        (_no_such_key, r"Message has no field 'owner'.*Wrong\.take"),
        (_no_fields, r"Empty has no field None.*Wrong\.take"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_declared(define: Callable[[], None], says: str) -> None:
    """The error comes when the class is defined, and names what is wrong."""
    with pytest.raises(BadArgument, match=says):
        define()


def test_a_topic_of_others_may_be_read_as_several_states() -> None:
    """It is not written here, so that nobody's records are taken for those of another state."""

    class Views(Keyspace):
        texts: State[str, str] = state(topic="others", is_external=True)
        raw: State[str, bytes] = state(topic="others", is_external=True)

    assert set(Views.spec.states) == {"texts", "raw"}


def test_keyspaces_of_an_app_have_topics_of_their_own() -> None:
    """Two owners of one topic would overwrite each other's values, and not see it until the next restart."""

    class First(Keyspace):
        balances: State[str, int] = state(topic="shared")

    class Second(Keyspace):
        amounts: State[str, int] = state(topic="shared")

    class Reader(Keyspace):
        seen: State[str, int] = state(topic="shared", is_external=True)

    with pytest.raises(BadArgument, match="'shared', but state 'balances' of keyspace 'first' has it"):
        App(First, App(Second))
    assert set(App(First, Reader, App(First)).keyspaces) == {"first", "reader"}


def test_states_are_for_handlers() -> None:
    """Outside of a handler there is no partition to read: the error says where to go."""

    class Plain(Keyspace):
        balances: State[str, int] = state()

    with pytest.raises(BadArgument, match=r"use hr\.keyspace"):
        _ = Plain().balances
