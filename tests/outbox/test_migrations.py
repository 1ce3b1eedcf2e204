"""The tables: made by migrations, by several at once, beside the application's own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Engine, event, inspect, text
from tests.outbox.setting import TABLES, count, publish

from headrace.errors import BadArgument, FileUnusable, IncompatibleData, UnknownBackend, Unreachable
from headrace.outbox import Message, migrate, schema_version
from headrace.outbox.engines import engine_for, url_of
from headrace.outbox.schema import NEWEST
from headrace.outbox.tables import metadata


def test_migrations_make_what_the_metadata_describes(engine: Engine) -> None:
    """Every table, column, index and key of `headrace.outbox.tables`, which applications may use in their own."""
    found = inspect(engine)
    for name in (*TABLES, "kafka_outbox_identity"):
        table = metadata.tables[name]
        assert {column["name"] for column in found.get_columns(name)} == set(table.columns.keys())
        assert found.get_pk_constraint(name)["constrained_columns"] == [column.name for column in table.primary_key]
        indexes = {index["name"]: index["column_names"] for index in found.get_indexes(name)}
        assert indexes == {index.name: [column.name for column in index.columns] for index in table.indexes}


def test_several_may_migrate_at_once_and_again(database: URL) -> None:
    """Whoever comes second finds the work done; base takes the tables away, head brings them back."""
    migrate(database, to="base")
    assert schema_version(database) is None
    versions: list[str | None] = []
    threads = [threading.Thread(target=lambda: versions.append(migrate(database))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [NEWEST] * 4
    assert schema_version(database) == NEWEST


def test_an_application_migrates_in_a_transaction_of_its_own(tmp_path: Path) -> None:
    """With a connection the tables come, and go, with the application's transaction; its version table is its own."""
    engine = engine_for(f"sqlite:///{tmp_path / 'app.db'}")
    with engine.begin() as db:
        db.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        assert migrate(db) == NEWEST
    with engine.connect() as db:
        assert db.execute(text("SELECT COUNT(*) FROM alembic_version")).scalar_one() == 0
    engine.dispose()


_ENV = """
from alembic import context
from sqlalchemy import create_engine, pool
engine = create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=pool.NullPool)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
_STEP = """
from alembic import context, op
from sqlalchemy import Column, Integer
from headrace.outbox import migrate
revision, down_revision = "{name}", {before!r}
def upgrade():
    migrate(op.get_bind(), table_prefix="{prefix}")
    op.create_table("after_{name}", Column("id", Integer))
    assert context.config.get_main_option("sqlalchemy.url")
"""


def test_a_migration_of_the_applications_own_makes_the_tables(database: URL, tmp_path: Path) -> None:
    """Alembic runs ours inside of the application's run, and goes on with the application's."""
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / "migrations" / "env.py").write_text(_ENV)
    (versions / "a.py").write_text(_STEP.format(name="a", before=None, prefix="first_"))
    (versions / "b.py").write_text(_STEP.format(name="b", before="a", prefix="second_"))
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    config.set_main_option("sqlalchemy.url", database.render_as_string(hide_password=False).replace("%", "%%"))
    engine = engine_for(database)
    try:
        command.upgrade(config, "head")
        tables = set(inspect(engine).get_table_names())
        assert {"after_a", "after_b", "first_messages", "second_messages", "alembic_version"} <= tables
        assert schema_version(database, table_prefix="second_") == NEWEST
    finally:
        for prefix in ("first_", "second_"):
            migrate(database, to="base", table_prefix=prefix)
        with engine.begin() as db:
            for table in ("after_a", "after_b", "alembic_version"):
                db.execute(text(f"DROP TABLE {table}"))
        engine.dispose()


def test_what_is_no_outbox_database_is_refused(tmp_path: Path) -> None:
    """Another dialect, a database in memory, a version that is not ours: each says so."""
    with pytest.raises(UnknownBackend, match="oracle"):
        url_of("oracle://host/x")
    with pytest.raises(BadArgument, match="in memory"):
        url_of("sqlite://")
    with pytest.raises(IncompatibleData, match="9999"):
        migrate(f"sqlite:///{tmp_path / 'app.db'}", to="9999")


def test_an_address_that_is_wrong_is_named() -> None:
    """Nobody there, no folder, no address at all: an error of ours, and no password in it."""
    with pytest.raises(Unreachable, match=r"cannot reach postgresql://me:\*\*\*@127.0.0.1:1/x"):
        migrate("postgresql://me:secret@127.0.0.1:1/x")
    for ask in (migrate, schema_version):
        with pytest.raises(FileUnusable, match="unable to open database file"):
            ask("sqlite:////nowhere/at/all.db")
    with pytest.raises(BadArgument, match="looks like postgresql://") as refused:
        migrate("me:secret@host/x")
    assert "secret" not in str(refused.value)


def test_a_relay_needs_the_newest_version_there_is(tmp_path: Path) -> None:
    """FO3: the version in the code is that of the last migration."""
    assert migrate(f"sqlite:///{tmp_path / 'app.db'}") == NEWEST


def test_what_an_earlier_version_stored_is_kept(database: URL) -> None:
    """FO3: messages stay, lanes are marked as noted in the first format, and the database gets its identity."""
    migrate(database, to="base")
    migrate(database, to="0001")
    engine = engine_for(database)
    publish(engine, "orders", [Message(b"1", "k")])
    with engine.begin() as db:
        db.execute(text("INSERT INTO kafka_topic_info (topic, bucket, progress_offset) VALUES ('orders', 0, 7)"))
        db.execute(text("INSERT INTO kafka_inbox (consumer, event_id) VALUES ('billing', 'e1')"))
    migrate(database)
    with engine.begin() as db:
        db.execute(text("INSERT INTO kafka_topic_info (topic, bucket) VALUES ('orders', 1)"))
        formats = db.execute(text("SELECT note_format FROM kafka_topic_info ORDER BY bucket")).scalars().all()
        (identity,) = db.execute(text("SELECT database_id FROM kafka_outbox_identity")).scalars()
        inbox = db.execute(text("SELECT consumer, event_id FROM kafka_inbox")).all()

    assert formats == [1, 2]
    assert str(uuid.UUID(identity)) == identity
    assert inbox == [("billing", "e1")]
    assert count(engine) == 1
    engine.dispose()


@pytest.mark.parametrize("start", ["base", "0001", "0002"])
def test_a_migration_that_was_interrupted_can_be_run_again(database: URL, start: str) -> None:
    """Wherever it ended: not every database takes tables back that were made in a transaction."""
    prefix = "again_"
    for most in range(60):
        migrate(database, to="base", table_prefix=prefix)
        if start != "base":
            migrate(database, to=start, table_prefix=prefix)
        stop = _stopping_after(most)
        event.listen(Engine, "before_cursor_execute", stop)
        try:
            migrate(database, table_prefix=prefix)
            break
        except KeyboardInterrupt:
            pass
        finally:
            event.remove(Engine, "before_cursor_execute", stop)
        assert migrate(database, table_prefix=prefix) == NEWEST, f"stopped after {most}"
    assert migrate(database, to="base", table_prefix=prefix) is None
    assert most > (1 if start == "0002" else 5)


def _stopping_after(most: int) -> Callable[..., None]:
    """Return a listener that lets so many changes pass, and then ends the run."""
    passed = list[str]()

    def stop(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().upper().startswith(("CREATE", "ALTER", "INSERT", "UPDATE")):
            passed.append(statement)
            if len(passed) > most:
                raise KeyboardInterrupt

    return stop
