"""Nodes that share partitions: members, their assignment, who owns what, and requests between them.

Promises: the partition's log decides who owns it; a coordinator only proposes and routes. Replicas are on distinct
nodes; nothing moves without need.
"""

from headrace.cluster.coordinator import CoordinationStore, Coordinator
from headrace.cluster.coordinators import open_coordinator
from headrace.cluster.members import AnnouncedOwner, ClusterView, GroupSpec, Holding, MemberFacts, Placement
from headrace.cluster.node import Node
from headrace.cluster.routing import Gathered, PartitionHandler, PartitionRequest, Router

__all__ = [
    "AnnouncedOwner",
    "ClusterView",
    "CoordinationStore",
    "Coordinator",
    "Gathered",
    "GroupSpec",
    "Holding",
    "MemberFacts",
    "Node",
    "PartitionHandler",
    "PartitionRequest",
    "Placement",
    "Router",
    "open_coordinator",
]
