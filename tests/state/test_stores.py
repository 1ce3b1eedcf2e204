"""The stores take the exam of all stores; what only RocksDB can do wrong: folders, locks, disks, kills."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import BadArgument, MissingExtra, StateBroken, StateLocked, UnknownBackend
from headrace.runtime import CRASH_AT_VARIABLE
from headrace.state import open_state_store
from headrace.state.memory import open_store as open_memory
from headrace.state.rocksdb import RocksDbStore, open_store
from headrace.testing.conformance import KeyValueStoreConformance
from headrace.testing.conformance.key_value_store import OpenStore
from headrace.testing.processes import running


class TestMemoryStore(KeyValueStoreConformance):
    """Every test of the conformance suite, in memory."""

    keeps_data = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        return lambda: open_memory("memory:")


class TestRocksDbStore(KeyValueStoreConformance):
    """Every test of the conformance suite, on a folder of its own."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: open_store(f"rocksdb:{tmp_path / 'made' / 'store'}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[RocksDbStore]:
    opened = RocksDbStore(folder)
    yield opened
    opened.close()


async def test_stores_are_found_by_their_scheme(tmp_path: Path) -> None:
    """An address names its store; an unknown scheme is answered with those that are known."""
    (await open_state_store("memory:")).close()
    (await open_state_store(f"rocksdb:{tmp_path / 'store'}")).close()
    with pytest.raises(UnknownBackend, match="rocksdb:"):
        await open_state_store("lmdb:./there")
    for address in ("rocksdb:", "memory:here"):
        with pytest.raises(BadArgument):
            await open_state_store(address)


def test_a_folder_in_use_is_named(folder: Path, store: RocksDbStore) -> None:
    """S18: two stores never share a folder."""
    with pytest.raises(StateLocked, match=str(folder)):
        RocksDbStore(folder)
    store.write([(b"a", b"1")], checkpoint=b"c")
    assert store.get(b"a") == b"1"


HOLD = """
import sys
from pathlib import Path
from headrace.state.rocksdb import RocksDbStore
store = RocksDbStore(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_in_use_by_another_process_is_named(folder: Path) -> None:
    """S18: the same across processes; the folder is free once that process is dead."""
    with running("-c", HOLD, str(folder)) as child:
        child.wait_for_line("held")
        with pytest.raises(StateLocked, match="another process"):
            RocksDbStore(folder)
        child.kill()
        child.wait()
    RocksDbStore(folder).close()


def test_a_broken_folder_is_named_and_left_alone(folder: Path) -> None:
    """S18: a damaged database raises what to do; nothing in the folder is removed."""
    first = RocksDbStore(folder)
    first.write([(b"a", b"1")], checkpoint=b"c")
    first.close()
    (folder / "CURRENT").write_bytes(b"nonsense")
    names = sorted(path.name for path in folder.iterdir() if path.suffix == ".log")
    with pytest.raises(StateBroken, match="move the folder away"):
        RocksDbStore(folder)
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".log") == names


def test_a_file_in_the_place_of_a_folder_is_named(folder: Path) -> None:
    """S18: what can't be a folder is an error that names it."""
    folder.write_text("a file")
    with pytest.raises(StateBroken, match=str(folder)):
        RocksDbStore(folder)


def test_a_missing_driver_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rocksdict the error says what to install."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "rocksdict":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"headrace\[state\]"):
        RocksDbStore(folder)


FILL = """
import os, resource, signal, sys
from pathlib import Path
from headrace.errors import StateDiskFull
from headrace.state.rocksdb import RocksDbStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksDbStore(Path(sys.argv[1]))
store.write([(b"0", b"first")], checkpoint=b"0")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 1_000_000_000))
for n in range(1, 1000):
    try:
        store.write([(b"%d" % n, os.urandom(1000))], checkpoint=b"%d" % n)
    except StateDiskFull as error:
        print("full at", n, error, flush=True)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000_000))
assert store.checkpoint == b"%d" % (n - 1), store.checkpoint
store.write([(b"%d" % n, b"again")], checkpoint=b"%d" % n)
print("went on", flush=True)
"""


