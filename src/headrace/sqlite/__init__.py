"""What the embedded backends share: connections in WAL mode, group commit, leases and change notification.

Promises: a commit that returned is on disk (with fsync on); any number of processes of one machine may share a
file; no caller waits for a lock longer than asked.
Does not promise: anything across machines or on network file systems.
"""

from headrace.sqlite.changes import ChangeWatch
from headrace.sqlite.connections import Readers, connect, explain, prepare_file
from headrace.sqlite.group_commit import GroupCommit
from headrace.sqlite.leases import SCHEMA, Lease, Leases

__all__ = ["SCHEMA", "ChangeWatch", "GroupCommit", "Lease", "Leases", "Readers", "connect", "explain", "prepare_file"]
