"""A state's store in RocksDB: one folder for each partition of a state, used by one process at a time.

Data and checkpoint lie in two column families that are written in one batch and flushed together, so that neither a
kill nor a power cut leaves one without the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import uuid
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    Closed,
    HeadraceError,
    MissingExtra,
    StateBroken,
    StateDiskFull,
    StateLocked,
    StateOutOfFiles,
)
from headrace.observe import get_logger
from headrace.runtime import crash_point, folder_of
from headrace.state.ports import StoredPair, StoreWrite

if TYPE_CHECKING:
    from rocksdict import Cache, Options, Rdict, WriteBufferManager

__all__ = ["RocksDbStore", "open_store"]

_META = "meta"
_CHECKPOINT = b"checkpoint"
_WIPED = ".wiped-"
_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_ALL_WRITE_BUFFERS_BYTES = 256 * 1024 * 1024
_BLOCK_CACHE_BYTES = 256 * 1024 * 1024
_OPEN_FILES = 256

# The driver raises plain exceptions; what happened stands in RocksDB's message only.
_LOCKED = ("lock hold by", "No locks available", "Resource temporarily unavailable")
_FULL = ("No space left", "File too large", "Disk quota exceeded")
_OUT_OF_FILES = ("Too many open files",)

_log = get_logger(__name__)


class RocksDbStore:
    """A `KeyValueStore` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._db: Rdict | None = None
        self._meta: Rdict | None = None
        self._meta_handle: Any = None
        self._is_closed = False
        for left_over in folder.parent.glob(f"{folder.name}{_WIPED}*"):
            _remove(left_over)
        self._open()

    @property
    def checkpoint(self) -> bytes | None:
        """The checkpoint of the last batch."""
        with self._naming_faults():
            self._opened()
            found: bytes | None = None if self._meta is None else self._meta.get(_CHECKPOINT)
            return found

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        # Without the context manager that the other calls use: it costs more than the read itself.
        try:
            db = self._db if self._db is not None else self._opened()
            value: bytes | None = db.get(key)
        except HeadraceError:
            raise
        except Exception as error:
            raise _fault(self._folder, error) from error
        return value

    def write(self, writes: Sequence[StoreWrite], *, checkpoint: bytes) -> None:
        """Write one batch of RocksDB."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, value in writes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        with self._naming_faults():
            db = self._opened()
            batch.put(_CHECKPOINT, checkpoint, self._meta_handle)
            crash_point("state.rocksdb.before-write")
            try:
                db.write(batch)
            except Exception:
                # RocksDB takes no more writes after one has failed, whatever becomes of the reason; a new one does.
                del db
                self._let_go()
                raise
            crash_point("state.rocksdb.after-write")

    def scan(self, start: bytes, end: bytes | None, *, limit: int, reverse: bool = False) -> Sequence[StoredPair]:
        """Return some pairs."""
        with self._naming_faults():
            pairs = self._backwards(start, end) if reverse else self._between(start, end)
            found = list(itertools.islice(pairs, limit))
            pairs.close()  # else its iterator would hold the folder's lock
            return found

    def count(self, start: bytes, end: bytes | None) -> int:
        """Count keys by walking over them."""
        with self._naming_faults():
            return sum(1 for _ in self._between(start, end))

    def wipe(self) -> None:
        """Rename the folder away and begin an empty one: a process that dies here leaves one or the other, whole."""
        self._opened()
        self._let_go()
        away = self._folder.with_name(f"{self._folder.name}{_WIPED}{uuid.uuid4().hex}")
        with self._naming_faults():
            crash_point("state.rocksdb.before-rename")
            self._folder.rename(away)
            crash_point("state.rocksdb.after-rename")
            self._open()
        _remove(away)

    def close(self) -> None:
        """Close the database."""
        self._is_closed = True
        self._let_go()

    def _open(self) -> Rdict:
        try:
            from rocksdict import Rdict
        except ImportError as missing:
            raise MissingExtra("rocksdict", "state") from missing
        with self._naming_faults():
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(self._folder), _options(), column_families={_META: _options()})
            self._meta = self._db.get_column_family(_META)
            self._meta_handle = self._db.get_column_family_handle(_META)
            return self._db

    def _let_go(self) -> None:
        """Close, and drop every reference: the driver holds the folder's lock for as long as one is left.

        Closing flushes, which fails on a full disk. What it would write is in the log: the folder is let go all the
        same, and no error keeps the database in its traceback.
        """
        held = [self._db, self._meta]
        self._db = self._meta = self._meta_handle = None
        faults = []
        while held:
            database = held.pop()
            try:
                if database is not None:
                    database.close()
            except Exception as error:  # the driver has no narrower class
                faults.append(str(error))
            del database
        if faults:
            _log.warning("a state's store did not close cleanly", folder=str(self._folder), error=faults[-1])

    def _opened(self) -> Rdict:
        if self._is_closed:
            raise Closed(f"the state's store in {self._folder}")
        if self._db is None:  # a call before has failed and let go of it
            return self._open()
        return self._db

    def _between(self, start: bytes, end: bytes | None) -> Generator[StoredPair, None, None]:
        rows = self._opened().iter()
        rows.seek(start)
        while rows.valid():
            key = rows.key()
            if end is not None and key >= end:
                return
            yield key, rows.value()
            rows.next()
        rows.status()

    def _backwards(self, start: bytes, end: bytes | None) -> Generator[StoredPair, None, None]:
        rows = self._opened().iter()
        if end is None:
            rows.seek_to_last()
        else:
            rows.seek_for_prev(end)
        while rows.valid():
            key = rows.key()
            if key < start:
                return
            if end is None or key < end:
                yield key, rows.value()
            rows.prev()
        rows.status()

    @contextlib.contextmanager
    def _naming_faults(self) -> Iterator[None]:
        """Raise what the driver reports as an error that says what to do."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            raise _fault(self._folder, error) from error


def _options() -> Options:
    from rocksdict import BlockBasedOptions, Options

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # Without it one family could be on disk and the other only in a log that a power cut took.
    options.set_atomic_flush(True)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(_OPEN_FILES)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_write_buffer_manager(_write_buffers())
    tables = BlockBasedOptions()
    tables.set_block_cache(_block_cache())
    tables.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(tables)
    return options


# A node has a store for each partition of each state: what they keep in memory is bounded for all of them together.
@cache
def _write_buffers() -> WriteBufferManager:
    from rocksdict import WriteBufferManager

    return WriteBufferManager(_ALL_WRITE_BUFFERS_BYTES, allow_stall=False)


@cache
def _block_cache() -> Cache:
    from rocksdict import Cache

    return Cache(_BLOCK_CACHE_BYTES)


def _fault(folder: Path, error: Exception) -> HeadraceError:
    reason = " ".join(str(error).split())
    if any(words in reason for words in _LOCKED):
        return StateLocked(str(folder))
    if any(words in reason for words in _FULL):
        return StateDiskFull(str(folder), reason)
    if any(words in reason for words in _OUT_OF_FILES):
        return StateOutOfFiles(str(folder), reason)
    return StateBroken(str(folder), reason)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:  # it costs disk space only, and the next opening tries again
        _log.warning("a wiped state folder is still there", folder=str(folder), error=str(error))


async def open_store(address: str) -> RocksDbStore:
    """Open `rocksdb:FOLDER`, made if it is not there."""
    folder = folder_of(address, "a store in RocksDB needs a folder, as in rocksdb:./state/balances-0")
    return await asyncio.to_thread(RocksDbStore, folder)
