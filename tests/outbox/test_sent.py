"""Messages that are kept after they were sent, for those who must be able to show what was told."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import text
from tests.outbox.setting import Ground, count, numbered, publish, rows
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.model import TopicConfig
from headrace.outbox import Message, event_id_of, forget_sent, sent_messages
from headrace.testing.conformance.log_setting import eventually


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_sent_messages_are_kept_with_their_delete(ground: Ground, delivery: str) -> None:
    """M2: whole, once, of the chosen topics; neither what is dead nor what a later message of its key stands for."""
    kept, other = await ground.topic(config=TopicConfig(max_record_bytes=2000)), await ground.topic()
    messages = [*numbered(1, 3, keys=2), Message(b"x" * 5000, "k"), Message(None, "t", headers={"a": "1"})]
    publish(ground.engine, kept, messages)
    publish(ground.engine, other, numbered(4, 5))
    stored = {row["id"]: row for row in rows(ground.engine)}

    await ground.relayed(keep_sent_topics=[kept], compact_topics=[kept], delivery=delivery, source=kept)

    with ground.engine.connect() as db:
        found = sent_messages(db)
        assert sent_messages(db, topic=other) == []
        assert [each.event_id for each in sent_messages(db, event_id=found[0].event_id)] == [found[0].event_id]
    assert [each.message for each in reversed(found)] == [b"2", b"3", None]
    assert {each.event_id for each in found} == {event_id_of(record.headers) for record in await ground.records(kept)}
    for each in found:
        row = stored[each.id]
        assert (each.topic, each.key, each.headers) == (row["topic"], row["key"], row["headers"])
        assert each.created_at == row["created_at"] <= each.sent_at


async def test_kept_messages_are_forgotten_in_their_time(ground: Ground) -> None:
    """M2: by the database's clock; a relay does it by itself."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 4))
    await ground.relayed(keep_sent_topics=["*"])
    with ground.engine.begin() as db:
        assert forget_sent(db, older_than_s=3600) == 0
        ids = sorted(each.id for each in sent_messages(db))
        db.execute(text("UPDATE kafka_sent_messages SET sent_at = 1 WHERE id = :id"), {"id": ids[0]})
        assert forget_sent(db, older_than_s=3600) == 1
        db.execute(text("UPDATE kafka_sent_messages SET sent_at = 1"))
    async with ground.relay(keep_sent_topics=["*"]):
        await eventually(lambda: _is_gone(ground))


async def _is_gone(ground: Ground) -> bool:
    return count(ground.engine, "kafka_sent_messages") == 0


@pytest.mark.parametrize("ground", ["sqlite-embedded"], indirect=True)
async def test_the_command_lists_sent_messages(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: for people and as JSON."""
    topic = await ground.topic()
    monkeypatch.setenv("HEADRACE__OUTBOX__DATABASE", str(ground.url))
    empty = await command()
    publish(ground.engine, topic, numbered(1, 2))
    await ground.relayed(keep_sent_topics=["*"])

    assert "keep_sent_topics" in empty
    assert [json.loads(line)["topic"] for line in (await command("--topic", topic, "--json")).splitlines()] == [
        topic,
        topic,
    ]
    assert "k1" in await command()


async def command(*arguments: str) -> str:
    """Run the command where it may have an event loop of its own."""
    runner = CliRunner(env={"COLUMNS": "160"})
    return (await asyncio.to_thread(runner.invoke, app, ["outbox", "sent", *arguments])).stdout
