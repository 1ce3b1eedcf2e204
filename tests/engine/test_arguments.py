"""Whatever callers and handlers give: a typed error and nothing done, or something that can be read back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine import Aggregate, CommandContext, Engine, Failed, Reject
from headrace.errors import BadArgument, CommandFailed, NotStorable
from headrace.protocol import MAX_JSON_DEPTH
from headrace.testing.engines import EngineHarness


@dataclass
class Document:
    """A dataclass: it checks nothing itself."""

    any: Any = None
    whole: int = 0
    number: float = 0.0
    text: str = ""
    names: dict[int, str] = field(default_factory=dict)


@dataclass
class Write:
    document: Document


@dataclass
class WriteHeld:
    """Write what stands in HELD, which no command could carry."""

    name: str


@dataclass
class Written:
    document: Document


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels > 1 else []


HELD: dict[str, Document] = {
    "another type": Document(whole="x"),  # type: ignore[arg-type]
    "a fraction": Document(whole=1.5),  # type: ignore[arg-type]
    "not a number": Document(number=float("nan")),
    "infinite": Document(any={"a": [float("inf")]}),
    "half a character": Document(text="\ud800"),
    "an object": Document(any=object()),
    "nested one level too deep": Document(any=nested(MAX_JSON_DEPTH - 2)),
    "nested far too deep": Document(any=nested(900)),
}


def documents_engine(outputs: Sequence[str] = ()) -> Engine[Document]:
    documents = Engine("documents", state=Document, partitions=1, outputs=outputs)

    @documents.command
    def write(document: Document | None, command: Write) -> Written:
        return Written(command.document)

    @documents.command
    def write_held(document: Document | None, command: WriteHeld) -> Written:
        return Written(HELD[command.name])

    @documents.event
    def written(document: Document | None, event: Written) -> Document:
        return event.document

    return documents


no_versions = st.sampled_from([-1, True, 1.0, float("nan"), "1", b"1", object(), (), 1 << 63, 1 << 5000])
no_sinces = st.sampled_from(["", "1", "a:b", "1:-1", "١:٢", "\ud800", 5, b"1:1", (1, 1), "9" * 30 + ":1", "1:" * 3000])
no_ids = st.sampled_from(["", "\ud800", "x" * 5000, 5, b"x", object()])


async def test_wrong_arguments_are_refused_and_nothing_is_done() -> None:
    """Whatever is given as a version, a since or an id, the error names it."""
    async with EngineHarness(documents_engine()) as harness:
        aggregate = harness.aggregate("a")

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.data())
        def check(data: st.DataObject) -> None:
            name, values = data.draw(
                st.sampled_from([("expected_version", no_versions), ("since", no_sinces), ("command_id", no_ids)])
            )
            wrong: dict[str, Any] = {name: data.draw(values)}
            asked.append(wrong)

        asked: list[dict[str, Any]] = []
        await asyncio.to_thread(check)
        for wrong in asked:
            with pytest.raises(BadArgument):
                await aggregate.send(Write(Document()), **wrong)
        assert (await aggregate.read()).version == 0


@pytest.mark.parametrize("name", HELD)
async def test_what_could_not_be_read_back_is_not_written(name: str) -> None:
    """A value that fits no schema fails its command: an aggregate that can't be loaded would refuse all later ones."""
    async with EngineHarness(documents_engine()) as harness:
        aggregate = harness.aggregate("a")
        with pytest.raises(NotStorable):
            await aggregate.send(Write(HELD[name]))
        with pytest.raises(CommandFailed) as failed:
            await aggregate.send(WriteHeld(name))
        assert failed.value.stage == "serialization"
        await _still_works(aggregate)


@pytest.mark.parametrize("name", HELD)
async def test_events_of_a_caller_are_carried_as_they_are_or_refused(name: str) -> None:
    """JSON has no infinity: an event with one would be applied as another event than the caller gave."""
    async with EngineHarness(documents_engine()) as harness:
        aggregate = harness.aggregate("a")
        with pytest.raises(NotStorable):
            await aggregate.apply_events([Written(HELD[name])])
        await _still_works(aggregate)


