"""`headrace schema`: look into a registry, check and register schemas."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.table import Table

from headrace.cli.options import Address, AsJson, answer, command_settings, creating_settings, plain_console, print_json
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, NotGiven, NothingThere, UnknownSubject
from headrace.log import open_log
from headrace.serde import Level, Registry, Schema, Version, check_compatible, latest_version, open_registry, schema_of

__all__ = ["RegistryAddress", "Source", "app", "read_schema", "with_registry"]

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True)

RegistryAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--registry", help="log:TOPIC, folder:PATH or http(s)://HOST:PORT. Default: the setting registry.address."
    ),
]
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, as in orders-value.")]
Source = Annotated[
    str, typer.Argument(metavar="FILE", help="A file with the schema, package.module:Class, or - for stdin.")
]


@app.command("list")
def list_subjects(registry: RegistryAddress = None, address: Address = None, as_json: AsJson = False) -> None:
    """List the subjects, each with its last version.

    Example: headrace schema list
    """

    async def run(opened: Registry) -> list[tuple[Version, Level]]:
        subjects = await opened.subjects()
        return [(await latest_version(opened, each), await opened.levels.get(each)) for each in subjects]

    found = with_registry(registry, address, run)
    if as_json:
        for version, level in found:
            print_json({**_as_json(version), "level": level})
        return
    table = Table("subject", "version", "id", "type", "level", box=None)
    for version, level in found:
        table.add_row(version.subject, str(version.version), str(version.schema_id), version.schema.name, level)
    plain_console().print(table if found else "no schemas yet")


@app.command("show")
def show(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="The subject; or give --id.")] = None,
    version: Annotated[int | None, typer.Option(help="Which version. Default: the last.")] = None,
    schema_id: Annotated[int | None, typer.Option("--id", help="The schema with this id.")] = None,
    registry: RegistryAddress = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Print a schema of the registry.

    Example: headrace schema show orders-value --version 2
    """
    if subject is None and schema_id is None:
        raise NotGiven("SUBJECT", "give a subject, or --id")
    if subject is not None and schema_id is not None:
        raise BadArgument("subject", subject, "give a subject, or --id; one of the two")

    async def run(opened: Registry) -> Schema:
        if subject is None:
            return await opened.schema(schema_id or 0)
        return (await _version_of(opened, subject, version)).schema

    schema = with_registry(registry, address, run)
    typer.echo(json.dumps(json.loads(schema.text), indent=None if as_json else 2, ensure_ascii=False))


@app.command("register")
def register(
    subject: Subject,
    source: Source,
    registry: RegistryAddress = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Register a schema. It is refused if it breaks the subject's compatibility level.

    Example: headrace schema register orders-value order.avsc
    """
    schema = read_schema(source)
    made = with_registry(
        registry, address, lambda opened: opened.register(subject, schema), settings=creating_settings()
    )
    typer.echo(json.dumps(_as_json(made)) if as_json else f"{subject} version {made.version} has id {made.schema_id}")


@app.command("check")
def check(
    subject: Subject,
    source: Source,
    level: Annotated[Level | None, typer.Option(help="Check at this level. Default: the level of the subject.")] = None,
    registry: RegistryAddress = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a schema could be registered. Nothing is written.

    Example: headrace schema check orders-value shop.events:Order
    """
    schema = read_schema(source)

    async def run(opened: Registry) -> tuple[Level, int]:
        found = level or await opened.levels.get(subject)
        try:
            earlier = await opened.versions(subject)
        except UnknownSubject:
            return found, 0
        check_compatible(schema, earlier, found, subject=subject)
        return found, len(earlier)

    found, count = with_registry(registry, address, run)
    against = f"{count} version{'s' if count != 1 else ''} of {subject}" if count else f"{subject} is new"
    answer(f"compatible ({found}; {against})", as_json=as_json, compatible=True, level=found, versions=count)


def with_registry(
    registry: str | None,
    address: str | None,
    use: Callable[[Registry], Awaitable[T]],
    *,
    settings: HeadraceSettings | None = None,
) -> T:
    """Open the registry, and the log if it holds the registry; use it, and close both again.

    Without `settings` it opens only an existing registry, and raises NothingThere if there is none.
    """
    chosen = settings or command_settings()
    where = registry or chosen.registry.address
    if settings is None:
        _check_folder(where)

    async def run() -> T:
        log = await open_log(address or chosen.log.address, settings=chosen.log) if where[:4] == "log:" else None
        try:
            opened = await open_registry(where, log=log, settings=chosen.registry)
            try:
                return await use(opened)
            finally:
                await opened.close()
        finally:
            if log is not None:
                await log.close()

    return asyncio.run(run())


def _check_folder(address: str) -> None:
    scheme, _, folder = address.partition(":")
    if scheme == "folder" and not Path(folder).exists():
        command = f"headrace schema register SUBJECT FILE --registry {address}"
        raise NothingThere("registry", address, str(Path(folder).absolute()), command)


def read_schema(source: str) -> Schema:
    """Return the schema of a file, a class, or stdin."""
    if source == "-":
        return Schema(_text(sys.stdin.buffer.read(), source))
    path, module, name = Path(source), *source.partition(":")[::2]
    if path.exists() or not name:
        try:
            return Schema(_text(path.read_bytes(), source))
        except OSError as error:
            raise BadArgument("schema", source, f"it can't be read: {error.strerror}") from error
    # As `python -m` does, so that the application in the current folder is found.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return schema_of(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise BadArgument("schema", source, f"there is no such class: {error}") from error


def _text(data: bytes, source: str) -> str:
    """Return the text of a schema, in the encoding that it begins with: editors of Windows write a mark, or UTF-16."""
    try:
        return data.decode(json.detect_encoding(data)).strip()
    except UnicodeDecodeError as error:
        raise BadArgument("schema", source, f"it is no text: {error}") from error


async def _version_of(registry: Registry, subject: str, number: int | None) -> Version:
    versions = await registry.versions(subject)
    if number is None:
        return versions[-1]
    if not 1 <= number <= len(versions):
        raise UnknownSubject(subject, "the registry", number)
    return versions[number - 1]


def _as_json(version: Version) -> dict[str, object]:
    named = {"subject": version.subject, "version": version.version, "id": version.schema_id}
    return {**named, "type": version.schema.name}
