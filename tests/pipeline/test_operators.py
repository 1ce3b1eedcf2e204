"""What people who run the jobs meet: wrong addresses, logs that are away, machines without a network, clusters."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
import pytest
from tests.secured.job import QUICK_JAVA
from typer.testing import CliRunner

from headrace.cli import spark_sessions
from headrace.cli.main import app
from headrace.cli.options import command_settings
from headrace.config import HeadraceSettings, PipelineSettings
from headrace.errors import FetchFailed, HeadraceError, OperationFailed
from headrace.pipeline import Endpoints, Replication, Selection
from headrace.pipeline.replication.replication import _progress_after
from headrace.pipeline.spark.session import _jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMANDS = (["sql", "select 1"], ["pipeline", "replicate", "--once"], ["pipeline", "audit"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0] + command[1][:9])
def test_addresses_are_tried_before_spark_starts(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP5: a log that can't be opened is an error of a second, not one of Spark's after ten."""

    def start(*_: object, **__: object) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(spark_sessions, "spark_session", start)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, [*command, "--log", f"embedded:{tmp_path / 'file' / 'data'}"])
    assert isinstance(done.exception, HeadraceError)


def test_a_command_makes_no_keyspace_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """FP5: an application's first start makes its keyspace; a command with a misspelt one says that there is none."""
    monkeypatch.delenv("HEADRACE__STORE__CASSANDRA__CREATE_KEYSPACE", raising=False)
    assert HeadraceSettings.load().store.cassandra.create_keyspace
    assert not command_settings().store.cassandra.create_keyspace
    monkeypatch.setenv("HEADRACE__STORE__CASSANDRA__CREATE_KEYSPACE", "true")
    assert command_settings().store.cassandra.create_keyspace


def test_a_run_that_ends_by_itself_does_not_wait_forever(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP5: `--once` waits for a log that is away as long as its setting says, and then raises what is wrong."""

    async def away(*_: object, **__: object) -> NoReturn:
        raise OperationFailed("listing topics", "the broker is away")

    endpoints = Endpoints.of(f"embedded:{tmp_path}")
    monkeypatch.setattr("headrace.pipeline.replication.replication.plan_of", away)
    job = Replication(spark, endpoints, Selection(), settings=PipelineSettings(once_timeout_s=0.3))
    began_s = time.monotonic()
    with pytest.raises(OperationFailed, match="the broker is away"):
        job.run(once=True)
    assert time.monotonic() - began_s < 30


class Told:
    """Progress as Spark keeps it; counts how many of its reports are read."""

    def __init__(self, times: list[int]) -> None:
        self._times = times
        self.read = 0
        self._jsq = self

    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        return [_Report(self, time) for time in self._times]


class _Report:
    def __init__(self, one_line: Told, time: int) -> None:
        self._told, self._time = one_line, time

    def json(self) -> str:
        self._told.read += 1
        return f'{{"timestamp": "{self._time:06}"}}'


def test_only_new_progress_is_read() -> None:
    """FP5: however many reports Spark keeps, a look at them costs what is new."""
    one_line = Told(list(range(1000)))
    assert [each["timestamp"] for each in _progress_after(one_line, "000997")] == ["000998", "000999"]
    assert one_line.read == 3
    assert _progress_after(one_line, "000999") == []
    assert len(_progress_after(Told([1, 2]), "")) == 2


def test_the_embedded_tier_needs_no_jar_of_kafkas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP5: without a network and with an empty cache, SQL over a folder works; over Kafka the missing jar is named."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_MAVEN_REPOSITORY", "http://127.0.0.1:1/nobody")
    assert _jars(Endpoints.of(f"embedded:{tmp_path}"), None) == []
    with pytest.raises(FetchFailed):
        _jars(Endpoints.of("kafka://127.0.0.1:1", store="cassandra://127.0.0.1:1/k"), None)


SUBMITTED = """
    from headrace.pipeline import spark_session
    spark = spark_session()
    names = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.sql.adaptive.enabled", "spark.master")
    print("told", *(spark.conf.get(name) for name in names))
"""


@pytest.mark.spark
def test_what_was_submitted_stays(tmp_path: Path) -> None:
    """FP5: spark-submit's own properties win, but for those that the jobs stand on."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SUBMITTED))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    chosen = {"sql.shuffle.partitions": "3", "sql.session.timeZone": "Asia/Tokyo", "driver.host": "127.0.0.1"}
    options = [part for name, value in chosen.items() for part in ("--conf", f"spark.{name}={value}")]
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *options, str(program)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_JAVA},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "told 3 UTC true local[1]" in done.stdout, done.stderr[-2000:]
