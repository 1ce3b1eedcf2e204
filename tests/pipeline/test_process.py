"""The command as a process: signals, kills, a cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.pipeline.tier import Tier, append_all

from headrace.services import RunningService

pytestmark = pytest.mark.timeout(400)


def start(tier: Tier, topic: str, *options: str, **environ: str) -> subprocess.Popen[str]:
    """Start `headrace pipeline replicate` on the tier."""
    command = [sys.executable, "-m", "headrace.cli", "pipeline", "replicate", "--topics", topic, *options]
    where = ["--log", tier.endpoints.log, "--store", tier.endpoints.store]
    settings = {"HEADRACE__PIPELINE__MASTER": "local[2]", "HEADRACE__PIPELINE__DRIVER_MEMORY": "512m", **environ}
    brief = {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}  # wins over our own, which are for jobs that run for long
    return subprocess.Popen(
        [*command, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **brief, **settings},
    )


def until(condition: Any, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def metrics(port: int) -> str:
    """Return what the job serves for Prometheus; nothing if it does not serve yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_sigterm_ends_it_cleanly(tier: Tier, topic: str) -> None:
    """K11, K10: SIGTERM: the micro-batch ends, exit 0, and what was done is said; until then metrics are served."""
    tier.with_journal(topic, lambda journal: append_all(journal, 10, 2))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = start(tier, topic, HEADRACE__OBSERVE__METRICS_PORT=str(port))
    until(
        lambda: f'headrace_pipeline_rows_total{{topic="{topic}"}} 20.0' in metrics(port) or running.poll() is not None
    )
    assert "headrace_pipeline_running_queries 1.0" in metrics(port)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=90)
    assert running.returncode == 0, err
    assert "replicated 20 records, 20 rows" in out
    assert "batch 0: 20 records" in err
    assert "Traceback" not in err
    assert tier.dump(topic) == tier.expected(topic)


def test_a_killed_driver_leaves_nothing_wrong(tier: Tier, topic: str) -> None:
    """K12, E5: the whole job killed by SIGKILL in the middle; another one goes on from the store, nothing twice."""
    tier.with_journal(topic, lambda journal: append_all(journal, 20, 10))
    running = start(tier, topic, HEADRACE__PIPELINE__MAX_RECORDS="16")
    until(lambda: len(tier.dump(topic)[0]) >= 5 or running.poll() is not None)
    running.kill()
    running.communicate()
    tier.replicate(topic)
    assert tier.dump(topic) == tier.expected(topic)


def test_a_killed_jvm_is_told(tier: Tier, topic: str) -> None:
    """FP5, E5: the JVM of the driver is killed: the job ends with one line that says what to do, and loses nothing."""
    tier.with_journal(topic, lambda journal: append_all(journal, 20, 10))
    running = start(tier, topic, HEADRACE__PIPELINE__MAX_RECORDS="16")
    until(lambda: len(tier.dump(topic)[0]) >= 5 or running.poll() is not None)
    (jvm,) = (each for each in psutil.Process(running.pid).children() if each.name() == "java")
    jvm.kill()
    _, err = running.communicate(timeout=120)
    assert running.returncode == 1
    assert f"error: worker 'replication of {topic}' failed: Spark's JVM is gone: it was killed" in err
    assert "Traceback" not in err
    tier.replicate(topic)
    assert tier.dump(topic) == tier.expected(topic)


@pytest.mark.servers
def test_a_cluster_does_the_same(
    kafka: RunningService, cassandra: RunningService, tmp_path: Path, topic: str, request: pytest.FixtureRequest
) -> None:
    """K2: on local-cluster[2,1,1024], whose executors are processes of their own, the same command does the same."""
    from headrace.pipeline import Endpoints

    endpoints = Endpoints.of(f"kafka://{kafka.address}", store=f"cassandra://{cassandra.address}/pipeline_tests")
    tier = Tier(request.getfixturevalue("spark"), endpoints, tmp_path / "none")
    tier.with_journal(topic, lambda journal: append_all(journal, 10, 3))
    running = start(tier, topic, "--once", "--json", HEADRACE__PIPELINE__MASTER="local-cluster[2,1,1024]")
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    assert json.loads(out)["rows"] == 30
    assert tier.dump(topic) == tier.expected(topic)


@pytest.mark.servers
def test_a_store_that_is_away_is_waited_for(
    kafka: RunningService, cassandra: RunningService, tmp_path: Path, topic: str, request: pytest.FixtureRequest
) -> None:
    """K13: the store stops answering for longer than a request may take; the job waits and goes on."""
    from headrace.config import HeadraceSettings
    from headrace.pipeline import Endpoints

    quick = {"store": {"cassandra": {"request_timeout_s": 3.0, "attempt_timeout_s": 1.0}}}
    settings = HeadraceSettings.model_validate(quick)
    store = f"cassandra://{cassandra.address}/pipeline_tests"
    tier = Tier(
        request.getfixturevalue("spark"),
        Endpoints.of(f"kafka://{kafka.address}", store=store, settings=settings),
        tmp_path / "none",
    )
    tier.with_journal(topic, lambda journal: append_all(journal, 5, 1))
    with tier.replicating(topic) as seen:
        until(lambda: len(seen.reports) > 0)
        tier.with_journal(topic, lambda journal: append_all(journal, 5, 2, first=2))
        cassandra.pause()
        try:
            until(lambda: any("waiting" in event or "anew" in event for event in seen.events))
        finally:
            cassandra.resume()
        until(lambda: sum(map(len, tier.dump(topic)[1].values())) == 15)
    assert tier.dump(topic) == tier.expected(topic)
