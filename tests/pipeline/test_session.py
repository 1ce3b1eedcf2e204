"""The session's own settings: what workers are made of."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyspark
import pytest

from headrace.errors import UnsupportedPlatform
from headrace.pipeline.spark import session
from headrace.pipeline.spark.session import compiled_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_forked_with_everything_imported(spark: SparkSession) -> None:
    """K2: a worker runs the project's interpreter with its own pyspark, imported before the daemon forked it."""

    def look(_: int) -> tuple[str, str, str, bool]:
        parent = Path(f"/proc/{os.getppid()}")
        libraries = (parent / "maps").read_text()
        has_libraries = "pyarrow" in libraries and "msgspec" in libraries
        return sys.executable, pyspark.__file__, (parent / "cmdline").read_text(), has_libraries

    ((interpreter, package, daemon, has_libraries),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert interpreter == sys.executable
    assert package == pyspark.__file__  # and not one in a zip, which is compiled anew by each process
    assert "headrace.pipeline.spark.worker_daemon" in daemon
    assert has_libraries


def test_a_connect_server_whose_workers_lack_headrace_is_told_before_a_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP1: the server that a program starts itself takes python3 of the PATH; the sentence says what to set."""
    client: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    environ = {"PATH": str(tmp_path)}
    monkeypatch.setattr("pyspark.SparkContext._jvm", SimpleNamespace(System=SimpleNamespace(getenv=environ.get)))
    session.provide_interpreter(client)  # a server of somebody else's: nothing is known of its workers
    monkeypatch.setenv("SPARK_LOCAL_REMOTE", "1")
    with pytest.raises(UnsupportedPlatform, match=r"found no python3; .* PYSPARK_PYTHON=.*python"):
        session.provide_interpreter(client)
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o700)
    with pytest.raises(UnsupportedPlatform, match=f"found {other}; restart this program with PYSPARK_PYTHON="):
        session.provide_interpreter(client)
    environ["PYSPARK_PYTHON"] = sys.executable
    session.provide_interpreter(client)


def test_a_session_starts_where_the_environment_names_a_server_of_spark_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FP1: Spark ends at once beside such a name; commands start their own, and the name is there again afterwards."""

    def launch(_: object) -> None:
        raise LookupError([name for name in os.environ if name in ("SPARK_REMOTE", "SPARK_API_MODE")])

    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setenv("SPARK_API_MODE", "connect")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr(session, "is_submitted", lambda _: False)
    for name, value in (("_launch", launch), ("_jars", lambda *_: []), ("_started", [])):
        monkeypatch.setattr(session, name, value)
    with pytest.raises(LookupError) as seen:
        session.spark_session()
    assert seen.value.args == ([],)
    assert os.environ["SPARK_REMOTE"] == "sc://127.0.0.1:1"


def test_a_home_is_made_of_links_and_left_behind_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has Spark's jars and no zip of pyspark, also the second time; the process' environment is as before."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for _ in range(2):
        with compiled_home():
            home = Path(os.environ["SPARK_HOME"])
            assert home.is_relative_to(tmp_path)
            assert list(home.glob("jars/spark-core*.jar"))
            assert not (home / "python").exists()
        assert "SPARK_HOME" not in os.environ


def test_spark_starts_from_its_own_home_where_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that can't be written to, or a home that somebody chose: nothing is changed."""
    (tmp_path / "spark-home").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with compiled_home():
        assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv("SPARK_HOME", "/chosen")
    with compiled_home():
        assert os.environ["SPARK_HOME"] == "/chosen"
    assert os.environ["SPARK_HOME"] == "/chosen"


def test_a_jvm_finds_its_logging_in_a_folder_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FN4: Spark starts where the package is installed in a folder whose name has spaces: an option is one word."""
    folder = tmp_path / "my projects"
    folder.mkdir()
    shutil.copy(Path(session.__file__).with_name("log4j2.properties"), folder)
    monkeypatch.setattr("headrace.pipeline.spark.session.resources.files", lambda _: folder)
    first, *others = session._java_options(is_brief=True).split(" ")
    assert all(each.startswith("-XX:") for each in others)
    address = urlsplit(first.removeprefix("-Dlog4j2.configurationFile="))
    assert address.scheme == "file"
    assert Path(unquote(address.path)).read_text()
