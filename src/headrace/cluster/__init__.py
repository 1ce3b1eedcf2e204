"""The ownership of partitions: one node at a time writes to a partition and answers reads of it.

Promises: the partition's log decides who owns it. A write that was acknowledged is never lost, whatever its owner and
its successor do, and nothing that was not committed is ever seen. An owner that was deposed, killed or frozen answers
no read after its successor began to.
Does not promise: that a coordinator's proposal is followed at once; a live owner must release the partition first.
"""

from headrace.cluster.claimant import OwnedPartition
from headrace.cluster.epochs import BatchName, Identity, batch_of, is_reserved
from headrace.cluster.lease import LeaseKeeper, LeaseTerms, ensure_lease_topic, lease_topic, new_process
from headrace.cluster.owner import Committed, Owner, OwnerListener

__all__ = [
    "BatchName",
    "Committed",
    "Identity",
    "LeaseKeeper",
    "LeaseTerms",
    "OwnedPartition",
    "Owner",
    "OwnerListener",
    "batch_of",
    "ensure_lease_topic",
    "is_reserved",
    "lease_topic",
    "new_process",
]
