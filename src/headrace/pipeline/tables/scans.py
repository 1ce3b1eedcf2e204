"""Scans of the journal table: their options, their counts, and the predicates of all scans of one frame.

Spark 4.2 keeps one reader for each frame, and the scan that is planned last replaces it: two uses of a frame in one
statement would both read with the last filter. So each scan reads what all earlier scans of its frame match, too;
Spark applies the filters of each scan to its rows again. Scans are planned in short-lived processes, so the predicates
are kept in a file on the driver's machine, one for each frame. It can't be known which scans are still in use, so the
predicates only ever widen, up to everything if they take too much space.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import BadArgument
from headrace.pipeline.tables.predicates import EVERYTHING, Predicates

__all__ = ["MOST_BYTES", "Counts", "ReadOptions", "counted", "predicates_of_all_scans", "total"]


class ReadOptions(msgspec.Struct, frozen=True):
    """Options for reading journals. `held` says what to do with a held one.

    `skew_ms` is the greatest difference between producers' clocks; None means any. Journals whose first and last
    record are further than that from the filtered times are not read.
    """

    held: Literal["raise", "skip"] = "raise"
    skew_ms: int | None = 3_600_000


class Counts(msgspec.Struct):
    """Counts of what one task read: heads and rows of the store, records of the log without and with values."""

    topic: str
    partition: int
    metas: int = 0
    rows: int = 0
    headers: int = 0
    values: int = 0
    given: int = 0

    def write(self, folder: str | None) -> None:
        """Write the counts to a file in the folder, if there is one."""
        if folder:
            (Path(folder) / f"{uuid.uuid4().hex}.json").write_bytes(msgspec.json.encode(self))


def counted(folder: Path) -> list[Counts]:
    """Return the counts that tasks have written to the folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Counts) for path in sorted(folder.glob("*.json"))]


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts, without a topic and a partition."""
    added = Counts("", -1)
    for each in counts:
        for field in ("metas", "rows", "headers", "values", "given"):
            setattr(added, field, getattr(added, field) + getattr(each, field))
    return added


MOST_BYTES = 256 * 1024
"""The most bytes kept for the predicates of one frame, about ten thousand keys. Beyond it all keys match."""

_KEPT_S = 7 * 24 * 3600.0
_NEW = ".new"


def predicates_of_all_scans(frame: str, predicates: Predicates) -> Predicates:
    """Add the predicates of one more scan of the frame, and return predicates that cover all its scans."""
    folder = _folder()
    with _one_at_a_time(folder):
        path = folder / frame
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=Predicates)
            together = _bounded(known.or_(predicates))
        else:
            _remove_old(folder)
            known, together = None, _bounded(predicates)
        if together == known:
            os.utime(path)  # so that it is not removed as old
        else:
            _write(path, together)
    return together


def _bounded(predicates: Predicates) -> Predicates:
    """Return the predicates, widened if they are too large to be kept."""
    if len(msgspec.json.encode(predicates)) <= MOST_BYTES:
        return predicates
    without_keys = replace(predicates, keys=None)
    return without_keys if len(msgspec.json.encode(without_keys)) <= MOST_BYTES else EVERYTHING


def _write(path: Path, predicates: Predicates) -> None:
    """Replace the file atomically: a process that is killed here leaves the old one."""
    new = path.with_name(path.name + _NEW)
    new.write_bytes(msgspec.json.encode(predicates))
    new.replace(path)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes. The lock ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _folder() -> Path:
    """Return the folder of this user, to which no other user can write.

    It is named by the user's number, because users in containers may have no name.
    """
    folder = Path(tempfile.gettempdir()) / f"headrace-scans-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BadArgument("TMPDIR", folder, "it belongs to another user; set TMPDIR to a folder of your own")
    return folder


def _remove_old(folder: Path) -> None:
    """Remove the files of frames that were last planned a week ago, because their sessions have ended."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()
