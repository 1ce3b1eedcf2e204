"""How journals are read as a table, and what all scans of one frame asked for, counted."""

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
from headrace.pipeline.tables.predicates import EVERYTHING, Wanted

__all__ = ["MOST_BYTES", "Counts", "Manners", "asked_by_all_scans", "counted", "total"]


class Manners(msgspec.Struct, frozen=True):
    """How journals are read. `held`: what to do with a quarantined one.

    `skew_ms`: how far the clocks of producers may be apart; None: by any time. Journals whose first and last record
    lie further than that from the times that are wanted are not looked at.
    """

    held: Literal["raise", "skip"] = "raise"
    skew_ms: int | None = 3_600_000


class Counts(msgspec.Struct):
    """What one task read: heads and rows of the store, records of the log without and with their values."""

    topic: str
    partition: int
    metas: int = 0
    rows: int = 0
    headers: int = 0
    values: int = 0
    given: int = 0

    def write(self, folder: str | None) -> None:
        """Leave the counts in the folder, if there is one."""
        if folder:
            (Path(folder) / f"{uuid.uuid4().hex}.json").write_bytes(msgspec.json.encode(self))


def counted(folder: Path) -> list[Counts]:
    """Return what the tasks have left there."""
    return [msgspec.json.decode(path.read_bytes(), type=Counts) for path in sorted(folder.glob("*.json"))]


def total(counts: Iterable[Counts]) -> Counts:
    """Add counts up; topic and partition say nothing then."""
    added = Counts("", -1)
    for each in counts:
        for field in ("metas", "rows", "headers", "values", "given"):
            setattr(added, field, getattr(added, field) + getattr(each, field))
    return added


MOST_BYTES = 256 * 1024
"""Room for what one frame's scans want: some ten thousand keys. Beyond it all keys are wanted."""

_KEPT_S = 7 * 24 * 3600.0
_NEW = ".new"


def asked_by_all_scans(frame: str, wanted: Wanted) -> Wanted:
    """Add what one more scan of the frame wants, and return what all its scans want."""
    folder = _folder()
    with _one_at_a_time(folder):
        path = folder / frame
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=Wanted)
            together = _bounded(known.or_(wanted))
        else:
            _remove_old(folder)
            known, together = None, _bounded(wanted)
        if together == known:
            os.utime(path)  # it is in use
        else:
            _write(path, together)
    return together


def _bounded(wanted: Wanted) -> Wanted:
    """Return the same, or more if it is too large to be kept."""
    if len(msgspec.json.encode(wanted)) <= MOST_BYTES:
        return wanted
    without_keys = replace(wanted, keys=None)
    return without_keys if len(msgspec.json.encode(without_keys)) <= MOST_BYTES else EVERYTHING


def _write(path: Path, wanted: Wanted) -> None:
    """Replace the file as a whole: a process that is killed here leaves the old one."""
    new = path.with_name(path.name + _NEW)
    new.write_bytes(msgspec.json.encode(wanted))
    new.replace(path)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other plannings out; a process that dies lets go."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _folder() -> Path:
    """Return a folder that nobody but this user can write to, always the same one. Users of containers have no name."""
    folder = Path(tempfile.gettempdir()) / f"headrace-scans-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BadArgument("TMPDIR", folder, "it belongs to somebody else; set TMPDIR to a folder of your own")
    return folder


def _remove_old(folder: Path) -> None:
    """Remove the files of frames that were last planned a week ago: their sessions are gone."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()
