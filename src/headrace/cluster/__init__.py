"""Nodes that share partitions: members, their assignment, the ownership of partitions, and requests between nodes.

Promises: the partition's log decides which node owns it; a coordinator only proposes and routes. A write that was
acknowledged is never lost, whatever its owner and its successor do, and nothing that was not committed is ever seen. An
owner that was deposed, killed or frozen answers no read after its successor began to. Replicas are on distinct nodes;
nothing moves without need.
Does not promise: that a coordinator's proposal is followed at once; a live owner must release the partition first.
"""

from headrace.cluster.claimant import OwnedPartition
from headrace.cluster.coordinator import CoordinationStore, Coordinator
from headrace.cluster.coordinators import open_coordinator
from headrace.cluster.epochs import Identity, batch_of, seed_records
from headrace.cluster.hosted_partition import HostedGroup, PartitionHost
from headrace.cluster.hosting import HostingNode
from headrace.cluster.lease import LeaseKeeper, new_process
from headrace.cluster.lease_length import LeaseTerms
from headrace.cluster.lease_watch import ensure_lease_topic, lease_topic
from headrace.cluster.members import AnnouncedOwner, ClusterView, GroupSpec, Holding, MemberFacts, Placement
from headrace.cluster.node import Node
from headrace.cluster.owner import Committed, Owner, OwnerListener
from headrace.cluster.requests import Gathered, PartitionHandler, PartitionRequest, TypedRequest
from headrace.cluster.routing import Router
from headrace.cluster.takeover import PartitionTakeover
from headrace.cluster.transport import grpc_library, server_credentials, server_options

__all__ = [
    "AnnouncedOwner",
    "ClusterView",
    "Committed",
    "CoordinationStore",
    "Coordinator",
    "Gathered",
    "GroupSpec",
    "Holding",
    "HostedGroup",
    "HostingNode",
    "Identity",
    "LeaseKeeper",
    "LeaseTerms",
    "MemberFacts",
    "Node",
    "OwnedPartition",
    "Owner",
    "OwnerListener",
    "PartitionHandler",
    "PartitionHost",
    "PartitionRequest",
    "PartitionTakeover",
    "Placement",
    "Router",
    "TypedRequest",
    "batch_of",
    "ensure_lease_topic",
    "grpc_library",
    "lease_topic",
    "new_process",
    "open_coordinator",
    "seed_records",
    "server_credentials",
    "server_options",
]
