"""Frames in a session that the user made: a notebook, a shell, a job of somebody else's."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.tier import Tier, append_all
from tests.secured.job import QUICK_JAVA

from headrace.errors import BadArgument
from headrace.model import NewRecord, TopicConfig
from headrace.pipeline import (
    Endpoints,
    Replication,
    Selection,
    import_journals,
    journal_frame,
    query,
    state_frame,
)
from headrace.pipeline.jobs.partition_jobs import PurgeExpiredJob, job_frame
from headrace.pipeline.spark.session import compiled_home, provide_kafka, refuse_speculation
from headrace.state import OrderedKeys, StateSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"

# A program of a user's: nothing is set but what a company's template might set, a time zone.
PROGRAM = """
    import asyncio, os, sys
    from concurrent.futures import ThreadPoolExecutor
    from datetime import UTC, datetime, timedelta
    from pyspark.sql import SparkSession
    import headrace
    from headrace import Event
    from headrace.errors import BadArgument
    from headrace.model import TopicConfig
    from headrace.pipeline import Endpoints, Replication, Selection, append_frame, audit, compact
    from headrace.pipeline import query, state_as_of, topic_frame
    from headrace.serde import BlockingRegistry

    async def fill(folder):
        async with headrace.connect(folder) as hr:
            for key in ("acc-1", "acc-2"):
                await hr.journal("accounts").append(key, [Event(n, {"n": n}) for n in (1, 2, 3)])
            await hr.log.admin.create("prices", partitions=1, config=TopicConfig())

    def look(spark):
        soon = datetime.now(UTC) + timedelta(minutes=10)
        since = f"timestamp > timestamp '{(soon - timedelta(minutes=30)).isoformat()}'"
        counts = f"(select sum(seq_nr) from journal where key > 'acc-1' and {since}), (select count(*) from meta)"
        statement = f"select {counts}, (select sum(lag) from pointers)"
        assert tuple(query(spark, endpoints, statement, selection).first())[:2] == (6, 0)
        states = state_as_of(spark, endpoints, selection, lambda state, event: state + event.payload["n"], 0, at=soon)
        assert sorted((row.key, row.state) for row in states.collect()) == [("acc-1", "6"), ("acc-2", "6")]
        try:
            query(spark, endpoints, "select * from nowhere", selection)
            raise AssertionError("there is no such table")
        except BadArgument as error:
            assert "there is no table `nowhere`; there are journal, meta, pointers" in str(error), error

    def write(spark):
        with BlockingRegistry("log:headrace-schemas", log_address=folder) as registry:
            rows = [("x", ("old", 1)), ("y", ("one", 2)), ("x", ("new", 3))]
            frame = spark.createDataFrame(rows, "key string, value struct<name:string,n:bigint>")
            assert append_frame(frame.coalesce(1), endpoints, "prices", registry=registry).records == 3
            newest = compact(topic_frame(spark, endpoints, "prices", registry=registry))
            assert sorted(row.value.name for row in newest.collect()) == ["new", "one"]

    def read(spark):
        with BlockingRegistry("log:headrace-schemas", log_address=folder) as registry:
            found = query(spark, endpoints, "select sum(value.n) from topic_prices", registry=registry)
            assert found.first()[0] == 6

    def work(spark):
        if server:
            try:
                Replication(spark, endpoints)
                raise AssertionError("it would not find its files")
            except BadArgument as error:
                assert "run `headrace pipeline replicate` instead" in str(error)
            assert audit(spark, endpoints, selection).is_clean
        else:
            assert Replication(spark, endpoints, selection).run(once=True).rows == 6

    server, cell = os.environ.get("SPARK_REMOTE"), sys.stdin.read()
    folder, selection = "embedded:./data", Selection(("accounts",))
    asyncio.run(fill(folder))
    endpoints = Endpoints.of(folder)
    if server:
        spark = SparkSession.builder.getOrCreate()
        assert query(spark, endpoints, "select 1", selection).first()[0] == 1  # the first call of the session
    else:
        session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = session.config("spark.sql.session.timeZone", "Asia/Tokyo").config("spark.driver.host", "127.0.0.1")
        spark = spark.getOrCreate()
    exec(cell)
    look(spark)
    with ThreadPoolExecutor(1) as others:
        others.submit(write, spark).result()
    read(spark if server else spark.newSession())
    work(spark)
    spark.stop()
    print("all is well")
"""


def run_program(folder: Path, **environ: str) -> None:
    """Run the program in a folder of its own, as a notebook's kernel runs: the PATH has another environment."""
    cell = re.search(r"\n\n((?:    .*\n|\n)+)", PAGE.read_text())
    assert cell is not None
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    ours = str(Path(sys.executable).parent)
    plain = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    path = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if each != ours)
    with compiled_home():
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=folder,
            input=textwrap.dedent(cell[1]),
            env={**plain, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_JAVA, **environ},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("acc-1") == 3  # the events that the page shows
    assert done.stdout.endswith("all is well\n")


