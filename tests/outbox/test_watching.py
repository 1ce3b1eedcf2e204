"""Watching: metrics, the command, logged messages, and assertions for tests of applications."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session
from tests.outbox.setting import Ground, count, numbered, publish, rows
from tests.outbox.watched import WatchedLog
from typer.testing import CliRunner, Result

from headrace.cli import outboxes
from headrace.errors import Unreachable
from headrace.log import open_log
from headrace.model import TopicConfig
from headrace.outbox import JsonDecoder, JsonSerializer, Outbox, OutboxSettings, Relay, migrate, pending, status
from headrace.outbox.metrics import INSERTED, PENDING_COUNT, PENDING_MAX_WAIT, PROCESSED
from headrace.outbox.schema import NEWEST
from headrace.outbox.stats import show_pending
from headrace.outbox.testing import published
from headrace.testing.conformance.log_setting import eventually

Run = Callable[..., Result]


def test_what_is_pending_is_counted_with_its_true_age(engine: Engine) -> None:
    """M1: per topic, by the database's clock, the oldest row and not the last progress; an empty table gives 0."""
    inserted = INSERTED.labels("orders")._value.get()
    publish(engine, "orders", numbered(1, 3))
    publish(engine, "bills", numbered(1, 1))
    with engine.begin() as db:
        db.execute(text("UPDATE kafka_messages SET created_at = created_at - 90000 WHERE message = :m"), {"m": b"2"})
        db.execute(text("INSERT INTO kafka_topic_info (topic, bucket, last_processed_at) VALUES ('orders', 0, 1)"))
    with engine.connect() as db:
        found = {each.topic: each for each in pending(db)}
        show_pending(pending(db))
    assert (found["orders"].count, found["bills"].count) == (3, 1)
    assert 90 <= found["orders"].max_wait_s < 120
    assert found["bills"].max_wait_s < 30
    assert PENDING_COUNT.labels("orders")._value.get() == 3
    assert PENDING_MAX_WAIT.labels("orders")._value.get() >= 90
    assert INSERTED.labels("orders")._value.get() == inserted + 3

    with engine.begin() as db:
        db.execute(text("DELETE FROM kafka_messages"))
    with engine.connect() as db:
        left = pending(db)
        show_pending(left)
    assert [(each.topic, each.count, each.max_wait_s) for each in left] == [("orders", 0, 0.0)]
    assert PENDING_COUNT.labels("orders")._value.get() == 0
    assert PENDING_MAX_WAIT.labels("orders")._value.get() == 0


async def test_a_relay_counts_what_it_processed(ground: Ground) -> None:
    """M1: process counters, and gauges that a running relay sets by itself."""
    topic = await ground.topic()
    before = PROCESSED.labels(topic)._value.get()
    publish(ground.engine, topic, numbered(1, 7))
    async with ground.relay(metrics_interval_s=0.05) as relay:
        await relay.drain()

        async def is_seen() -> bool:
            return bool(PENDING_COUNT.labels(topic)._value.get() == 0)

        await eventually(is_seen)
    assert PROCESSED.labels(topic)._value.get() == before + 7


@pytest.fixture
def headrace(database: URL) -> Run:
    """Run the command's part for outboxes, in this process: a new one for each call would take seconds."""

    def run(*arguments: str) -> Result:
        env = {"COLUMNS": "160", "HEADRACE__OUTBOX__DATABASE": database.render_as_string(hide_password=False)}
        return CliRunner(env=env).invoke(outboxes.app, arguments)

    return run


def bury(engine: Engine, ids: list[int]) -> None:
    key = "`key`" if engine.dialect.name in ("mysql", "mariadb") else '"key"'
    columns = f"id, topic, message, {key}, partition_key, headers, event_id, bucket, event_time, created_at"
    with engine.begin() as db:
        for id_ in ids:
            db.execute(
                text(
                    f"INSERT INTO kafka_dead_messages ({columns}, error, attempts) "
                    f"SELECT {columns}, 'too large', 1 FROM kafka_messages WHERE id = :id"
                ),
                {"id": id_},
            )
            db.execute(text("DELETE FROM kafka_messages WHERE id = :id"), {"id": id_})


