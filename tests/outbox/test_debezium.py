"""The how-to's SQL and settings for Debezium's event router: run on the databases, and read as the router does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from tests.outbox.conftest import GROUNDS
from tests.outbox.setting import Ground, empty, publish, rows

from headrace.model import Record
from headrace.outbox import Message, event_id_of

SECTION = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text().partition("## Debezium")[2]
SQL = dict(zip(("postgresql", "mysql"), re.findall(r"```sql\n(.*?)```", SECTION, flags=re.DOTALL), strict=True))
AS_IT_IS, OF_ITS_OWN = (
    dict(line.split("=", 1) for line in block.splitlines())
    for block in re.findall(r"```properties\n(.*?)```", SECTION, flags=re.DOTALL)
)
OPTION = "transforms.outbox."
# What the router looks for unless it is told otherwise.
USUAL = {
    "table.field.event.id": "id",
    "table.field.event.key": "aggregateid",
    "table.field.event.payload": "payload",
    "route.by.field": "aggregatetype",
    "route.topic.replacement": "outbox.event.${routedByValue}",
}
MESSAGES = [
    Message(b"\x00\xff", key=b"\x01\xfe", headers={"type": "it's", "other": b"\xff"}, event_time=1_700_000_000_000),
    Message(b"", key="k", headers={"other": "x"}),
    Message(b"plain"),
    Message(None, key="k"),
]


def routed(row: Mapping[str, Any], properties: Mapping[str, str]) -> tuple[Any, ...]:
    """Return what the router makes of a row: topic, key, value, timestamp and headers."""
    options = USUAL | {name.removeprefix(OPTION): value for name, value in properties.items() if OPTION in name}
    topic = options["route.topic.replacement"].replace("${routedByValue}", row[options["route.by.field"]])
    headers = {"id": row[options["table.field.event.id"]]}
    for placed in options["table.fields.additional.placement"].split(","):
        column, _, name = placed.split(":")
        headers[name] = row[column]
    key, value = row[options["table.field.event.key"]], row[options["table.field.event.payload"]]
    return topic, _bytes(key), _bytes(value), row[options["table.field.event.timestamp"]], headers


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@pytest.fixture
def router(ground: Ground) -> Iterator[Ground]:
    """The ground with the how-to's own statements run on it."""
    dialect = "postgresql" if ground.engine.dialect.name == "postgresql" else "mysql"
    with ground.engine.begin() as db:
        for statement in SQL[dialect].strip().split(";\n\n"):
            db.exec_driver_sql(statement.rstrip(";\n"))
    yield ground
    with ground.engine.begin() as db:
        on_table = " ON kafka_messages" if dialect == "postgresql" else ""
        db.execute(text(f"DROP TRIGGER kafka_to_router{on_table}"))
        if dialect == "postgresql":
            db.execute(text("DROP FUNCTION kafka_to_router"))
        db.execute(text("DROP TABLE kafka_router_events"))


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:3], indirect=True)
async def test_the_router_makes_the_records_that_the_relay_makes(router: Ground) -> None:
    """topic, key, value and event id are the same by either way; time and chosen headers by the router's table."""
    topic = await router.topic()
    publish(router.engine, topic, MESSAGES)
    stored = rows(router.engine)
    in_layout = {row["id"]: row for row in rows(router.engine, "kafka_router_events")}
    await router.relayed()
    sent: dict[str | None, Record] = {event_id_of(record.headers): record for record in await router.records(topic)}

    assert len(sent) == len(in_layout) == len(MESSAGES)
    for row in stored:
        record = sent[row["event_id"]]
        told, own = routed(row, AS_IT_IS), routed(in_layout[row["event_id"]], OF_ITS_OWN)
        assert told[:3] == own[:3] == (topic, record.key, record.value)
        assert own[3] == record.timestamp_ms
        assert told[4]["headrace.event-id"] == own[4]["headrace.event-id"] == row["event_id"]
        assert (own[4]["type"] or "").encode() == dict(record.headers).get("type", b"")


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:3], indirect=True)
async def test_what_is_rolled_back_is_in_neither_table(router: Ground) -> None:
    """O1: the trigger is part of the application's transaction."""
    connection = router.engine.connect()
    with connection.begin() as transaction:
        connection.execute(text("INSERT INTO kafka_messages (topic, event_id, bucket) VALUES ('orders', 'undone', 0)"))
        transaction.rollback()
    connection.close()

    assert rows(router.engine) == rows(router.engine, "kafka_router_events") == []


def test_the_how_to_speaks_of_columns_that_are_there(sqlite_url: URL) -> None:
    """the table as it is has every column that the connector is told of."""
    engine: Engine = create_engine(sqlite_url)
    empty(sqlite_url)
    publish(engine, "orders", [Message(b"1", "k")])
    (row,) = rows(engine)
    engine.dispose()
    assert routed(row, AS_IT_IS)[:3] == ("orders", b"k", b"1")
