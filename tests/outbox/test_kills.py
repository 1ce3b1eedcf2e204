"""Relays that are killed with -9, over and over, while others write."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import text
from tests.outbox import children
from tests.outbox.setting import Ground, first_times, sequences, shown

from headrace.model import Record
from headrace.outbox import event_id_of
from headrace.testing import running_function
from headrace.testing.plugin import Size

NAMES = ["a", "b", "c", "d", "e"]
pytestmark = pytest.mark.timeout(1800)


def make_counters(ground: Ground) -> None:
    with ground.engine.begin() as db:
        db.execute(text(children.COUNTERS))
        db.execute(text("DELETE FROM test_counters"))
        for name in NAMES:
            db.execute(text("INSERT INTO test_counters (name, n) VALUES (:name, 0)"), {"name": name})


def counters(ground: Ground) -> dict[bytes, int]:
    with ground.engine.connect() as db:
        return {name.encode(): n for name, n in db.execute(text("SELECT name, n FROM test_counters"))}


async def die_while_writing(ground: Ground, rounds: int, settings: dict[str, Any]) -> list[Record]:
    """Let two writers share keys while relays are killed over and over; returns what reached the log."""
    topic = await ground.topic(partitions=2)
    make_counters(ground)
    dying = ("tests.outbox.children:die_while_writing", shown(ground), ground.address, topic, NAMES, rounds, settings)
    with running_function(*dying) as child:
        for nr in range(rounds):
            await asyncio.to_thread(child.wait_for_line, f"round {nr} ", 120)
        await asyncio.to_thread(child.wait_for_line, "written", 60)
    # What the dying left behind grows with the rounds; in small batches it would take minutes.
    async with ground.relay(**{**settings, "batch_size": 1000}) as relay:
        await relay.drain(300)
    return await ground.records(topic)


KILLED = {"batch_size": 5, "lease_s": 0.5, "poll_interval_s": 0.1, "max_retry_s": 0.2, "threads": 2}


async def test_kill_9_in_a_loop_loses_and_reorders_nothing(ground: Ground, size: Size) -> None:
    """L16: same keys, two writers, two relays that die: per key the de-duplicated sequence is 1, 2, 3 … without end."""
    records = await die_while_writing(ground, size(10, 100), KILLED)

    assert len(records) > len(first_times(records)), "no kill fell between a send and its delete"
    assert sequences(first_times(records)) == {name: list(range(1, n + 1)) for name, n in counters(ground).items()}
    assert min(counters(ground).values()) > 0


async def test_exactly_once_shows_no_duplicate_after_kills(ground: Ground, size: Size) -> None:
    """L22: a reader of committed records sees every message once, in order, however often relays are killed."""
    settings = {**KILLED, "delivery": "exactly_once", "source": f"s{time.time_ns()}"}
    records = await die_while_writing(ground, size(10, 100), settings)

    assert sequences(records) == {name: list(range(1, n + 1)) for name, n in counters(ground).items()}
    assert len({event_id_of(record.headers) for record in records}) == len(records)
