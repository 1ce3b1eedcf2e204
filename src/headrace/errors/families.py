"""The families of errors, by what the caller can do about them, and the errors that every room raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = [
    "BadArgument",
    "Busy",
    "Closed",
    "ContextEnded",
    "FileUnusable",
    "Forbidden",
    "HeadraceError",
    "Misconfigured",
    "NotGiven",
    "OperationFailed",
    "ReadOnlyHandle",
    "Refused",
    "TimedOut",
    "Unavailable",
    "Unreachable",
    "WorkerFailed",
    "outcome_text",
]


def _rebuild(kind: type[HeadraceError], fields: Mapping[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    return error


class HeadraceError(Exception):
    """The root of all errors that Headrace raises on purpose."""

    says: ClassVar[str] = "Headrace failed"

    def __str__(self) -> str:
        return self.says.format_map(vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(vars(self)))


class Refused(HeadraceError):
    """The request is wrong as it stands; sending it again unchanged will be refused again."""


class Unavailable(HeadraceError):
    """Something is not available; a retry may work. Nothing was done unless `outcome_known` is False."""

    outcome_known: bool = True


class Misconfigured(HeadraceError):
    """An operator must act; the message ends with what to do."""


def outcome_text(outcome_known: bool) -> str:
    """Return what is known of a request that failed."""
    return "nothing was done" if outcome_known else "it may or may not have happened"


@dataclass(eq=False)
class BadArgument(Refused):
    """A value that no call accepts."""

    name: str
    value: object
    rule: str
    says: ClassVar[str] = "{name} is {value!r}, but {rule}"


@dataclass(eq=False)
class NotGiven(Refused):
    """A call or a command that lacks something it needs."""

    name: str
    rule: str
    says: ClassVar[str] = "{name} is not given: {rule}"


@dataclass(eq=False)
class Forbidden(Refused):
    """The server refuses this user the operation."""

    operation: str
    reason: str
    says: ClassVar[str] = "not allowed to {operation}: {reason}; grant it or use other credentials"


@dataclass(eq=False)
class ReadOnlyHandle(Refused):
    """A write was tried through something that was opened read-only."""

    operation: str
    what: str
    says: ClassVar[str] = "cannot {operation}: {what} was opened read-only; open it without read_only to write"


@dataclass(eq=False)
class Closed(Refused):
    """Something was used after it was closed."""

    what: str
    says: ClassVar[str] = "{what} is closed; open a new one"


@dataclass(eq=False)
class ContextEnded(Refused):
    """The context of a handler was used after the handler had returned or failed: nothing of it would take effect."""

    handler: str
    call: str
    says: ClassVar[str] = (
        "{call} comes after {handler} has ended, and does nothing; await everything that a handler starts before it "
        "returns"
    )


@dataclass(eq=False)
class Unreachable(Unavailable):
    """No server answers at the address."""

    address: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        tail = outcome_text(self.outcome_known)
        return f"cannot reach {self.address}: {self.reason}; {tail}. Is the server up, and the address right?"


@dataclass(eq=False)
class FileUnusable(Unavailable):
    """A file of this machine can't be read or written: permissions, a full disk, or a failing disk."""

    path: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        done = outcome_text(self.outcome_known)
        return f"cannot use {self.path}: {self.reason}; {done}. Check the file's permissions, and the space on its disk"


@dataclass(eq=False)
class TimedOut(Unavailable):
    """The operation did not finish in time."""

    operation: str
    timeout_s: float
    outcome_known: bool = True

    def __str__(self) -> str:
        return f"{self.operation} did not finish within {self.timeout_s:g} s; {outcome_text(self.outcome_known)}"


@dataclass(eq=False)
class OperationFailed(Unavailable):
    """The operation failed with an error that has no class of its own here."""

    operation: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        return f"{self.operation} failed: {self.reason}; {outcome_text(self.outcome_known)}"


@dataclass(eq=False)
class Busy(Unavailable):
    """As many requests are in flight as may be; this one was not taken."""

    what: str
    limit: int
    says: ClassVar[str] = "{what} has {limit} requests in flight and takes no more; nothing was done, try again later"


@dataclass(eq=False)
class WorkerFailed(Unavailable):
    """A worker failed for good, or was never started."""

    worker: str
    reason: str
    says: ClassVar[str] = "worker {worker!r} failed: {reason}"
