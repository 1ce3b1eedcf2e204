"""`headrace topic cat|tail|put`: the records of a topic as JSON lines, Avro decoded by its registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from headrace.app import Headrace
from headrace.cli.options import Address, AsJson, answer, with_headrace
from headrace.cli.schemas import RegistryAddress, read_schema
from headrace.errors import BadArgument
from headrace.log import Log
from headrace.model import Batch, NewRecord, Record, TopicPartition
from headrace.serde import GenericCodec, JsonRenderer, Registry, Serde, latest_version, open_registry, subject_of

__all__ = ["add_commands"]

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]
Partition = Annotated[int | None, typer.Option(help="Only this partition.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", help="Stop after this number of records.")]


def cat(
    topic: TopicName,
    partition: Partition = None,
    start: Annotated[int | None, typer.Option("--from", help="The first offset. Default: the first there is.")] = None,
    limit: Limit = None,
    registry: RegistryAddress = None,
    address: Address = None,
) -> None:
    """Print the records that a topic holds now, one JSON object a line, partition by partition.

    Example: headrace topic cat accounts --partition 0 --limit 10
    """

    async def run(hr: Headrace) -> None:
        left = limit
        async with _opened(hr, registry) as opened:
            renderer = JsonRenderer(opened)
            for at in await _partitions(hr.log, topic, partition):
                bounds = await hr.log.bounds(at)
                first = bounds.start if start is None else max(start, bounds.start)
                if first < bounds.end:
                    left = await _print(hr.log.read(at, first, bounds.end), renderer, left)

    with_headrace(address, None, run)


def tail(
    topic: TopicName,
    partition: Partition = None,
    last: Annotated[
        int, typer.Option("--last", help="Begin this number of offsets before the end of each partition.")
    ] = 10,
    limit: Limit = None,
    registry: RegistryAddress = None,
    address: Address = None,
) -> None:
    """Print the last records of a topic and new ones as they come, one JSON object a line, until interrupted.

    Example: headrace topic tail accounts --last 5
    """

    async def run(hr: Headrace) -> None:
        queue: asyncio.Queue[Batch] = asyncio.Queue(maxsize=16)
        partitions = await _partitions(hr.log, topic, partition)
        async with _opened(hr, registry) as opened, asyncio.TaskGroup() as group:
            tasks = [group.create_task(_follow(hr.log, at, last, queue)) for at in partitions]
            await _print(_from(queue), JsonRenderer(opened), limit)
            for task in tasks:
                task.cancel()

    with_headrace(address, None, run)


def put(
    topic: TopicName,
    schema: Annotated[str | None, typer.Option(help="Register this first: a file, or package.module:Class.")] = None,
    subject: Annotated[str | None, typer.Option(help="The subject of the values. Default: TOPIC-value.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Values go out as they are: text, or JSON, no Avro.")] = False,
    registry: RegistryAddress = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Write records from stdin, one JSON object a line: {"key": …, "value": …, "headers": {…}, "partition": …}.

    Example: headrace topic put accounts --text < records.jsonl
    """
    lines = [(nr, line) for nr, line in enumerate(sys.stdin, 1) if line.strip()]

    async def run(hr: Headrace) -> int:
        async with _opened(hr, registry) as opened:
            serde = None if text else await _serde(opened, subject or subject_of(topic), schema)
            records = [await _record(topic, nr, line, serde) for nr, line in lines]
        return len(await hr.log.append(records)) if records else 0

    count = with_headrace(address, None, run)
    answer(f"wrote {count} record{'s' if count != 1 else ''} to {topic}", as_json=as_json, topic=topic, records=count)


def add_commands(app: typer.Typer) -> None:
    """Make `cat`, `tail` and `put` commands of `headrace topic`."""
    for command in (cat, tail, put):
        app.command(command.__name__)(command)


@contextlib.asynccontextmanager
async def _opened(hr: Headrace, address: str | None) -> AsyncIterator[Registry]:
    registry = await open_registry(address, log=hr.log, settings=hr.settings.registry)
    try:
        yield registry
    finally:
        await registry.close()


async def _partitions(log: Log, topic: str, only: int | None) -> list[TopicPartition]:
    count = (await log.admin.describe(topic)).partitions
    return [TopicPartition(topic, n) for n in ([only] if only is not None else range(count))]


async def _follow(log: Log, at: TopicPartition, last: int, queue: asyncio.Queue[Batch]) -> None:
    bounds = await log.bounds(at)
    async for batch in log.read(at, max(bounds.start, bounds.end - last)):
        await queue.put(batch)


async def _from(queue: asyncio.Queue[Batch]) -> AsyncIterator[Batch]:
    while True:
        yield await queue.get()


async def _print(batches: AsyncIterator[Batch], renderer: JsonRenderer, left: int | None) -> int | None:
    """Print records until they end, or until the limit is reached; return how many may still be printed."""
    if left == 0:
        return 0
    async for batch in batches:
        for record in batch.records:
            typer.echo(json.dumps(await _shown(record, renderer), ensure_ascii=False))
            left = None if left is None else left - 1
            if left == 0:
                return 0
    return left


async def _shown(record: Record, renderer: JsonRenderer) -> dict[str, Any]:
    place = {"partition": record.partition, "offset": record.offset, "timestamp_ms": record.timestamp_ms}
    parts = {"key": await renderer.render(record.key), "value": await renderer.render(record.value)}
    headers = {name: await renderer.render(value) for name, value in record.headers}
    return {**place, **parts, **({"headers": headers} if headers else {})}


async def _serde(registry: Registry, subject: str, schema: str | None) -> tuple[GenericCodec, Serde[Any]]:
    wanted = read_schema(schema) if schema else (await latest_version(registry, subject)).schema
    serde: Serde[Any] = Serde(registry, subject, wanted)
    await serde.encoder()
    return GenericCodec(wanted), serde


async def _record(topic: str, nr: int, line: str, serde: tuple[GenericCodec, Serde[Any]] | None) -> NewRecord:
    given = _line(nr, line)
    value = given.get("value")
    if serde is None or value is None:
        data = _plain(value)
    else:
        data = await serde[1].encode(serde[0].from_json(value))
    headers = tuple((str(name), _plain(each)) for name, each in (given.get("headers") or {}).items())
    return NewRecord(topic, _plain(given.get("key")), data, headers, given.get("partition"))


def _line(nr: int, line: str) -> dict[str, Any]:
    rule = 'a line is a JSON object: {"key": …, "value": …}'
    try:
        given = json.loads(line.strip())
    except json.JSONDecodeError as error:
        why = f"{error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
        raise BadArgument(f"line {nr}", line.strip(), f"{rule} ({why})") from error
    if not isinstance(given, dict):
        raise BadArgument(f"line {nr}", line.strip(), rule)
    if unknown := sorted(given.keys() - _KNOWN):
        raise BadArgument(f"line {nr}", line.strip(), f"{rule} (unknown: {', '.join(unknown)})")
    if not isinstance(given.get("headers") or {}, dict):
        raise BadArgument(f"line {nr}", line.strip(), f'{rule} (headers are an object too: {{"name": "text"}})')
    return given


# `put` accepts what `cat` prints; the records get a new place in the log.
_KNOWN = frozenset({"key", "value", "headers", "partition", "offset", "timestamp_ms"})


def _plain(value: Any) -> bytes | None:  # noqa: ANN401
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
