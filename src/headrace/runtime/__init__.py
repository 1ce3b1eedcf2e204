"""What keeps a process running and lets it end well: clock, back-off, supervised workers, signals, crash points.

Promises: a worker's crash is logged, counted and followed by a restart or an error, never by silence; the
first signal asks for an orderly stop and the second ends the process; a crash point that is not armed costs
almost nothing.
"""

from headrace.runtime.backoff import Backoff, Lookout
from headrace.runtime.clock import SYSTEM_CLOCK, BootMoment, BootTime, Clock, SystemClock, elapsed_ms, moment_of
from headrace.runtime.crash_points import CRASH_AT_VARIABLE, CRASH_FILE_VARIABLE, crash_point, watching
from headrace.runtime.failures import (
    EXITS,
    OWNERS_TRIED,
    error_text,
    is_suspect,
    is_tried_alone,
    own_text,
    suspect_text,
)
from headrace.runtime.loop_thread import BlockingIterator, LoopThread
from headrace.runtime.plugins import folder_of, load_backend, load_named
from headrace.runtime.processes import has_ended, process_name, raise_open_files, rare_collections, shutdown_on_signals
from headrace.runtime.workers import Supervisor, Worker, in_thread

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
