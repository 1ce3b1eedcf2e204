"""Frames in a session that the user made: a notebook, a shell, a job of somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.pipeline.tier import Tier, append_all
from tests.secured.job import QUICK_JAVA

from headrace.pipeline import Selection, journal_frame, query

pytestmark = pytest.mark.timeout(300)

# A program of a user's: nothing is set but what a company's template might set, a time zone.
PROGRAM = """
    import asyncio, sys
    from datetime import UTC, datetime, timedelta
    from pyspark.sql import SparkSession
    import headrace
    from headrace import Event
    from headrace.pipeline import Endpoints, Selection, compact, journal_frame, meta_frame, pointer_frame, query
    from headrace.pipeline import state_as_of, topic_frame

    async def fill(folder):
        async with headrace.connect(folder) as hr:
            for key in ("a", "b"):
                await hr.journal("plain").append(key, [Event(n, {"n": n}) for n in (1, 2, 3)])

    def look(spark, endpoints):
        selection = Selection(("plain",))
        events = journal_frame(spark, endpoints, selection)
        assert events.where("key = 'a'").count() == 3
        soon = datetime.now(UTC) + timedelta(minutes=10)
        assert events.where(events.timestamp < soon).count() == 6
        assert events.where(events.timestamp > soon - timedelta(minutes=30)).count() == 6
        assert meta_frame(spark, endpoints, selection).count() == 0
        assert pointer_frame(spark, endpoints, selection).where("lag > 0").count() > 0
        assert query(spark, endpoints, "select sum(seq_nr) from journal where key = 'b'", selection).first()[0] == 6
        assert compact(topic_frame(spark, endpoints, "plain")).count() == 2
        states = state_as_of(spark, endpoints, selection, lambda state, event: state + event.payload["n"], 0)
        assert sorted((row.key, row.state) for row in states.collect()) == [("a", "6"), ("b", "6")]

    folder = "embedded:" + sys.argv[1]
    asyncio.run(fill(folder))
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.session.timeZone", "Asia/Tokyo").config("spark.driver.host", "127.0.0.1")
    spark = spark.getOrCreate()
    look(spark, Endpoints.of(folder))
    beside = journal_frame(spark.newSession(), Endpoints.of(folder), Selection(("plain",)))
    assert beside.where("key = 'a'").count() == 3
    print("seen")
"""


@pytest.mark.spark
def test_frames_work_in_a_session_of_the_users_own(tmp_path: Path) -> None:
    """FP1: journals, heads, offsets, topics, states and SQL work in a plain session and in a new one beside it."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    activated = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["python3", str(program), str(tmp_path / "data")],
        env={**os.environ, "PATH": activated, "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_JAVA},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["seen"]


def test_a_new_session_knows_the_sources(tier: Tier, topic: str) -> None:
    """FP1: sources are registered in each session, not once for the application."""
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 2))
    for spark in (tier.spark, tier.spark.newSession(), tier.spark):
        assert journal_frame(spark, tier.endpoints, Selection((topic,))).where("seq_nr = 1").count() == 2


def test_a_query_leaves_the_callers_views_alone(tier: Tier, topic: str) -> None:
    """FP1: a statement sees our tables and the caller's own views; the caller's views are afterwards as before."""
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 2))
    tier.spark.range(7).createOrReplaceTempView("journal")
    tier.spark.createDataFrame([("k1", "gold")], "key string, rank string").createOrReplaceTempView("ranks")
    try:
        statement = "select rank, count(*) from journal join ranks using (key) group by rank"
        rows = query(tier.spark, tier.endpoints, statement, Selection((topic,))).collect()
        assert [tuple(row) for row in rows] == [("gold", 2)]
        assert tier.spark.table("journal").count() == 7
        assert not tier.spark.catalog.tableExists("meta")
    finally:
        tier.spark.catalog.dropTempView("journal")
        tier.spark.catalog.dropTempView("ranks")