@pytest.mark.parametrize("events", ["x", "\ud800", b"x", {"a": 1}, 5, None], ids=repr)
async def test_what_is_no_list_of_events_is_refused(events: Any) -> None:
    """A text is a list of letters, and a dictionary one of its keys: neither is meant."""
    async with EngineHarness(documents_engine()) as harness:
        with pytest.raises(BadArgument) as refused:
            await harness.aggregate("a").apply_events(events)
        assert refused.value.name == "events"


@dataclass
class Spoil:
    pass


@dataclass
class Spoiled:
    pass


async def test_a_state_that_could_not_be_read_back_fails_its_command() -> None:
    """The event may be fine, and what its handler makes of the state is not: nothing of it is written."""
    documents = documents_engine()

    @documents.command
    def spoil(document: Document | None, command: Spoil) -> Spoiled:
        return Spoiled()

    @documents.event
    def spoiled(document: Document | None, event: Spoiled) -> Document:
        return Document(whole="x")  # type: ignore[arg-type]

    async with EngineHarness(documents) as harness:
        with pytest.raises(CommandFailed) as failed:
            await harness.aggregate("a").send(Spoil())
        assert failed.value.stage == "serialization"
        await _still_works(harness.aggregate("a"))


async def test_keys_that_are_numbers_are_carried() -> None:
    """A dictionary by number is JSON with texts as keys, and comes back with numbers."""
    async with EngineHarness(documents_engine()) as harness:
        done = await harness.aggregate("a").send(Write(Document(names={2: "b", 1: "a"})))
        assert done.state == Document(names={1: "a", 2: "b"})
        assert await harness.aggregate("a").state() == done.state


async def _still_works(aggregate: Aggregate[Document]) -> None:
    assert (await aggregate.read()).version == 0
    await aggregate.send(Write(Document(text="fine")))
    assert (await aggregate.read()).version == 1


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Panic(BaseException):
    """What extensions in Rust raise when they panic, and pytest when a test fails, is no Exception."""


def _raises(error: BaseException) -> None:
    raise error


STRANGE: dict[str, Callable[[CommandContext[Document]], object]] = {
    "a reply that JSON does not take": lambda context: context.reply(object()),
    "a reply that is no number": lambda context: context.reply(float("nan")),
    "a code that is no text": lambda _: Reject(5),  # type: ignore[arg-type]
    "a message that is no text": lambda _: Reject("no", 5),  # type: ignore[arg-type]
    "details that are no mapping": lambda _: Reject("no", "", [1]),  # type: ignore[arg-type]
    "an event of another class": lambda _: 5,
    "an error without a text": lambda _: _raises(Unprintable()),
    "a cancellation of its own": lambda _: _raises(asyncio.CancelledError()),
    "an output that is no bytes": lambda context: context.persist_to("texts", {"a": 1}),  # type: ignore[arg-type]
    "a header that is no bytes": lambda context: context.persist_to("texts", b"", headers={"a": "b"}),  # type: ignore[dict-item]
    "a panic of an extension": lambda _: _raises(Panic("unreachable code")),
}


@dataclass
class DoStrange:
    name: str


@dataclass
class AwaitStrange:
    name: str


@pytest.mark.parametrize("kind", [DoStrange, AwaitStrange])
@pytest.mark.parametrize("name", STRANGE)
async def test_whatever_a_handler_does_its_command_alone_fails(name: str, kind: type[DoStrange | AwaitStrange]) -> None:
    """N8: the caller hears at once that nothing was done, and commands before and after it work."""
    documents = documents_engine(outputs=["texts"])

    @documents.command
    def do(document: Document | None, command: DoStrange, context: CommandContext[Document]) -> Any:
        return STRANGE[command.name](context)

    @documents.command
    async def do_later(document: Document | None, command: AwaitStrange, context: CommandContext[Document]) -> Any:
        await asyncio.sleep(0)
        return STRANGE[command.name](context)

    async with EngineHarness(documents, topics={"texts": 1}) as harness:
        aggregate = harness.aggregate("a")
        before, failed, after = await asyncio.gather(
            aggregate.try_send(Write(Document(whole=1))),
            aggregate.try_send(kind(name)),
            aggregate.try_send(Write(Document(whole=2))),
        )
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, CommandFailed)
        assert (before.version, after.version) == (1, 2)  # type: ignore[union-attr]
