"""The shipped command from secured Kafka to secured Cassandra in one process: it gets in, its secrets don't get out."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from tests.secured.cluster_run import events_of, spark_properties
from tests.secured.deaths import is_gone
from tests.secured.job import append_events, expected, replicate_command, run_job, stored
from tests.secured.servers import Secured

from headrace.services.layouts import free_port

pytestmark = [pytest.mark.full, pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(600)]

# What Spark's web page is made of, and what it asks for when it is shown.
PAGES = (
    "environment/",
    "executors/",
    "SQL/",
    "StreamingQuery/",
    "api/v1/applications/{id}/environment",
    "api/v1/applications/{id}/sql",
)


def test_variables_reach_local_workers_and_are_not_seen(secured: Secured, topic: str, tmp_path: Path) -> None:
    """K2: credentials in environment variables, local[2], the debug log on: no secret in any output, file or ps."""
    append_events(secured, topic, keys=6, events=3)
    secret, job, port = secrets.token_hex(12), tmp_path / "job", free_port(["127.0.0.1"], taken=set())
    environ = {
        "HEADRACE__LOG__ADDRESS": secured.log,
        "HEADRACE__LOG__KAFKA__CLIENT": json.dumps(secured.kafka_client()),
        "HEADRACE__STORE__ADDRESS": secured.store(),
        "HEADRACE__STORE__CASSANDRA": json.dumps(secured.cassandra_login()),
        "HEADRACE__PIPELINE__MASTER": "local[2]",
        "HEADRACE__PIPELINE__DRIVER_MEMORY": "512m",
        "HEADRACE__PIPELINE__UI": "true",
        "HEADRACE__PIPELINE__SPARK": json.dumps({**spark_properties(job, secret), "spark.ui.port": str(port)}),
    }
    pages: dict[str, str] = {}
    done = run_job(
        replicate_command(topic, "--verbose"), job, environ, meanwhile=lambda run: look_at(port, pages, while_runs=run)
    )
    assert done.code == 0, done.err
    assert "replicated 18 records, 18 rows" in done.out
    assert stored(secured, topic) == expected(secured, topic)
    assert len(done.commands) > 2
    assert done.leaks((*secured.tokens, secret)) == []
    assert sorted(pages) == sorted(PAGES), "nobody saw the web page"
    assert [name for name, page in pages.items() for token in (*secured.tokens, secret) if token in page] == []
    assert "spark.headrace.test.password" in pages[PAGES[-2]]
    assert "planDescription" in pages[PAGES[-1]]
    shown = events_of(job)
    assert '"spark.headrace.test.password":"*********(redacted)"' in shown
    assert "SparkListenerSQLExecutionStart" in shown, "the plans are not in it"


def look_at(port: int, pages: dict[str, str], *, while_runs: psutil.Process) -> None:
    """Keep the last of each page that Spark serves while a job runs."""
    while not is_gone(while_runs):
        # They are not there yet, or no more.
        with contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
            for application in json.loads(page_of(port, "api/v1/applications")):
                pages.update({name: page_of(port, name.format(id=application["id"])) for name in PAGES})
        time.sleep(0.2)


def page_of(port: int, name: str) -> str:
    """Return what Spark serves under a name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}") as answer:
        text: str = answer.read().decode()
        return text