def test_the_command_shows_and_changes(engine: Engine, headrace: Run) -> None:
    """M2: status, dead list, dead replay and dead purge, for people and as JSON."""
    publish(engine, "orders", numbered(1, 5))
    ids = [row["id"] for row in rows(engine)]
    bury(engine, ids[:3])

    lane = json.loads(headrace("status", "--json").stdout)
    assert (lane["topic"], lane["pending"], lane["dead"]) == ("orders", 2, 3)
    assert "orders" in headrace("status").stdout
    listed = [json.loads(line) for line in headrace("dead", "list", "--json").stdout.splitlines()]
    assert [(each["id"], each["error"]) for each in listed] == [(id_, "too large") for id_ in ids[:3]]
    assert "too large" in headrace("dead", "list", "--topic", "orders").stdout
    refused = headrace("dead", "purge", "--yes")
    assert (refused.exit_code, "name some ids" in str(refused.exception)) == (1, True)
    assert json.loads(headrace("dead", "replay", str(ids[0]), "--json").stdout) == {"replayed": 1}
    assert json.loads(headrace("dead", "purge", str(ids[1]), "--yes", "--json").stdout) == {"purged": 1}
    assert "1 message will be sent again" in headrace("dead", "replay", "--all").stdout
    assert [row["id"] for row in rows(engine)] == [ids[0], *ids[2:]]
    assert count(engine, "kafka_dead_messages") == 0
    assert "no message is dead" in headrace("dead", "list").stdout
    assert json.loads(headrace("migrate", "--json").stdout) == {"version": NEWEST}


@pytest.mark.parametrize("change", [("replay",), ("purge", "--yes")], ids=" ".join)
def test_a_dead_message_that_is_not_there_is_an_error(engine: Engine, headrace: Run, change: tuple[str, ...]) -> None:
    """M2: an id that no dead message has is named, with exit code 1, and the others stay as they are."""
    publish(engine, "orders", numbered(1, 3))
    ids = [row["id"] for row in rows(engine)]
    bury(engine, ids[:2])
    absent = max(ids) + 999
    refused = headrace("dead", *change, str(ids[0]), str(absent))
    assert refused.exit_code == 1
    assert f"id is {absent}, but no dead message has it, and nothing was changed" in str(refused.exception)
    elsewhere = headrace("dead", *change, str(ids[0]), "--topic", "invoices")
    assert f"id is {ids[0]}, but no dead message of topic 'invoices' has it" in str(elsewhere.exception)
    assert count(engine, "kafka_dead_messages") == 2
    assert headrace("dead", *change, str(ids[0])).exit_code == 0


def test_the_command_says_what_is_wrong(tmp_path: Any) -> None:
    """M2, L20: no database, no tables, no threads: a message with what to do, no traceback."""
    url = f"sqlite:///{tmp_path / 'new.db'}"

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "outbox", *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "outbox.database" in run("status")
    assert f"run: headrace outbox migrate --database '{url}'" in run("status", "--database", url)
    assert not (tmp_path / "new.db").exists()
    assert "a relay needs at least 1" in run("relay", "--database", url, "--threads", "0")
    assert "cannot reach" in run("status", "--database", "postgresql://nobody@127.0.0.1:1/x")


