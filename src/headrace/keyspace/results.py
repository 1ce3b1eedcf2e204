"""What callers get from a keyspace: values with their versions, and the tokens of what they read and wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.model import ConsistencyToken, TokenPlace

__all__ = ["NO_VALUE", "KeyRead", "KeyWritten", "Scattered", "TokenReply"]

NO_VALUE = -1
"""The version of a key that has no value."""


class KeyRead(NamedTuple):
    """A value and its version, and what the copy was worth: everything up to `offset` is in it, as of `age_ms` ago.

    `version` is the offset that the value was written at, -1 if the key has none. `place` is what the token names.
    """

    value: Any
    version: int
    offset: int | None
    age_ms: int | None
    place: TokenPlace | None = None

    @property
    def token(self) -> str:
        """The consistency token of what was read: a read that is given it shows nothing older."""
        return str(ConsistencyToken(() if self.place is None else (self.place,)))


class KeyWritten(NamedTuple):
    """The places of what a write left in the log."""

    places: tuple[TokenPlace, ...]

    @property
    def token(self) -> str:
        """The consistency token for reads that must show the write."""
        return str(ConsistencyToken.of(self.places))


class TokenReply(NamedTuple):
    """The reply to a message, and the consistency token for reads that must show what its handler wrote."""

    reply: Any
    token: str


class Scattered(NamedTuple):
    """What the partitions replied, and the errors of those that did not."""

    replies: Mapping[int, Any]
    failures: Mapping[int, HeadraceError]
