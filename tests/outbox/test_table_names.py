"""Tables with names that an application chose, beside those of the default prefix."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, inspect, text
from sqlalchemy.orm import Session
from tests.outbox.setting import Ground, count, numbered
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, MissingTables, OperationFailed
from headrace.model import TopicConfig
from headrace.outbox import (
    Inbox,
    JsonSerializer,
    Message,
    Outbox,
    OutboxSettings,
    dead_messages,
    migrate,
    pending,
    replay,
    schema_version,
    status,
)
from headrace.outbox.engines import engine_for
from headrace.outbox.tables import renamed

PREFIX = "shop_out_"
NAMES = {
    "messages",
    "topic_info",
    "dead_messages",
    "sent_messages",
    "inbox",
    "inbox_failures",
    "outbox_identity",
    "outbox_migrations",
}


@pytest.fixture
def shop(ground: Ground) -> Iterator[Engine]:
    """Tables of another prefix in the ground's database."""
    migrate(ground.url, table_prefix=PREFIX)
    engine = engine_for(ground.url, table_prefix=PREFIX)
    yield engine
    engine.dispose()
    migrate(ground.url, to="base", table_prefix=PREFIX)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_everything_happens_in_tables_of_the_chosen_prefix(ground: Ground, shop: Engine, delivery: str) -> None:
    """L4, L12: publishing by session and connection, the relay, dead letters, looks; the default's stay as they are."""
    topic = await ground.topic(config=TopicConfig(max_record_bytes=2000))
    producer = Outbox(OutboxSettings(table_prefix=PREFIX)).producer(topic)
    with Session(shop) as session:
        producer.publish_list(session, numbered(1, 2))
        session.commit()
    with shop.begin() as db:
        producer.publish_list(db, [Message(b"x" * 5000, "poison"), *numbered(3, 4)])
        assert [each.count for each in pending(db)] == [5]
    assert count(ground.engine) == 0

    await ground.relayed(table_prefix=PREFIX, batch_size=2, delivery=delivery, source=topic, poison="block_key")

    assert await ground.values(topic) == [b"1", b"2", b"3", b"4"]
    with shop.begin() as db:
        (dead,) = dead_messages(db)
        assert [lane.dead for lane in status(db)] == [1]
        assert replay(db, ids=[dead.id]) == 1
    assert (count(shop, f"{PREFIX}messages"), count(ground.engine)) == (1, 0)
    record = (await ground.records(topic))[0]
    with shop.begin() as db:
        assert Inbox("billing", table_prefix=PREFIX).accept(db, record)
        assert not Inbox("billing", table_prefix=PREFIX).accept(db, record)
    assert count(ground.engine, "kafka_inbox") == 0


def test_tables_of_two_prefixes_live_side_by_side(database: URL) -> None:
    """Each has a version of its own, and goes without the other."""
    assert schema_version(database, table_prefix=PREFIX) is None
    version = migrate(database, table_prefix=PREFIX)
    engine = engine_for(database)
    try:
        assert {f"{PREFIX}{name}" for name in NAMES} <= set(inspect(engine).get_table_names())
        assert schema_version(database, table_prefix=PREFIX) == version == schema_version(database)
    finally:
        migrate(database, to="base", table_prefix=PREFIX)
    assert schema_version(database) == version
    assert count(engine) == 0
    engine.dispose()


def test_the_command_uses_the_prefix_of_the_settings(sqlite_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: one setting for applications, relays and operators."""
    monkeypatch.setenv("HEADRACE__OUTBOX__TABLE_PREFIX", PREFIX)
    monkeypatch.setenv("HEADRACE__OUTBOX__DATABASE", str(sqlite_url))
    migrated = CliRunner().invoke(app, ["outbox", "migrate"])
    engine = engine_for(sqlite_url, table_prefix=PREFIX)
    with engine.begin() as db:
        Outbox(OutboxSettings(table_prefix=PREFIX)).producer("t", serializer=JsonSerializer()).publish(db, {})
    engine.dispose()

    assert migrated.exit_code == 0
    assert '"pending": 1' in CliRunner().invoke(app, ["outbox", "status", "--json"]).stdout


@pytest.mark.parametrize("prefix", ["headrace_", "outbox_", "kafka_outbox_", "kafka_inbox_", "h"])
def test_no_prefix_takes_a_table_of_the_default_one(database: URL, prefix: str) -> None:
    """Each has tables of its own, and knows their version by itself."""
    try:
        assert migrate(database, table_prefix=prefix) == schema_version(database)
        engine = create_engine(database)
        with engine.connect() as db:
            assert db.execute(text(f"SELECT COUNT(*) FROM {prefix}messages")).scalar_one() == 0
        engine.dispose()
    finally:
        assert migrate(database, to="base", table_prefix=prefix) is None
    assert schema_version(database) is not None


def test_tables_that_are_there_already_are_named(sqlite_url: URL) -> None:
    """The database was reached: the error says what it refused."""
    engine = create_engine(sqlite_url)
    with engine.begin() as db:
        db.execute(text("CREATE TABLE shop_messages (id INTEGER)"))
    engine.dispose()

    with pytest.raises(OperationFailed, match="table shop_messages already exists"):
        migrate(sqlite_url, table_prefix="shop_")


@pytest.mark.parametrize(
    "bad", ["kafka_dead_", "dead_", "x_sent_", "", "Shop_", "1_", "a-b", "a b", "x" * 31, None, 5, 'a"; DROP TABLE b']
)
def test_a_prefix_needs_no_quotes(bad: object) -> None:
    """What a database would have to quote, or would run, is refused."""
    with pytest.raises(BadArgument, match="table_prefix"):
        migrate("sqlite:///never.db", table_prefix=bad)  # type: ignore[arg-type]


def test_only_our_tables_are_renamed() -> None:
    """Not what merely contains such a name."""
    sql = "SELECT kafka_messages.id FROM kafka_messages JOIN my_kafka_messages ON kafka_messages_x = 1"
    assert renamed(sql, "a_") == "SELECT a_messages.id FROM a_messages JOIN my_kafka_messages ON kafka_messages_x = 1"


def test_the_advice_for_missing_tables_names_the_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: the command of the message makes the tables that were missed, not those of the default prefix."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    monkeypatch.setenv("HEADRACE__OUTBOX__TABLE_PREFIX", PREFIX)
    missed = CliRunner().invoke(app, ["outbox", "status", "--database", url]).exception
    assert isinstance(missed, MissingTables)
    monkeypatch.delenv("HEADRACE__OUTBOX__TABLE_PREFIX")
    variable, _, command = str(missed).rpartition("run: ")[2].partition(" headrace ")
    monkeypatch.setenv(*variable.split("="))
    assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0
    assert CliRunner().invoke(app, ["outbox", "status", "--database", url]).exit_code == 0
    assert schema_version(url, table_prefix=PREFIX) is not None
