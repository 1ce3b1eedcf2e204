"""Where a cluster keeps what its nodes share: SQLite on one machine, ZooKeeper, or a topic of the log.

Promises: one port (`CoordinationStore`), the same behaviour from each; `open_coordinator` finds them by address.
"""

from headrace.cluster.coordinators.backends import open_coordinator, open_store

__all__ = ["open_coordinator", "open_store"]
