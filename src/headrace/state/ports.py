"""What a state needs from others: a store that keeps the bytes of one partition, and a writer for its changelog.

A store implements `KeyValueStore` and passes `headrace.testing.conformance.KeyValueStoreConformance`;
`open_state_store` finds it by its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

from headrace.model import NewRecord, Position
from headrace.runtime import load_backend

__all__ = ["ChangelogWriter", "KeyValueStore", "StoreWrite", "StoredPair", "open_state_store"]

# A key with its value, or with None to delete it.
StoreWrite: TypeAlias = tuple[bytes, bytes | None]
StoredPair: TypeAlias = tuple[bytes, bytes]


class KeyValueStore(Protocol):
    """Bytes by key, in the order of the keys' bytes, and one checkpoint; local to the process.

    Promises: a batch and its checkpoint are there both or not at all, also after kill -9; after a power cut the newest
    batches may be gone, whole ones and the newest first. Calls answer from memory or the local disk and don't wait for
    anybody else, so they are plain functions.
    Does not promise: that two pages of a scan belong to the same moment; that several threads may use it.
    Every call may raise StateBroken, StateLocked, StateDiskFull, StateOutOfFiles, or Closed after `close`.
    """

    @property
    def checkpoint(self) -> bytes | None:
        """The checkpoint of the last batch; None in a store that was never written to."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        ...

    def write(self, writes: Sequence[StoreWrite], *, checkpoint: bytes) -> None:
        """Put and delete in order, the last write of a key counts, and set the checkpoint: all or nothing."""
        ...

    def scan(self, start: bytes, end: bytes | None, *, limit: int, reverse: bool = False) -> Sequence[StoredPair]:
        """Return up to `limit` pairs with start <= key < end, in order; from the end backwards with `reverse`."""
        ...

    def count(self, start: bytes, end: bytes | None) -> int:
        """Return how many keys lie in start <= key < end."""
        ...

    def wipe(self) -> None:
        """Empty the store and forget the checkpoint. If the process dies meanwhile, the store is whole or empty."""
        ...

    def close(self) -> None:
        """Let go of everything. Raises nothing the second time."""
        ...


class ChangelogWriter(Protocol):
    """The owner of a partition, as its states see it.

    Promises: the records of one commit are visible together or never; an error with `outcome_known` True (or without
    the field) means that none of them ever will be.
    Does not promise: anything after an error with `outcome_known` False. The states are read again then.
    """

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write the records in one transaction; returns where each landed, in order."""
        ...


async def open_state_store(address: str) -> KeyValueStore:
    """Open the store at `address`: `memory:`, `rocksdb:./folder`, or what an installed package serves.

    A store is an entry point of the group `headrace.state`, named by its scheme: an async function of the address.
    """
    open_backend = load_backend("state", address)
    return cast("KeyValueStore", await open_backend(address))
