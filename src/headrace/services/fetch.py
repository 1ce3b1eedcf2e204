"""Getting packages into the cache, several at a time, each of them once.

The repository is the one jgo knows, or the mirror named by HEADRACE_MAVEN_REPOSITORY.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import FetchFailed, MissingExtra
from headrace.services.cache import Cache
from headrace.services.packages import Package
from headrace.services.watcher import Watcher

__all__ = ["fetch"]

AT_ONCE = 8
TIMEOUT_S = 60
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
        # What has not begun need not begin: the first failure is the one to report.
        threads.shutdown(wait=True, cancel_futures=True)
        raise


def _fetch_one(package: Package, cache: Cache, arrived: Arrived) -> None:
    with cache.locked(package):
        if cache.holds(package):
            arrived(package.size_bytes)
            return
        with tempfile.TemporaryDirectory(dir=cache.staging()) as staging:
            cache.admit(_download(package, Path(staging), arrived), package)


def _download(package: Package, into: Path, arrived: Arrived) -> Path:
    @contextmanager
    def progress(_name: str, _total_bytes: int) -> Iterator[Arrived]:
        yield arrived

    context = _repository(into, progress)
    project = context.project(package.group, package.artifact)
    artifact = project.at_version(package.version).artifact(package.classifier, package.extension)
    try:
        return Path(context.resolver.download(artifact))
    except (OSError, RuntimeError) as error:
        # requests' errors are OSErrors; jgo says RuntimeError when no repository has the file.
        raise FetchFailed(str(package), _in_words(error)) from error


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
