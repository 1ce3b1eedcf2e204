"""The shipped command from secured Kafka to secured Cassandra: it gets in, and its secrets don't get out."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from tests.secured.job import WORK, Done, all_of, append_events, replicate_command, run_job, stored_numbers
from tests.secured.servers import Secured
from tests.secured.watching import holding

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(600)]

SPARK = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.ui.enabled": "true"}


def spark_properties(folder: Path, secret: str) -> dict[str, str]:
    """Return properties that make Spark write down all it would show, and a secret one."""
    events = folder / "events"
    events.mkdir(parents=True)
    return {**SPARK, "spark.eventLog.dir": events.as_uri(), "spark.headrace.test.password": secret}


def events_of(folder: Path) -> str:
    """Return what Spark's web page and its history would show."""
    return "".join(path.read_text() for path in sorted((folder / "events").rglob("*")) if path.is_file())


def check(done: Done, secured: Secured, topic: str, *, tokens: tuple[str, ...]) -> None:
    """Everything arrived, and no secret is to be seen."""
    assert done.code == 0, done.err
    assert stored_numbers(secured, topic) == all_of(6, 3)
    assert len(done.commands) > 2
    assert done.leaks(tokens) == []


@pytest.mark.full
def test_variables_reach_local_workers_and_are_not_seen(secured: Secured, topic: str, tmp_path: Path) -> None:
    """K2: credentials in environment variables, local[2], the debug log on: no secret in any output, file or ps."""
    append_events(secured, topic, keys=6, events=3)
    secret = secrets.token_hex(12)
    environ = {
        "HEADRACE__LOG__ADDRESS": secured.log,
        "HEADRACE__LOG__KAFKA__CLIENT": json.dumps(secured.kafka_client()),
        "HEADRACE__STORE__ADDRESS": secured.store(),
        "HEADRACE__STORE__CASSANDRA": json.dumps(secured.cassandra_login()),
        "HEADRACE__PIPELINE__MASTER": "local[2]",
        "HEADRACE__PIPELINE__DRIVER_MEMORY": "512m",
        "HEADRACE__PIPELINE__SPARK": json.dumps(spark_properties(tmp_path / "job", secret)),
    }
    done = run_job(replicate_command(topic, "--verbose"), tmp_path / "job", environ)
    check(done, secured, topic, tokens=(*secured.tokens, secret))
    shown = events_of(tmp_path / "job")
    assert '"spark.headrace.test.password":"*********(redacted)"' in shown
    assert "SparkListenerSQLExecutionStart" in shown, "the plans are not in it"


def test_a_file_reaches_the_workers_of_a_cluster_and_is_not_seen(secured: Secured, topic: str, tmp_path: Path) -> None:
    """K2: credentials in a file, local-cluster[2,1,1024]: executors are processes of their own and get in too."""
    append_events(secured, topic, keys=6, events=3)
    secret = secrets.token_hex(12)
    config = tmp_path / "headrace.toml"
    config.touch(mode=0o600)
    config.write_text(toml_of(secured, spark_properties(tmp_path / "job", secret)))
    done = run_job(replicate_command(topic), tmp_path / "job", {"HEADRACE_CONFIG": str(config)})
    check(done, secured, topic, tokens=(*secured.tokens, secret))
    assert [folder for folder in done.folders if folder.parent == WORK], "no executor left a trace of itself"
    assert "executor-" in events_of(tmp_path / "job") or '"Executor ID":"1"' in events_of(tmp_path / "job")
    # The search itself finds what is there.
    assert len(holding([tmp_path], (secret,))) == 1


def toml_of(secured: Secured, spark: dict[str, str]) -> str:
    """Write the settings down."""
    tables = {
        "log": {"address": secured.log},
        "log.kafka.client": secured.kafka_client(),
        "store": {"address": secured.store()},
        "store.cassandra": secured.cassandra_login(),
        "pipeline": {"master": "local-cluster[2,1,1024]", "driver_memory": "512m"},
        "pipeline.spark": spark,
    }
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)