def test_a_full_disk_is_an_error_and_leaves_a_whole_store(folder: Path) -> None:
    """S18: the batch that found no space is not there, all before it are; with space the same store goes on."""
    with running("-c", FILL, str(folder)) as child:
        failed = int(child.wait_for_line(r"full at (\d+) .*free some space")[1])
        child.wait_for_line("went on")
        assert child.wait() == 0
    store = RocksDbStore(folder)
    assert store.checkpoint == b"%d" % failed
    assert store.get(b"%d" % failed) == b"again"
    assert store.count(b"", None) == failed + 1
    store.close()


FILL_WIDE = """
import os, resource, signal, sys
from pathlib import Path
from headrace.errors import HeadraceError, StateDiskFull
from headrace.state.rocksdb import RocksDbStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksDbStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000_000))
kept = []  # callers keep errors, and an error keeps what its traceback shows
for n in range(100):
    try:
        store.write([(b"%d" % n, os.urandom(100_000))], checkpoint=b"%d" % n)
    except HeadraceError as error:
        kept.append(error)
        break
assert [type(each) for each in kept] == [StateDiskFull], kept
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000_000, 1_000_000_000))
store.write([(b"%d" % n, b"again")], checkpoint=b"%d" % n)
assert store.count(b"", None) == n + 1
store.close()
print("went on", flush=True)
"""


def test_a_store_that_fails_to_close_on_a_full_disk_is_let_go_all_the_same(folder: Path) -> None:
    """S18: a batch fails for lack of space, and so does closing: the first reason is told, and the folder is free."""
    with running("-c", FILL_WIDE, str(folder)) as child:
        child.wait_for_line("went on")
        assert child.wait() == 0


OUT_OF_FILES = """
import os, resource, sys
from pathlib import Path
from headrace.errors import StateOutOfFiles
from headrace.state.rocksdb import RocksDbStore
store = RocksDbStore(Path(sys.argv[1]))
store.write([(b"1", b"first")], checkpoint=b"1")
store.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, 1024))
try:
    RocksDbStore(Path(sys.argv[1]))
except StateOutOfFiles as error:
    print("refused", error, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
assert RocksDbStore(Path(sys.argv[1])).get(b"1") == b"first"
print("went on", flush=True)
"""


def test_too_many_open_files_are_not_taken_for_a_broken_folder(folder: Path) -> None:
    """S18: the error says to raise the limit, and not to move a folder away that is whole."""
    with running("-c", OUT_OF_FILES, str(folder)) as child:
        child.wait_for_line(r"refused .*ulimit -n")
        child.wait_for_line("went on")


WRITE_AND_WIPE = """
import sys
from pathlib import Path
from headrace.state.rocksdb import RocksDbStore
store = RocksDbStore(Path(sys.argv[1]))
for n in range(200):
    store.write([(b"last", b"%d" % n), (b"key-%d" % n, b"%d" % n)], checkpoint=b"%d" % n)
    if n == 100:
        store.wipe()
"""


@pytest.mark.parametrize(
    "point",
    [
        "state.rocksdb.before-write:50",
        "state.rocksdb.after-write:50",
        "state.rocksdb.before-rename",
        "state.rocksdb.after-rename",
        "state.rocksdb.before-write:150",
    ],
)
def test_a_killed_process_leaves_data_and_checkpoint_together(point: str, folder: Path) -> None:
    """S6: kill -9 before, between and behind batches and in the middle of wiping: the checkpoint fits the data."""
    with running("-c", WRITE_AND_WIPE, str(folder), environ={CRASH_AT_VARIABLE: point}) as child:
        assert child.wait() == -signal.SIGKILL
    store = RocksDbStore(folder)
    assert store.checkpoint == store.get(b"last")
    keys = store.count(b"key-", b"key-~")
    if store.checkpoint is None:
        assert keys == 0
    else:
        last = int(store.checkpoint)
        assert keys == (last + 1 if last <= 100 else last - 100)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "what was wiped is cleared away"
    store.close()
