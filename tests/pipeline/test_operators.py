"""What people who run the jobs meet: wrong addresses, logs that are away, machines without a network, clusters."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pyspark
import pytest
from py4j import clientserver, java_gateway
from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.errors import PySparkException
from tests.secured.job import QUICK_JAVA
from typer.testing import CliRunner

from headrace.cli import spark_sessions
from headrace.cli.main import app
from headrace.cli.options import command_settings
from headrace.config import HeadraceSettings, PipelineSettings
from headrace.errors import FetchFailed, HeadraceError, OperationFailed, UnsupportedPlatform
from headrace.pipeline import Endpoints, Replication, Selection
from headrace.pipeline.spark.session import _jars, check_version, is_submitted

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


def test_the_embedded_tier_needs_no_jar_of_kafkas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP5: without a network and with an empty cache, SQL over a folder works; over Kafka the missing jar is named."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_MAVEN_REPOSITORY", "http://127.0.0.1:1/nobody")
    assert _jars(Endpoints.of(f"embedded:{tmp_path}"), None) == []
    with pytest.raises(FetchFailed):
        _jars(Endpoints.of("kafka://127.0.0.1:1", store="cassandra://127.0.0.1:1/k"), None)


def test_a_driver_inside_a_cluster_is_recognised() -> None:
    """FP5: YARN's launcher of a driver sets the gateway's port, spark-submit's script its own mark."""
    assert is_submitted({"PYSPARK_GATEWAY_PORT": "4711", "PATH": "/bin"})
    assert is_submitted({"SPARK_ENV_LOADED": "1"})
    assert not is_submitted({"SPARK_HOME": "/opt/spark"})


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "3.5.7"])
def test_an_older_spark_is_refused_in_one_sentence(version: str) -> None:
    """FP1: a server of Spark Connect may be older than this client; its Python sources lack filters or limits."""
    with pytest.raises(UnsupportedPlatform, match=rf"Spark 4.2.* is needed, found Spark {version}; connect to"):
        check_version(version)
    check_version("4.2.0")
    check_version("4.10.0-SNAPSHOT")


def test_a_failure_of_spark_is_one_line(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FP5: a command prints what failed, and the JVM's traceback only with --verbose."""
    endpoints, settings = Endpoints.of(f"embedded:{tmp_path}"), HeadraceSettings.load()
    with (
        pytest.raises(OperationFailed, match=r"^headrace on Spark failed: it broke; it may or may not") as raised,
        spark_sessions.spark_for(endpoints, settings) as session,
    ):
        session.sql("select raise_error('it broke')").collect()
    assert "\n" not in str(raised.value)
    caplog.set_level("DEBUG", "headrace")
    with pytest.raises(PySparkException), spark_sessions.spark_for(endpoints, settings) as session:
        session.sql("select raise_error('it broke')").collect()


def test_a_jvm_that_is_gone_is_one_line() -> None:
    """FP5: a JVM that was killed, or ran out of memory, is named; py4j would show tracebacks of refused connections."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gone.getsockname()[1]))
    message = r"^headrace on Spark failed: Spark's JVM is gone: it was killed, or .*; run it again; it may or may not"
    with pytest.raises(OperationFailed, match=message), spark_sessions._in_one_line("headrace"):
        gateway.jvm.System.currentTimeMillis()


DAEMON = [sys.executable, "-m", "headrace.pipeline.spark.worker_daemon", "pyspark.worker"]


def test_a_daemon_that_cannot_preload_serves_workers_all_the_same(tmp_path: Path) -> None:
    """A module that can't be imported, and prints before it says so, leaves a daemon that Spark understands."""
    (tmp_path / "pandas.py").write_text("print('hello')\nraise RuntimeError('no such luck')")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    done = subprocess.run(DAEMON, input=b"", env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=50)
    assert len(done.stdout) == 4, done.stderr
    assert 0 < int.from_bytes(done.stdout, "big") < 65536
    assert "workers import pandas themselves: RuntimeError('no such luck')" in done.stderr.decode()


def test_a_process_that_starts_or_commits_the_sink_imports_next_to_nothing() -> None:
    """Spark starts such processes before the first batch, which waits until they have imported what they need."""
    code = "import sys, headrace.pipeline.replication.sink; print(*sorted(sys.modules))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"headrace.journal", "headrace.config", "headrace.store", "pandas", "pyarrow", "pydantic"} & set(loaded)


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


def test_an_interrupt_while_spark_works_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """FN4: py4j logs a traceback if Ctrl-C comes while a command waits for Spark; its code, 130, says it all."""
    source = inspect.getsource(clientserver) + inspect.getsource(java_gateway)
    with spark_sessions._without_traces_of_interrupts():
        for message in spark_sessions._BROKEN_OFF:
            assert f'"{message}"' in source
            for logger in (logging.getLogger(), logging.getLogger("py4j.clientserver")):
                logger.error(message, exc_info=KeyboardInterrupt())
        logging.getLogger().error("another one")
    assert [record.message for record in caplog.records] == ["another one"]
