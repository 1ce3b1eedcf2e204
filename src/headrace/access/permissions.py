"""What callers may do, and how often; and whether only callers of this machine reach an address.

A grant is text: operations, then what they are allowed on, as in `read,append topic/orders-*`. Operations and names may
be `*`; a name may end with `*`. A lone `*` grants everything. Rates are token buckets, one for each caller.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from headrace.errors import BadArgument, Forbidden, RateExceeded

__all__ = [
    "ANONYMOUS",
    "EVERYTHING",
    "Caller",
    "CallerRates",
    "Grant",
    "GrantBook",
    "ResourceKind",
    "host_and_port",
    "is_loopback",
    "parse_grant",
]

ResourceKind: TypeAlias = Literal["topic", "tag", "schema", "keyspace", "engine", "system"]

ANONYMOUS: Final = "anonymous"
_ALL = "*"
_KINDS = frozenset(get_args(ResourceKind))
_OPERATIONS = frozenset({"read", "append", "delete", "purge", "register", "configure", "write", "command"})
_RULE = "a grant is OPERATIONS KIND/NAME, as in 'read,append topic/orders-*', or '*' for everything"

_CALLERS_AT_MOST = 10_000

_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Grant:
    """Operations that are allowed on things of one kind, by name or prefix."""

    operations: frozenset[str]
    kind: str
    name: str

    def allows(self, operation: str, kind: str, name: str) -> bool:
        """Return True if the grant covers the operation on this thing."""
        if self.operations.isdisjoint((operation, _ALL)) or self.kind not in (kind, _ALL):
            return False
        if self.name.endswith(_ALL):
            return name.startswith(self.name[:-1])
        return name == self.name


EVERYTHING: Final = Grant(frozenset({_ALL}), _ALL, _ALL)


def parse_grant(text: str) -> Grant:
    """Return the grant that a text describes. Raises BadArgument."""
    if text.strip() == _ALL:
        return EVERYTHING
    operations, _, resource = text.strip().partition(" ")
    kind, slash, name = resource.strip().partition("/")
    given = frozenset(operation.strip() for operation in operations.split(","))
    if not slash or not name or kind not in _KINDS | {_ALL} or _ALL in name[:-1]:
        raise BadArgument("grant", text, f"{_RULE}; kinds are {', '.join(sorted(_KINDS))}")
    if unknown := given - _OPERATIONS - {_ALL}:
        known = ", ".join(sorted(_OPERATIONS))
        raise BadArgument("grant", text, f"there is no operation {', '.join(sorted(unknown))!r}; known are {known}")
    return Grant(given, kind, name)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and what this caller may do.

    `expires_s` is when its token ends, in Unix time. The anonymous caller has sent no credentials; limits tell it from
    others by its `address`.
    """

    subject: str
    grants: tuple[Grant, ...] = ()
    expires_s: float | None = None
    is_anonymous: bool = False
    address: str = ""

    @property
    def share(self) -> str:
        """Whose share of what is limited the caller uses up."""
        return f"address {self.address}" if self.is_anonymous else f"subject {self.subject}"

    def may(self, operation: str, kind: ResourceKind, name: str) -> bool:
        """Return True if a grant of the caller covers the operation."""
        for grant in self.grants:  # noqa: SIM110 - a generator costs more than the usual single grant
            if grant.allows(operation, kind, name):
                return True
        return False

    def check(self, operation: str, kind: ResourceKind, name: str) -> None:
        """Raise Forbidden unless a grant of the caller covers the operation."""
        if not self.may(operation, kind, name):
            raise Forbidden(f"{operation} {kind} {name!r}", f"{self.subject} has no grant for it")


class GrantBook:
    """The grants of the settings. Raises BadArgument for a grant that can't be understood."""

    def __init__(self, grants: Mapping[str, Sequence[str]], *, has_authentication: bool) -> None:
        self._grants = {who: tuple(parse_grant(text) for text in texts) for who, texts in grants.items()}
        self._has_authentication = has_authentication

    def anonymous(self, address: str = "") -> Caller:
        """Return the caller without credentials: it may do everything only if nobody can have any."""
        if not self._has_authentication:
            return Caller(ANONYMOUS, (EVERYTHING,), is_anonymous=True, address=address)
        return Caller(ANONYMOUS, self._grants.get(ANONYMOUS, ()), is_anonymous=True, address=address)

    def caller(self, subject: str, roles: Iterable[str] = (), *, expires_s: float | None = None) -> Caller:
        """Return an authenticated caller with its own grants, those of its roles, and those of everybody."""
        names = (_ALL, f"subject:{subject}", *(f"role:{role}" for role in roles))
        own = self._grants.get(subject, ()) if self._is_plain(subject) else ()
        return Caller(subject, own + tuple(grant for name in names for grant in self._grants.get(name, ())), expires_s)

    def _is_plain(self, subject: str) -> bool:
        """Return False for a subject that would pass for a role, for everybody or for the anonymous caller."""
        return subject not in (_ALL, ANONYMOUS) and not subject.startswith(("role:", "subject:"))


class CallerRates:
    """A token bucket for each caller. Of more than 10 000 callers, those that were silent longest are forgotten."""

    def __init__(self, per_s: float | None, burst: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._now_s = now_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take_if_free(self, caller: str) -> bool:
        """Count a request; return False, and count nothing, if the caller has used up what it may send."""
        if self._per_s is None:
            return True
        try:
            CallerRates.take(self, caller)
        except RateExceeded:
            return False
        return True

    def take(self, caller: str) -> None:
        """Count a request. Raises RateExceeded if the caller has used up what it may send."""
        if self._per_s is None:
            return
        now_s = self._now_s()
        tokens, at_s = self._buckets.pop(caller, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) * self._per_s)
        is_taken = tokens >= 1
        self._buckets[caller] = (tokens - 1 if is_taken else tokens, now_s)
        while len(self._buckets) > _CALLERS_AT_MOST:
            self._buckets.popitem(last=False)
        if not is_taken:
            raise RateExceeded((1 - tokens) / self._per_s)


def host_and_port(listen: str, setting: str = "gateway.listen") -> tuple[str, int]:
    """Return the parts of HOST:PORT or [HOST]:PORT. Raises BadArgument with the name of the setting."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise BadArgument(setting, listen, "it must be HOST:PORT, as in 127.0.0.1:8080")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the host."""
    return host in _LOOPBACK_HOSTS or host.startswith("127.")
