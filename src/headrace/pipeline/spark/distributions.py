"""Which installed packages a job needs, and their files: what a cluster's machines have to be given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from headrace.errors import BadArgument

__all__ = ["files_of", "needed"]

_OURS = "headrace"
# What extras bring that a job, or the command that runs it, may import; those that are installed are taken.
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
# A cluster has its own.
_OF_SPARK = frozenset({"pyspark", "py4j"})
# A third of all bytes, and never imported by who uses a package.
_NOT_RUN = frozenset({"tests", "include"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def needed(own: Iterable[str] = ()) -> list[metadata.Distribution]:
    """Return Headrace, its drivers, the caller's `own` packages and all these require, as they are installed here."""
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
    """Yield each file of a package: where it is, and its place among modules. Commands are left out."""
    is_ours = _plain(distribution.name) == _OURS
    for each in distribution.files or ():
        # Ours may be installed from a checkout, where the list of files does not lead to the modules.
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
    """Yield the names that a package always requires. Those for other systems are not installed, and so fall out."""
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
