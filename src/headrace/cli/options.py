"""What commands share: the options for log and store, running a coroutine with a Headrace, and what is printed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.console import Console

from headrace.app import Headrace, connect
from headrace.config import DEFAULTS, HeadraceSettings, Section
from headrace.errors import NotGiven, UnknownTopic
from headrace.model import TopicPartition

__all__ = [
    "Address",
    "AsJson",
    "StoreAddress",
    "answer",
    "command_settings",
    "confirm",
    "creating_headrace",
    "creating_settings",
    "plain_console",
    "print_json",
    "tell_unreplicated",
    "with_headrace",
]

T = TypeVar("T")
S = TypeVar("S", bound=Section)

Address: TypeAlias = Annotated[
    str | None,
    typer.Option("--log", help="The log: embedded:FOLDER or kafka://HOST:PORT. Default: the setting log.address."),
]
StoreAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store", help="The store of a log on Kafka: cassandra://HOST/KEYSPACE. An embedded log has its own."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one a line.")]


def command_settings() -> HeadraceSettings:
    """Return the settings of a command that works on existing data: it makes no folder and no keyspace.

    So a misspelt address is an error, not an empty log. Explicit settings win.
    """
    made = creating_settings()
    log = _unless_set(made, made.log.embedded, "log.embedded.create_folder")
    store = _unless_set(made, made.store.embedded, "store.embedded.create_folder")
    return made.model_copy(
        update={
            "log": made.log.model_copy(update={"embedded": log}),
            "store": made.store.model_copy(update={"embedded": store}),
        }
    )


def creating_settings() -> HeadraceSettings:
    """Return the settings of a command that writes first: it may make a folder, but no keyspace."""
    settings = HeadraceSettings.load()
    cassandra = _unless_set(settings, settings.store.cassandra, "store.cassandra.create_keyspace")
    return settings.model_copy(update={"store": settings.store.model_copy(update={"cassandra": cassandra})})


def with_headrace(
    address: str | None,
    store: str | None,
    use: Callable[[Headrace], Awaitable[T]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Open an existing Headrace, use it, and close it again, on a loop of the given kind. Raises NothingThere."""
    return _run(address, store, command_settings(), use, loop_factory)


def creating_headrace(address: str | None, store: str | None, use: Callable[[Headrace], Awaitable[T]]) -> T:
    """Open Headrace, make its folder if necessary, use it, and close it again."""
    return _run(address, store, creating_settings(), use)


def print_json(value: object) -> None:
    """Print one object, or one row of many, on a line of its own."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask before something is lost, unless --yes was given. Raises NotGiven if there is no terminal to ask at."""
    if is_sure:
        return
    try:
        is_wanted = typer.confirm(question)
    except typer.Abort as error:
        if sys.stdin.isatty():  # Ctrl-C, or Ctrl-D
            raise
        typer.echo(err=True)  # the question has no end of line
        raise NotGiven("--yes", "there is no terminal to ask at; give --yes to go on") from error
    if not is_wanted:
        raise typer.Abort


def answer(text: str, *, as_json: bool, **facts: object) -> None:
    """Print what a command did: a sentence for people, or the facts in it as one JSON object."""
    if as_json:
        print_json(facts)
    else:
        typer.echo(text)


def _unless_set(settings: HeadraceSettings, section: S, key: str) -> S:
    """Return the section with the key switched off, unless it was set explicitly."""
    (found,) = [each for each in settings.describe() if each.key == key]
    return section.model_copy(update={key.rpartition(".")[2]: False}) if found.source == DEFAULTS else section


def _run(
    address: str | None,
    store: str | None,
    settings: HeadraceSettings,
    use: Callable[[Headrace], Awaitable[T]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    async def run() -> T:
        async with connect(address, store=store, settings=settings) as hr:
            return await use(hr)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run())


def plain_console() -> Console:
    """Return a console for data: what stands in square brackets or between colons is text, and not markup."""
    return Console(markup=False, emoji=False)


async def tell_unreplicated(hr: Headrace, topics: Iterable[str], *, instead: str = "") -> None:
    """Print on stderr how many records are not replicated yet, if any, and what to do instead of replicating them."""
    count = 0
    for topic in topics:
        try:
            described = await hr.log.admin.describe(topic)
        except UnknownTopic:  # deleted: nothing of it waits
            continue
        for partition in range(described.partitions):
            at = TopicPartition(topic, partition)
            known, bounds = await hr.store.reader.replicated(at), await hr.log.bounds(at)
            count += max(0, bounds.end - max(bounds.start, known.offset + 1 if known is not None else 0))
    if count:
        typer.echo(
            f"{count:,} records of the log are not replicated yet, and what they bring is not listed here; "
            f"run: headrace pipeline replicate --once{instead}",
            err=True,
        )
