"""The front door: `connect()` opens everything an application uses, for one address.

Promises: one setting chooses the tier, and the program stays the same; leaving the block closes everything it opened.
"""

from headrace.app.connection import Headrace, connect
from headrace.app.copy_journals import CopyReport, copy_journals, journal_topics
from headrace.app.nodes import NodePart, RunningNode
from headrace.app.projections import ProjectionHandle, ProjectionStatus

__all__ = [
    "CopyReport",
    "Headrace",
    "NodePart",
    "ProjectionHandle",
    "ProjectionStatus",
    "RunningNode",
    "connect",
    "copy_journals",
    "journal_topics",
]
