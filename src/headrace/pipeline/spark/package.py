"""A folder with everything a cluster needs to run Headrace's jobs: modules, jars and options for spark-submit.

    main.py              the headrace command, for spark-submit
    spark.conf           the properties that refer to the other files
    environment/         the modules, and an interpreter that finds them, for the driver
    environment.tar.gz   the same, for the executors
    jars/                the connectors that Spark needs
    log4j2.properties    logging of Spark: errors only

It holds no secrets: addresses and passwords come from the settings of the submitting process.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata, resources
from pathlib import Path

from headrace.errors import BadArgument
from headrace.pipeline.spark.endpoints import SECRET_NAMES
from headrace.services import Quiet, Watcher, spark_jars

__all__ = ["files_of", "needed", "package"]

_OURS = "headrace"
# Packages of extras that a job, or the command that runs it, may import; only the installed ones are copied.
_DRIVERS = (
    "attrs",
    "authlib",
    "cachetools",
    "cassandra-driver",
    "confluent-kafka",
    "fastavro",
    "filelock",
    "httpx2",
    "jgo",
    "pandas",
    "plotext",
    "protobuf",
    "psutil",
    "pyarrow",
)
# A cluster has its own copy of these.
_OF_SPARK = frozenset({"pyspark", "py4j"})
# These folders are a third of all bytes, and users of a package never import them.
_NOT_RUN = frozenset({"tests", "include"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def needed(own: Iterable[str] = ()) -> list[metadata.Distribution]:
    """Return the installed packages that a job needs: Headrace, its drivers, the `own` ones, and their requirements."""
    found: dict[str, metadata.Distribution] = {}
    for name in own:
        if _installed(name) is None:
            raise BadArgument("package", name, "it is not installed here; run: pip install it first")
    waiting = [_OURS, *_DRIVERS, *own]
    while waiting:
        name = _plain(waiting.pop())
        distribution = _installed(name)
        if distribution is None or name in found or name in _OF_SPARK:
            continue
        found[name] = distribution
        waiting += _required(distribution)
    return [found[name] for name in sorted(found)]


def files_of(distribution: metadata.Distribution) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a package, each with its path and its relative path among modules, without commands."""
    is_ours = _plain(distribution.name) == _OURS
    for each in distribution.files or ():
        # Headrace may be installed from a checkout, where the list of files does not name the modules.
        if (
            ".." in each.parts
            or not _NOT_RUN.isdisjoint(each.parts)
            or (is_ours and not each.parts[0].endswith(".dist-info"))
        ):
            continue
        path = Path(str(each.locate()))
        if path.is_file():
            yield path, Path(*each.parts)
    if is_ours:
        root = Path(__file__).parents[2]
        yield from ((path, path.relative_to(root.parent)) for path in sorted(root.rglob("*")) if path.is_file())


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    """Yield the names of required packages, without extras. Those for other systems are not installed here."""
    for line in distribution.requires or ():
        if "extra ==" not in line and (name := _NAME.match(line)) is not None:
            yield name[0]


def _installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_MAIN = '''\
"""The headrace command, for spark-submit."""

from headrace.cli import main

main()
'''
# The interpreter must have the version that the modules were installed for: some of them are compiled.
_PYTHON = """\
#!/bin/sh
# The modules beside this file, for the machine's own Python; HEADRACE_PYTHON names another one.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec "${{HEADRACE_PYTHON:-python{major}.{minor}}}" "$@"
"""
_ENVIRONMENT = "environment"
_ARCHIVE = f"{_ENVIRONMENT}.tar.gz"
# Driver and executors share one name: the driver plans Python sources with the executors' interpreter.
_INTERPRETER = f"./{_ENVIRONMENT}/bin/python"
_LOGGING = "log4j2.properties"


def package(folder: Path, *, own: Iterable[str] = (), watcher: Watcher | None = None) -> None:
    """Make the folder. `own` names packages of the application. Raises BadArgument if the folder exists."""
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
    shutil.copy2(path, to)  # with its time, so that compiled modules count as up to date


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
