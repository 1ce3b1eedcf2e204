"""What an engine needs of a cluster: the owner of a partition, and the way to the owners of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.cluster import Committed
from headrace.engine.commands import Answer, CommandRequest
from headrace.model import NewRecord

__all__ = ["EngineRouter", "PartitionOwner"]


class PartitionOwner(Protocol):
    """What a partition needs of its `headrace.cluster.Owner`."""

    @property
    def owner(self) -> str:
        """The node that the log names as the owner."""
        ...

    async def commit(self, records: Sequence[NewRecord]) -> Committed:
        """Write a batch in one transaction."""
        ...

    def may_serve(self) -> bool:
        """Return True if a read may be answered now."""
        ...

    async def serve_gate(self, *, timeout_s: float) -> None:
        """Wait until a read may be answered."""
        ...

    def may_reply(self, committed: Committed) -> bool:
        """Return True if the answers to a batch may leave now."""
        ...

    async def reply_gate(self, committed: Committed) -> None:
        """Wait until the answers to a batch may leave."""
        ...


class EngineRouter(Protocol):
    """What a client needs of the cluster's Router: requests reach the owner of a key, wherever it is."""

    def partition(self, group: str, key: bytes) -> int:
        """Return the partition of a key."""
        ...

    async def send(self, partition: int, request: CommandRequest, *, timeout_s: float | None) -> Answer:
        """Return the owner's answer to a command."""
        ...

    async def ask(
        self,
        group: str,
        key: bytes,
        payload: bytes,
        *,
        command_id: str | None = None,
        is_read: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the owner's reply."""
        ...
