"""The session's own settings: what workers are made of."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyspark
import pytest

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
