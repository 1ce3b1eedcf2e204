"""What journals count and time."""

from __future__ import annotations

from headrace.observe import counter, histogram

__all__ = ["HEAD_ANSWERS", "HEAD_ENTRIES_DROPPED", "OPERATIONS", "REPLICATED_ROWS", "STRAY_RECORDS", "VOID_ACTIONS"]

OPERATIONS = histogram("journal", "operation", "Time of an operation of a journal.", ["topic", "operation"])
HEAD_ANSWERS = counter("journal", "head_answers", "Answers of the head cache, by kind.", ["topic", "kind"])
HEAD_ENTRIES_DROPPED = counter("journal", "head_evictions", "Keys the full head cache forgot.", ["topic"])
REPLICATED_ROWS = counter("journal", "replicated_rows", "Rows written to the store.", ["topic"])
STRAY_RECORDS = counter("journal", "stray_records", "Records found where their key no longer lives.", ["topic"])
VOID_ACTIONS = counter("journal", "void_actions", "Replicated actions that changed nothing.", ["topic"])
