"""The front door: `connect()` puts the rooms together for one address.

Promises: one setting chooses the tier, the program stays the same; leaving the block closes everything it opened.
"""

from headrace.app.connecting import Headrace, connect
from headrace.app.copying import CopyReport, copy_journals
from headrace.app.projecting import ProjectionHandle, ProjectionStatus

__all__ = ["CopyReport", "Headrace", "ProjectionHandle", "ProjectionStatus", "connect", "copy_journals"]