async def test_a_relay_without_tables_says_what_to_run(
    database: URL, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L19: whoever forgot to migrate reads how to, and needs no restart afterwards."""
    migrate(database, to="base")
    log = await open_log(f"embedded:{tmp_path / 'log'}")
    await log.admin.create("t", partitions=1, config=TopicConfig())
    try:
        async with Relay(database, log) as relay:

            async def is_told() -> bool:
                return "headrace outbox migrate --database" in caplog.text

            await eventually(is_told)
            migrate(database)
            publish(engine, "t", numbered(1, 3))
            await relay.drain()
    finally:
        migrate(database)
        await log.close()


def test_status_tells_who_holds_what_and_why(engine: Engine) -> None:
    """M2: lease, age, retries and the last error of a lane."""
    publish(engine, "orders", numbered(1, 2))
    with engine.begin() as db:
        db.execute(
            text(
                "INSERT INTO kafka_topic_info (topic, bucket, locked_by, locked_at, epoch, error, retries, retry_at, "
                "last_error) VALUES ('orders', 0, 'me', :t, 4, TRUE, 2, :later, 'away')"
            ),
            {"t": int(time.time() * 1000) - 5000, "later": int(time.time() * 1000) + 60_000},
        )
    with engine.connect() as db:
        (lane,) = status(db)
    assert (lane.locked_by, lane.epoch, lane.error, lane.retries, lane.last_error) == ("me", 4, True, 2, "away")
    assert lane.locked_for_s is not None
    assert 4 < lane.locked_for_s < 60
    assert lane.retry_in_s is not None
    assert 30 < lane.retry_in_s <= 60


async def test_log_topics_shows_messages_decoded(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """M3: of the named topics alone; what can't be decoded is shown as bytes and never hides the first error."""
    topic, other = await ground.topic(), await ground.topic()
    with ground.engine.begin() as db:
        for name in (topic, other):
            producer = Outbox().producer(name, serializer=JsonSerializer())
            producer.publish(db, {"order": 7}, key="k")
        Outbox().producer(topic).publish(db, b"\xff no JSON")
    log = WatchedLog(ground.log)
    log.failures = [Unreachable("broker", "the first error")]
    settings = OutboxSettings(log_topics=[topic])
    with caplog.at_level(logging.INFO):
        async with Relay(ground.url, log, settings=settings, decoder=JsonDecoder()) as relay:
            await relay.drain()

    lines = [record.getMessage() for record in caplog.records if "outbox message" in record.getMessage()]
    assert lines
    assert all(f"topic='{topic}'" in line for line in lines)
    assert any("message={'order': 7}" in line for line in lines)
    assert any("decode_error='DecodeError" in line for line in lines)
    held = [record.getMessage() for record in caplog.records if "sending failed" in record.getMessage()]
    assert all("the first error" in line for line in held)
    assert len(held) == 1


def test_published_messages_can_be_asserted(engine: Engine) -> None:
    """M4: sent, sent including, not sent; a failure shows the closest message; nothing is stored meanwhile."""
    orders = Outbox().producer("orders", serializer=JsonSerializer())
    with Session(engine) as session, published() as sent:
        orders.publish(session, {"id": 1, "customer": {"name": "Ada", "city": "Rome"}}, key="order-1")
        orders.publish(session, {"id": 2, "customer": {"name": "Bob", "city": "Oslo"}}, key="order-2")
        session.commit()

    sent.assert_sent("orders", {"id": 1, "customer": {"name": "Ada", "city": "Rome"}}, key="order-1")
    sent.assert_sent_including("orders", {"customer": {"city": "Oslo"}}, key="order-2")
    sent.assert_not_sent("orders", {"id": 3})
    sent.assert_not_sent("bills")
    with pytest.raises(AssertionError, match=r"closest of 2 there .*'id': 2, .*under key 'order-2'"):
        sent.assert_sent("orders", {"id": 2, "customer": {"name": "Bob", "city": "Paris"}}, key="order-2")
    with pytest.raises(AssertionError, match="no message including"):
        sent.assert_sent_including("orders", {"customer": {"city": "Paris"}})
    with pytest.raises(AssertionError, match="should not"):
        sent.assert_not_sent("orders")
    with published() as nothing, pytest.raises(AssertionError, match="nothing was published at all"):
        nothing.assert_sent("orders", b"x")
    assert count(engine) == 0
    assert [encoded.key for encoded in sent.encoded] == [b"order-1", b"order-2"]
