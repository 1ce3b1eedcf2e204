"""The schema: making and changing the tables with Alembic, and the version that a relay needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.engine import Connection

from headrace.errors import IncompatibleData, MissingExtra, MissingTables, OutdatedTables
from headrace.outbox.dialects import dialect_of
from headrace.outbox.engines import DatabaseAddress, engine_for, named_errors, url_of
from headrace.outbox.tables import DEFAULT_PREFIX, checked_prefix, version_table

__all__ = ["NEWEST", "VERSION_TABLE", "migrate", "need_newest", "schema_version", "version_in"]

NEWEST = "0003"
"""The version that a relay needs."""

VERSION_TABLE = version_table(DEFAULT_PREFIX)
"""Where Alembic keeps our version: a table of its own, beside the application's."""

_FOLDER = Path(__file__).parent / "migrations"


def migrate(
    database: DatabaseAddress | Connection, *, to: str = "head", table_prefix: str = DEFAULT_PREFIX
) -> str | None:
    """Bring the tables to a version, `head` being the newest and `base` none at all; returns the version then.

    Any number of processes may do this at once. With a Connection it happens in the caller's transaction, as in a
    migration of the application's own. Raises Unreachable, OperationFailed.
    """
    checked_prefix(table_prefix)
    if isinstance(database, Connection):
        _run(database, to, table_prefix)
        return version_in(database, table_prefix)
    engine = engine_for(database, pool_size=2)
    try:
        with named_errors(database, "migrating"), _one_at_a_time(engine), engine.begin() as connection:
            _run(connection, to, table_prefix)
        return schema_version(engine, table_prefix=table_prefix)
    finally:
        engine.dispose()


def schema_version(database: DatabaseAddress, *, table_prefix: str = DEFAULT_PREFIX) -> str | None:
    """Return the version of the tables; None when they were never made."""
    engine = engine_for(database, pool_size=1)
    if engine.dialect.name == "sqlite" and not _is_there(engine.url.database or ""):
        return None
    try:
        with named_errors(database, "looking for the tables in"), engine.connect() as connection:
            return version_in(connection, table_prefix)
    finally:
        engine.dispose()


def need_newest(database: DatabaseAddress, version: str | None, *, table_prefix: str = DEFAULT_PREFIX) -> None:
    """Raise MissingTables or OutdatedTables, each with what to run, unless the version is what a relay needs."""
    if version is None:
        raise MissingTables(_shown(database), table_prefix)
    if version < NEWEST:
        raise OutdatedTables(_shown(database), version, NEWEST, table_prefix)


def _shown(database: DatabaseAddress) -> str:
    url = url_of(database)
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _is_there(file: str) -> bool:
    """Return True if SQLite would find a file: it creates a file that is missing."""
    return file.startswith("file:") or Path(file).exists() or not Path(file).parent.exists()


def _run(connection: Connection, to: str, table_prefix: str) -> None:
    try:
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory
        from alembic.util import CommandError
    except ModuleNotFoundError as missing:
        raise MissingExtra("alembic", "outbox") from missing
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["table_prefix"] = table_prefix
    try:
        with _inside_of_another():
            (command.downgrade if to == "base" else command.upgrade)(config, to)
    except CommandError as error:
        versions = sorted(each.revision for each in ScriptDirectory.from_config(config).walk_revisions())
        outbox = f"the outbox in {connection.engine.url.render_as_string()}"
        raise IncompatibleData(outbox, str(error), f"the versions {', '.join(versions)}") from error


@contextmanager
def _inside_of_another() -> Iterator[None]:
    """Give `alembic.context` and `alembic.op` back to the application's migration that calls us, if one does.

    They are modules that stand for one run at a time, and the end of a run empties them.
    """
    from alembic import context, op

    outer = [proxy for module in (context, op) if (proxy := getattr(module, "_proxy", None)) is not None]
    try:
        yield
    finally:
        for proxy in outer:
            proxy._install_proxy()  # noqa: SLF001 - Alembic has no other way


def version_in(connection: Connection, table_prefix: str = DEFAULT_PREFIX) -> str | None:
    """Return the version of the tables, asked on a connection; None when they were never made by migrations."""
    table = version_table(checked_prefix(table_prefix))
    if not inspect(connection).has_table(table):
        return None
    version = connection.execute(text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608
    return None if version is None else str(version)


@contextmanager
def _one_at_a_time(engine: Engine) -> Iterator[None]:
    """Keep other processes that migrate out. SQLite's own write lock does that already."""
    lock = dialect_of(engine.dialect.name).migration_lock
    if lock is None:
        yield
        return
    with engine.connect() as holder:
        holder.execute(text(lock[0]))
        try:
            yield
        finally:
            holder.execute(text(lock[1]))
            holder.rollback()
