"""The console: a page on what the gateway serves, for people who operate it.

Promises: everything that the page shows or does has a route that programs can use as well; a caller sees and does only
what its grants allow; nothing is loaded from elsewhere, and nothing that users wrote is run. What can't be asked at the
moment is said to be unknown, and never shown as well.
Does not promise: more than an hour of charts, or charts that outlive the process; rates of engines that run elsewhere.
"""

from headrace.gateway.console.ports import (
    ConsoleOutbox,
    ConsoleParts,
    ConsoleQuarantine,
    ConsoleTopics,
    JournalLine,
    LogTopics,
    PartitionOffsets,
    TopicFacts,
)
from headrace.gateway.console.recorder import ConsoleRecorder
from headrace.gateway.console.routes import ConsoleRoutes

__all__ = [
    "ConsoleOutbox",
    "ConsoleParts",
    "ConsoleQuarantine",
    "ConsoleRecorder",
    "ConsoleRoutes",
    "ConsoleTopics",
    "JournalLine",
    "LogTopics",
    "PartitionOffsets",
    "TopicFacts",
]
