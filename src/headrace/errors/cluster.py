"""Errors of nodes and of the requests between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused

__all__ = [
    "DuplicateNode",
    "ForeignCluster",
    "NodeListenFailed",
    "NotPartitionOwner",
    "PartitionClosed",
    "RefusedByPeer",
    "WrongGroupSize",
]


@dataclass(eq=False)
class NotPartitionOwner(Refused):
    """This node does not own the partition, and did nothing; `owner` is the node that the log names, or empty."""

    topic: str
    partition: int
    node: str
    owner: str

    def __str__(self) -> str:
        where = f"ask node {self.owner!r}" if self.owner else "nobody is known to own it yet, ask again"
        return f"node {self.node!r} does not own {self.topic}[{self.partition}]; nothing was done: {where}"


@dataclass(eq=False)
class RefusedByPeer(Refused):
    """A handler at another node refused, with an error of the application's own."""

    peer: str
    reason: str
    says: ClassVar[str] = "node {peer!r} refused the request: {reason}"


@dataclass(eq=False)
class PartitionClosed(Refused):
    """The partition was closed for good when its topic was replaced by one with another number of partitions."""

    topic: str
    partition: int
    epoch: int
    says: ClassVar[str] = (
        "{topic}[{partition}] was closed after epoch {epoch}: its topic was replaced; use the topic that replaced it"
    )


@dataclass(eq=False)
class ForeignCluster(Misconfigured):
    """Another cluster owns a partition that this one is configured to own."""

    topic: str
    partition: int
    cluster_id: str
    found_cluster_id: str
    found_node: str
    says: ClassVar[str] = (
        "{topic}[{partition}] is owned by node {found_node!r} of cluster {found_cluster_id!r}, and this is cluster "
        "{cluster_id!r}; give each cluster a name of its own, or, if that one is gone, set cluster.id to its id"
    )


@dataclass(eq=False)
class DuplicateNode(Misconfigured):
    """Another process runs as this node, and was there first."""

    node: str
    process: str
    other_process: str
    says: ClassVar[str] = (
        "node id {node!r} is in use by process {other_process!r}, which was there before this one ({process!r}); "
        "stop that process, or give this node an id of its own"
    )


@dataclass(eq=False)
class NodeListenFailed(Misconfigured):
    """A node can't listen at its address: another process uses it, or it is not an address of this machine."""

    listen: str
    reason: str
    says: ClassVar[str] = (
        "the node can't listen at {listen}: {reason}; stop the process that listens there, or set cluster.listen to "
        "another address (port 0 takes a free one)"
    )


@dataclass(eq=False)
class WrongGroupSize(Misconfigured):
    """A node was started with another number of partitions than its cluster has."""

    group: str
    expected: int
    actual: int
    says: ClassVar[str] = (
        "group {group!r} has {actual} partitions in this cluster, this node was started with {expected}; "
        "start it with {actual}"
    )
