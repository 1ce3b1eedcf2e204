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
from headrace.pipeline import Places, spark_session
from headrace.pipeline.opened import close_all
from headrace.runtime import CRASH_FILE_VARIABLE
from headrace.services import RunningService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN = Path(__file__).parent / "plugin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a session, so that `make test-fast` can do without."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


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
    session = spark_session(PipelineSettings(master="local[2]"))
    yield session
    close_all()
    session.stop()
    sys.path.remove(str(PLUGIN))
    del os.environ[CRASH_FILE_VARIABLE]


@pytest.fixture(scope="session")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all: workers keep open what they opened."""
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(params=["embedded", pytest.param("servers", marks=pytest.mark.servers)])
def tier(request: pytest.FixtureRequest, spark: SparkSession, crash_file: Path) -> Tier:
    """Return a log and a store: both embedded, or Kafka and Cassandra. Every test makes topics of its own."""
    return Tier(spark, _places(request, request.param), crash_file)


def _places(request: pytest.FixtureRequest, name: str) -> Places:
    if name == "embedded":
        folder: Path = request.getfixturevalue("embedded_folder")
        settings = HeadraceSettings.model_validate(
            {"log": {"embedded": {"fsync": False}}, "store": {"embedded": {"fsync": False}}}
        )
        return Places.of(f"embedded:{folder}", settings=settings)
    kafka: RunningService = request.getfixturevalue("kafka")
    cassandra: RunningService = request.getfixturevalue("cassandra")
    return Places.of(f"kafka://{kafka.address}", store=f"cassandra://{cassandra.address}/pipeline_tests")


@pytest.fixture
def topic() -> str:
    """Return a name that no other test uses."""
    return f"p-{uuid.uuid4().hex[:12]}"
