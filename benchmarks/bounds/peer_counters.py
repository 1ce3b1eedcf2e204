"""The counters of the engine benches, on PyPI's `eventsourcing`: get the aggregate, change it, save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from benchmarks.harness import BenchFailed

__all__ = ["PeerCounters", "postgres_environment", "sqlite_environment"]


class PeerCounter(Aggregate):
    """How often a counter was incremented."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    @staticmethod
    def create_id(name: str) -> UUID:
        """Return the id of a counter by its name."""
        return uuid5(NAMESPACE_URL, name)

    @event("Incremented")
    def increment(self, text: str) -> None:
        """Count one more, and keep the text in the event."""
        self.count += 1


class PeerCounters(Application[UUID]):
    """All counters. Aggregates are kept in memory, so that a command costs one look for newer events and one insert."""

    def __init__(self, environment: Mapping[str, str], names: Sequence[str], *, threads: int) -> None:
        super().__init__({"AGGREGATE_CACHE_MAXSIZE": str(2 * len(names)), **environment})
        self._ids = {name: PeerCounter.create_id(name) for name in names}
        self._shares = [names[nr::threads] for nr in range(threads)]
        self._threads = ThreadPoolExecutor(threads)
        for name in names:
            self.save(PeerCounter(name))

    def increment_all(self, text: str, count: int) -> int:
        """Send `count` commands, going round the counters; each thread has counters of its own, so none conflict."""
        each = count // len(self._shares)
        done = sum(self._threads.map(lambda names: self._increment_some(names, text, each), self._shares))
        if done != each * len(self._shares):
            raise BenchFailed(f"{done} of {count} commands were done")
        return done

    def close(self) -> None:
        """End the threads, and close the database."""
        self._threads.shutdown()
        super().close()

    def _increment_some(self, names: Sequence[str], text: str, count: int) -> int:
        for nr in range(count):
            counter: PeerCounter = self.repository.get(self._ids[names[nr % len(names)]])
            counter.increment(text)
            self.save(counter)
        return count


def sqlite_environment(path: Path) -> dict[str, str]:
    """Return the settings for a database file."""
    return {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}


def postgres_environment(url: str) -> dict[str, str]:
    """Return the settings for a server."""
    at = urlsplit(url)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": at.path.lstrip("/") or "postgres",
        "POSTGRES_HOST": at.hostname or "127.0.0.1",
        "POSTGRES_PORT": str(at.port or 5432),
        "POSTGRES_USER": at.username or "postgres",
        "POSTGRES_PASSWORD": at.password or "trusted",
    }
