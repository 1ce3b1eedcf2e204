"""The shipped command from secured Kafka to secured Cassandra in one process: it gets in, its secrets don't get out."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from tests.secured.cluster_run import events_of, spark_properties
from tests.secured.job import append_events, expected, replicate_command, run_job, stored
from tests.secured.servers import Secured

pytestmark = [pytest.mark.full, pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(600)]


def test_variables_reach_local_workers_and_are_not_seen(secured: Secured, topic: str, tmp_path: Path) -> None:
    """K2: credentials in environment variables, local[2], the debug log on: no secret in any output, file or ps."""
    append_events(secured, topic, keys=6, events=3)
    secret, job = secrets.token_hex(12), tmp_path / "job"
    environ = {
        "HEADRACE__LOG__ADDRESS": secured.log,
        "HEADRACE__LOG__KAFKA__CLIENT": json.dumps(secured.kafka_client()),
        "HEADRACE__STORE__ADDRESS": secured.store(),
        "HEADRACE__STORE__CASSANDRA": json.dumps(secured.cassandra_login()),
        "HEADRACE__PIPELINE__MASTER": "local[2]",
        "HEADRACE__PIPELINE__DRIVER_MEMORY": "512m",
        "HEADRACE__PIPELINE__UI": "true",
        "HEADRACE__PIPELINE__SPARK": json.dumps(spark_properties(job, secret)),
    }
    done = run_job(replicate_command(topic, "--verbose"), job, environ)
    assert done.code == 0, done.err
    assert "replicated 18 records, 18 rows" in done.out
    assert stored(secured, topic) == expected(secured, topic)
    assert len(done.commands) > 2
    assert done.leaks((*secured.tokens, secret)) == []
    shown = events_of(job)
    assert '"spark.headrace.test.password":"*********(redacted)"' in shown
    assert "SparkListenerSQLExecutionStart" in shown, "the plans are not in it"
