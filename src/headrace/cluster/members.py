"""What the nodes of a cluster know of one another: members, groups, what each holds, and who owns what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from headrace.errors import BadArgument

__all__ = ["AnnouncedOwner", "ClusterView", "GroupSpec", "Holding", "MemberFacts", "Placement", "Placements"]


# They become parts of paths and keys at the coordinators.
_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,200}")
_ID = re.compile(r"(?!\.+$)[A-Za-z0-9.:_\[\]-]{1,200}")


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A keyspace or an engine: N partitions, each on `replicas` nodes, one of which owns it."""

    name: str
    partitions: int
    replicas: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadArgument("group", self.name, "the name of a group is 1 to 200 letters, digits, '.', '_' and '-'")
        if self.partitions < 1:
            raise BadArgument("partitions", self.partitions, "a group has at least one")
        if self.replicas < 1:
            raise BadArgument("replicas", self.replicas, "each partition is on at least one node")


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one partition that a member has: how far its checkpoint is, and whether it has caught up.

    `epoch` is above 0 at the partition's owner, once it serves; a higher epoch replaces a lower one.
    """

    group: str
    partition: int
    offset: int = -1
    is_online: bool = False
    epoch: int = 0


class MemberFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a member tells the others. `incarnation` differs each time that its process starts.

    `process` is what its machine calls the process (`headrace.runtime.process_name`), or empty: when it has ended, its
    successor on that machine need not wait until the session is over.
    """

    id: str
    incarnation: str
    address: str
    weight: float = 1.0
    groups: tuple[GroupSpec, ...] = ()
    holdings: tuple[Holding, ...] = ()
    process: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise BadArgument("node_id", self.id, "an id is 1 to 200 letters, digits, '.', ':', '_', '-', '[' and ']'")
        if not 0 < self.weight < 1e9:
            raise BadArgument("weight", self.weight, "a member's weight is above 0")


class AnnouncedOwner(msgspec.Struct, frozen=True):
    """Who serves a partition, as announced after it took over; a higher epoch replaces a lower one."""

    member: str
    epoch: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one partition shall be. The first replica is proposed as its owner, the others in the order of rank.

    `awaited` are members whose place is kept while they are away for a short time. `leaving` is a replica that goes as
    soon as it is not needed any more. `epoch` is the owner's when the first replica was chosen.
    """

    replicas: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    leaving: str | None = None
    epoch: int = 0


Placements: TypeAlias = tuple[Placement, ...]
"""The placement of each partition of a group, by its number."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of its cluster.

    `is_old` is True while the coordinator does not answer: owners and routes are still good until an owner says
    otherwise, and nothing moves. `cluster_id` is given to the cluster by its first leader.
    """

    revision: int = 0
    cluster_id: str = ""
    members: Mapping[str, MemberFacts] = {}
    groups: Mapping[str, GroupSpec] = {}
    placements: Mapping[str, Placements] = {}
    owners: Mapping[str, Mapping[int, AnnouncedOwner]] = {}
    draining: frozenset[str] = frozenset()
    moves: Mapping[str, Mapping[int, str]] = {}
    leader: str | None = None
    is_old: bool = False

    def owner_of(self, group: str, partition: int) -> str | None:
        """Return the member to ask: the announced owner if it is there, else the proposed one."""
        announced = self.owners.get(group, {}).get(partition)
        if announced is not None and announced.member in self.members:
            return announced.member
        placements = self.placements.get(group, ())
        if partition >= len(placements):
            return None
        return next((each for each in placements[partition].replicas if each in self.members), None)
