"""What all scans of one frame asked for, together.

Spark 4.2 keeps one reader for each frame, and the scan that is planned last replaces it: two uses of a frame in one
statement would both read with the last filter. So each planning reads for every scan of its frame that was planned
before it, too; Spark applies the filters of each scan to its rows again. Scans are planned in processes that come and
go, so what was asked is kept in a file on the driver's machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from functools import reduce
from pathlib import Path

import msgspec

from headrace.errors import BadArgument
from headrace.pipeline.tables.wanted import Wanted

__all__ = ["asked_by_all_scans"]

_KEPT_S = 7 * 24 * 3600.0


def asked_by_all_scans(frame: str, wanted: Wanted) -> Wanted:
    """Add what one more scan of the frame wants, and return what all its scans want."""
    path = _folder() / frame
    if not path.exists():
        _remove_old(path.parent)
    line = msgspec.json.encode(wanted) + b"\n"
    # One write to the end of a file: two plannings at the same time do not tear each other's lines.
    with path.open("ab", buffering=0) as file:
        file.write(line)
    lines = path.read_bytes().splitlines()
    return reduce(Wanted.or_, (msgspec.json.decode(each, type=Wanted) for each in lines))


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
