"""A folder with all that a cluster needs to run Headrace's jobs: modules, jars, and what spark-submit is told.

    main.py              the headrace command, as spark-submit wants it
    spark.conf           what to do with the rest
    environment/         the modules, and an interpreter that knows them; the driver's
    environment.tar.gz   the same, for the executors
    jars/                what Spark needs to read from Kafka
    log4j2.properties    Spark's own lines: errors only

Nothing in it is secret: addresses and passwords stay in the settings of whoever submits a job.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from headrace.errors import BadArgument
from headrace.pipeline.spark.distributions import files_of, needed
from headrace.pipeline.spark.redaction import SECRET_NAMES
from headrace.services import Quiet, Watcher, spark_jars

__all__ = ["package"]

_MAIN = '''\
"""The headrace command, for spark-submit."""

from headrace.cli import main

main()
'''
# By the version that the modules were installed for: some of them are compiled.
_PYTHON = """\
#!/bin/sh
# The modules beside this file, for the machine's own Python; HEADRACE_PYTHON names another one.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec "${{HEADRACE_PYTHON:-python{major}.{minor}}}" "$@"
"""
_ENVIRONMENT = "environment"
_ARCHIVE = f"{_ENVIRONMENT}.tar.gz"
# The same name for both: the driver plans Python sources with the interpreter that executors are told to use.
_INTERPRETER = f"./{_ENVIRONMENT}/bin/python"
_LOGGING = "log4j2.properties"


def package(folder: Path, *, own: Iterable[str] = (), watcher: Watcher | None = None) -> None:
    """Make the folder; `own` names packages of the application that its functions need. Raises BadArgument."""
    if folder.exists():
        raise BadArgument("folder", str(folder), "it is there already; remove it, or choose another one")
    watcher = watcher or Quiet()
    jars = spark_jars(watcher)
    distributions = needed(own)
    half = folder.with_name(f".{folder.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    try:
        watcher.step(f"copying {len(distributions)} packages")
        for distribution in distributions:
            for path, place in files_of(distribution):
                _copy(path, half / _ENVIRONMENT / "lib" / place)
        _write_interpreter(half / _INTERPRETER)
        for jar in jars:
            _copy(jar, half / "jars" / jar.name)
        (half / "main.py").write_text(_MAIN)
        (half / _LOGGING).write_text(resources.files(__package__).joinpath(_LOGGING).read_text())
        (half / "spark.conf").write_text(_conf([jar.name for jar in jars]))
        watcher.step(f"packing {_ARCHIVE}")
        _pack(half)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)  # with its time, by which compiled modules are found to be fresh


def _write_interpreter(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_PYTHON.format(major=sys.version_info.major, minor=sys.version_info.minor))
    path.chmod(0o755)


def _pack(folder: Path) -> None:
    with tarfile.open(folder / _ARCHIVE, "w:gz", compresslevel=1) as archive:
        for name in ("bin", "lib"):
            archive.add(folder / _ENVIRONMENT / name, arcname=name, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _conf(jars: Iterable[str]) -> str:
    properties = {
        "spark.submit.deployMode": "client",
        "spark.archives": f"{_ARCHIVE}#{_ENVIRONMENT}",
        "spark.jars": ",".join(f"jars/{jar}" for jar in jars),
        "spark.pyspark.python": _INTERPRETER,
        "spark.pyspark.driver.python": _INTERPRETER,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}",
        "spark.speculation": "false",
        "spark.redaction.regex": SECRET_NAMES,
    }
    return "# Paths are relative: run spark-submit in this folder.\n" + "".join(
        f"{name} {value}\n" for name, value in properties.items()
    )
