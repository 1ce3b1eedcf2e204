"""The blocking API: the same names as `headrace.connect` gives, for scripts, notebooks and threads.

    with headrace.sync.connect("embedded:./data") as hr:
        accounts = hr.journal("accounts")
        accounts.append("acc-1", [Event(1, {"opened": 100})])
        for event in accounts.read("acc-1"): ...

Promises: the behaviour of the asynchronous calls, on an event loop in a thread of its own; safe from several threads.
"""

from headrace.sync.facade import (
    SyncHeadrace,
    SyncJournal,
    SyncLog,
    SyncProjection,
    SyncRegistry,
    SyncSnapshots,
    connect,
)
from headrace.sync.nodes import SyncAggregate, SyncEngine, SyncKeyspace, SyncNode

__all__ = [
    "SyncAggregate",
    "SyncEngine",
    "SyncHeadrace",
    "SyncJournal",
    "SyncKeyspace",
    "SyncLog",
    "SyncNode",
    "SyncProjection",
    "SyncRegistry",
    "SyncSnapshots",
    "connect",
]
