"""Errors of settings, folders, addresses and servers: what an operator corrects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured

__all__ = [
    "ChecksumMismatch",
    "FetchFailed",
    "FolderUnusable",
    "IncompatibleData",
    "InvalidSettings",
    "MissingExtra",
    "NoServer",
    "NoStore",
    "NothingThere",
    "PortUnusable",
    "ServiceFailed",
    "SettingsProblem",
    "UnknownBackend",
    "UnsupportedPlatform",
]


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """One mistake in the settings: its source, its key, and the problem."""

    source: str
    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.source}: {self.key}: {self.problem}"


@dataclass(eq=False)
class InvalidSettings(Misconfigured):
    """All mistakes of all layers at once, each with its source and key."""

    problems: tuple[SettingsProblem, ...]

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{count} problem{'s' if count != 1 else ''} in the settings:{lines}\ncorrect them and start again"


@dataclass(eq=False)
class MissingExtra(Misconfigured):
    """A driver is not installed."""

    module: str
    extra: str
    says: ClassVar[str] = "{module} is not installed; run: pip install 'headrace[{extra}]'"


@dataclass(eq=False)
class NoStore(Misconfigured):
    """Something of journals on Kafka, on a connection that was given no store."""

    says: ClassVar[str] = (
        "journals on Kafka need a store, and none was named: set store.address, give --store to the command "
        "(--from-store or --to-store to `headrace copy`), or "
        "connect(…, store='cassandra://host/keyspace')"
    )


@dataclass(eq=False)
class UnknownBackend(Misconfigured):
    """No installed package serves that address."""

    room: str
    address: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"no {self.room} backend serves {self.address!r}; known: {', '.join(self.known)}. "
            "Correct the address, or install the package that brings the backend"
        )


@dataclass(eq=False)
class IncompatibleData(Misconfigured):
    """Stored data has a format that this version can't read."""

    path: str
    found: str
    supported: str
    says: ClassVar[str] = (
        "{path} can't be used: found {found}, this version reads {supported}; "
        "install the version that wrote it, or use another address"
    )


@dataclass(eq=False)
class NothingThere(Misconfigured):
    """A command that needs existing data was given a folder without any."""

    what: str
    address: str
    path: str
    command: str
    says: ClassVar[str] = (
        "there is no {what} at {address}: {path} does not exist; correct the address, or create one with: {command}"
    )


@dataclass(eq=False)
class FolderUnusable(Misconfigured):
    """A folder does not exist and can't be created."""

    path: str
    reason: str
    says: ClassVar[str] = (
        "the folder {path} can't be created: {reason}; correct the address, or choose a folder "
        "that this user may write to"
    )


@dataclass(eq=False)
class NoServer(Misconfigured):
    """A command needs servers of `headrace services`, and there are none."""

    state: str
    name: str
    says: ClassVar[str] = "no server {state}; run: headrace services up {name}"


@dataclass(eq=False)
class PortUnusable(Misconfigured):
    """Metrics can't be served at the port: another process uses it, or this user is not allowed to."""

    host: str
    port: int
    reason: str
    says: ClassVar[str] = (
        "metrics can't be served at {host}:{port}: {reason}; stop the process that listens there, or set "
        "observe.metrics_port to another port (0 takes a free one)"
    )


@dataclass(eq=False)
class FetchFailed(Misconfigured):
    """A package could not be fetched."""

    package: str
    reason: str
    says: ClassVar[str] = "cannot fetch {package}: {reason}; check the network and run the command again"


@dataclass(eq=False)
class ChecksumMismatch(Misconfigured):
    """A downloaded file is not the pinned one."""

    path: str
    expected: str
    actual: str
    says: ClassVar[str] = "{path} has SHA-256 {actual}, pinned is {expected}; it was removed, run the command again"


@dataclass(eq=False)
class UnsupportedPlatform(Misconfigured):
    """The machine lacks something that is needed."""

    need: str
    found: str
    next_step: str
    says: ClassVar[str] = "{need} is needed, found {found}; {next_step}"


@dataclass(eq=False)
class ServiceFailed(Misconfigured):
    """A server did not start, or ended."""

    service: str
    reason: str
    log_tail: str

    def __str__(self) -> str:
        tail = f"\nlast lines of its log:\n{self.log_tail}" if self.log_tail else ""
        return f"{self.service} failed: {self.reason}; see: headrace services logs {self.service}{tail}"
