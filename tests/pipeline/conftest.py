"""One Spark session for all tests of the pipeline, and two tiers to run them on.

Starting a session costs more than any test. Workers are armed to die by a file (see headrace.runtime.crash_points), and
know a store that fails on demand, because both must be there before the session starts.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.tier import Tier

from headrace.config import HeadraceSettings, PipelineSettings
from headrace.pipeline import Endpoints, spark_session
from headrace.pipeline.spark.process import close_all
from headrace.runtime import CRASH_FILE_VARIABLE
from headrace.services import RunningService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN = Path(__file__).parent / "plugin"


# A query costs Spark seconds to begin. So `make test` runs each test on one tier, those below on real servers, where
# they say most, and the others on the embedded one; `make test-full` runs all of them on both.
ON_SERVERS = {
    "test_a_killed_worker_leaves_nothing_wrong",
    "test_aborted_records_are_passed_and_raise_no_alarm",
    "test_a_purge_split_over_batches_converges",
    "test_one_task_has_one_partition",
    "test_skip_passes_the_record_and_applies_what_was_held",
    "test_partitions_added_behind_our_back_stop_replication",
    "test_what_was_done_to_views_by_hand_is_named_and_repaired",
    "test_an_audit_reads_each_record_once",
}

# A Spark of its own each, which is most of a minute. Others prove the same as well: E5, K12; and K2 with secrets
# (tests/secured). The last ones have their like on the embedded tier (test_jobs_meanwhile).
ONLY_FULL = {
    "test_a_killed_driver_leaves_nothing_wrong",
    "test_a_killed_jvm_is_told",
    "test_a_killed_driver_of_a_cluster_leaves_nothing_wrong",
    "test_a_cluster_does_the_same",
    "test_a_cluster_that_gives_up_is_told",
    "test_a_job_that_was_killed_is_run_again_and_twice",
    "test_a_topic_that_grows_between_the_window_and_the_repair",
    "test_a_server_of_spark_connect_without_our_jars_is_sent_them",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a session, and choose their tier."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    if config.getoption("--full"):
        return
    left_out = [item for item in items if _is_left_out(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_left_out(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    tier = call.params.get("tier") if call is not None else None
    name = getattr(item, "originalname", item.name)
    is_on_servers = name in ON_SERVERS
    return name in ONLY_FULL or (tier == "embedded" and is_on_servers) or (tier == "servers" and not is_on_servers)


@pytest.fixture(scope="session")
def crash_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that makes a worker die: write a crash point into it."""
    return tmp_path_factory.mktemp("crash") / "at"


@pytest.fixture(scope="session")
def spark(crash_file: Path) -> Iterator[SparkSession]:
    """Start the session."""
    os.environ[CRASH_FILE_VARIABLE] = str(crash_file)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH"))))
    sys.path.append(str(PLUGIN))
    settings = PipelineSettings(master="local[2]", spark={"spark.sql.shuffle.partitions": "2"})
    session = spark_session(settings, is_brief=True)
    yield session
    close_all()
    session.stop()
    sys.path.remove(str(PLUGIN))
    del os.environ[CRASH_FILE_VARIABLE]


@pytest.fixture(scope="module")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests of a file: workers keep open what they opened, and jobs look at every topic."""
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(params=["embedded", pytest.param("servers", marks=pytest.mark.servers)])
def tier(request: pytest.FixtureRequest, spark: SparkSession, crash_file: Path) -> Tier:
    """Return a log and a store: both embedded, or Kafka and Cassandra. Every test makes topics of its own."""
    tier = Tier(spark, _endpoints(request, request.param), crash_file)
    tier.keep_views()
    return tier


def _endpoints(request: pytest.FixtureRequest, name: str) -> Endpoints:
    if name == "embedded":
        folder: Path = request.getfixturevalue("embedded_folder")
        settings = HeadraceSettings.model_validate(
            {"log": {"embedded": {"fsync": False}}, "store": {"embedded": {"fsync": False}}}
        )
        return Endpoints.of(f"embedded:{folder}", settings=settings)
    kafka: RunningService = request.getfixturevalue("kafka")
    cassandra: RunningService = request.getfixturevalue("cassandra")
    return Endpoints.of(f"kafka://{kafka.address}", store=f"cassandra://{cassandra.address}/pipeline_tests")


@pytest.fixture
def topic() -> str:
    """Return a name that no other test uses."""
    return f"p-{uuid.uuid4().hex[:12]}"
