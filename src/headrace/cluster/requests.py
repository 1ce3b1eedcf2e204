"""Requests to partitions: what travels, who serves them, and what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from headrace.errors import HeadraceError

__all__ = ["Gathered", "PartitionHandler", "PartitionRequest", "PeerPort", "Peers", "TypedRequest"]

T_co = TypeVar("T_co", covariant=True)


class PartitionRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request to the owner of a partition.

    `command_id` makes it safe to repeat; `attempt` is above 1 if an earlier attempt may have been done.
    """

    group: str
    partition: int
    payload: bytes
    command_id: str | None = None
    attempt: int = 1
    is_read: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Return True if doing it twice is as good as once."""
        return self.is_read or self.command_id is not None


PartitionHandler: TypeAlias = Callable[[PartitionRequest, float], Awaitable[bytes]]
"""Serves requests of a group on this node, until a deadline on the loop's clock.

Raises NotPartitionOwner, only for what it never put into a commit.
"""


class PeerPort(Protocol):
    """Another node, as the router needs it."""

    async def call(self, method: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Return the reply."""
        ...


class Peers(Protocol):
    """The other nodes."""

    def peer(self, member: str, address: str) -> PeerPort:
        """Return the connection to a member at its address."""
        ...


class Gathered(NamedTuple):
    """What the partitions of a group replied, and the errors of those that did not."""

    replies: Mapping[int, bytes]
    failures: Mapping[int, HeadraceError]

    def all(self) -> Mapping[int, bytes]:
        """Return the replies. Raises the first partition's error if one failed."""
        for _, error in sorted(self.failures.items()):
            raise error
        return self.replies


class TypedRequest(Protocol[T_co]):
    """A request to the owner of a key that needs no bytes while the owner is in this process."""

    def here(self, deadline_s: float) -> Awaitable[T_co]:
        """Ask this process's own copy, which answers before the deadline on the loop's clock."""
        ...

    def payload(self) -> bytes:
        """Return the request as it travels."""
        ...

    def decoded(self, reply: bytes) -> T_co:
        """Return the reply of an owner elsewhere."""
        ...
