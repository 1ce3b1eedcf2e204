"""What keeps a process running and lets it end well: clock, back-off, supervised workers, signals, crash points.

Promises: a worker's crash is logged, counted and followed by a restart or an error, never by silence; the
first signal asks for an orderly stop and the second ends the process; a crash point that is not armed costs
almost nothing.
"""

from headrace.runtime.backoff import Backoff
from headrace.runtime.clock import SYSTEM_CLOCK, BootMoment, BootTime, Clock, SystemClock, elapsed_ms, moment_of
from headrace.runtime.crash_points import CRASH_AT_VARIABLE, CRASH_FILE_VARIABLE, crash_point, watching
from headrace.runtime.error_texts import EXITS, error_text, own_text
from headrace.runtime.garbage import rare_collections
from headrace.runtime.lookout import Lookout
from headrace.runtime.loop_thread import BlockingIterator, LoopThread
from headrace.runtime.open_files import raise_open_files
from headrace.runtime.plugins import folder_of, load_backend, load_named
from headrace.runtime.processes import has_ended, process_name
from headrace.runtime.signals import shutdown_on_signals
from headrace.runtime.suspects import OWNERS_TRIED, is_suspect, is_tried_alone, suspect_text
from headrace.runtime.threads import in_thread
from headrace.runtime.workers import Supervisor, Worker

__all__ = [
    "CRASH_AT_VARIABLE",
    "CRASH_FILE_VARIABLE",
    "EXITS",
    "OWNERS_TRIED",
    "SYSTEM_CLOCK",
    "Backoff",
    "BlockingIterator",
    "BootMoment",
    "BootTime",
    "Clock",
    "Lookout",
    "LoopThread",
    "Supervisor",
    "SystemClock",
    "Worker",
    "crash_point",
    "elapsed_ms",
    "error_text",
    "folder_of",
    "has_ended",
    "in_thread",
    "is_suspect",
    "is_tried_alone",
    "load_backend",
    "load_named",
    "moment_of",
    "own_text",
    "process_name",
    "raise_open_files",
    "rare_collections",
    "shutdown_on_signals",
    "suspect_text",
    "watching",
]
