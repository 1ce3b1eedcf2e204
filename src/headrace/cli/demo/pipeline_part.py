"""The pipeline at work: replication with its progress, the same reads with the same answers, SQL over the journal."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headrace.app import connect
from headrace.cli.demo.voice import console, say, tell
from headrace.config import PipelineSettings
from headrace.pipeline import Endpoints, LineDisplay, Replication, Selection, close_all, journal_frame, spark_session
from headrace.services import Terminal

__all__ = ["show_pipeline"]

_NAMES = ("alice", "bob", "carol")
_QUERY = """SELECT key, count(*) AS events, max(seq_nr) AS last, sum(coalesce(
    get_json_object(payload_text, '$.opened'), get_json_object(payload_text, '$.deposited'), 0)) AS paid_in
    FROM journal GROUP BY key ORDER BY key"""


def show_pipeline(address: str, store: str | None, suffix: str) -> None:
    """Replicate the accounts by Spark, and ask about them."""
    topic, endpoints = f"accounts{suffix}", Endpoints.of(address, store=store)
    before = asyncio.run(_answers(address, store, topic))
    say("Spark replicates the journals into the store")
    started = time.perf_counter()
    spark = spark_session(PipelineSettings(master="local[2]"), watcher=Terminal(console), is_brief=True)
    tell(f"Spark is up after {time.perf_counter() - started:.1f} s")
    try:
        summary = Replication(spark, endpoints, Selection((topic,)), watcher=LineDisplay(console)).run(once=True)
        tell(f"{summary.records} records became {summary.rows} rows, and what was deleted is gone")
        after = asyncio.run(_answers(address, store, topic))
        tell("the same reads answer the same" if after == before else f"the answers differ: {before} and {after}")
        _ask(spark, endpoints, topic)
    finally:
        close_all()
        spark.stop()


async def _answers(address: str, store: str | None, topic: str) -> dict[str, Any]:
    async with connect(address, store=store) as hr:
        accounts = hr.journal(topic, read_only=True)
        return {name: [event async for event in accounts.read(name)] for name in _NAMES}


def _ask(spark: Any, endpoints: Endpoints, topic: str) -> None:  # noqa: ANN401
    say("And all of it is one SQL query away")
    journal_frame(spark, endpoints, Selection((topic,))).createOrReplaceTempView("journal")
    found = spark.sql(_QUERY)
    tell(" ".join(f"{name:>8}" for name in found.columns))
    for row in found.collect():
        tell(" ".join(f"{str(value).removesuffix('.0'):>8}" for value in row))
