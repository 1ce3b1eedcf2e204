"""Real servers for benches, with their data on the bench's own disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.harness import Stage
from headrace.services import RunningService, start
from headrace.services.packages import Package
from headrace.services.watcher import Quiet

__all__ = ["server"]


class Steps(Quiet):
    """Reports to the bench's watcher what a start is waiting for."""

    def __init__(self, stage: Stage) -> None:
        self._notify = stage.tell

    def step(self, text: str) -> None:
        """Pass the step on."""
        self._notify(text)

    @contextmanager
    def fetching(self, service: str, packages: Sequence[Package]) -> Iterator[Callable[[int], None]]:
        """Report that a fetch has begun, and its size."""
        size = sum(package.size_bytes for package in packages) / 1e6
        self._notify(f"fetching {service}: {len(packages)} files, {size:.0f} MB")
        yield lambda _size: None


@contextmanager
def server(name: str, stage: Stage) -> Iterator[RunningService]:
    """Start one server of the service; it is stopped, and its data gone, when the bench is over."""
    with start(name, data_dir=stage.folder / name, watcher=Steps(stage)) as running:
        yield running
