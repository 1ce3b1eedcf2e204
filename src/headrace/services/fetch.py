"""Downloads of packages into the cache, several at a time; archives are unpacked completely or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.errors import FetchFailed, MissingExtra
from headrace.runtime import Backoff
from headrace.services.packages import Cache, Package, locked
from headrace.services.watcher import Watcher

__all__ = ["fetch", "spark_jars", "tar_of", "tar_within_zip", "unpack", "zip_folder"]

Extract = Callable[[Path, Path], None]


def spark_jars(watcher: Watcher, *, cache: Cache | None = None) -> list[Path]:
    """Return the jars that Spark needs in addition to those of the pyspark package, fetching those that are missing."""
    return fetch("spark's jars", locked("spark"), cache=cache or Cache(), watcher=watcher)


def unpack(service: str, package: Package, extract: Extract, *, cache: Cache, watcher: Watcher) -> Path:
    """Return the folder the archive was unpacked into, fetching and unpacking it the first time."""
    folder = cache.unpacked(package)
    if folder.exists():
        return folder
    (archive,) = fetch(service, [package], cache=cache, watcher=watcher)
    with cache.locked(package):
        if not folder.exists():
            watcher.step(f"unpacking {package.file_name}")
            _unpack_whole(archive, folder, extract, cache)
            # Only the folder is used from now on; the archive would double the space.
            archive.unlink(missing_ok=True)
    return folder


def _unpack_whole(archive: Path, folder: Path, extract: Extract, cache: Cache) -> None:
    half = Path(tempfile.mkdtemp(dir=cache.staging()))
    try:
        half.chmod(0o755)
        extract(archive, half)
        folder.parent.mkdir(parents=True, exist_ok=True)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def tar_of(archive: Path, into: Path) -> None:
    """Unpack a tar file, however it is compressed."""
    with tarfile.open(archive) as tar:
        _extract_tar(tar, into)


def tar_within_zip(archive: Path, into: Path) -> None:
    """Unpack the one .txz file of a zip."""
    with zipfile.ZipFile(archive) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(inner) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
            _extract_tar(tar, into)


def _extract_tar(tar: tarfile.TarFile, into: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extractall(into, filter="data")
    else:
        # Early releases of 3.11 have no filters; the content is pinned by its SHA-256.
        tar.extractall(into)  # noqa: S202


def zip_folder(prefix: str) -> Extract:
    """Return a function that unpacks the files of a zip below `prefix` and makes programs executable."""

    def extract(archive: Path, into: Path) -> None:
        with zipfile.ZipFile(archive) as outer:
            for member in outer.infolist():
                path = PurePosixPath(member.filename)
                if member.is_dir() or not path.is_relative_to(prefix) or ".." in path.parts:
                    continue
                target = into / path.relative_to(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                with outer.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                target.chmod(0o755)

    return extract


AT_ONCE = 8
TIMEOUT_S = 60
# Many downloads begin together on an empty cache, and a name server or a repository that is asked so often may answer
# "not now": one such answer would fail everything that needs the server.
ATTEMPTS = 6
# What a repository lacks is not retried as often: it may only have been overloaded, which jgo does not tell apart.
ATTEMPTS_WHEN_LACKING = 3
RETRY = Backoff(first_s=0.5, limit_s=8)
Arrived = Callable[[int], None]


def fetch(service: str, packages: Sequence[Package], *, cache: Cache, watcher: Watcher) -> list[Path]:
    """Make sure that the cache holds the packages; returns their paths in the same order.

    Raises FetchFailed, naming the package, or ChecksumMismatch.
    """
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as threads:
        held = list(threads.map(cache.holds, packages))
        missing = [package for package, is_held in zip(packages, held, strict=True) if not is_held]
        if missing:
            with watcher.fetching(service, missing) as arrived:
                _fetch_all(missing, cache, arrived, threads)
    return [cache.path(package) for package in packages]


def _fetch_all(missing: Sequence[Package], cache: Cache, arrived: Arrived, threads: ThreadPoolExecutor) -> None:
    fetches = [threads.submit(_fetch_one, package, cache, arrived) for package in missing]
    try:
        for one in fetches:
            one.result()
    except BaseException:
        # Downloads that have not begun are dropped: the first failure is the one to report.
        threads.shutdown(wait=True, cancel_futures=True)
        raise


def _fetch_one(package: Package, cache: Cache, arrived: Arrived) -> None:
    with cache.locked(package):
        if cache.holds(package):
            arrived(package.size_bytes)
            return
        for attempt in itertools.count(1):
            counted = _Counted(arrived)
            with tempfile.TemporaryDirectory(dir=cache.staging()) as staging:
                try:
                    cache.admit(_download(package, Path(staging), counted), package)
                    return
                except (OSError, RuntimeError) as error:
                    # requests' errors are OSErrors; jgo says RuntimeError when no repository has the file.
                    if attempt >= _attempts(error):
                        raise FetchFailed(str(package), _in_words(error)) from error
            counted.take_back()
            time.sleep(RETRY.delay_s(attempt))


class _Counted:
    """Reports the bytes of one attempt, and takes them back if it failed."""

    def __init__(self, arrived: Arrived) -> None:
        self._arrived = arrived
        self._bytes = 0

    def __call__(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._arrived(size_bytes)

    def take_back(self) -> None:
        self._arrived(-self._bytes)


def _attempts(error: OSError | RuntimeError) -> int:
    if isinstance(error, RuntimeError):
        return ATTEMPTS_WHEN_LACKING
    # An error of the network has no number, as it is one of requests; with a number it is one of this machine's disk.
    return ATTEMPTS if error.errno is None else 1


def _download(package: Package, into: Path, arrived: Arrived) -> Path:
    @contextmanager
    def progress(_name: str, _total_bytes: int) -> Iterator[Arrived]:
        yield arrived

    context = _repository(into, progress)
    project = context.project(package.group, package.artifact)
    artifact = project.at_version(package.version).artifact(package.classifier, package.extension)
    return Path(context.resolver.download(artifact))


def _repository(into: Path, progress: Callable[..., Any]) -> Any:  # noqa: ANN401 - jgo is untyped here
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise MissingExtra("jgo", "services") from error
    mirror = os.environ.get("HEADRACE_MAVEN_REPOSITORY")
    return MavenContext(
        resolver=PythonResolver(progress_callback=progress),
        repo_cache=into,
        remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
        timeout=TIMEOUT_S,
    )


def _in_words(error: BaseException) -> str:
    if isinstance(error, RuntimeError):
        return "the repository does not have it"
    return f"{type(error).__name__}: {error}"
