"""Kill -9 on a cluster: its driver, and more executors than Spark puts up with.

Python workers are killed in test_replication, one executor in tests/secured.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from tests.pipeline.test_process import start
from tests.pipeline.tier import Tier, append_all
from tests.secured.deaths import executors_below, is_gone, kill_all, until

pytestmark = pytest.mark.timeout(600)

KEYS, EVENTS = 20, 10


def test_a_killed_driver_of_a_cluster_leaves_nothing_wrong(tier: Tier, topic: str) -> None:
    """K12, E5: driver and JVM are killed in the middle on local-cluster[2,1,1024]; its executors, alone now, end by
    themselves; a job that begins at once goes on from the store; nothing is missing, and nothing comes late."""
    with begun_on_cluster(tier, topic) as running:
        executors = executors_below(running.pid)
        orphans = [*executors, *(child for each in executors for child in each.children(recursive=True))]
        driver = psutil.Process(running.pid)
        kill_all([driver, *(child for child in driver.children(recursive=True) if child not in orphans)])
        _, err = running.communicate()
    assert orphans, err
    assert 0 < _rows(tier, topic) < KEYS * EVENTS, "that was too late"
    tier.replicate(topic)
    assert tier.dump(topic) == tier.expected(topic)
    until(lambda: all(map(is_gone, orphans)))
    assert tier.dump(topic) == tier.expected(topic)


def test_a_cluster_that_gives_up_is_told(tier: Tier, topic: str) -> None:
    """K2, E5: executors die more often than Spark allows, so it ends the session: the job ends with what to do, which
    is to run it again, and that goes on from the store."""
    limit = {"HEADRACE__PIPELINE__SPARK": json.dumps({"spark.deploy.maxExecutorRetries": "1"})}
    with begun_on_cluster(tier, topic, **limit) as running:
        kill_all(executors_below(running.pid))
        _, err = running.communicate()
    assert running.returncode == 1
    assert f"error: worker 'replication of {topic}' failed: Spark ended its session" in err
    assert "run it again, it continues from the stored offsets" in err
    assert "Traceback" not in err
    assert 0 < _rows(tier, topic) < KEYS * EVENTS, "that was too late"
    tier.replicate(topic)
    assert tier.dump(topic) == tier.expected(topic)


@contextlib.contextmanager
def begun_on_cluster(tier: Tier, topic: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Give a job on two executors that has some of its rows in the store, and most of its batches before it."""
    tier.with_journal(topic, lambda journal: append_all(journal, KEYS, EVENTS))
    few = {"HEADRACE__PIPELINE__MAX_RECORDS": "16", "HEADRACE__PIPELINE__INTERVAL_S": "0"}
    running = start(tier, topic, HEADRACE__PIPELINE__MASTER="local-cluster[2,1,1024]", **few, **environ)
    try:
        until(lambda: _rows(tier, topic) > 0 or running.poll() is not None)
        yield running
    finally:
        running.kill()
        running.communicate()


def _rows(tier: Tier, topic: str) -> int:
    return sum(map(len, tier.dump(topic)[1].values()))