@pytest.mark.spark
def test_everything_works_in_a_session_of_the_users_own(tmp_path: Path) -> None:
    """FP1: frames, SQL, typed columns, appends, states and jobs work in a plain session, in a new one beside it and in
    another thread. The first lines of the page about Spark show the events of a journal."""
    run_program(tmp_path)


@pytest.fixture
def server(spark: SparkSession) -> Iterator[str]:
    """Serve the session's Spark to clients of Spark Connect."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf = spark._jvm.org.apache.spark.SparkEnv.get().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1").set("spark.connect.grpc.binding.port", str(port))
    service = spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(spark._jsc.sc())
    yield f"sc://127.0.0.1:{port}"
    service.stop(*(getattr(service, f"stop$default${number}")() for number in (1, 2)))


def test_everything_but_replication_works_over_spark_connect(server: str, tmp_path: Path) -> None:
    """FP1: a client without a JVM does the same; replication says in a sentence that it can't, and what to run."""
    run_program(tmp_path, SPARK_REMOTE=server)


@pytest.mark.spark
def test_a_server_of_spark_connect_without_our_jars_is_sent_them(tmp_path: Path) -> None:
    """FP1: the server that pyspark starts has no connector for Kafka or Avro; the client sends them."""
    run_program(tmp_path, SPARK_REMOTE="local[1]", PYSPARK_PYTHON=sys.executable)


def test_a_new_session_knows_the_sources(tier: Tier, topic: str) -> None:
    """FP1: sources are registered in each session, not once for the application."""
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 2))
    for spark in (tier.spark, tier.spark.newSession(), tier.spark):
        assert journal_frame(spark, tier.endpoints, Selection((topic,))).where("seq_nr = 1").count() == 2


def test_times_have_a_zone_in_a_session_whose_timestamps_have_none(tier: Tier, topic: str) -> None:
    """FP1: `spark.sql.timestampType` decides what the word `timestamp` means. Every table failed where it is
    TIMESTAMP_NTZ, and an import of times too."""
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 2))
    tier.apply(topic)
    spark = tier.spark.newSession()
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    about = "abs(timestampdiff(second, max(timestamp), current_timestamp())) < 600"
    counts = f"(select {about} from journal), (select count(updated) from meta), (select sum(lag) from pointers)"
    assert tuple(query(spark, tier.endpoints, f"select {counts}", Selection((topic,))).first() or ()) == (True, 2, 0)
    time = "timestamp '2023-11-14 17:13:20.123'"
    rows = spark.sql(f"select 'k9' as id, 1 as seq_nr, 'x' as payload, {time} as timestamp")
    assert import_journals(rows, tier.endpoints, topic).imported == 1
    found = journal_frame(spark, tier.endpoints, Selection((topic,))).where("key = 'k9'")
    assert [tuple(row) for row in found.selectExpr("unix_millis(timestamp)").collect()] == [(1700000000123,)]
    days = StateSpec(name="days", topic=f"{topic}-days", key=datetime, value=str)
    tier.on(lambda log, _: log.admin.create(days.topic, partitions=1, config=TopicConfig()))
    key = OrderedKeys(datetime).encode(datetime(2026, 3, 8, 7, 30, tzinfo=UTC))
    tier.on(lambda log, _: log.append([NewRecord(days.topic, key, b"dst")]))
    keys = state_frame(spark, tier.endpoints, days).selectExpr("unix_seconds(key)")
    assert [tuple(row) for row in keys.collect()] == [(1772955000,)]


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


def test_a_session_with_speculation_is_refused_by_what_writes(spark: SparkSession, tmp_path: Path) -> None:
    """FP1: two attempts of a task would write at once; a session can't change that once it runs, so jobs say it."""
    chosen = SimpleNamespace(get=lambda name, _: "true" if name == "spark.speculation" else None)
    risky: Any = SimpleNamespace(conf=chosen)
    endpoints = Endpoints.of(f"embedded:{tmp_path}")
    with pytest.raises(BadArgument, match="replication needs a session without it"):
        Replication(risky, endpoints)
    with pytest.raises(BadArgument, match="needs a session without it"):
        job_frame(risky, PurgeExpiredJob, endpoints, [], {})
    refuse_speculation(spark, "a test")


def test_secrets_of_kafka_are_hidden_in_any_session(spark: SparkSession) -> None:
    """FP1: a plain session hides too few options of a source; what it hides already stays hidden."""
    name = "spark.sql.redaction.options.regex"
    plain = spark.newSession()
    plain.conf.set(name, "(?i)url")
    provide_kafka(plain)
    once = plain.conf.get(name)
    provide_kafka(plain)
    assert plain.conf.get(name) == once
    hidden = plain._jvm.java.util.regex.Pattern.compile(once)
    found = [hidden.matcher(option).find() for option in ("kafka.sasl.jaas.config", "URL", "subscribe")]
    assert found == [True, True, False]
